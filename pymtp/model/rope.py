"""Options of rotary position embeddings: RoPE scaling and YaRN, with llama.cpp's names."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from pymtp.errors import InvalidRequestError
from pymtp.native import lib
from pymtp.validation import is_real, read_int, shown

SCALINGS = ("none", "linear", "yarn")
MIN_VALUE, MAX_VALUE = 1e-30, 1e30  # the range of factors and frequencies, far within that of a C float


@dataclass(frozen=True, kw_only=True)
class RopeOptions:
    """Options of rotary position embeddings: the part of ContextOptions that changes how positions are computed.

    None stands for the value in the model's file. The options apply to the target and the head.

    rope_scaling: "none", "linear" or "yarn".
    rope_freq_base: the base frequency, above 0.
    rope_freq_scale: a factor of the frequencies, above 0: 1/4 for a context four times as long as in training.
    yarn_ext_factor: the share of extrapolation, 0 or more.
    yarn_attn_factor: a factor of the rotated vectors, above 0. It has an effect only if yarn_ext_factor is 0; otherwise
        llama.cpp computes the factor.
    yarn_beta_fast, yarn_beta_slow: dimensions with more than yarn_beta_fast rotations over the training context are not
        interpolated, those with fewer than yarn_beta_slow are fully interpolated.
    yarn_orig_ctx: the number of tokens of the training context.

    Raises InvalidRequestError for values outside their range.
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
            object.__setattr__(self, "yarn_orig_ctx", read_int("yarn_orig_ctx", self.yarn_orig_ctx, 1))
        for name, value in self.rope.items():
            if name in ("rope_scaling", "yarn_orig_ctx"):
                continue
            zero = name in ("yarn_ext_factor", "yarn_beta_fast", "yarn_beta_slow")
            if not is_real(value) or not (MIN_VALUE <= value <= MAX_VALUE or (zero and value == 0)):
                numbers = f"{'0, or ' if zero else ''}a number from {MIN_VALUE:.0e} to {MAX_VALUE:.0e}"
                raise InvalidRequestError(f"{name}={shown(value)} must be {numbers}", name)
            object.__setattr__(self, name, float(value))

    @property
    def rope(self) -> dict[str, Any]:
        """Return these options by name, without those that are None."""
        every = {field.name: getattr(self, field.name) for field in fields(RopeOptions)}
        return {name: value for name, value in every.items() if value is not None}

    def write_rope(self, params: Any) -> None:
        """Set these options in a C struct `llama_context_params`."""
        for name, value in self.rope.items():
            if name == "rope_scaling":
                params.rope_scaling_type = getattr(lib, f"LLAMA_ROPE_SCALING_TYPE_{value.upper()}")
            else:
                setattr(params, name, value)
