# How llama.cpp is built: static libraries that keep to themselves, and nothing but ggml and llama unless asked for.
# For CMakeLists.txt, and for tools/bench/llama-bench and tools/bench/llama-server, which are to be compared with it.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(LLAMA_BUILD_NUMBER 0)
set(GIT_EXE OFF) # ggml would compile in the commit of the repository around it, which is ours
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
set(LLAMA_ALL_WARNINGS OFF) # only our own sources are held to warnings
set(GGML_CCACHE OFF)
