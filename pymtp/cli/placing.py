"""Options of model placement (GPU layers, tensors, memory mapping), of RoPE scaling and of LoRA adapters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from pymtp.cli.options import (
    COUNT,
    Batch,
    Cache,
    CacheType,
    CacheTypeK,
    CacheTypeV,
    Ctx,
    Drafts,
    DraftText,
    DraftVocab,
    FlashAttn,
    LayersOrAuto,
    Ubatch,
    read_word,
)
from pymtp.cli.shell_values import choice, complete_gguf
from pymtp.context.options import CACHE_TYPES
from pymtp.errors import InvalidRequestError
from pymtp.model.options import NUMA, SPLIT_MODES
from pymtp.model.placement import MAX_NUMBER
from pymtp.model.rope import SCALINGS
from pymtp.options import LLMOptions

# further words that llama.cpp takes for --flash-attn
FLASH_ATTN_WORDS = {
    "enabled": "on",
    "true": "on",
    "1": "on",
    "disabled": "off",
    "false": "off",
    "0": "off",
    "-1": "auto",
}
ALL_LAYERS = "all"  # llama.cpp's word for -1
GGUF: dict[str, Any] = {"metavar": "FILE", "autocompletion": complete_gguf}


@dataclass(frozen=True)
class WeightOptions:
    """Options for the fields of ModelOptions, named as in llama.cpp."""

    head: Annotated[
        str | None,
        typer.Option(
            "--head",
            "--model-draft",
            "--spec-draft-model",
            "-md",
            **GGUF,
            help="The GGUF file of the head, if it is a separate file.",
        ),
    ] = None
    n_cpu_moe: Annotated[
        int, typer.Option("--n-cpu-moe", "-ncmoe", help="Keep the experts of the first N layers in the host's memory.")
    ] = 0
    override_tensor: Annotated[
        list[str] | None,
        typer.Option(
            "--override-tensor",
            "-ot",
            metavar="REGEX=BUFFER,…",
            help="Buffer for the tensors whose names match. May be given several times.",
        ),
    ] = None
    tensor_split: Annotated[
        str,
        typer.Option(
            "--tensor-split",
            "-ts",
            metavar="N,N,…",
            help="Share of the model on each GPU. Default: by the free memory of the GPUs.",
        ),
    ] = ""
    main_gpu: Annotated[int, typer.Option("--main-gpu", "-mg", help="The GPU for --split-mode none.")] = 0
    split_mode: Annotated[
        str,
        typer.Option("--split-mode", "-sm", **choice(*SPLIT_MODES), help="How the model is split over several GPUs."),
    ] = "layer"
    use_mmap: Annotated[bool, typer.Option("--mmap/--no-mmap", help="Map the file into memory.")] = True
    use_mlock: Annotated[
        bool, typer.Option("--mlock", help="Lock the model in memory, so that the system cannot swap it out.")
    ] = False
    numa: Annotated[
        str | None,
        typer.Option(**choice(*NUMA), help="How threads are spread over NUMA nodes."),
    ] = None
    lora: Annotated[
        list[str] | None, typer.Option(**GGUF, help="A LoRA adapter (GGUF). May be given several times.")
    ] = None
    lora_scaled: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE:SCALE", help="A LoRA adapter and its scale. May be given several times."),
    ] = None

    def keywords(self) -> dict[str, Any]:
        """Return the options as keywords of LLM. Raises InvalidRequestError for values of a wrong form."""
        given = dict(vars(self))
        given["override_tensor"] = ",".join(self.override_tensor or ())
        given["tensor_split"] = [
            _number("--tensor-split", self.tensor_split, share)
            for share in (self.tensor_split.split(",") if self.tensor_split else ())
        ]
        lora: list[tuple[str, float]] = [(path, 1.0) for path in self.lora or ()]
        if not all(self.lora or ()):
            raise InvalidRequestError("--lora '' must name a file")
        for text in given.pop("lora_scaled") or ():
            path, _, scale = text.rpartition(":")
            if not path:
                raise InvalidRequestError(f"--lora-scaled {text!r} must be FILE:SCALE")
            if abs(number := _number("--lora-scaled", text, scale)) > MAX_NUMBER:
                raise InvalidRequestError(f"--lora-scaled {text!r}: a scale is at most {MAX_NUMBER:.0e}")
            lora.append((path, number))
        given["lora"] = lora
        if "cache_type" in given:
            both = _cache_type(given.pop("cache_type"))
            given |= {name: both for name in ("type_k", "type_v") if given.get(name) is None}
        return given

    def options(self, model: str | None = None, **more: Any) -> LLMOptions:
        """Return the options as LLMOptions. Raises InvalidRequestError for values that are invalid for any model.

        more: further keywords of LLM.
        """
        return LLMOptions(model, **self.keywords(), **more)


@dataclass(frozen=True)
class PlacementOptions(WeightOptions):
    """Options of everything that takes memory, and of RoPE, named as in llama.cpp."""

    draft_tokens: Drafts = "auto"
    draft_text: DraftText = "auto"
    draft_vocab: DraftVocab = "auto"
    n_ctx: Ctx = LLMOptions.n_ctx
    n_gpu_layers: LayersOrAuto = "-1"
    n_batch: Batch = LLMOptions.n_batch
    n_ubatch: Ubatch = LLMOptions.n_ubatch
    flash_attn: FlashAttn = LLMOptions.flash_attn
    cache_type: CacheType = LLMOptions.type_k
    type_k: CacheTypeK = None
    type_v: CacheTypeV = None
    cache_bytes: Cache = None
    mmproj: Annotated[
        str | None,
        typer.Option(
            "--mmproj",
            "-mm",
            **GGUF,
            help="The GGUF file of the projector, with which chats may have images.",
            show_default="the one beside the model",
        ),
    ] = None
    mmproj_auto: Annotated[
        bool,
        typer.Option("--mmproj-auto/--no-mmproj", help="Use the projector beside the model, or of its repository."),
    ] = True
    mmproj_offload: Annotated[
        bool, typer.Option("--mmproj-offload/--no-mmproj-offload", help="Run the projector on the GPU.")
    ] = True
    image_min_tokens: Annotated[
        int | None, typer.Option(**COUNT, help="Fewest tokens of an image.", show_default="8")
    ] = None
    image_max_tokens: Annotated[
        int | None, typer.Option(**COUNT, help="Most tokens of an image.", show_default="4096")
    ] = None
    offload_kqv: Annotated[
        bool, typer.Option("--kv-offload/--no-kv-offload", "-kvo/-nkvo", help="Keep the K and V cache on the GPU.")
    ] = True
    rope_scaling: Annotated[
        str | None,
        typer.Option("--rope-scaling", **choice(*SCALINGS), help="How positions beyond the training are rotated."),
    ] = None
    rope_freq_base: Annotated[float | None, typer.Option(help="Base frequency of RoPE.")] = None
    rope_freq_scale: Annotated[
        float | None, typer.Option(help="Factor of RoPE's frequencies; 0.25 for 4 times the context.")
    ] = None
    yarn_orig_ctx: Annotated[
        int | None, typer.Option(**COUNT, help="YaRN: context length of the training in tokens.")
    ] = None
    yarn_ext_factor: Annotated[float | None, typer.Option(help="YaRN: share of extrapolation, 0 or more.")] = None
    yarn_attn_factor: Annotated[
        float | None, typer.Option(help="YaRN: factor of rotated vectors, with --yarn-ext-factor 0.")
    ] = None
    yarn_beta_fast: Annotated[
        float | None, typer.Option(help="YaRN: dimensions with more rotations are not scaled.")
    ] = None
    yarn_beta_slow: Annotated[
        float | None, typer.Option(help="YaRN: dimensions with fewer rotations are fully scaled.")
    ] = None

    def keywords(self) -> dict[str, Any]:
        """Return the options as keywords of LLM. Raises InvalidRequestError for values of a wrong form."""
        given = super().keywords()
        given["draft_tokens"] = read_word("--draft-tokens", self.draft_tokens, "auto")
        given["draft_text"] = read_word("--draft-text", self.draft_text, "auto")
        given["draft_vocab"] = read_word("--draft-vocab", self.draft_vocab, "auto", "all")
        layers = "-1" if self.n_gpu_layers == ALL_LAYERS else self.n_gpu_layers
        given["n_gpu_layers"] = read_word("--gpu-layers", layers, "auto")
        given["flash_attn"] = FLASH_ATTN_WORDS.get(self.flash_attn, self.flash_attn)
        if self.cache_bytes is not None:
            given["cache_bytes"] = self.cache_bytes * 2**20
        if not given.pop("mmproj_auto"):
            if self.mmproj is not None:
                raise InvalidRequestError("--mmproj and --no-mmproj exclude each other: use one of them")
            given["mmproj"] = False
        return given


def _cache_type(name: str) -> str:
    """Check the value of --cache-type. Raises InvalidRequestError if it is not a type of a cache."""
    if name not in CACHE_TYPES:
        raise InvalidRequestError(f"--cache-type {name!r} is not known, use one of {', '.join(CACHE_TYPES)}")
    return name


def _number(option: str, value: str, text: str) -> float:
    """Parse `text`, a part of an option's value, as a number. Raises InvalidRequestError if it is not finite."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidRequestError(f"{option} {value!r}: {text!r} is not a number")
    return number
