"""Options of penalties, and of the samplers beside top-k, top-p and min-p, with llama.cpp's names."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

PRESENCE_HELP = "Subtracted from the logits of tokens that came before."
FREQUENCY_HELP = "Subtracted from the logit of a token, once for each time that it came."
REPEAT = "--repeat-penalty"
REPEAT_HELP = "Divides the logits of tokens that came before; 1 has no effect."
REPEAT_LAST_N = "--repeat-last-n"
REPEAT_LAST_N_HELP = "Tokens that penalties look at, -1 for all."
XTC_PROBABILITY_HELP = "How often XTC drops the likeliest tokens, all but the last of --xtc-threshold or more."
XTC_THRESHOLD_HELP = "The probability from which on XTC drops a token; above 0.5, XTC is off."
SAMPLERS = ("--samplers", "--sampler-seq", "--sampling-seq")
SAMPLERS_HELP = 'The samplers to apply, in their order: "top_k;min_p;temperature", or llama.cpp\'s letters, "kmt".'
_NO_BREAKERS = "none"


@dataclass(frozen=True)
class SamplerOptions:
    """Options of penalties and samplers, named as in SamplingParams. None stands for the default."""

    presence_penalty: Annotated[float | None, typer.Option(help=PRESENCE_HELP, show_default="0")] = None
    frequency_penalty: Annotated[float | None, typer.Option(help=FREQUENCY_HELP, show_default="0")] = None
    repetition_penalty: Annotated[float | None, typer.Option(REPEAT, help=REPEAT_HELP, show_default="1")] = None
    penalty_last_n: Annotated[int | None, typer.Option(REPEAT_LAST_N, help=REPEAT_LAST_N_HELP, show_default="64")] = (
        None
    )
    dry_multiplier: Annotated[
        float | None,
        typer.Option(help="DRY's penalty of a token that continues a repetition; 0 for none.", show_default="0"),
    ] = None
    dry_base: Annotated[
        float | None,
        typer.Option(help="DRY's penalty grows by this factor with each repeated token.", show_default="1.75"),
    ] = None
    dry_allowed_length: Annotated[
        int | None, typer.Option(help="Number of tokens from which on DRY counts a repetition.", show_default="2")
    ] = None
    dry_penalty_last_n: Annotated[
        int | None, typer.Option(help="Tokens that DRY looks at, -1 for all.", show_default="64")
    ] = None
    dry_sequence_breakers: Annotated[
        list[str] | None,
        typer.Option(
            "--dry-sequence-breaker",
            help='A string at which a repetition ends, "none" for none. May be given several times.',
            show_default=r'\n : " *',
        ),
    ] = None
    top_n_sigma: Annotated[
        float | None,
        typer.Option(
            "--top-nsigma",
            "--top-n-sigma",
            help="Drop tokens this many standard deviations below the highest logit; 0 for none.",
            show_default="0",
        ),
    ] = None
    typical_p: Annotated[
        float | None,
        typer.Option("--typical", "--typical-p", help="Locally typical sampling; 1 for all tokens.", show_default="1"),
    ] = None
    xtc_probability: Annotated[float | None, typer.Option(help=XTC_PROBABILITY_HELP, show_default="0")] = None
    xtc_threshold: Annotated[float | None, typer.Option(help=XTC_THRESHOLD_HELP, show_default="0.1")] = None
    dynatemp_range: Annotated[
        float | None,
        typer.Option(help="Vary the temperature by up to this much with the entropy; 0 for none.", show_default="0"),
    ] = None
    dynatemp_exponent: Annotated[
        float | None, typer.Option("--dynatemp-exp", "--dynatemp-exponent", help="Its exponent.", show_default="1")
    ] = None
    samplers: Annotated[str | None, typer.Option(*SAMPLERS, help=SAMPLERS_HELP, show_default="all")] = None

    def given_values(self) -> dict[str, Any]:
        """Return the values that the user gave, by their names in SamplingParams."""
        values = {name: value for name, value in asdict(self).items() if value is not None and value != []}
        if (breakers := values.get("dry_sequence_breakers")) is not None:
            given = [text.replace(r"\n", "\n").replace(r"\t", "\t") for text in breakers]
            values["dry_sequence_breakers"] = [] if given == [_NO_BREAKERS] else given
        return values
