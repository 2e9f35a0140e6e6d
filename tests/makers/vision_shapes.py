"""Shapes of the projectors of Qwen3.5 and 3.6 models: the tensors and the metadata of a converted `mmproj` GGUF.

A projector is a vision tower and a merger, whose output rows have the width of the model's embeddings. Names, shapes
and keys are those that llama.cpp's tools/mtmd reads (clip.cpp, models/qwen3vl.cpp) and its conversion/qwen3vl.py
writes. Qwen3.5 and 3.6 have no deepstack layers (transformers' Qwen3_5VisionConfig).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from makers.model_shapes import PRESETS as MODELS
from makers.model_shapes import Tensor

CHANNELS = 3
FRAMES = 2  # a picture is a film of two equal frames; each has its own matrix (temporal_patch_size)
NORM_EPS = 1e-6


@dataclass(frozen=True)
class VisionShape:
    """The dimensions of a projector.

    n_out: width of the model's embeddings.
    side: rows and columns of the learned position embeddings, which are interpolated to the grid of a picture.
    merge: patches of merge x merge become one token.
    mean, std: of the normalisation of red, green and blue, each from 0 to 1.
    """

    n_layer: int
    n_embd: int
    n_head: int
    n_ff: int
    n_out: int
    side: int = 48
    patch: int = 16
    merge: int = 2
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    @property
    def n_params(self) -> int:
        return sum(tensor.size for tensor in self.tensors())

    def tensors(self) -> Iterator[Tensor]:
        """Return all tensors of the file, in its order."""
        kernel = (self.patch, self.patch, CHANNELS, self.n_embd)
        yield Tensor("v.patch_embd.weight", kernel)
        yield Tensor("v.patch_embd.weight.1", kernel)
        yield Tensor("v.patch_embd.bias", (self.n_embd,))
        yield Tensor("v.position_embd.weight", (self.n_embd, self.side**2))
        for i in range(self.n_layer):
            yield from self._block(f"v.blk.{i}")
        yield from _norm("v.post_ln", self.n_embd)
        merged = self.n_embd * self.merge**2
        yield from _linear("mm.0", merged, merged)
        yield from _linear("mm.2", merged, self.n_out)

    def _block(self, block: str) -> Iterator[Tensor]:
        yield from _norm(f"{block}.ln1", self.n_embd)
        yield from _linear(f"{block}.attn_qkv", self.n_embd, 3 * self.n_embd)
        yield from _linear(f"{block}.attn_out", self.n_embd, self.n_embd)
        yield from _norm(f"{block}.ln2", self.n_embd)
        yield from _linear(f"{block}.ffn_up", self.n_embd, self.n_ff)
        yield from _linear(f"{block}.ffn_down", self.n_ff, self.n_embd)

    def metadata(self) -> dict[str, str | int | float | bool | list[float] | list[bool]]:
        """Return the keys of the architecture, without the "clip." before each."""
        return {
            "has_vision_encoder": True,
            "projector_type": "qwen3vl_merger",
            "use_gelu": True,
            "vision.image_size": self.side * self.patch,
            "vision.patch_size": self.patch,
            "vision.spatial_merge_size": self.merge,
            "vision.embedding_length": self.n_embd,
            "vision.feed_forward_length": self.n_ff,
            "vision.block_count": self.n_layer,
            "vision.projection_dim": self.n_out,
            "vision.attention.head_count": self.n_head,
            "vision.attention.layer_norm_epsilon": NORM_EPS,
            "vision.image_mean": list(self.mean),
            "vision.image_std": list(self.std),
            "vision.is_deepstack_layers": [False] * self.n_layer,
        }


def _linear(name: str, n_in: int, n_out: int) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (n_in, n_out))
    yield Tensor(f"{name}.bias", (n_out,))


def _norm(name: str, n: int) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (n,))
    yield Tensor(f"{name}.bias", (n,))


def _small(n_out: int) -> VisionShape:
    """Return a small projector, with another mean and deviation for each colour.

    Its position embeddings are for a picture of 96 x 96 pixels, so that those of smaller and larger ones differ.
    """
    return VisionShape(
        n_layer=3,
        n_embd=64,
        n_head=4,
        n_ff=96,
        n_out=n_out,
        side=6,
        mean=(0.48145466, 0.4578275, 0.40821073),  # CLIP's
        std=(0.26862954, 0.26130258, 0.27577711),
    )


def _large(n_out: int) -> VisionShape:
    """Return the projector of the published models from 9B on: the defaults of transformers' Qwen3_5VisionConfig."""
    return VisionShape(n_layer=27, n_embd=1152, n_head=16, n_ff=4304, n_out=n_out)


# by the name of the model's preset in makers/model_shapes.py; "demo" is the shipped model
PROJECTORS = {
    "demo": _small(128),
    "tiny": _small(MODELS["tiny"].n_embd),
    "tiny-moe": _small(MODELS["tiny-moe"].n_embd),
    "7m": _small(MODELS["7m"].n_embd),
    # vision_config in config.json of huggingface.co/Qwen/Qwen3.5-0.8B
    "qwen3.5-0.8b": VisionShape(n_layer=12, n_embd=768, n_head=12, n_ff=3072, n_out=MODELS["qwen3.5-0.8b"].n_embd),
    "qwen3.6-27b": _large(MODELS["qwen3.6-27b"].n_embd),
    "qwen3.6-35b-a3b": _large(MODELS["qwen3.6-35b-a3b"].n_embd),
}
