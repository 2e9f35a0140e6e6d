# Options of llama.cpp's build: static libraries that export nothing, and only ggml and llama, unless more is asked for.
# Used by CMakeLists.txt, and by tools/bench/llama-bench and tools/bench/llama-server, so that these programs can be
# compared with pymtp.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(LLAMA_BUILD_NUMBER 0)
set(GIT_EXE OFF) # else ggml would report the commit of our repository as its own
set(BUILD_SHARED_LIBS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared) # as ggml-cuda links it: two CUDA runtimes in one process share no state
foreach(part COMMON TESTS TOOLS EXAMPLES SERVER APP)
  set(LLAMA_BUILD_${part} OFF)
endforeach()
set(LLAMA_OPENSSL OFF)
set(LLAMA_ALL_WARNINGS OFF) # warnings are only enabled for our own sources
set(GGML_CCACHE OFF)
