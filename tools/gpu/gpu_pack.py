"""What travels to a machine with a GPU and no network, and what comes home: archives in one folder.

The pack holds pymtp's sources with the patched llama.cpp laid out, llama-bench's sources, and the wheels that the other
machine lacks. A build that was made there comes home in parts and travels along the next time: while the sources of the
native module are the same, nothing is compiled again. Results travel, too: what is measured is not measured again.
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
# what the native module is compiled from; vendor/llama.cpp follows from pin and patches
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
TIME = 10**9  # of files in archives: zip files, so wheels, know none before 1980
PART = 15 * 2**20  # bytes: files of 16 MiB come home


@dataclass(frozen=True)
class Place:
    """Where everything is: `pack` travels, `work` is made where it runs, and so is `data`, models and results."""

    root: Path
    pack: Path
    work: Path
    data: Path

    @classmethod
    def of(cls, root: Path, work: str = "gpu-work", data: str = "gpu-data") -> Place:
        """Below the checkout's build folder."""
        return cls(root, root / "build" / "gpu", root / "build" / work, root / "build" / data)

    @property
    def site(self) -> Path:
        """Packages: pymtp as it was built, and the wheels."""
        return self.work / "site"

    @property
    def source(self) -> Path:
        """The sources, unpacked."""
        return self.work / "src"

    @property
    def llama_bench(self) -> Path:
        """The program."""
        return self.work / "bin" / "llama-bench"

    @property
    def stamp(self) -> Path:
        """Says which sources `site` was built from."""
        return self.work / "built.txt"

    @property
    def libraries(self) -> Path:
        """Links to CUDA's."""
        return self.work / "lib"

    @property
    def models(self) -> Path:
        return self.data / "models"

    @property
    def results(self) -> Path:
        return self.data / "results"


def native_digest(root: Path) -> str:
    """Of the sources of the native module: builds with the same one are the same."""
    globbed = {file for pattern in NATIVE for file in root.glob(pattern)}
    found = sorted(file for file in globbed if file.is_file() and file.suffix not in COMPILED)
    whole = hashlib.sha256()
    for file in found:
        whole.update(f"{file.relative_to(root).as_posix()} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:12]


def pack(place: Place, python: str = "3.12") -> list[Path]:
    """Writes sources and wheels into the pack; returns its files. Needs the index and scikit-build-core. python: of the
    machine with the GPU. Raises subprocess.CalledProcessError, or BuildError when llama.cpp cannot be had."""
    place.pack.mkdir(parents=True, exist_ok=True)
    bench = lay_out("llama-bench", ("common/", "tools/llama-bench/"), patched=True)
    with tempfile.TemporaryDirectory() as folder:
        make = f"from scikit_build_core.build import build_sdist; build_sdist({folder!r})"
        subprocess.run([sys.executable, "-c", make], cwd=place.root, check=True, stdout=subprocess.DEVNULL)
        (sdist,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(sdist) as archive:
            _extract(archive, Path(folder))
        top = Path(folder) / sdist.name.removesuffix(".tar.gz")
        shutil.rmtree(top / "benchmarks", ignore_errors=True)  # as large as all that is needed
        write_archive(place.pack / SOURCES, [(top, "."), (bench, "llama-bench")])
    wheels = place.pack / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    options = ["--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    options += [word for platform in PLATFORMS for word in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *options, "--dest", str(wheels), *WHEELS]
    subprocess.run(command, check=True)
    drop_other_builds(place)
    return sorted(file for file in place.pack.rglob("*") if file.is_file())


def write_archive(file: Path, folders: Iterable[tuple[Path, str]], dictionary: int = 2**26, preset: int = 6) -> None:
    """A .tar.xz of folders or files, each under its name; the same content makes the same bytes."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": dictionary}]
    with lzma.open(file, "wb", filters=filters) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for folder, name in folders:
            for path in sorted(folder.rglob("*")) if folder.is_dir() else [folder]:
                if path.is_file() and "__pycache__" not in path.parts:
                    inside = (Path(name) / path.relative_to(folder)).as_posix()
                    archive.add(path, inside, recursive=False, filter=_anonymous)


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = TIME
    return info


def unpack(file: Path, folder: Path) -> None:
    """A .tar.xz into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file) as archive:
        _extract(archive, folder)


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
    else:  # Python before 3.10.12 and 3.11.4, as in Debian 12; the archives are this script's own
        archive.extractall(folder)


def split(file: Path, folder: Path, name: str) -> list[Path]:
    """A file in parts of PART bytes: NAME.0, NAME.1, …"""
    with file.open("rb") as whole:
        pieces: Iterator[bytes] = iter(lambda: whole.read(PART), b"")
        paths = []
        for number, piece in enumerate(pieces):
            paths.append(folder / f"{name}.{number}")
            paths[-1].write_bytes(piece)
    return paths


def build_name(digest: str, whole: str) -> str:
    """What the parts of a build are called. digest: of the sources; whole: of the archive, in sha256."""
    return f"built-{digest}-{whole[:12]}"


def save_build(place: Place, folder: Path) -> list[Path]:
    """What was built, in parts: pymtp and llama-bench. Both hold the same kernels, which a dictionary that spans both
    packs once."""
    archive = place.work / "built.tar.xz"
    built = [(path, f"site/{path.name}") for path in sorted(place.site.glob("pymtp*"))]
    if place.llama_bench.is_file():
        built.append((place.llama_bench, "bin/llama-bench"))
    write_archive(archive, built, dictionary=2**28, preset=3)
    name = build_name(native_digest(place.source), hashlib.sha256(archive.read_bytes()).hexdigest())
    return split(archive, folder, name)


def restore_build(place: Place) -> bool:
    """Unpacks a build of these sources that travelled along; whether there was one. A damaged one is not used."""
    parts = sorted(place.pack.glob(f"built-{native_digest(place.root)}-*.*"), key=lambda part: int(part.suffix[1:]))
    if not parts:
        return False
    whole = b"".join(part.read_bytes() for part in parts)
    if parts[0].stem != build_name(native_digest(place.root), hashlib.sha256(whole).hexdigest()):
        return False
    place.work.mkdir(parents=True, exist_ok=True)
    archive = place.work / "built.tar.xz"
    archive.write_bytes(whole)
    unpack(archive, place.work)
    return True


def drop_other_builds(place: Place) -> None:
    """Removes the parts of builds of other sources from the pack: it is not to grow."""
    for part in place.pack.glob("built-*.*"):
        if not part.name.startswith(f"built-{native_digest(place.root)}-"):
            part.unlink()


def take_home(place: Place, folder: Path, benchmarks: Path) -> list[Path]:
    """Puts what came back into the pack, and the reports into `benchmarks`; returns these."""
    place.pack.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        if file.name == RESULTS or file.name.startswith("built-"):
            shutil.copyfile(file, place.pack / file.name)
    if not (place.pack / RESULTS).is_file():
        return []
    with tempfile.TemporaryDirectory() as scratch:
        unpack(place.pack / RESULTS, Path(scratch))
        reports = sorted(Path(scratch).glob("*.json"))
        benchmarks.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copyfile(report, benchmarks / report.name)) for report in reports]
