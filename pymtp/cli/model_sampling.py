"""Sampling options whose defaults come from the model file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from pymtp.chat.sampling_defaults import normalize_sampling
from pymtp.cli import sampler_options as names
from pymtp.cli.options import MIN_P_HELP, TEMPERATURE, TEMPERATURE_HELP, TOP_K_HELP, TOP_P_HELP
from pymtp.cli.sampler_options import SamplerOptions
from pymtp.sampling import SamplingParams

MODEL_VALUE = "the model's"


@dataclass(frozen=True)
class ModelSamplingOptions(SamplerOptions):
    """Sampling options, named as in SamplingParams. None stands for the default of the model file."""

    temperature: Annotated[
        float | None, typer.Option(*TEMPERATURE, help=TEMPERATURE_HELP, show_default=MODEL_VALUE)
    ] = None
    top_k: Annotated[int | None, typer.Option(help=TOP_K_HELP, show_default=MODEL_VALUE)] = None
    top_p: Annotated[float | None, typer.Option(help=TOP_P_HELP, show_default=MODEL_VALUE)] = None
    min_p: Annotated[float | None, typer.Option(help=MIN_P_HELP, show_default=MODEL_VALUE)] = None
    repetition_penalty: Annotated[
        float | None, typer.Option(names.REPEAT, help=names.REPEAT_HELP, show_default=MODEL_VALUE)
    ] = None
    penalty_last_n: Annotated[
        int | None,
        typer.Option(names.REPEAT_LAST_N, help=names.REPEAT_LAST_N_HELP, show_default=f"{MODEL_VALUE}, else 64"),
    ] = None
    xtc_probability: Annotated[
        float | None, typer.Option(help=names.XTC_PROBABILITY_HELP, show_default=f"{MODEL_VALUE}, else 0")
    ] = None
    xtc_threshold: Annotated[
        float | None, typer.Option(help=names.XTC_THRESHOLD_HELP, show_default=f"{MODEL_VALUE}, else 0.1")
    ] = None
    samplers: Annotated[
        str | None, typer.Option(*names.SAMPLERS, help=names.SAMPLERS_HELP, show_default=f"{MODEL_VALUE}, else all")
    ] = None

    def given_params(self, **more: Any) -> dict[str, Any]:
        """Return the values that the user gave, by their names in SamplingParams.

        Raises InvalidRequestError for values out of range.

        more: values of further options; None if an option was not given.
        """
        given = self.given_values() | {name: value for name, value in more.items() if value is not None}
        params = normalize_sampling(given)
        SamplingParams(**params)  # checks them
        return params
