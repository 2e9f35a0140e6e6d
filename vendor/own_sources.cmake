# Compiles our own sources, which the hooks in patches/ call, into llama.cpp's libraries: graphs/ into llama and
# kernels/ into ggml-cpu, each with the compiler options of its library. Include this file after llama.cpp's directory
# was added.

set(PYMTP_NATIVE ${CMAKE_CURRENT_LIST_DIR}/../pymtp/native)

file(GLOB pymtp_graphs  CONFIGURE_DEPENDS ${PYMTP_NATIVE}/graphs/*.cpp)
file(GLOB pymtp_kernels CONFIGURE_DEPENDS ${PYMTP_NATIVE}/kernels/*.cpp ${PYMTP_NATIVE}/kernels/*/*.cpp)

# The directory of graphs/ is PUBLIC, because all code that includes llama.cpp's internal headers, such as the runtime,
# needs the declarations of the hooks.
target_sources(llama PRIVATE ${pymtp_graphs})
target_include_directories(llama PUBLIC ${PYMTP_NATIVE}/graphs)
target_sources(ggml-cpu PRIVATE ${pymtp_kernels})
target_include_directories(ggml-cpu PRIVATE ${PYMTP_NATIVE}/kernels)
if(WIN32)
  target_link_libraries(ggml-cpu PRIVATE synchronization) # WaitOnAddress
endif()
if(TARGET ggml-cuda)
  target_include_directories(ggml-cuda PRIVATE ${PYMTP_NATIVE}/kernels/cuda)
endif()
if(TARGET ggml-vulkan AND Vulkan_VERSION VERSION_LESS 1.3.272)
  target_include_directories(ggml-vulkan BEFORE PRIVATE ${PYMTP_NATIVE}/kernels/vulkan)
endif()

# The vision encoder of tools/mtmd. absent_graphs.cpp stands in for the graphs of other projectors.
set(mtmd ${CMAKE_CURRENT_LIST_DIR}/llama.cpp/tools/mtmd)
add_library(pymtp-mtmd STATIC EXCLUDE_FROM_ALL
  ${mtmd}/clip.cpp ${mtmd}/mtmd-image.cpp ${mtmd}/models/qwen2vl.cpp ${mtmd}/models/qwen3vl.cpp
  ${PYMTP_NATIVE}/projector/absent_graphs.cpp)
target_include_directories(pymtp-mtmd PUBLIC ${mtmd})
target_link_libraries(pymtp-mtmd PRIVATE llama ggml)
target_compile_features(pymtp-mtmd PRIVATE cxx_std_17)

# A failed assertion throws an exception (pymtp/native/runtime/api_guard.h), which passes through ggml's C code, too.
# ggml.cpp is left out, because it only installs a handler that starts a debugger when the program terminates.
get_target_property(ggml_sources ggml-base SOURCES)
list(FILTER ggml_sources EXCLUDE REGEX "(^|/)ggml\\.cpp$")
set_target_properties(ggml-base PROPERTIES SOURCES "${ggml_sources}")

if(NOT MSVC)
  foreach(target ggml-base ggml-cpu)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C>:-fexceptions>)
  endforeach()
  set_source_files_properties(${pymtp_graphs} ${pymtp_kernels}
    TARGET_DIRECTORY llama ggml-cpu PROPERTIES COMPILE_OPTIONS "-Wall;-Wextra")
endif()

# PYMTP_EMULATED_AMX is a header that replaces the AMX instructions, to test the AMX code on a processor without AMX
# (tools/checks/builds.py).
if(PYMTP_EMULATED_AMX)
  get_target_property(ggml_cpu_directory ggml-cpu SOURCE_DIR)
  file(GLOB amx_sources ${ggml_cpu_directory}/ggml-cpu/amx/*.cpp)
  set_source_files_properties(${amx_sources}
    TARGET_DIRECTORY ggml-cpu PROPERTIES COMPILE_OPTIONS "-include;${PYMTP_EMULATED_AMX}")
endif()
