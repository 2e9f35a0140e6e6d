"""Options that several commands share, and the support for dataclasses that group options.

The fields of a group have the names that the options have in Python: in LLMOptions, ServerSettings or SamplingParams.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from pymtp.cli.shell_values import choice, complete_gguf
from pymtp.context.options import CACHE_TYPES, FLASH_ATTN
from pymtp.errors import InvalidRequestError
from pymtp.model.model import TAPS
from pymtp.sampling import THINKING_END_RULE, is_thinking_end
from pymtp.validation import shown


def none_for_minus_one(value: int | None) -> int | None:
    """Return None for -1, which llama.cpp takes for a default: as many threads or tokens as there may be, any seed."""
    return None if value == -1 else value


def parse_count(text: str) -> int | None:
    """Return the number that a text stands for: "4096", "32k" (32 times 1024), "1M". Return None for any other text."""
    match = re.fullmatch(r"(-?[0-9]{1,18})([km]?)", text.strip().lower())
    return None if match is None else int(match[1]) * {"": 1, "k": 2**10, "m": 2**20}[match[2]]


def read_count(value: str | int) -> int:
    """Parse the value of an option that counts tokens. Raises typer.BadParameter for a text that is no number."""
    if (count := parse_count(str(value))) is None:
        raise typer.BadParameter(f"{shown(value)} must be a whole number of tokens, such as 4096, 4k or 1M")
    return count


def read_budget(value: str | int) -> int:
    """Parse the value of --reasoning-budget. Raises typer.BadParameter if it is neither -1 nor a number of tokens."""
    if not -1 <= (budget := read_count(value)) < 2**31:
        raise typer.BadParameter(f"{shown(value)} must be a whole number of tokens, or -1 for no limit")
    return budget


# keywords of options that count tokens
COUNT: dict[str, Any] = {"parser": read_count, "metavar": "N"}

# options of the model, and of the devices that run it
MODEL_HELP = "GGUF file, or hf:OWNER/NAME:Q4_K_M of the hub. Default: the shipped model."
MODEL: dict[str, Any] = {"metavar": "FILE|hf:NAME", "autocompletion": complete_gguf}
ModelName = Annotated[str | None, typer.Option("--model", "-m", **MODEL, help=MODEL_HELP)]
ModelArgument = Annotated[str | None, typer.Argument(**MODEL, help=MODEL_HELP)]
LAYERS = ("--gpu-layers", "--n-gpu-layers", "-ngl", "-g")
Layers = Annotated[int, typer.Option(*LAYERS, help="Layers on the GPU, -1 for all.")]
LayersOrAuto = Annotated[
    str, typer.Option(*LAYERS, **choice("auto", other="N"), help="Layers on the GPU; -1: all, auto: what fits.")
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        "-t",
        help="CPU threads.",
        show_default="one for each fast core",
        callback=none_for_minus_one,
    ),
]
CACHE_TYPE: dict[str, Any] = {"autocompletion": lambda: list(CACHE_TYPES)}
CacheType = Annotated[
    str, typer.Option("--cache-type", **CACHE_TYPE, help="Type of the K and V cache: f16, q8_0, q4_0 …")
]
CacheTypeK = Annotated[
    str | None,
    typer.Option("--cache-type-k", "-ctk", **CACHE_TYPE, help="Type of the K cache.", show_default="--cache-type"),
]
CacheTypeV = Annotated[
    str | None,
    typer.Option("--cache-type-v", "-ctv", **CACHE_TYPE, help="Type of the V cache.", show_default="--cache-type"),
]
FlashAttn = Annotated[
    str, typer.Option("--flash-attn", "-fa", **choice(*FLASH_ATTN), help="Compute attention in one operation.")
]
Batch = Annotated[int, typer.Option("--batch-size", "-b", **COUNT, help="Largest number of prompt tokens in a decode.")]
Ubatch = Annotated[
    int, typer.Option("--ubatch-size", "-ub", **COUNT, help="Largest number of tokens in a computed graph.")
]
CTX = ("--ctx", "--ctx-size", "-c")
Ctx = Annotated[int, typer.Option(*CTX, **COUNT, help="Context in tokens, such as 32k; 0: as trained.")]
AllThreads = Annotated[
    bool,
    typer.Option("--all-threads", help="Always compute with all --threads; slower if other programs use the CPU."),
]
SEQ_MAX = ("--n-seq-max", "--parallel", "-s", "-np")
SEQ_MAX_HELP = "Sequences at once, --ctx tokens each."
SeqMax = Annotated[int, typer.Option(*SEQ_MAX, help=SEQ_MAX_HELP)]

# options of prompts
File = Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from this file.")]
Prefix = Annotated[
    Path | None,
    typer.Option(help="A file that `pymtp prefix` saved. A prompt that begins with its text continues from there."),
]
Cache = Annotated[
    int | None,
    typer.Option(
        "--cache",
        "--cache-ram",
        "-cram",
        min=0,
        max=2**40,
        metavar="MIB",
        help="Host memory for cached prefixes, which are not prefilled again for prompts that begin with them.",
        show_default="a quarter of the machine's, at most 8 GiB and half of the memory that the model leaves free",
    ),
]

TemplateFile = Annotated[
    Path | None,
    typer.Option(
        "--chat-template-file", metavar="FILE", help="The chat template, in Jinja.", show_default="the model's"
    ),
]
TemplateVariables = Annotated[
    str | None,
    typer.Option(
        metavar="JSON", help='Variables of the chat template, such as {"enable_thinking": false}.', show_default="none"
    ),
]

# options of drafts
DRAFTS = ("--draft-tokens", "--draft-max", "--draft", "--draft-n", "--spec-draft-n-max", "-d")
Drafts = Annotated[str, typer.Option(*DRAFTS, **choice("auto", other="N"), help="Drafts per round of the MTP head.")]
DraftText = Annotated[
    str,
    typer.Option(
        "--draft-text", **choice("auto", other="N"), help="Most drafts per round that come from the text; 0: none."
    ),
]
DraftVocab = Annotated[
    str,
    typer.Option(
        "--draft-vocab", **choice("auto", "all", other="N"), help="Tokens that drafts of the head are chosen from."
    ),
]
Tap = Annotated[str, typer.Option(**choice(*TAPS, "auto"), help="Hidden state that the MTP head takes.")]

# options of sampling
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        "-n",
        **COUNT,
        help="Generate at most this many tokens; -1: no limit.",
        callback=none_for_minus_one,
    ),
]
TEMPERATURE = ("--temperature", "--temp")
TEMPERATURE_HELP = "0 takes the most likely token."
TOP_K_HELP = "Keep the k most likely tokens, 0 for all."
TOP_P_HELP = "Keep the most likely tokens whose probabilities add up to p."
MIN_P_HELP = "Drop tokens with less than this share of the largest probability."
Temperature = Annotated[float, typer.Option(*TEMPERATURE, help=TEMPERATURE_HELP)]
TopK = Annotated[int, typer.Option(help=TOP_K_HELP)]
TopP = Annotated[float, typer.Option(help=TOP_P_HELP)]
MinP = Annotated[float, typer.Option(help=MIN_P_HELP)]
Seed = Annotated[int | None, typer.Option(help="Seed of the sampling; -1: random.", callback=none_for_minus_one)]

# options of thinking, named as in llama.cpp
ReasoningBudget = Annotated[
    int,
    typer.Option(
        parser=read_budget, metavar="N", help="Largest number of thinking tokens, 0 for none, -1 for no limit."
    ),
]
ReasoningBudgetMessage = Annotated[
    str, typer.Option(metavar="TEXT", help="Insert this text when the thinking is closed because of its budget.")
]

# options of the output
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@dataclass(frozen=True)
class SamplingOptions:
    """Sampling options with fixed defaults, named as in SamplingParams."""

    top_k: TopK = 40
    top_p: TopP = 0.95
    min_p: MinP = 0.05
    seed: Seed = 0


def read_word(option: str, text: str, *words: str) -> Any:
    """Parse a whole number, or one of `words`. Raises InvalidRequestError for any other text."""
    if text in words:
        return text
    if (number := parse_count(text)) is None:
        allowed = ", ".join(["a whole number", *(f'"{word}"' for word in words[:-1])]) + f' or "{words[-1]}"'
        raise InvalidRequestError(f"{option} {text!r} must be {allowed}")
    return number


def thinking_params(budget: int, message: str) -> dict[str, Any]:
    """Convert the values of --reasoning-budget and --reasoning-budget-message to fields of SamplingParams.

    Raises InvalidRequestError for an invalid message.
    """
    if not is_thinking_end(message):
        raise InvalidRequestError(f"--reasoning-budget-message {shown(message)} must be {THINKING_END_RULE}")
    return {"thinking_budget": None if budget < 0 else budget, "thinking_end": message}


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: replace each parameter whose type is a dataclass by one option for each of its fields."""
    parameters: list[Parameter] = []
    groups: dict[str, Any] = {}
    types = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        if is_dataclass(types[name]):
            groups[name] = types[name]
            field_types = get_type_hints(types[name], include_extras=True)
            parameters += [
                Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=field_types[field.name])
                for field in fields(types[name])
            ]
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=types[name]))

    @wraps(command)
    def call(**options: Any) -> None:
        built = {name: group(**{f.name: options.pop(f.name) for f in fields(group)}) for name, group in groups.items()}
        command(**options, **built)

    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call
