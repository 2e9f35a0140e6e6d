"""Evaluates the shipped model with pymtp on held-out cases: right answers, accepted drafts, repeated lines.

    pip install .
    python tools/models/shipped/evaluate.py pymtp/model/demo.gguf --cases 1000 -o benchmarks/shipped_model.json

Right answers are counted greedily, by kind. Acceptance is by position of three drafts, at each temperature: position i
counts rounds that accepted at least i of three drafts, among rounds that drafted three.
"""

import hashlib
import json
import platform
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from cases.case import Case
from chats import prompt_of
from stream import KINDS, held_out_cases

from pymtp import LLM, SamplingParams

DRAFTS = 3
MAX_TOKENS = 240
README_PROMPT = "def fibonacci(n):"


def answers(llm: LLM, cases: list[Case], temperature: float) -> list[Any]:
    """Return the completions of the cases' prompts."""
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=temperature, seed=1)
    return [llm.generate(prompt_of(case), params) for case in cases]


def acceptance(completions: list[Any]) -> list[float]:
    """Return the acceptance by position over all completions."""
    rounds = [c.stats for c in completions]
    drafted = [sum(s.drafted_per_position[i] for s in rounds if len(s.drafted_per_position) > i) for i in range(DRAFTS)]
    accepted = [
        sum(s.accepted_per_position[i] for s in rounds if len(s.accepted_per_position) > i) for i in range(DRAFTS)
    ]
    return [round(a / d, 3) if d else 0.0 for a, d in zip(accepted, drafted, strict=True)]


def repeats(text: str) -> bool:
    """Return whether a text has a line, other than an empty one, more than three times."""
    lines = Counter(line for line in text.splitlines() if line.strip())
    return max(lines.values(), default=0) > 3


def evaluate(model: Path, n_cases: int, temperatures: list[float], threads: int, show: int) -> dict[str, Any]:
    kinds = {kind: held_out_cases(kind, n_cases // len(KINDS)) for kind in KINDS}
    by_kind: dict[str, dict[str, Any]] = {}
    everything: dict[float, list[Any]] = {temperature: [] for temperature in temperatures}
    with LLM(model, n_ctx=1024, n_threads=threads, draft_tokens=DRAFTS) as llm:
        first = llm.generate(README_PROMPT, SamplingParams(max_tokens=MAX_TOKENS))
        for kind, cases in kinds.items():
            row: dict[str, Any] = {"cases": len(cases)}
            for temperature in temperatures:
                done = answers(llm, cases, temperature)
                everything[temperature] += done
                row[f"acceptance at {temperature:g}"] = acceptance(done)
                row[f"texts that repeat a line more than three times at {temperature:g}"] = sum(
                    repeats(c.text) for c in done
                )
                if not temperature:
                    right = [case.is_right(c.text) for case, c in zip(cases, done, strict=True)]
                    row["right"] = round(sum(right) / len(cases), 3)
                    row["tokens"] = sum(len(c.token_ids) for c in done)
                    wrong = [(case, c) for case, c, good in zip(cases, done, right, strict=True) if not good]
                    for case, c in wrong[:show]:
                        print(f"--- {kind}, wrong: {prompt_of(case)}▶{c.text}")
            by_kind[kind] = row
            print(kind, json.dumps(row), flush=True)
    return {
        "model_sha256": hashlib.sha256(model.read_bytes()).hexdigest(),
        "machine": platform.processor() or platform.machine(),
        "drafts": DRAFTS,
        "kinds": by_kind,
        "all": {f"acceptance at {t:g}": acceptance(done) for t, done in everything.items()},
        "readme": {"prompt": README_PROMPT, "text": first.text, "finish_reason": first.finish_reason},
    }


def main(
    model: Annotated[Path, typer.Argument(exists=True, dir_okay=False)],
    cases: Annotated[int, typer.Option(help="Held-out cases, as many of each kind.")] = 1000,
    temperatures: Annotated[str, typer.Option(help="At 0, right answers are counted, too.")] = "0,0.7,1",
    threads: Annotated[int, typer.Option("-t", "--threads")] = 2,
    show: Annotated[int, typer.Option(help="Wrong answers to print, of each kind.")] = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File for the counts, as JSON.")] = None,
) -> None:
    """Evaluate a model, and print its counts."""
    results = evaluate(model, cases, [float(each) for each in temperatures.split(",")], threads, show)
    text = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
    if output:
        output.write_text(text)
    print(text)


if __name__ == "__main__":
    typer.run(main)
