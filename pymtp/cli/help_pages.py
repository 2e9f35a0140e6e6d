"""What the help page of each command shows first: its common options and an example; and the topics of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from pymtp.cli.bench_output import ReportOptions
from pymtp.cli.model_sampling import ModelSamplingOptions
from pymtp.cli.placing import PlacementOptions, WeightOptions


@dataclass(frozen=True)
class HelpPage:
    """The first part of a help page.

    example: a command line that works. common: the names of the parameters of the common options, in their order.
    """

    example: str
    common: tuple[str, ...] = ()


_MODEL = ("model", "n_ctx", "n_gpu_layers", "n_threads", "draft_tokens")
_BENCH = ("model", "n_gpu_layers", "n_threads", "output", "from_file")

# by the words of the command
PAGES: Mapping[str, HelpPage] = {
    "": HelpPage('pymtp generate "def fibonacci(n):"'),
    "generate": HelpPage(
        'pymtp generate -n 64 --temp 0.7 "def fibonacci(n):"',
        (*_MODEL, "file", "max_tokens", "temperature", "seed", "stop", "json_schema", "json_output"),
    ),
    "chat": HelpPage(
        'pymtp chat --system "Answer in one sentence." --temp 0.7',
        (*_MODEL, "system", "thinking", "max_tokens", "temperature", "seed"),
    ),
    "serve": HelpPage(
        "pymtp serve --port 8081 -c 4096 -np 2",
        ("models", "host", "port", "api_key_file", "served_names", "n_seq_max", *_MODEL[1:]),
    ),
    "prefix": HelpPage('pymtp prefix "A long text" --out text.prefix', (*_MODEL, "file", "out", "system")),
    "batch": HelpPage("pymtp batch requests.jsonl answers.jsonl -np 4", (*_MODEL, "n_seq_max")),
    "info": HelpPage(
        "pymtp info --memory -c 32768",
        (
            "memory",
            "n_ctx",
            "n_seq_max",
            "n_gpu_layers",
            "draft_tokens",
            "draft_text",
            "type_k",
            "type_v",
            "json_output",
        ),
    ),
    "tap": HelpPage("pymtp tap --tokens 64", ("tokens", "n_gpu_layers", "n_threads", "json_output")),
    "pull": HelpPage("pymtp pull OWNER/NAME:Q4_K_M"),
    "bench": HelpPage("pymtp bench decode --tokens 32"),
    "bench decode": HelpPage(
        "pymtp bench decode --depths none,3,auto --kinds code",
        ("depths", "kinds", "tokens", "rounds", *_BENCH),
    ),
    "bench batch": HelpPage(
        "pymtp bench batch --sequences 1,4 --depths none,auto", ("sequences", "depths", "tokens", "rounds", *_BENCH)
    ),
    "bench prefill": HelpPage("pymtp bench prefill --quick", ("sizes", "depths", "quick", "rounds", *_BENCH)),
    "bench prefix": HelpPage("pymtp bench prefix --traces chat", ("traces", "n_seq_max", "rounds", *_BENCH)),
    "bench rows": HelpPage("pymtp bench rows --rows 1,4,8", ("rows", "drafts", "rounds", *_BENCH)),
}


def _names(*groups: type) -> tuple[str, ...]:
    return tuple(field.name for group in groups for field in fields(group))


# the parameters of further sections; those of no topic stand in the last section
TOPICS: Mapping[str, tuple[str, ...]] = {
    "Report": _names(ReportOptions),
    "Sampling": ("max_tokens", "seed", *_names(ModelSamplingOptions)),
    "Model, devices and memory": ("tap", "all_threads", "n_threads", *_names(WeightOptions, PlacementOptions)),
}
