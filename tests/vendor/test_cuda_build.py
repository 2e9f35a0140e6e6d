"""Tests of building for CUDA, without CUDA.

They run vendor/cuda_wheels.py on fake wheels, vendor/cuda.cmake without a compiler, and vendor/cuda_driver.cpp with a
fake driver.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import cuda_wheels
import pytest
from sources import LayoutError

ROOT = Path(__file__).parent.parent.parent


def unpack(site: Path, parts: list[str]) -> Path:
    """Make a site-packages folder with the given parts of the wheels; the content of each file is its name."""
    for part in parts:
        file = site / "nvidia" / cuda_wheels.CUDA / part
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(part)
    return site


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return unpack(tmp_path / "site", list(cuda_wheels.PARTS))


def test_cuda_toolkit_is_found_beside_other_packages(site: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert cuda_wheels.find([str(tmp_path / "other"), str(site)]) == [site / "nvidia" / "cu13"]


def test_cuda_parts_may_be_in_several_folders(tmp_path: Path) -> None:
    names = list(cuda_wheels.PARTS)
    one, two = unpack(tmp_path / "one", names[:4]), unpack(tmp_path / "two", names[4:])
    cuda_wheels.lay_out(cuda_wheels.find([str(one), str(two)]), tmp_path / "cuda")
    assert [name for name in names if (tmp_path / "cuda" / name).read_text() != name] == []


@pytest.mark.parametrize(("part", "wheel"), cuda_wheels.PARTS.items())
def test_missing_cuda_wheel_is_named(site: Path, part: str, wheel: str) -> None:
    (site / "nvidia" / "cu13" / part).unlink()
    with pytest.raises(LayoutError, match=rf"no {wheel}, which a .* needs\n.*PYMTP_CUDA_WHEELS=1 pip install"):
        cuda_wheels.find([str(site)])


def test_cuda_toolkit_has_the_files_for_nvcc_and_linkers(site: Path, tmp_path: Path) -> None:
    target = tmp_path / "cuda"
    cuda_wheels.lay_out(cuda_wheels.find([str(site)]), target)
    assert (target / "bin/nvcc").is_symlink() and not (target / "bin").is_symlink()  # noqa: PT018 — nvcc goes to bin/..
    assert (target / "lib64/libcudart.so").read_text() == "lib/libcudart.so.13"
    assert (target / "lib64/libcublas.so").read_text() == "lib/libcublas.so.13"


def test_cuda_layout_does_not_rewrite_equal_headers(site: Path, tmp_path: Path) -> None:
    target, again = tmp_path / "cuda", unpack(tmp_path / "again", list(cuda_wheels.PARTS))
    changed, gone = "include/cublas_v2.h", "include/of_an_older_version.h"
    unpack(site, [gone])
    cuda_wheels.lay_out(cuda_wheels.find([str(site)]), target)
    for file in target.glob("include/**/*.h"):
        os.utime(file, (1, 1))
    (again / "nvidia" / "cu13" / changed).write_text("newer")
    cuda_wheels.lay_out(cuda_wheels.find([str(again)]), target)
    assert (target / "include/cuda_runtime.h").stat().st_mtime == 1
    assert (target / changed).read_text() == "newer"
    assert not (target / gone).exists()
    assert (target / "bin/nvcc").resolve().is_relative_to(again)


def test_pyproject_requires_the_wheels_that_cuda_wheels_searches() -> None:
    assert f'build.requires = ["{cuda_wheels.WHEELS}"]' in (ROOT / "pyproject.toml").read_text()


def test_missing_cuda_compiler_error_gives_advice(tmp_path: Path) -> None:
    cmake, make = shutil.which("cmake"), shutil.which("make")
    if cmake is None or make is None:
        pytest.skip("needs cmake and make")
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.18...4.1)\nproject(p LANGUAGES NONE)\ninclude({ROOT}/vendor/cuda.cmake)\n"
    )
    environment = os.environ | {"CUDACXX": str(tmp_path / "no-nvcc")}
    command = [cmake, "-G", "Unix Makefiles", "-S", tmp_path, "-B", tmp_path / "build"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode != 0
    assert "there is no CUDA compiler (nvcc)" in run.stderr
    assert "PYMTP_CUDA_WHEELS=1 pip install '.[cuda]'" in run.stderr


CUDA_H = """
#include <stddef.h>
typedef int CUresult, CUdevice, CUdevice_attribute, CUmemAllocationGranularity_flags;
typedef struct { int x; } CUmemAllocationProp;
typedef struct { int x; } CUmemAccessDesc;
typedef unsigned long long CUdeviceptr, CUmemGenericAllocationHandle;
enum { CUDA_ERROR_NOT_INITIALIZED = 3, CUDA_ERROR_NOT_FOUND = 500 };
#define cuMemMap cuMemMap_v2
extern "C" {
CUresult cuDeviceGet(CUdevice *, int);
CUresult cuDeviceGetAttribute(int *, CUdevice_attribute, CUdevice);
CUresult cuGetErrorString(CUresult, const char **);
CUresult cuMemGetAllocationGranularity(size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags);
CUresult cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
CUresult cuMemAddressFree(CUdeviceptr, size_t);
CUresult cuMemCreate(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
CUresult cuMemRelease(CUmemGenericAllocationHandle);
CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
CUresult cuMemUnmap(CUdeviceptr, size_t);
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
}
"""
CALLER = """
#include <cuda.h>
#include <stdio.h>
int main() {
    CUdevice device = -1;
    const char * text = nullptr;
    int a = cuDeviceGet(&device, 7), b = cuMemMap(1, 2, 3, 4, 5), c = cuMemUnmap(1, 2), d = cuGetErrorString(9, &text);
    printf("%d %d %d %d %d %s\\n", a, device, b, c, d, text);
}
"""
DRIVER = """
extern "C" int cuDeviceGet(int * device, int ordinal) { *device = ordinal; return 0; }
extern "C" int cuMemMap_v2(unsigned long long a, size_t b, size_t c, unsigned long long d, unsigned long long e) {
    return (((a*10 + b)*10 + c)*10 + d)*10 + e;
}
extern "C" int cuGetErrorString(int error, const char ** text) { *text = "told"; return 0; }
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the driver's library has another name there")
def test_cuda_driver_is_loaded_at_the_first_call(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.fail("needs a C++ compiler, as the build did")
    for name, text in (("cuda.h", CUDA_H), ("caller.cpp", CALLER), ("driver.cpp", f"#include <cstddef>\n{DRIVER}")):
        (tmp_path / name).write_text(text)
    program, driver = tmp_path / "caller", tmp_path / "libcuda.so.1"
    sources = [tmp_path / "caller.cpp", ROOT / "vendor/cuda_driver.cpp"]
    subprocess.run([compiler, "-Wall", "-Werror", f"-I{tmp_path}", *sources, "-ldl", "-o", program], check=True)

    def call() -> str:
        environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
        return subprocess.run([program], env=environment, capture_output=True, text=True, check=True).stdout.strip()

    if not shutil.which("nvidia-smi"):  # the driver exists and is found
        assert call() == "3 -1 3 3 3 unknown error"
    subprocess.run([compiler, "-shared", "-fPIC", tmp_path / "driver.cpp", "-o", driver], check=True)
    assert call() == "0 7 12345 500 0 told"
