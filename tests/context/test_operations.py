"""Tests of the timed operations of a graph, and of the memory bandwidth test: counts, not times."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from helpers.contexts import BOTH, context, some_tokens, work
from makers.gguf_read import open_gguf

from pymtp.context.context import Context
from pymtp.context.inspect import Operation, memory_seconds
from pymtp.errors import InvalidRequestError, NativeError
from pymtp.model.model import Model
from pymtp.sampling import Sampler, SamplingParams

PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")


def operations_of(c: Context, tokens: list[int]) -> list[Operation]:
    """Return the operations of one verification."""
    c.inspect.time_operations()
    c.verify_chain(tokens)
    return c.inspect.operations()


def prefilled_context(model: Model, **keywords: Any) -> Context:
    c = context(model, **keywords)
    c.set_sampling(Sampler(SamplingParams()))
    c.prefill(some_tokens(model, 5))
    return c


def node_counts(operations: list[Operation]) -> Counter[str]:
    return sum((Counter({o.op: o.nodes}) for o in operations), Counter())


@BOTH
@pytest.mark.parametrize("rows", [1, 4])
def test_operations_count_every_computed_matmul_once(model: Model, rows: int) -> None:
    tokens = some_tokens(model, rows)
    found = node_counts(operations_of(prefilled_context(model), tokens))
    traced = prefilled_context(model, trace=True)
    traced.inspect.trace()
    traced.verify_chain(tokens)
    computed = work(traced.inspect.trace())
    assert {op: found[op] for op in PRODUCTS} == {op: computed[op] for op in PRODUCTS}
    names = {"SILU": "UNARY", "SIGMOID": "UNARY", "SOFTPLUS": "UNARY", "SWIGLU": "GLU", "CUSTOM": "CUSTOM"}
    assert {names.get(op, op) for op in found} <= set(computed) | {"UNARY", "GLU", "CUSTOM"}


def test_operations_of_a_row_read_all_weights_of_the_trunk_and_none_of_the_head(
    shipped_f32: Model, demo_f32: Path
) -> None:
    n_bytes = sum(o.weight_bytes for o in operations_of(prefilled_context(shipped_f32), some_tokens(shipped_f32, 1)))
    tensors = {t.name: int(t.n_bytes) for t in open_gguf(demo_f32).tensors if len(t.shape) == 2}
    trunk = [f"blk.{i}." for i in range(shipped_f32.n_layer)]
    last = max(int(name.split(".")[1]) for name in tensors if name.startswith("blk."))
    assert last >= shipped_f32.n_layer, "the head's block follows"
    layers = sum(n for name, n in tensors.items() if name.startswith(tuple(trunk)) and "conv1d" not in name)
    output = tensors.get("output.weight", tensors["token_embd.weight"])
    # the head processes the verified row only with the next draft
    assert n_bytes == layers + output


def test_operations_count_only_the_chosen_experts(moe: Model) -> None:
    def experts(tokens: list[int]) -> int:
        return sum(o.weight_bytes for o in operations_of(prefilled_context(moe), tokens) if o.op == "MUL_MAT_ID")

    one, two = some_tokens(moe, 2)
    each, both = experts([one]), experts([one, two])
    assert each > 0
    # the head's block processes both rows, and chooses experts as well
    assert each < both <= 3 * each
    of_all = sum(int(t.n_bytes) for t in open_gguf(moe.path).tensors if "_exps." in t.name)
    assert both < experts(some_tokens(moe, 4)) <= of_all  # four rows make eight choices among four experts


def test_operations_are_recorded_only_between_start_and_stop(dense: Model) -> None:
    c = prefilled_context(dense)
    assert c.inspect.operations() == []
    first = operations_of(c, some_tokens(dense, 1))
    c.verify_chain(some_tokens(dense, 1))
    assert node_counts(c.inspect.operations()) == node_counts(first)
    assert c.inspect.operations() == []
    c.inspect.time_operations(False)
    c.verify_chain(some_tokens(dense, 1))
    assert c.inspect.operations() == []


def test_operation_times_include_waiting_and_add_up_to_the_decode(dense: Model) -> None:
    c = prefilled_context(dense, n_threads=2)
    before = c.counters.verify_seconds
    operations = operations_of(c, some_tokens(dense, 4))
    assert all(0 <= o.waiting_seconds <= o.seconds for o in operations)
    assert 0 < sum(o.seconds for o in operations) <= c.counters.verify_seconds - before


@pytest.mark.parametrize("n_threads", [1, 3])
def test_memory_bandwidth_reads_the_requested_number_of_times(n_threads: int) -> None:
    seconds = memory_seconds(2**20, n_threads, 4)
    assert len(seconds) == 4
    assert min(seconds) > 0


def test_memory_bandwidth_test_larger_than_the_memory_raises() -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for n_bytes in (
        2**60,
        total,
    ):  # Linux would overcommit the second size, and kill the process when the memory is written
        with pytest.raises(NativeError, match=r"MiB to read, and this machine has \d+ MiB"):
            memory_seconds(n_bytes, 1, 1)


MEMORY = """
import resource
from pymtp import NativeError
from pymtp.context.inspect import memory_seconds
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
try:
    memory_seconds(1 << 30, 1, 1)
except NativeError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
def test_memory_bandwidth_reports_refused_memory() -> None:
    if "ASAN_OPTIONS" in os.environ:
        pytest.skip("the sanitizer needs addresses without limit")
    done = subprocess.run([sys.executable, "-I", "-c", MEMORY], capture_output=True, text=True, timeout=60)
    assert done.stdout == "there is not enough memory\n", done.stderr


THREADS = """
import resource
from pymtp import NativeError
from pymtp.context.inspect import memory_seconds
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
try:
    memory_seconds(1 << 20, 512, 1)
except NativeError:
    print(len(memory_seconds(1 << 20, 1, 2)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
def test_memory_bandwidth_reports_a_thread_that_cannot_start() -> None:
    if "ASAN_OPTIONS" in os.environ:
        pytest.skip("the sanitizer needs addresses without limit")
    done = subprocess.run([sys.executable, "-I", "-c", THREADS], capture_output=True, text=True, timeout=60)
    assert done.stdout == "2\n", done.stderr
    with pytest.raises(InvalidRequestError):
        memory_seconds(0, 1, 1)
