"""Options for how tokens are sampled, where the model's file has the say otherwise."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from pymtp.cli.load import options_named
from pymtp.cli.options import MIN_P_HELP, TEMPERATURE, TEMPERATURE_HELP, TOP_K_HELP, TOP_P_HELP
from pymtp.sampling import SamplingParams
from pymtp.sampling_defaults import taken

OF_MODEL = "the model's"


@dataclass(frozen=True)
class ModelSampling:
    """How tokens are sampled. The names are those of SamplingParams; None is for the model's file to say."""

    temperature: Annotated[float | None, typer.Option(*TEMPERATURE, help=TEMPERATURE_HELP, show_default=OF_MODEL)] = (
        None
    )
    top_k: Annotated[int | None, typer.Option(help=TOP_K_HELP, show_default=OF_MODEL)] = None
    top_p: Annotated[float | None, typer.Option(help=TOP_P_HELP, show_default=OF_MODEL)] = None
    min_p: Annotated[float | None, typer.Option(help=MIN_P_HELP, show_default=OF_MODEL)] = None
    presence_penalty: Annotated[
        float | None, typer.Option(help="Subtracted from the logits of tokens that came before.", show_default="0")
    ] = None
    frequency_penalty: Annotated[
        float | None, typer.Option(help="The same for each time that they came.", show_default="0")
    ] = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            "--repeat-penalty", help="Divides logits of tokens that came before, 1 for none.", show_default=OF_MODEL
        ),
    ] = None
    penalty_last_n: Annotated[
        int | None,
        typer.Option(
            "--repeat-last-n", help="Tokens that penalties look at, -1 for all.", show_default=f"{OF_MODEL}, else 64"
        ),
    ] = None

    def given(self, **more: Any) -> dict[str, Any]:
        """The values that were given, by the names of SamplingParams. Raises InvalidRequestError for those that are out
        of range.

        more: further values, None for those that were not given.
        """
        values = {**asdict(self), **more}
        found = taken({name: value for name, value in values.items() if value is not None})
        with options_named():
            SamplingParams(**found)
        return found
