"""How positions are rotated: RoPE scaling and YaRN, with llama.cpp's names."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from pymtp.errors import InvalidRequestError
from pymtp.native import lib
from pymtp.validation import in_range, is_real, shown

SCALINGS = ("none", "linear", "yarn")
LEAST, MOST = 1e-30, 1e30  # of factors and frequencies: far from the ends of a C float


@dataclass(frozen=True)
class RopeOptions:
    """Options of Context, as keywords of LLM. None takes what the model's file says. The target and the head are
    rotated alike. Values are checked when one is made, which raises InvalidRequestError.

    rope_scaling: "none", "linear" or "yarn".
    rope_freq_base: base frequency, above 0.
    rope_freq_scale: factor of the frequencies, above 0: 1/4 for a context four times as long as that of the training.
    yarn_ext_factor: how much extrapolation is mixed in, from 0 on.
    yarn_attn_factor: factor of the size of what is rotated, above 0. Counts where yarn_ext_factor is 0: llama.cpp
        computes it otherwise.
    yarn_beta_fast, yarn_beta_slow: rotations within the training's context above which nothing is interpolated, and
        below which all is.
    yarn_orig_ctx: tokens of the training's context.
    """

    rope_scaling: str | None = None
    rope_freq_base: float | None = None
    rope_freq_scale: float | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_fast: float | None = None
    yarn_beta_slow: float | None = None
    yarn_orig_ctx: int | None = None

    def __post_init__(self) -> None:
        scaling = self.rope_scaling
        if scaling is not None and not (isinstance(scaling, str) and scaling in SCALINGS):
            raise InvalidRequestError(
                f"rope_scaling={shown(scaling)} is not known, use one of {', '.join(SCALINGS)}",
                "rope_scaling",
            )
        if self.yarn_orig_ctx is not None:
            object.__setattr__(self, "yarn_orig_ctx", in_range("yarn_orig_ctx", self.yarn_orig_ctx, 1))
        for name, value in self.given().items():
            if name in ("rope_scaling", "yarn_orig_ctx"):
                continue
            zero = name in ("yarn_ext_factor", "yarn_beta_fast", "yarn_beta_slow")
            if not is_real(value) or not (LEAST <= value <= MOST or (zero and value == 0)):
                numbers = f"{'0, or ' if zero else ''}a number from {LEAST:.0e} to {MOST:.0e}"
                raise InvalidRequestError(f"{name}={shown(value)} must be {numbers}", name)
            object.__setattr__(self, name, float(value))

    def given(self) -> dict[str, Any]:
        """Those that are not None, by name."""
        every = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in every.items() if value is not None}

    def write(self, params: Any) -> None:
        """Into the C struct `llama_context_params`."""
        for name, value in self.given().items():
            if name == "rope_scaling":
                params.rope_scaling_type = getattr(lib, f"LLAMA_ROPE_SCALING_TYPE_{value.upper()}")
            else:
                setattr(params, name, value)

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.given().items())


NAMES = frozenset(field.name for field in fields(RopeOptions))
