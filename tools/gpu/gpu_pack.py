"""The pack: archives in one folder, for a machine with a GPU and no network, and back.

The pack holds pymtp's sources with the patched llama.cpp, llama-bench's sources, and the wheels that the other
machine lacks. A build from there comes back in parts, and is packed the next time: while the sources of the native
module do not change, nothing is compiled again. Results are packed, too, so that no job is measured twice.
"""

from __future__ import annotations

import hashlib
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from llama_build import BuildError as BuildError
from llama_build import lay_out

SOURCES, RESULTS = "pymtp-src.tar.xz", "results.tar.xz"
WHEELS = ("cffi", "pycparser", "gguf")  # that the machine with the GPU lacks
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
# the sources of the native module; vendor/llama.cpp is made from the pin and the patches
NATIVE = (
    "CMakeLists.txt",
    "patches/*.patch",
    "vendor/*.txt",
    "vendor/*.cmake",
    "vendor/*.py",
    "vendor/*.cpp",
    "pymtp/native/**/*.*",
)
COMPILED = (".so", ".pyi", ".pyc")
TIME = 10**9  # timestamp of files in archives; zip files, and so wheels, allow none before 1980
PART = 15 * 2**20  # bytes; only files up to 16 MiB come back


@dataclass(frozen=True)
class Folders:
    """The folders of the suite: `pack` is copied between machines, `work` holds a build, `data` models and results."""

    root: Path
    pack: Path
    work: Path
    data: Path

    @classmethod
    def of(cls, root: Path, work: str = "gpu-work", data: str = "gpu-data") -> Folders:
        """Return the folders below the checkout's build folder."""
        return cls(root, root / "build" / "gpu", root / "build" / work, root / "build" / data)

    @property
    def site(self) -> Path:
        """Return the folder of packages: the built pymtp, and the wheels."""
        return self.work / "site"

    @property
    def source(self) -> Path:
        """Return the folder of the unpacked sources."""
        return self.work / "src"

    @property
    def llama_bench(self) -> Path:
        """Return the path of the program."""
        return self.work / "bin" / "llama-bench"

    @property
    def stamp(self) -> Path:
        """Return the file with the digest of the sources of the build."""
        return self.work / "built.txt"

    @property
    def libraries(self) -> Path:
        """Return the folder of links to CUDA's libraries."""
        return self.work / "lib"

    @property
    def models(self) -> Path:
        return self.data / "models"

    @property
    def results(self) -> Path:
        return self.data / "results"


def native_digest(root: Path) -> str:
    """Return a digest of the sources of the native module. Builds with the same digest are the same."""
    candidates = {file for pattern in NATIVE for file in root.glob(pattern)}
    sources = sorted(file for file in candidates if file.is_file() and file.suffix not in COMPILED)
    whole = hashlib.sha256()
    for file in sources:
        whole.update(f"{file.relative_to(root).as_posix()} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:12]


def pack(folders: Folders, python: str = "3.12") -> list[Path]:
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
        with tarfile.open(sdist) as archive:
            _extract(archive, Path(folder))
        top = Path(folder) / sdist.name.removesuffix(".tar.gz")
        shutil.rmtree(top / "benchmarks", ignore_errors=True)  # not needed, and large
        write_archive(folders.pack / SOURCES, [(top, "."), (bench, "llama-bench")])
    wheels = folders.pack / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    options = ["--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    options += [word for platform in PLATFORMS for word in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *options, "--dest", str(wheels), *WHEELS]
    subprocess.run(command, check=True)
    drop_other_builds(folders)
    return sorted(file for file in folders.pack.rglob("*") if file.is_file())


def write_archive(file: Path, folders: Iterable[tuple[Path, str]], dictionary: int = 2**26, preset: int = 6) -> None:
    """Write a .tar.xz of folders or files, each under its name. The same content makes the same bytes."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": dictionary}]
    with lzma.open(file, "wb", filters=filters) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for folder, name in folders:
            for path in sorted(folder.rglob("*")) if folder.is_dir() else [folder]:
                if path.is_file() and "__pycache__" not in path.parts:
                    member = (Path(name) / path.relative_to(folder)).as_posix()
                    archive.add(path, member, recursive=False, filter=_anonymous)


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = TIME
    return info


def unpack(file: Path, folder: Path) -> None:
    """Unpack a .tar.xz into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file) as archive:
        _extract(archive, folder)


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
    else:  # Python before 3.10.12 and 3.11.4, as in Debian 12; this script made the archives
        archive.extractall(folder)


def split(file: Path, folder: Path, name: str) -> list[Path]:
    """Split a file into parts of PART bytes, named NAME.0, NAME.1 and so on."""
    with file.open("rb") as whole:
        pieces: Iterator[bytes] = iter(lambda: whole.read(PART), b"")
        paths = []
        for number, piece in enumerate(pieces):
            paths.append(folder / f"{name}.{number}")
            paths[-1].write_bytes(piece)
    return paths


def build_name(digest: str, whole: str) -> str:
    """Return the name of the parts of a build. digest: of the sources; whole: sha256 of the archive."""
    return f"built-{digest}-{whole[:12]}"


def save_build(folders: Folders, folder: Path) -> list[Path]:
    """Save the build of pymtp and llama-bench in parts. Return these.

    Both contain the same kernels: the dictionary of the compression is large enough to store them once.
    """
    archive = folders.work / "built.tar.xz"
    built = [(path, f"site/{path.name}") for path in sorted(folders.site.glob("pymtp*"))]
    if folders.llama_bench.is_file():
        built.append((folders.llama_bench, "bin/llama-bench"))
    write_archive(archive, built, dictionary=2**28, preset=3)
    name = build_name(native_digest(folders.source), hashlib.sha256(archive.read_bytes()).hexdigest())
    return split(archive, folder, name)


def restore_build(folders: Folders) -> bool:
    """Unpack a build of these sources from the pack. Return whether there was one. A damaged one is not used."""
    parts = sorted(folders.pack.glob(f"built-{native_digest(folders.root)}-*.*"), key=lambda part: int(part.suffix[1:]))
    if not parts:
        return False
    whole = b"".join(part.read_bytes() for part in parts)
    if parts[0].stem != build_name(native_digest(folders.root), hashlib.sha256(whole).hexdigest()):
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


def store_results(folders: Folders, folder: Path, benchmarks: Path) -> list[Path]:
    """Copy results and builds into the pack, and the reports into `benchmarks`. Return the reports."""
    folders.pack.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        if file.name == RESULTS or file.name.startswith("built-"):
            shutil.copyfile(file, folders.pack / file.name)
    if not (folders.pack / RESULTS).is_file():
        return []
    with tempfile.TemporaryDirectory() as scratch:
        unpack(folders.pack / RESULTS, Path(scratch))
        reports = sorted(Path(scratch).glob("*.json"))
        benchmarks.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copyfile(report, benchmarks / report.name)) for report in reports]
