# Libraries from the distribution (or from prefixes given by CMAKE_PREFIX_PATH, ucx_ROOT, ...). Nothing is downloaded.
find_package(Threads REQUIRED)
find_package(Boost 1.74 REQUIRED)        # Asio: headers only
find_package(ucx CONFIG REQUIRED)        # 1.13 or newer: ucx::ucp, ucx::ucs
find_package(OpenSSL REQUIRED)           # HMAC
find_package(PkgConfig REQUIRED)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)  # portable SIMD
find_path(RANDOM123_INCLUDE_DIR Random123/philox.h REQUIRED)
find_package(nlohmann_json 3.10 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(spdlog REQUIRED)

# CUDA is optional; cuda/ says what it is used for.
if(NOT TERSUM_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "TERSUM_CUDA is '${TERSUM_CUDA}': use AUTO, ON or OFF")
elseif(TERSUM_CUDA STREQUAL "ON")
  find_package(CUDAToolkit REQUIRED)
elseif(TERSUM_CUDA STREQUAL "AUTO")
  find_package(CUDAToolkit QUIET)
endif()
if(CUDAToolkit_FOUND)
  if(NOT CMAKE_CUDA_COMPILER AND CUDAToolkit_NVCC_EXECUTABLE)
    set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
  endif()
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90 CACHE STRING "Compute capabilities of the GPU code; PTX comes along")
  endif()
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc can do C++20
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
endif()
