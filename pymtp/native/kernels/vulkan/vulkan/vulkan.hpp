// In the place of <vulkan/vulkan.hpp> where that is older than 1.3.272: with what ggml-vulkan names of VK_EXT_layer_settings
// without asking for it. It fills these structures in always, and Vulkan reads them only where the extension is there.
// Their layout is that of the registry (vk.xml).

#pragma once
#include_next <vulkan/vulkan.hpp>

#ifndef VK_EXT_layer_settings
#include <cstdint>
#include <vector>

namespace vk {

enum class LayerSettingTypeEXT { eBool32 = 0 };

struct LayerSettingEXT {
    const char *        pLayerName;
    const char *        pSettingName;
    LayerSettingTypeEXT type;
    uint32_t            valueCount;
    const void *        pValues;
};

struct LayerSettingsCreateInfoEXT {
    explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT> & settings)
        : settingCount(uint32_t(settings.size())), pSettings(settings.data()) {}

    VkStructureType         sType = VkStructureType(1000496000); // VK_STRUCTURE_TYPE_LAYER_SETTINGS_CREATE_INFO_EXT
    const void *            pNext = nullptr;
    uint32_t                settingCount;
    const LayerSettingEXT * pSettings;
};

} // namespace vk
#endif
