"""What a model is loaded with: where its weights go, how they get there, and adapters; with llama.cpp's names."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, cast

from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.native import check, ffi, lib
from pymtp.values import in_range, is_real, is_whole, shown

SPLIT_MODES = ("none", "layer", "row")
NUMA = ("distribute", "isolate", "numactl")
# of mixtures of experts, as llama.cpp's LLM_FFN_EXPS_REGEX
_EXPERTS = r"blk\.%d\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_LISTS = ("override_tensor", "tensor_split", "lora")

Lora = str | os.PathLike[str] | tuple[str | os.PathLike[str], float]


@dataclass(frozen=True)
class ModelOptions:
    """Options of Model, as keywords of it and of LLM. Values are checked when one is made, which raises
    InvalidRequestError; files of adapters when the model is loaded.

    n_gpu_layers: layers on a GPU, -1 for all; "auto", for an LLM, for as many as fit.
    n_cpu_moe: the first so many layers keep their experts in the host's memory.
    override_tensor: types of buffers by regular expressions: the first expression that is found in a tensor's name
        says where the tensor goes. A dict, or llama.cpp's text, such as r"blk\\.[0-9]\\.ffn_.*=CPU,output=CUDA0". Goes
        before n_cpu_moe.
    tensor_split: shares of the GPUs, in their order; without, by their free memory.
    main_gpu: the GPU for split_mode="none", from 0 on.
    split_mode: several GPUs take layers ("layer") or rows of weights ("row"), or only one is used ("none").
    use_mmap: weights in the host's memory are the file's own pages, where llama.cpp's backends can use these.
    use_mlock: what is loaded stays in memory. Where the system does not allow as much, a warning says so.
    lora: adapters, GGUF files, each alone or with a scale: [("a.gguf", 0.5), "b.gguf"]. They work on all texts.
    numa: how threads are spread over the nodes of a machine, one of NUMA, for the whole process: the first that is
        asked for counts.
    """

    n_gpu_layers: int | Literal["auto"] = -1
    n_cpu_moe: int = 0
    override_tensor: Mapping[str, str] | str | Sequence[tuple[str, str]] = ()
    tensor_split: Sequence[float] = ()
    main_gpu: int = 0
    split_mode: str = "layer"
    use_mmap: bool = True
    use_mlock: bool = False
    lora: Sequence[Lora] = ()
    numa: str | None = None

    def __post_init__(self) -> None:
        if self.n_gpu_layers != "auto":
            check_gpu_layers(self.n_gpu_layers)
        for name, high in (("n_cpu_moe", 10_000), ("main_gpu", 1_000)):
            object.__setattr__(self, name, in_range(name, getattr(self, name), 0, high))
        for name in ("use_mmap", "use_mlock"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequestError(f"{name}={shown(getattr(self, name))} must be True or False", name)
        if self.split_mode not in SPLIT_MODES:
            raise InvalidRequestError(
                f"split_mode={shown(self.split_mode)} is not known, use one of {', '.join(SPLIT_MODES)}", "split_mode"
            )
        if self.numa is not None and self.numa not in NUMA:
            raise InvalidRequestError(f"numa={shown(self.numa)} is not known, use one of {', '.join(NUMA)}", "numa")
        # equal options compare as equal, whatever they were written as
        for name, read in (("override_tensor", _overrides), ("tensor_split", _split), ("lora", _adapters)):
            object.__setattr__(self, name, read(getattr(self, name)))
        options, _kept = self.native(mtp=True, vocab_only=False)
        check(lib.pymtp_check_model_options(options))

    @property
    def layers(self) -> int:
        """n_gpu_layers. Raises InvalidRequestError for "auto", which takes a context to plan."""
        if self.n_gpu_layers == "auto":
            raise InvalidRequestError(
                'n_gpu_layers="auto" goes with an LLM, whose context takes memory too: give a Model a number',
                "n_gpu_layers",
            )
        return int(self.n_gpu_layers)

    @property
    def adapters(self) -> tuple[tuple[str, float], ...]:
        """Files and scales of `lora`."""
        return cast(tuple[tuple[str, float], ...], self.lora)  # of __post_init__

    def native(self, *, mtp: bool, vocab_only: bool, layers: int = 0) -> tuple[Any, list[Any]]:
        """The C struct, and what it points at: keep it as long."""
        overrides = [
            *cast(tuple[tuple[str, str], ...], self.override_tensor),
            *((_EXPERTS % i, "CPU") for i in range(self.n_cpu_moe)),
        ]
        texts = [
            [ffi.new("char[]", os.fsencode(text)) for text in column]
            for column in (
                [pattern for pattern, _ in overrides],
                [buffer for _, buffer in overrides],
                [path for path, _ in self.adapters],
            )
        ]
        patterns, buffers, lora = (ffi.new("const char *[]", column) for column in texts)
        split = ffi.new("float[]", list(self.tensor_split))
        scales = ffi.new("float[]", [scale for _, scale in self.adapters])
        options = ffi.new("struct pymtp_model_options *")
        options.n_gpu_layers = layers
        options.mtp = mtp
        options.vocab_only = vocab_only
        options.use_mmap = self.use_mmap
        options.use_mlock = self.use_mlock
        options.split_mode = getattr(lib, f"LLAMA_SPLIT_MODE_{self.split_mode.upper()}")
        options.main_gpu = self.main_gpu
        options.n_tensor_split, options.tensor_split = len(self.tensor_split), split
        options.n_overrides, options.patterns, options.buffers = len(overrides), patterns, buffers
        options.n_lora, options.lora, options.lora_scales = len(self.adapters), lora, scales
        return options, [texts, patterns, buffers, lora, split, scales]

    def lora_digest(self) -> str:
        """A hash of the adapters' files and scales, "" without adapters. Raises ModelLoadError for a file that is not
        there."""
        if not self.lora:
            return ""
        found = sha256()
        for path, scale in self.adapters:
            try:
                found.update(sha256(Path(path).read_bytes()).digest())
            except OSError as error:
                raise ModelLoadError(f"no such adapter: {error}") from error
            found.update(repr(scale).encode())
        return found.hexdigest()


NAMES = frozenset(field.name for field in fields(ModelOptions))


def check_gpu_layers(value: object) -> None:
    """Raises InvalidRequestError for what is no number of layers."""
    if not is_whole(value, -1, 2**31 - 1):
        raise InvalidRequestError(
            f"n_gpu_layers={shown(value)} must be a whole number, -1 for all layers", "n_gpu_layers"
        )


def _overrides(given: Mapping[str, str] | str | Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    if isinstance(given, str):
        pairs = [part.rpartition("=")[::2] for part in given.split(",")] if given else []
    else:
        pairs = list(given.items() if isinstance(given, Mapping) else given)
    for pattern, buffer in pairs:
        if not isinstance(pattern, str) or not isinstance(buffer, str) or not pattern or not buffer:
            raise InvalidRequestError(
                f"override_tensor={shown(given)} must be regular expressions with types of buffers, as in "
                r'"blk\.[0-9]\.ffn_.*=CPU"',
                "override_tensor",
            )
    return tuple(pairs)


def _split(given: Sequence[float]) -> tuple[float, ...]:
    most = lib.llama_max_devices()
    fine = isinstance(given, Sequence) and not isinstance(given, str) and len(given) <= most
    if not fine or not all(is_real(share) and share >= 0 for share in given) or (len(given) and not sum(given)):
        raise InvalidRequestError(
            f"tensor_split={shown(given)} must be up to {most} shares, not negative and not all 0, as in [3, 1]",
            "tensor_split",
        )
    return tuple(map(float, given))


def _adapters(given: Sequence[Lora]) -> tuple[tuple[str, float], ...]:
    if isinstance(given, (str, os.PathLike)):
        given = [given]
    found = []
    for one in given:
        path, scale = one if isinstance(one, (tuple, list)) and len(one) == 2 else (one, 1.0)
        if not isinstance(path, (str, os.PathLike)) or not is_real(scale):
            raise InvalidRequestError(
                f'lora={shown(given)} must be files, each alone or with a scale, as in [("a.gguf", 0.5)]', "lora"
            )
        found.append((os.fspath(path), float(scale)))
    return tuple(found)


_numa: str | None = None
_numa_lock = threading.RLock()


def use_numa(strategy: str | None) -> None:
    """For the whole process, before its first model. Raises InvalidRequestError where another was taken before."""
    global _numa
    if strategy is None:
        return
    with _numa_lock:
        if _numa is not None and _numa != strategy:
            raise InvalidRequestError(
                f'numa="{strategy}" comes too late: this process has numa="{_numa}" since its first model', "numa"
            )
        if _numa is None:
            lib.llama_numa_init(getattr(lib, f"GGML_NUMA_STRATEGY_{strategy.upper()}"))
            _numa = strategy
