"""What this build of pymtp is made of."""

from importlib.metadata import version
from typing import TypedDict

from pymtp.native import ffi, lib


class Device(TypedDict):
    """A device that llama.cpp found on this machine; memory in bytes."""

    name: str
    description: str
    memory_total: int


class BuildInfo(TypedDict):
    """See `build_info`."""

    pymtp: str
    llama_cpp_commit: str
    patches: list[str]
    compiler: str
    build_type: str
    devices: list[Device]
    backends: list[str]
    cpu_features: list[str]
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


def build_info() -> BuildInfo:
    """The llama.cpp commit and patches inside, compiler, backends, CPU features and CUDA architectures."""
    # "CPU : SSE3 = 1 | AVX = 1 | CUDA : ARCHS = 900 | ..." — a backend's name stands before its first feature
    backends: list[str] = []
    features: list[str] = []
    for item in _text(lib.llama_print_system_info()).split("|"):
        backend, colon, feature = item.rpartition(":")
        if colon:
            backends.append(backend.strip())
        name, _, value = feature.partition("=")
        if backends and backends[-1] == "CPU" and name.strip() and value.strip() != "0":
            features.append(name.strip() if value.strip() == "1" else f"{name.strip()}={value.strip()}")
    return BuildInfo(
        pymtp=version("pymtp"),
        llama_cpp_commit=_text(lib.pymtp_build_llama_commit()),
        patches=_text(lib.pymtp_build_patches()).split(";"),
        compiler=_text(lib.pymtp_build_compiler()),
        build_type=_text(lib.pymtp_build_type()),
        devices=_devices(),
        backends=backends,
        cpu_features=features,
        cuda_architectures=[a for a in _text(lib.pymtp_build_cuda_architectures()).split(";") if a],
    )
