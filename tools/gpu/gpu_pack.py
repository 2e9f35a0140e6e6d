"""The pack: what a machine with a GPU and no network needs to build pymtp, and what comes back from it.

The pack is a folder. It holds pymtp's sources with the patched llama.cpp and llama-bench, and the wheels that the other
machine lacks. A build from there comes back in parts, and is packed the next time: nothing is compiled again while the
sources of the native module stay the same. All files of a build go below the working folder: the machine's Python
environment is used, but not changed.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from llama_build import BuildError, lay_out

SOURCES, RESULTS = "pymtp-src.tar.xz", "results.tar.xz"
HINT = "python tools/gpu/gpu_suite.py pack, where there is a network"
WHEELS = ("cffi", "pycparser", "gguf")  # that the machine with the GPU lacks
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
# the sources of the native module; vendor/llama.cpp is made from the pin and the patches
NATIVE = ("CMakeLists.txt", "patches/*.patch", *(f"vendor/*.{kind}" for kind in ("txt", "cmake", "py", "cpp")))
NATIVE += ("pymtp/native/**/*.*",)
COMPILED = (".so", ".pyi", ".pyc")
PART = 15 * 2**20  # bytes; only files up to 16 MiB come back
DEFAULT_NVCC = "/usr/local/cuda/bin/nvcc"
CUDA = "13"  # the major version in the names of libraries and Python packages
LIBRARIES = ("libcudart", "libcublas", "libcublasLt")


class Folders:
    """The folders of the suite: `pack` is copied between machines, `work` holds a build, `data` models and results.

    site: of packages, the built pymtp and the wheels. libraries: of links to CUDA's libraries. stamp: the file with the
    digest of the sources of the build.
    """

    def __init__(self, root: Path, work: str = "gpu-work", data: str = "gpu-data") -> None:
        self.root, self.pack = root, root / "build" / "gpu"
        self.work, self.data = root / "build" / work, root / "build" / data
        self.site, self.source, self.libraries = (self.work / name for name in ("site", "src", "lib"))
        self.llama_bench, self.stamp = self.work / "bin" / "llama-bench", self.work / "built.txt"
        self.models, self.results = self.data / "models", self.data / "results"


def native_digest(root: Path) -> str:
    """Return a digest of the sources of the native module. Builds with the same digest are the same."""
    candidates = {file for pattern in NATIVE for file in root.glob(pattern)}
    sources = sorted(file for file in candidates if file.is_file() and file.suffix not in COMPILED)
    whole = hashlib.sha256()
    for file in sources:
        whole.update(f"{file.relative_to(root).as_posix()} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:12]


def fill_pack(folders: Folders, python: str) -> list[Path]:
    """Write sources and wheels into the pack. Return its files. Needs the package index and scikit-build-core.

    python: version on the machine with the GPU.
    Raises subprocess.CalledProcessError, and BuildError if llama.cpp cannot be fetched.
    """
    folders.pack.mkdir(parents=True, exist_ok=True)
    bench = lay_out("llama-bench", ("common/", "tools/llama-bench/"), patched=True)
    with tempfile.TemporaryDirectory() as folder:
        make = f"from scikit_build_core.build import build_sdist; build_sdist({folder!r})"
        subprocess.run([sys.executable, "-c", make], cwd=folders.root, check=True, stdout=subprocess.DEVNULL)
        (sdist,) = Path(folder).glob("*.tar.gz")
        unpack(sdist, Path(folder))
        top = Path(folder) / sdist.name.removesuffix(".tar.gz")
        shutil.rmtree(top / "benchmarks", ignore_errors=True)  # not needed, and large
        write_archive(folders.pack / SOURCES, [(top, "."), (bench, "llama-bench")], dictionary=2**26)
    wheels = folders.pack / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    options = ["--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    options += [word for platform in PLATFORMS for word in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *options, "--dest", str(wheels), *WHEELS]
    subprocess.run(command, check=True)
    drop_other_builds(folders)
    return sorted(file for file in folders.pack.rglob("*") if file.is_file())


def write_archive(file: Path, contents: Iterable[tuple[Path, str]], dictionary: int = 2**24) -> None:
    """Write a .tar.xz of folders or files, each under its name. Equal content within the dictionary is stored once."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": dictionary}]
    with lzma.open(file, "wb", filters=filters) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for path, name in contents:
            archive.add(path, name, filter=lambda info: None if "__pycache__" in info.name else info)


def unpack(file: Path, folder: Path) -> None:
    """Unpack an archive into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    # Python before 3.10.12 and 3.11.4, as in Debian 12, has no filters; this file made the archives
    safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(file) as archive:
        archive.extractall(folder, **safe)  # type: ignore[arg-type]


def save_build(folders: Folders, out: Path) -> list[Path]:
    """Save the build of pymtp and llama-bench, with the same kernels, in parts. Return built-SOURCES-CONTENT.NUMBER."""
    archive = folders.work / "built.tar.xz"
    built = [(path, f"site/{path.name}") for path in sorted(folders.site.glob("pymtp*"))]
    if folders.llama_bench.is_file():
        built.append((folders.llama_bench, "bin/llama-bench"))
    write_archive(archive, built, dictionary=2**28)
    whole = archive.read_bytes()
    name = _build_name(native_digest(folders.source), whole)
    parts = []
    for number, start in enumerate(range(0, len(whole), PART)):
        parts.append(out / f"{name}.{number}")
        parts[-1].write_bytes(whole[start : start + PART])
    return parts


def restore_build(folders: Folders) -> bool:
    """Unpack a build of these sources from the pack. Return whether there was one. A damaged one is not used."""
    digest = native_digest(folders.root)
    parts = sorted(folders.pack.glob(f"built-{digest}-*.*"), key=lambda part: int(part.suffix[1:]))
    whole = b"".join(part.read_bytes() for part in parts)
    if not parts or parts[0].stem != _build_name(digest, whole):
        return False
    folders.work.mkdir(parents=True, exist_ok=True)
    archive = folders.work / "built.tar.xz"
    archive.write_bytes(whole)
    unpack(archive, folders.work)
    return True


def drop_other_builds(folders: Folders) -> None:
    """Remove the parts of builds of other sources from the pack."""
    for part in folders.pack.glob("built-*.*"):
        if not part.name.startswith(f"built-{native_digest(folders.root)}-"):
            part.unlink()


def _build_name(digest: str, whole: bytes) -> str:
    return f"built-{digest}-{hashlib.sha256(whole).hexdigest()[:12]}"


def environment(folders: Folders) -> dict[str, str]:
    """Return the environment for processes that use the build and its CUDA libraries."""
    added = {"PYTHONPATH": str(folders.site), "LD_LIBRARY_PATH": str(folders.libraries)}
    return os.environ | {name: ":".join(filter(None, (path, os.environ.get(name)))) for name, path in added.items()}


def build(folders: Folders, options: Sequence[str], *, out: Path, seconds: float) -> str:
    """Install pymtp and llama-bench, built from the sources of this checkout. Return a description for the user.

    A build in the pack is used if there is one. A new build is also written to `out`, in parts. options: of CMake.

    Raises BuildError if the pack is missing or stale, or if the build fails or takes longer than `seconds`.
    """
    started = time.monotonic()
    if not (folders.pack / SOURCES).is_file():
        raise BuildError(f"there is no {folders.pack / SOURCES}: {HINT}")
    _install(folders, sorted((folders.pack / "wheels").glob("*.whl")))
    cublas = link_libraries(folders)
    if restore_build(folders):
        action = "unpacked a build of these sources"
    else:
        unpack(folders.pack / SOURCES, folders.source)
        if native_digest(folders.source) != native_digest(folders.root):
            raise BuildError(f"the pack holds other sources than this checkout: {HINT}")
        _compile(folders, options, cublas, seconds - (time.monotonic() - started))
        action = "compiled"
        for part in save_build(folders, out):
            print(f"  {part.name}: {part.stat().st_size / 2**20:.1f} MiB")
    overlay(folders)
    folders.stamp.write_text(native_digest(folders.root))
    return f"{action} in {time.monotonic() - started:.0f} s"


def is_built(folders: Folders) -> bool:
    """Tell whether the installed build is of the sources of this checkout."""
    return folders.stamp.is_file() and folders.stamp.read_text() == native_digest(folders.root)


def overlay(folders: Folders) -> None:
    """Copy the Python code of this checkout over that of the build: only the native module needs a build."""

    def others(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if not name.endswith(".py") and not Path(folder, name).is_dir()]

    shutil.copytree(folders.root / "pymtp", folders.site / "pymtp", ignore=others, dirs_exist_ok=True)


def cuda_options() -> list[str]:
    """Return the options of CMake for this machine's GPU."""
    options = ["-DGGML_CUDA=on", "-DCMAKE_CUDA_ARCHITECTURES=native"]
    return options if shutil.which("nvcc") else [*options, f"-DCMAKE_CUDA_COMPILER={DEFAULT_NVCC}"]


def link_libraries(folders: Folders, path: Sequence[str] = sys.path) -> dict[str, str]:
    """Link CUDA's libraries into one folder, from the toolkit or else from Python packages.

    So a build finds them on any machine. Return variables for the environment of a build if the toolkit has no cuBLAS.
    """
    # nvcc on the path may be a script that calls the default one
    toolkits = [Path(nvcc).resolve().parents[1] for nvcc in (shutil.which("nvcc"), DEFAULT_NVCC) if nvcc]
    places = ("lib64", "lib", "targets/*/lib")
    toolkit_folders = [folder for toolkit in toolkits for place in places for folder in toolkit.glob(place)]
    candidates = [*toolkit_folders, *(Path(entry) / "nvidia" / f"cu{CUDA}" / "lib" for entry in path)]
    folders.libraries.mkdir(parents=True, exist_ok=True)
    variables: dict[str, str] = {}
    for name in LIBRARIES:
        folder = next((folder for folder in candidates if (folder / f"{name}.so.{CUDA}").exists()), None)
        if folder is None:
            continue  # CMake names the missing library
        for link in (f"{name}.so", f"{name}.so.{CUDA}"):
            (folders.libraries / link).unlink(missing_ok=True)
            (folders.libraries / link).symlink_to(folder / f"{name}.so.{CUDA}")
        if name == "libcublas" and folder not in toolkit_folders:
            # the toolkit's own headers win: compilers search CPATH after the folders of their options
            variables = {"CMAKE_LIBRARY_PATH": str(folders.libraries), "CPATH": str(folder.parent / "include")}
    return variables


def _install(folders: Folders, wheels: Sequence[Path]) -> None:
    if not wheels:
        return
    options = ["--quiet", "--no-index", "--no-deps", "--upgrade", "--no-compile", "--target", str(folders.site)]
    command = [sys.executable, "-m", "pip", "install", *options, *map(str, wheels)]
    if subprocess.run(command, stderr=subprocess.STDOUT).returncode != 0:
        raise BuildError(f"pip cannot install {', '.join(wheel.name for wheel in wheels)}: see above")


def _compile(folders: Folders, options: Sequence[str], more: dict[str, str], seconds: float) -> None:
    arguments = [*options, f"-DPYMTP_LLAMA_BENCH={folders.source / 'llama-bench'}", os.environ.get("CMAKE_ARGS", "")]
    wheels, log = folders.work / "dist", folders.work / "build.log"
    shutil.rmtree(wheels, ignore_errors=True)
    flags = ["--no-index", "--no-deps", "--no-build-isolation", "--verbose", "--wheel-dir", str(wheels)]
    command = [sys.executable, "-m", "pip", "wheel", *flags, str(folders.source)]
    env = environment(folders) | more | {"CMAKE_ARGS": " ".join(arguments).strip()}

    def failed(what: str) -> BuildError:
        return BuildError("\n".join([what, *log.read_text(errors="replace").splitlines()[-60:]]))

    with log.open("w") as out:
        try:
            done = subprocess.run(command, env=env, stdout=out, stderr=subprocess.STDOUT, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise failed(f"not built after {seconds:.0f} s") from error
    if done.returncode != 0:
        raise failed("pip cannot build pymtp")
    _install(folders, list(wheels.glob("*.whl")))
    programs = [file for file in (folders.source / "build").rglob("llama-bench") if file.is_file()]
    if not programs:
        raise failed("no llama-bench was built")
    folders.llama_bench.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(programs[0], folders.llama_bench)
    if shutil.which("strip"):
        subprocess.run(["strip", str(folders.llama_bench)], check=True)
