// The CUDA driver's functions that ggml-cuda's memory pools call, for a module that must load where there is no driver.
//
// Linked against libcuda.so.1, it would not: the driver comes with the GPU, not with the toolkit or the wheels. So the
// driver is looked for at the first call; ggml-cuda makes none before the CUDA runtime has found a device.
#include <cuda.h>
#include <dlfcn.h>

namespace {

template <typename... Args>
CUresult call(CUresult (* /*declared*/)(Args...), const char * name, Args... args) {
    static void * const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    const auto function = (CUresult (*)(Args...)) dlsym(driver, name);
    return function ? function(args...) : CUDA_ERROR_NOT_FOUND;
}

} // namespace

// the name after the preprocessor: cuda.h renames functions to versions of them
#define NAME_OF(function) #function
#define CALL(function, ...) call(function, NAME_OF(function), __VA_ARGS__)

CUresult cuDeviceGet(CUdevice * device, int ordinal) {
    return CALL(cuDeviceGet, device, ordinal);
}

CUresult cuDeviceGetAttribute(int * value, CUdevice_attribute attribute, CUdevice device) {
    return CALL(cuDeviceGetAttribute, value, attribute, device);
}

CUresult cuGetErrorString(CUresult error, const char ** text) {
    *text = "unknown error";
    return CALL(cuGetErrorString, error, text);
}

CUresult cuMemGetAllocationGranularity(
        size_t * granularity, const CUmemAllocationProp * prop, CUmemAllocationGranularity_flags option) {
    return CALL(cuMemGetAllocationGranularity, granularity, prop, option);
}

CUresult cuMemAddressReserve(CUdeviceptr * ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags) {
    return CALL(cuMemAddressReserve, ptr, size, alignment, addr, flags);
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
    return CALL(cuMemAddressFree, ptr, size);
}

CUresult cuMemCreate(
        CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp * prop, unsigned long long flags) {
    return CALL(cuMemCreate, handle, size, prop, flags);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    return CALL(cuMemRelease, handle);
}

CUresult cuMemMap(
        CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
    return CALL(cuMemMap, ptr, size, offset, handle, flags);
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
    return CALL(cuMemUnmap, ptr, size);
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc * desc, size_t count) {
    return CALL(cuMemSetAccess, ptr, size, desc, count);
}
