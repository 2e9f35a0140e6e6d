"""Memory plans of a model with and without its head, side by side, for `pymtp info --memory`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.table import Table

from pymtp.context.memory import PARTS, DeviceMemory, plan_memory
from pymtp.model.model import Model
from pymtp.options import LLMOptions

WORDS = {
    "weights": "weights",
    "kv": "K and V",
    "states": "recurrent states",
    "compute": "compute buffers",
    "head_kv": "head: K and V",
    "head_compute": "head: compute buffers",
    "kept_rows": "head: kept rows",
    "draft_vocab": "head: draft vocabulary",
    "total": "total",
}


@dataclass(frozen=True)
class MemoryComparison:
    """The memory plans of one device, without and with the head and drafts from text.

    Parts that the device does not hold are 0 bytes.
    """

    without: DeviceMemory
    with_mtp: DeviceMemory

    def rows(self) -> list[tuple[str, int, int]]:
        """Return, for each of PARTS and "total", its name, its bytes without the head and its bytes with the head."""
        return [(name, getattr(self.without, name), getattr(self.with_mtp, name)) for name in (*PARTS, "total")]

    def as_dict(self) -> dict[str, Any]:
        """Return the bytes of all parts for JSON. "mtp" is the difference of "with_mtp" and "without_mtp"."""
        rows = self.rows()
        return {
            "device": self.without.device,
            "host": self.without.host,
            "without_mtp": {name: without for name, without, _ in rows},
            "with_mtp": {name: with_mtp for name, _, with_mtp in rows},
            "mtp": {name: with_mtp - without for name, without, with_mtp in rows},
        }


def compare_plans(options: LLMOptions, *, n_gpu_layers: int = -1) -> list[MemoryComparison]:
    """Plan the memory without and with the head, for each device that one of the plans uses.

    Both plans are equal if no drafts are made. Raises the errors of `Model` and `plan_memory`.

    options: those of an LLM whose model is a file, or None for the shipped model.
    n_gpu_layers: as for plan_memory.
    """
    assert not isinstance(options.model, Model)
    with Model(options.model, vocab_only=True, mtp=False) as bare:
        plain = replace(options, draft_tokens=0, draft_text=0)
        without = with_mtp = plan_memory(bare, plain, placing=options, n_gpu_layers=n_gpu_layers)
    if options.draft_tokens:
        with Model(options.model, vocab_only=True, head=options.head) as whole:
            with_mtp = plan_memory(whole, options, placing=options, n_gpu_layers=n_gpu_layers)
    devices = {m.device: m.host for m in (*without, *with_mtp)}
    return [
        MemoryComparison(*(_device_plan(plan, name, host) for plan in (without, with_mtp)))
        for name, host in devices.items()
    ]


@dataclass(frozen=True)
class PrefixMemory:
    """The host memory that cached prompts take.

    cache_bytes: limit for all cached prompts together.
    token_bytes: bytes of the K and V of one token.
    checkpoint_bytes: bytes of a checkpoint, accurate to some percent: the recurrent states from which a prompt can be
        continued, the logits, and the hidden row for the head. A cached prompt has 1 to 12 checkpoints.
    """

    cache_bytes: int
    token_bytes: int
    checkpoint_bytes: int

    def prompts(self, n_tokens: int) -> int:
        """Return how many prompts of n_tokens fit into cache_bytes, with two checkpoints each."""
        return self.cache_bytes // (n_tokens * self.token_bytes + 2 * self.checkpoint_bytes)


def plan_prefix_memory(
    plans: Sequence[MemoryComparison], cache_bytes: int, *, n_ctx: int, n_seq_max: int, row_bytes: int
) -> PrefixMemory:
    """Compute the host memory of cached prompts from the plans of all devices.

    row_bytes: bytes of the logits of a token and of the hidden row for the head.
    """
    cells = sum(plan.with_mtp.kv + plan.with_mtp.head_kv for plan in plans)
    states = sum(plan.without.states for plan in plans)  # drafts need more states, a checkpoint does not
    return PrefixMemory(cache_bytes, cells // (n_ctx * n_seq_max), states // n_seq_max + row_bytes)


def _device_plan(plan: Sequence[DeviceMemory], device: str, host: bool) -> DeviceMemory:
    return next((m for m in plan if m.device == device), DeviceMemory(device, host))


def as_table(comparison: MemoryComparison, title: str) -> Table:
    """Make a table of a device's memory in MiB, without the parts that are 0 in both plans."""
    table = Table("", "without drafts, MiB", "with drafts, MiB", "drafts, MiB", title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, without, with_mtp in comparison.rows():
        if without or with_mtp:
            if name == "total":
                table.add_section()
            table.add_row(WORDS[name], *(f"{n / 2**20:,.1f}" for n in (without, with_mtp, with_mtp - without)))
    return table
