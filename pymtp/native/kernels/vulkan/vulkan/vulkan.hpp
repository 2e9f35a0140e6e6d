// Replaces <vulkan/vulkan.hpp> where the installed headers are older than 1.3.272. It adds the parts of
// VK_EXT_layer_settings that ggml-vulkan uses. ggml-vulkan always fills in these structures, and Vulkan reads them only
// if the extension is there. Their layout is that of the registry (vk.xml).

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
