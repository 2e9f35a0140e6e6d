"""What a model is loaded with: where its weights go, how they get there, and adapters; with llama.cpp's names."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.model.placement import read_adapters, read_overrides, read_split
from pymtp.native import check, ffi, last_error, lib
from pymtp.validation import flag, in_range, is_hub_name, is_whole, read_path, shown

SPLIT_MODES = ("none", "layer", "row")
NUMA = ("distribute", "isolate", "numactl")

_numa_taken: str | None = None
_numa_lock = threading.RLock()

File = str | os.PathLike[str]
Answer = TypeVar("Answer")
Lora = File | Sequence[File | tuple[File, float]] | Mapping[File, float]


@dataclass(frozen=True)
class ModelOptions:
    """Options of Model, as keywords of it and of LLM. Values are checked when one is made, which raises
    InvalidRequestError; files when the model is loaded. None for a list is an empty one.

    head: the file of the model's multi-token-prediction head, where it is a file of its own, such as
        "mtp-Qwen3.8-27B-Q4_0.gguf"; of a split one the first part. It takes the place of a head in the model's file.

    n_gpu_layers: layers on a GPU, -1 for all; "auto", for an LLM, for as many as fit.
    n_cpu_moe: the first so many layers keep their experts in the host's memory.
    override_tensor: types of buffers by regular expressions: the first expression that is found in a tensor's name
        says where the tensor goes. A dict, or llama.cpp's text, such as r"blk\\.[0-9]\\.ffn_.*=CPU,output=CUDA0", where
        a comma always ends an expression. Goes before n_cpu_moe. The expressions are std::regex's, of ECMAScript: one
        that repeats what repeats, as "(a*)*", may take for ever, and Ctrl-C does not end it.
    tensor_split: shares of the GPUs, in their order; without, by their free memory.
    main_gpu: the GPU for split_mode="none", from 0 on.
    split_mode: several GPUs take layers ("layer") or rows of weights ("row"), or only one is used ("none").
    use_mmap: weights in the host's memory are the file's own pages, where llama.cpp's backends can use these.
    use_mlock: what is loaded stays in memory. Where the system does not allow as much, a warning says so.
    lora: adapters, GGUF files, each alone or with a scale: [("a.gguf", 0.5), "b.gguf"], or {"a.gguf": 0.5}. They work
        on all texts.
    numa: how threads are spread over the nodes of a machine, one of NUMA, for the whole process: the first that is
        asked for counts, whether that model could be loaded or not.
    here: False where another machine loads the model, which may have other buffers and GPUs. No keyword of LLM.
    """

    head: File | None = None
    n_gpu_layers: int | Literal["auto"] = -1
    n_cpu_moe: int = 0
    override_tensor: Mapping[str, str] | str | Sequence[tuple[str, str]] = ()
    tensor_split: Sequence[float] = ()
    main_gpu: int = 0
    split_mode: str = "layer"
    use_mmap: bool = True
    use_mlock: bool = False
    lora: Lora = ()
    numa: str | None = None
    here: InitVar[bool] = True

    def __post_init__(self, here: bool) -> None:
        if self.head is not None:
            object.__setattr__(self, "head", str(read_path("head", self.head)))
        if not (isinstance(self.n_gpu_layers, str) and self.n_gpu_layers == "auto"):
            check_gpu_layers(self.n_gpu_layers)
        for name, high in (("n_cpu_moe", 10_000), ("main_gpu", 1_000)):
            object.__setattr__(self, name, in_range(name, getattr(self, name), 0, high))
        for name in ("use_mmap", "use_mlock"):
            object.__setattr__(self, name, flag(name, getattr(self, name)))
        if not isinstance(self.split_mode, str) or self.split_mode not in SPLIT_MODES:
            raise InvalidRequestError(
                f"split_mode={shown(self.split_mode)} is not known, use one of {', '.join(SPLIT_MODES)}", "split_mode"
            )
        if self.numa is not None and not (isinstance(self.numa, str) and self.numa in NUMA):
            raise InvalidRequestError(f"numa={shown(self.numa)} is not known, use one of {', '.join(NUMA)}", "numa")
        lists = (("override_tensor", read_overrides), ("tensor_split", read_split), ("lora", read_adapters))
        for name, read in lists:
            given = getattr(self, name)
            object.__setattr__(self, name, () if given is None else read(given))
        checked = self
        if not here:
            overrides = cast(tuple[tuple[str, str], ...], self.override_tensor)
            checked = replace(self, override_tensor=[(pattern, "CPU") for pattern, _ in overrides], main_gpu=0)
        options, _kept = checked.native(mtp=True, vocab_only=False)
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
            *([(experts_below(self.n_cpu_moe), "CPU")] if self.n_cpu_moe else []),
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
        head = ffi.NULL if self.head is None else ffi.new("char[]", os.fsencode(self.head))
        options.head = head
        options.vocab_only = vocab_only
        options.use_mmap = self.use_mmap
        options.use_mlock = self.use_mlock
        options.split_mode = getattr(lib, f"LLAMA_SPLIT_MODE_{self.split_mode.upper()}")
        options.main_gpu = self.main_gpu
        options.n_tensor_split, options.tensor_split = len(self.tensor_split), split
        options.n_overrides, options.patterns, options.buffers = len(overrides), patterns, buffers
        options.n_moe_overrides = int(self.n_cpu_moe > 0)
        options.n_lora, options.lora, options.lora_scales = len(self.adapters), lora, scales
        return options, [head, texts, patterns, buffers, lora, split, scales]

    def lora_digest(self) -> str:
        """A hash of the adapters' files and scales, "" without adapters. Raises ModelLoadError for a file that is not
        there."""
        if not self.adapters:
            return ""
        found = sha256()
        for path, scale in self.adapters:
            found.update(_ask("adapter", path, _hash))
            found.update(repr(scale).encode())
        return found.hexdigest()

    def check_adapters(self, model: str | os.PathLike[str]) -> None:
        """Reads the adapters beside a plan of the model, without its weights. Raises ModelLoadError as Model does for
        those that do not belong to it."""
        options, _kept = self.native(mtp=True, vocab_only=False)
        if self.adapters and lib.pymtp_check_adapters(os.fsencode(model), options) != lib.PYMTP_OK:
            raise ModelLoadError(f"{model}: {last_error()}")

    def adapter_bytes(self) -> int:
        """The sizes of the adapters' files. Raises ModelLoadError for a file that is not there or cannot be read."""
        return sum(_ask("adapter", path, _size) for path, _ in self.adapters)

    def find_files(self) -> None:
        """Raise ModelLoadError for a head or an adapter whose file is not there or cannot be read."""
        if self.head is not None:
            _ask("head", str(self.head), _size)
        self.adapter_bytes()


NAMES = frozenset(field.name for field in fields(ModelOptions))
MAY_BE_NONE = frozenset({"head", "override_tensor", "tensor_split", "lora", "numa"})  # which says nothing


def read_options(keywords: Mapping[str, Any], *, here: bool = True) -> dict[str, Any]:
    """Keywords of an LLM, those of ModelOptions as that has them: lists are copied, for a caller may change one, and
    iterators are read once. here: whether they are for this machine. Raises InvalidRequestError."""
    given = {name: keywords[name] for name in NAMES & keywords.keys()}
    if given.get("n_gpu_layers", 0) is None:  # an LLM's default
        del given["n_gpu_layers"]
    read = ModelOptions(**given, here=here)
    return {**keywords, **{name: getattr(read, name) for name in given}}


def experts_below(n: int) -> str:
    """An expression for the experts of the layers below n, n from 1 on. One for all: llama.cpp compiles each anew for
    each tensor. The names are those of its LLM_FFN_EXPS_REGEX."""
    last = str(n - 1)
    ways = ["[0-9]" if i == 1 else f"[1-9][0-9]{{{i - 1}}}" for i in range(1, len(last))]
    for i, digit in enumerate(last):  # as last, up to a digit that is less
        low = 1 if i == 0 and len(last) > 1 else 0
        if int(digit) > low:
            ways.append(f"{last[:i]}[{low}-{int(digit) - 1}]" + "[0-9]" * (len(last) - i - 1))
    return rf"blk\.({'|'.join([*ways, last])})\.ffn_(up|down|gate|gate_up)_(ch|)exps"


def check_gpu_layers(value: object) -> None:
    """Raises InvalidRequestError for what is no number of layers."""
    if not is_whole(value, -1, 2**31 - 1):
        raise InvalidRequestError(
            f"n_gpu_layers={shown(value)} must be a whole number, at most 2147483647, or -1 for all layers; "
            'LLM takes "auto", too',
            "n_gpu_layers",
        )


def _size(path: Path) -> int:
    with path.open("rb") as file:
        return file.seek(0, os.SEEK_END)


def _hash(path: Path) -> bytes:
    found = sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            found.update(piece)
    return found.digest()


def _ask(kind: str, path: str, ask: Callable[[Path], Answer]) -> Answer:
    """Ask for something of a file that goes with the model. kind: such as "adapter", for messages.

    Raises ModelLoadError for a file that is not there or cannot be read, and for what is no regular file: a pipe would
    be waited for, a device may never end.
    """
    file = Path(path)
    try:
        if file.exists() and not file.is_file():
            raise ModelLoadError(f"the {kind} {path} is no regular file")
        return ask(file)
    except FileNotFoundError as error:
        of_hub = kind == "head" and is_hub_name(path)
        where = "; a head of the hub comes with its model, as hf:OWNER/NAME:Q4_K_M+Q8_0" if of_hub else ""
        raise ModelLoadError(f"no such {kind}: {path}{where}") from error
    except OSError as error:
        raise ModelLoadError(f"the {kind} {path} cannot be read: {error.strerror}") from error


def use_numa(strategy: str | None) -> None:
    """Takes one of NUMA, for good; None takes none. Raises InvalidRequestError where another was taken before."""
    global _numa_taken
    if strategy is None:
        return
    with _numa_lock:
        if _numa_taken is not None and _numa_taken != strategy:
            raise InvalidRequestError(
                f'numa="{strategy}" comes too late: numa="{_numa_taken}" was asked for first, '
                "and holds for this process",
                "numa",
            )
        if _numa_taken is None:
            lib.llama_numa_init(getattr(lib, f"GGML_NUMA_STRATEGY_{strategy.upper()}"))
            _numa_taken = strategy
