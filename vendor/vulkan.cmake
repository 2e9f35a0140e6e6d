# Sets up Vulkan for ggml: headers, loader and shader compiler. The error for a missing part names the command that
# installs it. Include this file after options.cmake, with GGML_VULKAN on, before llama.cpp's directory is added.

find_package(Vulkan QUIET COMPONENTS glslc)
find_package(SPIRV-Headers CONFIG QUIET)
if(NOT Vulkan_FOUND OR NOT Vulkan_glslc_FOUND OR NOT SPIRV-Headers_FOUND)
  message(FATAL_ERROR "GGML_VULKAN is on, but there is no Vulkan to build with: its headers and loader, glslc and the "
    "headers of SPIR-V are needed. Mend it:\n"
    "  Debian, Ubuntu: apt install libvulkan-dev glslc spirv-headers\n"
    "  Fedora: dnf install vulkan-devel glslc spirv-headers-devel\n"
    "or install the Vulkan SDK (https://vulkan.lunarg.com) and set VULKAN_SDK")
endif()
