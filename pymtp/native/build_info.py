"""Properties of this build of pymtp, and of the devices on this machine."""

import logging
from functools import cache
from typing import TypedDict

from pymtp.native import chosen, ffi, lib, startup_errors

_logger = logging.getLogger("pymtp.native")


class Device(TypedDict):
    """A device that llama.cpp found on this machine; memory in bytes."""

    name: str
    description: str
    memory_total: int


class BuildInfo(TypedDict):
    """The properties that `build_info` returns."""

    pymtp: str
    llama_cpp_commit: str
    patches: list[str]
    compiler: str
    build_type: str
    devices: list[Device]
    backends: list[str]
    cpu_variant: str
    cpu_variants: list[str]
    cpu_features: list[str]
    cuda_features: list[str]
    cuda_architectures: list[str]


def _text(pointer: object) -> str:
    text: str = ffi.string(pointer).decode()
    return text


def _devices() -> list[Device]:
    devices: list[Device] = []
    for i in range(lib.ggml_backend_dev_count()):
        device = lib.ggml_backend_dev_get(i)
        free, total = ffi.new("size_t *"), ffi.new("size_t *")
        lib.ggml_backend_dev_memory(device, free, total)
        name, description = lib.ggml_backend_dev_name(device), lib.ggml_backend_dev_description(device)
        devices.append(Device(name=_text(name), description=_text(description), memory_total=total[0]))
    return devices


def free_gpu_memory() -> dict[str, int]:
    """Return the free bytes of each GPU that llama.cpp may use, by device name."""
    free: dict[str, int] = {}
    for i in range(lib.ggml_backend_dev_count()):
        device = lib.ggml_backend_dev_get(i)
        kind = lib.ggml_backend_dev_type(device)
        if kind in (lib.GGML_BACKEND_DEVICE_TYPE_GPU, lib.GGML_BACKEND_DEVICE_TYPE_IGPU):
            found, total = ffi.new("size_t *"), ffi.new("size_t *")
            lib.ggml_backend_dev_memory(device, found, total)
            free[_text(lib.ggml_backend_dev_name(device))] = found[0]
    return free


def _features(system_info: str) -> dict[str, list[str]]:
    """Parse llama.cpp's list of each backend's features into "NAME", or "NAME=VALUE" if the value is not 1."""
    # "CPU : SSE3 = 1 | AVX = 1 | CUDA : ARCHS = 900 | ..." — a backend's name stands before its first feature
    features: dict[str, list[str]] = {}
    backend = ""
    for item in system_info.split("|"):
        before, colon, feature = item.rpartition(":")
        if colon:
            backend = before.strip()
            features[backend] = []
        name, _, value = (part.strip() for part in feature.partition("="))
        if backend and name and value != "0":
            features[backend].append(name if value == "1" else f"{name}={value}")
    return features


def _cuda_architectures() -> list[str]:
    return [a for a in _text(lib.pymtp_build_cuda_architectures()).split(";") if a]


def _finds_gpu() -> bool:
    return bool(lib.llama_supports_gpu_offload())


@cache
def kernels() -> str:
    """Return the compiler and the instruction sets of the kernels, which decide in which order numbers are added."""
    features = _features(_text(lib.llama_print_system_info()))
    backends = (" ".join([name, *found]) for name, found in features.items())
    return "; ".join([_text(lib.pymtp_build_compiler()), *backends])


@cache
def warn_without_gpu() -> None:
    """Warn once per process that a build with CUDA runs on the CPU, and why."""
    if _cuda_architectures() and not _finds_gpu():
        why = f" ({'; '.join(startup_errors)})" if startup_errors else ""
        _logger.warning("pymtp was built with CUDA, but finds no GPU%s: models run on the CPU", why)


def build_info() -> BuildInfo:
    """Return llama.cpp's commit, the patches, compiler, backends, CPU and CUDA features, and the current devices.

    `cpu_variant` is the processor level of the loaded module, one of the installed `cpu_variants`: names of
    pymtp/native/variants.json in a wheel, "native" in a build from source.
    """
    from importlib.metadata import version  # here, as it takes a tenth of pymtp's import time

    features = _features(_text(lib.llama_print_system_info()))
    return BuildInfo(
        pymtp=version("pymtp"),
        llama_cpp_commit=_text(lib.pymtp_build_llama_commit()),
        patches=_text(lib.pymtp_build_patches()).split(";"),
        compiler=_text(lib.pymtp_build_compiler()),
        build_type=_text(lib.pymtp_build_type()),
        devices=_devices(),
        backends=list(features),
        cpu_variant=chosen.name,
        cpu_variants=list(chosen.inside),
        cpu_features=features.get("CPU", []),
        cuda_features=features.get("CUDA", []),
        cuda_architectures=_cuda_architectures(),
    )
