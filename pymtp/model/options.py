"""Options of loading a model: placement of weights, memory mapping, head and adapters, with llama.cpp's names."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.model.placement import read_adapters, read_overrides, read_split
from pymtp.native import check, ffi, last_error, lib
from pymtp.validation import is_hub_name, is_whole, read_bool, read_int, read_path, shown

SPLIT_MODES = ("none", "layer", "row")
NUMA = ("distribute", "isolate", "numactl")

_numa_strategy: str | None = None
_numa_lock = threading.RLock()

File = str | os.PathLike[str]
Result = TypeVar("Result")
Lora = File | Sequence[File | tuple[File, float]] | Mapping[File, float]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    r"""Options of loading a model: keywords of Model and of LLM.

    Values are checked when the object is made, on any machine. `check_machine` checks what depends on the machine that
    loads the model: its files, its GPUs and their buffers. For options that are lists, None means an empty list.

    head: the file of a multi-token-prediction head in a file of its own, such as "mtp-Qwen3.8-27B-Q4_0.gguf"; for a
        split file, its first part. It replaces a head in the model's file.

    n_gpu_layers: the number of layers on the GPU, -1 or None for all; "auto", for LLM only, for as many as fit beside
        the context.
    n_cpu_moe: the number of layers, from the first on, whose experts stay in host memory.
    override_tensor: buffer types by regular expressions. The first expression that matches a part of a tensor's name
        decides where the tensor goes. A dict, or llama.cpp's text, such as r"blk\.[0-9]\.ffn_.*=CPU,output=CUDA0", in
        which a comma always ends an expression. It takes precedence over n_cpu_moe. The expressions are those of
        std::regex (ECMAScript): nested repetitions such as "(a*)*" may run forever, and Ctrl-C does not end them.
    tensor_split: the shares of the GPUs, in their order; empty for shares by their free memory.
    main_gpu: the index of the GPU for split_mode="none", from 0.
    split_mode: how several GPUs share the model: by layers ("layer"), by rows of weights ("row"), or not at all
        ("none").
    use_mmap: map weights in host memory from the file, where llama.cpp's backends can use mapped pages.
    use_mlock: lock the weights in memory. A warning in the log says if the system does not allow it.
    lora: LoRA adapters, GGUF files alone or with a scale: [("a.gguf", 0.5), "b.gguf"], or {"a.gguf": 0.5}. They apply
        to all texts.
    numa: the spread of threads over the NUMA nodes of a machine, one of NUMA, for the whole process. The first value in
        a process stays, also if its model could not be loaded.

    Raises InvalidRequestError for values outside their range.
    """

    head: File | None = None
    n_gpu_layers: int | Literal["auto"] | None = -1
    n_cpu_moe: int = 0
    override_tensor: Mapping[str, str] | str | Sequence[tuple[str, str]] = ()
    tensor_split: Sequence[float] = ()
    main_gpu: int = 0
    split_mode: str = "layer"
    use_mmap: bool = True
    use_mlock: bool = False
    lora: Lora = ()
    numa: str | None = None

    def __post_init__(self) -> None:
        if self.head is not None:
            object.__setattr__(self, "head", str(read_path("head", self.head)))
        if self.n_gpu_layers is None:
            object.__setattr__(self, "n_gpu_layers", -1)
        elif not (isinstance(self.n_gpu_layers, str) and self.n_gpu_layers == "auto"):
            if not is_whole(self.n_gpu_layers, -1, 2**31 - 1):
                raise InvalidRequestError(
                    f"n_gpu_layers={shown(self.n_gpu_layers)} must be a whole number, at most 2147483647, or -1 for "
                    'all layers; an LLM also accepts "auto"',
                    "n_gpu_layers",
                )
            object.__setattr__(self, "n_gpu_layers", int(self.n_gpu_layers))
        for name, high in (("n_cpu_moe", 10_000), ("main_gpu", 1_000)):
            object.__setattr__(self, name, read_int(name, getattr(self, name), 0, high))
        for name in ("use_mmap", "use_mlock"):
            object.__setattr__(self, name, read_bool(name, getattr(self, name)))
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
        self._check_native(anywhere=True)

    def _check_native(self, *, anywhere: bool) -> None:
        options, _kept = self.model_params(mtp=True, vocab_only=False, anywhere=anywhere)
        check(lib.pymtp_check_model_options(options))

    def check_machine(self) -> None:
        """Check that this machine has the files, GPUs and buffer types of the options, without reading the files.

        Raises ModelLoadError for a head or an adapter whose file is missing or cannot be read, InvalidRequestError for
        a GPU or a buffer type that is not here.
        """
        self._check_native(anywhere=False)
        if self.head is not None:
            read_file("head", str(self.head), file_size)
        self.adapter_bytes()

    @property
    def layers(self) -> int:
        """Return n_gpu_layers as a number. Raises InvalidRequestError for "auto", which needs a context to plan."""
        if self.n_gpu_layers == "auto":
            raise InvalidRequestError(
                'n_gpu_layers="auto" works with an LLM only, as it depends on the context: give a Model a number',
                "n_gpu_layers",
            )
        return cast(int, self.n_gpu_layers)  # __post_init__ has replaced None

    @property
    def adapters(self) -> tuple[tuple[str, float], ...]:
        """Return the files and scales of `lora`."""
        return cast(tuple[tuple[str, float], ...], self.lora)  # __post_init__ has converted it

    def model_params(
        self, *, mtp: bool, vocab_only: bool, layers: int = 0, anywhere: bool = False
    ) -> tuple[Any, list[Any]]:
        """Return the C struct of the options, and the objects that it points to, which must be kept as long as it.

        anywhere: name only devices that every machine has, in place of those of the options.
        """
        overrides = [
            *cast(tuple[tuple[str, str], ...], self.override_tensor),
            *([(experts_pattern(self.n_cpu_moe), "CPU")] if self.n_cpu_moe else []),
        ]
        texts = [
            [ffi.new("char[]", os.fsencode(text)) for text in column]
            for column in (
                [pattern for pattern, _ in overrides],
                ["CPU" if anywhere else buffer for _, buffer in overrides],
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
        options.main_gpu = 0 if anywhere else self.main_gpu
        options.n_tensor_split, options.tensor_split = len(self.tensor_split), split
        options.n_overrides, options.patterns, options.buffers = len(overrides), patterns, buffers
        options.n_moe_overrides = int(self.n_cpu_moe > 0)
        options.n_lora, options.lora, options.lora_scales = len(self.adapters), lora, scales
        return options, [head, texts, patterns, buffers, lora, split, scales]

    def lora_digest(self) -> str:
        """Return a SHA-256 in hexadecimal of the adapters' files and scales, "" without adapters.

        Raises ModelLoadError for a file that is missing or cannot be read.
        """
        if not self.adapters:
            return ""
        digest = sha256()
        for path, scale in self.adapters:
            digest.update(read_file("adapter", path, _hash))
            digest.update(repr(scale).encode())
        return digest.hexdigest()

    def check_adapters(self, model: str | os.PathLike[str]) -> None:
        """Check the adapters against the tensors of a model, without loading its weights.

        Raises ModelLoadError, as Model does, for adapters that do not belong to the model.
        """
        options, _kept = self.model_params(mtp=True, vocab_only=False)
        if self.adapters and lib.pymtp_check_adapters(os.fsencode(model), options) != lib.PYMTP_OK:
            raise ModelLoadError(f"{model}: {last_error()}")

    def adapter_bytes(self) -> int:
        """Return the total bytes of the adapters' files. Raises ModelLoadError for a missing or unreadable file."""
        return sum(read_file("adapter", path, file_size) for path, _ in self.adapters)


def experts_pattern(n: int) -> str:
    """Return one regular expression for the expert tensors of the layers below n; n is 1 or more.

    It is a single expression, because llama.cpp compiles each expression again for each tensor. The tensor names are
    those of llama.cpp's LLM_FFN_EXPS_REGEX.
    """
    last = str(n - 1)
    ways = ["[0-9]" if i == 1 else f"[1-9][0-9]{{{i - 1}}}" for i in range(1, len(last))]
    for i, digit in enumerate(last):  # numbers with the first i digits of `last`, and then a smaller digit
        low = 1 if i == 0 and len(last) > 1 else 0
        if int(digit) > low:
            ways.append(f"{last[:i]}[{low}-{int(digit) - 1}]" + "[0-9]" * (len(last) - i - 1))
    return rf"blk\.({'|'.join([*ways, last])})\.ffn_(up|down|gate|gate_up)_(ch|)exps"


def file_size(path: Path) -> int:
    with path.open("rb") as file:
        return file.seek(0, os.SEEK_END)


def _hash(path: Path) -> bytes:
    digest = sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.digest()


def read_file(kind: str, path: str, read: Callable[[Path], Result]) -> Result:
    """Call `read` with the path of a file that belongs to the model, and return its result.

    kind: the kind of the file for messages, such as "adapter".

    Raises ModelLoadError for a file that is missing, unreadable or not a regular file. A pipe is not read, because that
    may block, nor a device, which may have no end.
    """
    file = Path(path)
    try:
        if file.exists() and not file.is_file():
            raise ModelLoadError(f"the {kind} {path} is not a regular file")
        return read(file)
    except FileNotFoundError as error:
        names_hub = kind == "head" and is_hub_name(path)
        where = "; name a head on the hub together with its model: hf:OWNER/NAME:Q4_K_M+Q8_0" if names_hub else ""
        raise ModelLoadError(f"no such {kind}: {path}{where}") from error
    except OSError as error:
        raise ModelLoadError(f"the {kind} {path} cannot be read: {error.strerror}") from error


def init_numa(strategy: str | None) -> None:
    """Set the NUMA strategy of the process, or do nothing for None.

    Raises InvalidRequestError if another strategy has been set before.
    """
    global _numa_strategy
    if strategy is None:
        return
    with _numa_lock:
        if _numa_strategy is not None and _numa_strategy != strategy:
            raise InvalidRequestError(
                f'numa="{strategy}" cannot be set: numa="{_numa_strategy}" was set first, and applies to the process',
                "numa",
            )
        if _numa_strategy is None:
            lib.llama_numa_init(getattr(lib, f"GGML_NUMA_STRATEGY_{strategy.upper()}"))
            _numa_strategy = strategy
