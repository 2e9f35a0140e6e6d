"""A summary of all results of the GPU suite, from the reports in a folder."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX_FAILURES = 12  # lines


def lines(folder: Path) -> list[str]:
    """Format the results as Markdown: machine, prefill, decoding, llama-bench, memory, checks, failures."""
    reports = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}
    with_build = next((report for report in reports.values() if "build" in report), None)
    text: list[str] = [*_machine(with_build), ""] if with_build else []
    for name, report in reports.items():
        if name.startswith("prefill-"):
            text += [*_prefill(report), ""]
    decodes = {name: report for name, report in reports.items() if name.startswith("decode-")}
    if decodes:
        text += [*_decode(decodes), ""]
    peers = [report for name, report in reports.items() if name.startswith("peer-")]
    if peers:
        text += [*_peer(peers), ""]
    for name, report in reports.items():
        if name.startswith("memory-"):
            text += [*_memory(report), ""]
    if "check" in reports:
        text += [*(f"check: {name}: {result}" for name, result in reports["check"].items()), ""]
    failed = [job for job in reports.get("jobs", []) if job["error"]]
    text += [f"failed: {job['name']}: {job['error'][:200]}" for job in failed[:MAX_FAILURES]]
    return text


def _machine(report: dict[str, Any]) -> Iterator[str]:
    gpus = ", ".join(f"{gpu['name']} (driver {gpu['driver']})" for gpu in report["machine"]["gpus"]) or "no GPU"
    yield f"{gpus}; {report['machine']['cpu']}, {report['machine']['cores']} cores; {report['build']['compiler']}"


def _row(*fields: object) -> str:
    return f"| {' | '.join(map(str, fields))} |"


def _median(spread: dict[str, Any] | None, digits: str) -> str:
    return "-" if spread is None else f"{spread['median']:{digits}}"


def _prefill(report: dict[str, Any]) -> Iterator[str]:
    yield f"**{report['settings']['model']}**: prompt tokens/s (decode tokens/s), of none"
    yield ""
    yield _row("prompt", "mode", "drafts", "prefill", "of none", "decode", "device, GiB")
    yield _row("---:", "---", "---:", "---:", "---:", "---:", "---:")
    for cell in report["cells"]:
        memory = cell["device_bytes"]
        yield _row(
            f"{cell['size']:,}",
            cell["mode"],
            cell["depth"] or "-",
            _median(cell["prefill"], ",.0f"),
            _median(cell["prefill_ratio"], ".3f"),
            _median(cell["decode"], ".1f"),
            "-" if memory is None else f"{memory / 2**30:.1f}",
        )


def _decode(reports: dict[str, Any]) -> Iterator[str]:
    yield "**Decoding**: tokens/s (of none) by synthetic acceptance of each draft"
    yield ""
    yield _row("model", "drafts", "acceptance", "tokens/s", "of none", "tokens per round", "µs a round")
    yield _row("---", "---", "---:", "---:", "---:", "---:", "---:")
    for report in reports.values():
        for cell in report["cells"]:
            yield _row(
                report["settings"]["model"],
                cell["arm"],
                f"{report['settings']['synthetic'][0]:g}",
                _median(cell["decode"], ".1f"),
                _median(cell["decode_ratio"], ".3f"),
                f"{cell['mean_accepted_length']:.2f}",
                f"{1e6 * cell['seconds']['round']:,.0f}",
            )


def _memory(report: dict[str, Any]) -> Iterator[str]:
    setup = f"{report['model']}, {report['n_ctx']:,} tokens, {report['draft_tokens']} drafts"
    for device in report["devices"]:
        parts = ", ".join(f"{name} {n / 2**20:,.0f}" for name, n in device["mtp"].items() if n and name != "total")
        without, mtp = device["without_mtp"]["total"], device["mtp"]["total"]
        yield f"memory: {setup}: {device['device']} {without / 2**20:,.0f} MiB, MTP {mtp / 2**20:,.0f} more ({parts})"


def _peer(reports: list[dict[str, Any]]) -> Iterator[str]:
    yield "**Against llama-bench of the same build**, plain"
    yield ""
    yield _row("model", "", "llama-bench, tokens/s", "pymtp, tokens/s", "ratio")
    yield _row("---", "---", "---:", "---:", "---:")
    for report in reports:
        for kind in ("prefill", "decode"):
            sides = [
                statistics.median(pair[side][kind] for pair in report["pairs"]) for side in ("llama_bench", "pymtp")
            ]
            ratio = statistics.median(pair["ratio"][kind] for pair in report["pairs"])
            yield _row(report["settings"]["model"], kind, *(f"{side:,.1f}" for side in sides), f"{ratio:.3f}")
