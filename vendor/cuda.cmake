# Sets up CUDA for ggml: compiler, libraries, architectures and driver. The error for a missing part names the command
# that installs it. Include this file after options.cmake, with GGML_CUDA on, before llama.cpp's directory is added.

option(PYMTP_CUDA_WHEELS "take the CUDA toolkit from the nvidia-* wheels that Python sees" OFF)
set(with_wheels "or take it from the index:\n  PYMTP_CUDA_WHEELS=1 pip install '.[cuda]'")

if(PYMTP_CUDA_WHEELS)
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)
  execute_process(COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/cuda_wheels.py ${PROJECT_BINARY_DIR}/cuda
    RESULT_VARIABLE failed ERROR_VARIABLE message)
  if(failed)
    message(FATAL_ERROR "There is no CUDA toolkit to take from wheels.\n${message}")
  endif()
  set(CMAKE_CUDA_COMPILER ${PROJECT_BINARY_DIR}/cuda/bin/nvcc)
else()
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    message(FATAL_ERROR "GGML_CUDA is on, but there is no CUDA compiler (nvcc). Mend it: install the CUDA toolkit "
      "(https://developer.nvidia.com/cuda-downloads) and name its compiler:\n"
      "  CUDACXX=/usr/local/cuda/bin/nvcc CMAKE_ARGS=-DGGML_CUDA=on pip install .\n${with_wheels}")
  endif()
endif()

# ── Architectures: those of this machine's GPUs, unless the user names others ─────────────────────────────────────────

set(named ON)
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  set(named OFF)
  set(CMAKE_CUDA_ARCHITECTURES native)
endif()
enable_language(CUDA)
if(CMAKE_CUDA_ARCHITECTURES STREQUAL "native" AND NOT CMAKE_CUDA_ARCHITECTURES_NATIVE MATCHES "^[0-9]")
  if(named)
    message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES is native, but this machine has no GPU. Mend it: name the "
      "architecture of the GPU that is meant, or several:\n"
      "  CMAKE_ARGS=\"-DGGML_CUDA=on -DCMAKE_CUDA_ARCHITECTURES=86;90\" pip install .")
  endif()
  # Compile machine code for A100 (80), RTX 3000 (86), RTX 4000 (89), H100 and H200 (90) and RTX 5000 (120). For other
  # GPUs, the driver compiles the intermediate code of 75 or 90 when the program first runs.
  set(CMAKE_CUDA_ARCHITECTURES 75-virtual 80-real 86-real 89-real 90)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13)
    list(PREPEND CMAKE_CUDA_ARCHITECTURES 61-virtual 70-virtual)
  endif()
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
    list(APPEND CMAKE_CUDA_ARCHITECTURES 120a-real)
  endif()
  message(NOTICE "No GPU on this machine: compiling for ${CMAKE_CUDA_ARCHITECTURES}. It takes a fraction of the time to "
    "name one: CMAKE_ARGS=-DCMAKE_CUDA_ARCHITECTURES=90")
endif()

# ── Libraries ─────────────────────────────────────────────────────────────────────────────────────────────────────────

if(UNIX AND NOT GGML_CUDA_NO_VMM)
  add_library(pymtp_cuda_driver STATIC ${CMAKE_CURRENT_LIST_DIR}/cuda_driver.cpp)
  add_library(CUDA::cuda_driver ALIAS pymtp_cuda_driver) # keeps find_package(CUDAToolkit) from defining this target
endif()
find_package(CUDAToolkit QUIET)
if(NOT TARGET CUDA::cublas)
  message(FATAL_ERROR "GGML_CUDA is on, but there is no cuBLAS beside ${CMAKE_CUDA_COMPILER}. Mend it:\n"
    "  Debian, Ubuntu: apt install libcublas-dev-${CUDAToolkit_VERSION_MAJOR}-${CUDAToolkit_VERSION_MINOR}\n"
    "${with_wheels}")
endif()
if(TARGET pymtp_cuda_driver)
  target_include_directories(pymtp_cuda_driver SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_compile_features(pymtp_cuda_driver PRIVATE cxx_std_17)
  target_link_libraries(pymtp_cuda_driver PRIVATE ${CMAKE_DL_LIBS})
endif()
option(GGML_CUDA_NCCL "ggml: use NVIDIA Collective Comm. Library" OFF) # else ggml uses NCCL if this machine has it
