"""Sampling options whose defaults come from the model file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from pymtp.cli.options import MIN_P_HELP, TEMPERATURE, TEMPERATURE_HELP, TOP_K_HELP, TOP_P_HELP, option_names
from pymtp.sampling import SamplingParams
from pymtp.sampling_defaults import normalize_sampling

MODEL_VALUE = "the model's"


@dataclass(frozen=True)
class ModelSamplingOptions:
    """Sampling options, named as in SamplingParams. None stands for the default of the model file."""

    temperature: Annotated[
        float | None, typer.Option(*TEMPERATURE, help=TEMPERATURE_HELP, show_default=MODEL_VALUE)
    ] = None
    top_k: Annotated[int | None, typer.Option(help=TOP_K_HELP, show_default=MODEL_VALUE)] = None
    top_p: Annotated[float | None, typer.Option(help=TOP_P_HELP, show_default=MODEL_VALUE)] = None
    min_p: Annotated[float | None, typer.Option(help=MIN_P_HELP, show_default=MODEL_VALUE)] = None
    presence_penalty: Annotated[
        float | None, typer.Option(help="Subtracted from the logits of tokens that came before.", show_default="0")
    ] = None
    frequency_penalty: Annotated[
        float | None,
        typer.Option(help="Subtracted from the logit of a token, once for each time that it came.", show_default="0"),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            "--repeat-penalty",
            help="Divides the logits of tokens that came before; 1 has no effect.",
            show_default=MODEL_VALUE,
        ),
    ] = None
    penalty_last_n: Annotated[
        int | None,
        typer.Option(
            "--repeat-last-n", help="Tokens that penalties look at, -1 for all.", show_default=f"{MODEL_VALUE}, else 64"
        ),
    ] = None

    def given_params(self, **more: Any) -> dict[str, Any]:
        """Return the values that the user gave, by their names in SamplingParams.

        Raises InvalidRequestError for values out of range.

        more: values of further options; None if an option was not given.
        """
        values = {**asdict(self), **more}
        params = normalize_sampling({name: value for name, value in values.items() if value is not None})
        with option_names(ModelSamplingOptions, max_tokens="--max-tokens", seed="--seed"):
            SamplingParams(**params)
        return params
