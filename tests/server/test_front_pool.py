"""Tests of the pool of models: which one is loaded, which one goes, and who waits. Workers are fakes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest
from helpers.fake_workers import FakeModels, settle

from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.server.errors import UnavailableError, UnknownModelError


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


def test_pool_keeps_as_many_models_as_fit_and_the_least_recently_used_goes() -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 40, "b": 40, "c": 40})
        await fakes.ask("a", "b", "a", "c")
        assert fakes.loaded == ["a", "c"]
        await fakes.ask("b")
        assert fakes.loaded == ["b", "c"]
        assert [name for what, name in fakes.events if what == "stop"] == ["b", "a"]

    run(use())


def test_pool_frees_memory_before_it_loads() -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 40, "b": 40, "c": 90})
        await fakes.ask("a", "b", "c")
        assert fakes.events == [("start", "a"), ("start", "b"), ("stop", "a"), ("stop", "b"), ("start", "c")]

    run(use())


def test_models_max_limits_the_number_of_loaded_models() -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 1, "b": 1, "c": 1}, models_max=1)
        await fakes.ask("a", "b", "c")
        assert fakes.loaded == ["c"]

    run(use())


def test_a_model_with_requests_is_not_unloaded_for_another() -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 60, "b": 60, "c": 20}, patience=1000)
        first, done = fakes.asking("a")
        await settle()
        second, other = fakes.asking("b")
        await settle()
        assert fakes.loaded == ["a"]
        done.set()
        other.set()
        await asyncio.gather(first, second)
        assert fakes.loaded == ["b"]

    run(use())


def test_an_idle_model_goes_before_a_busy_one_that_was_used_earlier() -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 40, "b": 40, "c": 40})
        busy, done = fakes.asking("a")
        await settle()
        await fakes.ask("b", "c")
        assert fakes.loaded == ["a", "c"]
        done.set()
        await busy

    run(use())


def test_a_model_that_is_always_busy_does_not_keep_another_out() -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 60, "b": 60})
        running = [fakes.asking("a")]
        await settle()
        waiting, end = fakes.asking("b")
        end.set()
        await settle()
        running.append(fakes.asking("a"))  # it comes later than the request for b, and waits for it
        await settle()
        running[0][1].set()
        await waiting
        assert [name for what, name in fakes.events if what == "start"][:2] == ["a", "b"]
        running[1][1].set()
        await asyncio.gather(*(task for task, _ in running))
        assert fakes.loaded == ["a"]

    run(use())


def test_requests_for_a_model_that_is_loading_share_one_load_and_others_are_served() -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 10, "b": 10})
        fakes.held.add("a")
        asked = [fakes.asking("a") for _ in range(5)]
        await settle()
        assert fakes.models["a"].status == "loading"
        await fakes.ask("b")
        fakes.held.clear()
        for _, done in asked:
            done.set()
        await asyncio.gather(*(task for task, _ in asked))
        assert fakes.events == [("start", "a"), ("start", "b")]

    run(use())


def test_a_wait_that_is_too_long_ends_with_retry_after_and_the_load_goes_on() -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 10}, load_wait=0.01)
        fakes.held.add("a")
        with pytest.raises(UnavailableError, match="the model a is still being loaded") as caught:
            await fakes.ask("a")
        assert caught.value.retry_after >= 1
        fakes.held.clear()
        await settle()
        assert fakes.loaded == ["a"]

    run(use())


def test_a_client_that_leaves_while_it_waits_costs_no_model_its_place() -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 60, "b": 60}, patience=1000)
        busy, done = fakes.asking("a")
        await settle()
        left, _ = fakes.asking("b")
        await settle()
        left.cancel()
        await settle()
        done.set()
        await busy
        await settle()
        assert fakes.loaded == ["a"]
        await fakes.ask("b")

    run(use())


def test_a_client_that_leaves_during_a_load_does_not_end_it() -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 60, "b": 60})
        await fakes.ask("a")
        fakes.held.add("b")
        left, _ = fakes.asking("b")
        await settle()
        left.cancel()
        await settle()
        assert fakes.models["b"].status == "loading"
        fakes.held.clear()
        await settle()
        assert fakes.loaded == ["b"]
        assert fakes.events == [("start", "a"), ("stop", "a"), ("start", "b")]

    run(use())


def test_a_worker_that_dies_is_started_again_by_the_next_request() -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 10})
        await fakes.ask("a")
        fakes.worker("a").die()
        await settle()
        assert fakes.loaded == []
        await fakes.ask("a")
        assert [what for what, _ in fakes.events].count("start") == 2

    run(use())


def test_a_failed_load_is_told_and_not_repeated_at_once() -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 10, "b": 10})
        fakes.wrong["a"] = ModelLoadError("no such file: a.gguf")
        for _ in range(2):
            with pytest.raises(UnavailableError, match=r"the model a cannot be loaded: no such file: a\.gguf"):
                await fakes.ask("a")
        assert fakes.events.count(("start", "a")) == 1
        await fakes.ask("b")
        fakes.wrong.clear()
        fakes.models["a"].retry_at = 0.0
        await fakes.ask("a")
        assert fakes.models["a"].failures == 0

    run(use())


def test_load_that_has_failed_thousands_of_times_is_tried_again() -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 60, "b": 60})
        model, fakes.wrong["a"] = fakes.models["a"], ModelLoadError("no such file: a.gguf")
        model.failures = 5000
        with pytest.raises(UnavailableError, match="no such file") as caught:
            await fakes.ask("a")
        assert (model.status, caught.value.retry_after) == ("unloaded", 30)
        await fakes.ask("b")

    run(use())


def test_a_worker_that_dies_while_it_loads_is_started_once_more_for_those_who_wait() -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 10})
        fakes.wrong["a"] = OSError("the worker ended before it was ready, with signal 9 (SIGKILL)")
        with pytest.raises(UnavailableError, match=r"the model a cannot be loaded: the worker ended .*SIGKILL"):
            await fakes.ask("a")
        assert fakes.events.count(("start", "a")) == 2
        fakes = FakeModels({"a": 10})
        fakes.dying.add("a")
        await asyncio.gather(*(fakes.ask("a") for _ in range(3)))
        assert fakes.events.count(("start", "a")) == 2

    run(use())


def test_a_model_larger_than_the_memory_is_loaded_alone_unless_the_limit_was_given() -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 10, "big": 200})
        await fakes.ask("a", "big")
        assert fakes.loaded == ["big"]
        fakes = FakeModels({"a": 10, "big": 200 * 2**20}, limits={"host": 100 * 2**20}, strict=True)
        await fakes.ask("a")
        with pytest.raises(UnavailableError, match="it needs 200 MiB of host memory, and all models may take 100"):
            await fakes.ask("big")

    run(use())


def test_an_idle_model_sleeps_and_wakes() -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 10}, idle_seconds=0.02)
        busy, done = fakes.asking("a")
        await asyncio.sleep(0.05)
        assert fakes.loaded == ["a"]  # a request runs
        done.set()
        await busy
        while fakes.loaded:
            await asyncio.sleep(0.005)
        await fakes.ask("a")
        assert fakes.loaded == ["a"]

    run(use())


def test_monitoring_neither_wakes_a_model_nor_keeps_it_awake() -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 10}, idle_seconds=0.05)
        with pytest.raises(UnavailableError, match="is not loaded"):
            async with fakes.pool.use(fakes.models["a"], wake=False):
                pass
        await fakes.ask("a")
        while fakes.loaded:
            with suppress(UnavailableError):
                async with fakes.pool.use(fakes.models["a"], wake=False):
                    pass
            await asyncio.sleep(0.005)
        assert fakes.events == [("start", "a"), ("stop", "a")]

    run(use())


def test_load_and_unload_by_name_as_in_llama_server() -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 10})
        model = fakes.models["a"]
        with pytest.raises(InvalidRequestError, match="model is not running"):
            fakes.pool.unload(model)
        fakes.pool.load(model)
        with pytest.raises(InvalidRequestError, match="model is already running"):
            fakes.pool.load(model)
        await settle()
        assert fakes.loaded == ["a"]
        busy, done = fakes.asking("a")
        await settle()
        n_tasks = len(asyncio.all_tasks())
        for _ in range(9):
            fakes.pool.unload(model)
            await settle()
        assert len(asyncio.all_tasks()) <= n_tasks + 2  # the one that unloads, and what it waits for
        assert fakes.loaded == ["a"]  # until the request has ended
        done.set()
        await busy
        await settle()
        assert fakes.loaded == []

    run(use())


def test_a_model_that_waits_for_its_last_request_to_end_does_not_hold_up_loads_of_others() -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 10, "b": 10})
        busy, done = fakes.asking("a")
        await settle()
        fakes.pool.unload(fakes.models["a"])
        await settle()
        again, end = fakes.asking("a")
        await settle()
        await fakes.ask("b")
        done.set()
        end.set()
        await asyncio.gather(busy, again)
        assert fakes.events == [("start", "a"), ("start", "b"), ("stop", "a"), ("start", "a")]

    run(use())


def test_model_that_a_client_unloads_makes_room_for_another_while_requests_wait_for_it() -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 60, "b": 60})
        busy, done = fakes.asking("a")
        await settle()
        fakes.pool.unload(fakes.models["a"])
        await settle()
        again, end = fakes.asking("a")
        await settle()
        other, also = fakes.asking("b")
        await settle()
        for event in (done, end, also):
            event.set()
        await asyncio.gather(busy, again, other)
        assert [name for what, name in fakes.events if what == "start"][1:] in (["a", "b"], ["b", "a"])

    run(use())


def test_unloading_goes_on_when_another_model_no_longer_needs_the_room() -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 60, "b": 60})
        busy, done = fakes.asking("a")
        await settle()
        fakes.pool.unload(fakes.models["a"])
        left, _ = fakes.asking("b")
        await settle()
        left.cancel()
        await settle()
        later, end = fakes.asking("a")
        await settle()
        done.set()
        await busy
        await settle()
        assert fakes.events == [("start", "a"), ("stop", "a"), ("start", "a")]
        assert not fakes.worker("a")._end.done()
        end.set()
        await later

    run(use())


def test_unknown_names_are_refused_with_the_list_and_no_name_is_the_first_model() -> None:
    fakes = FakeModels({"a": 10, "b": 10})
    assert fakes.pool.find(None).name == "a"
    with pytest.raises(UnknownModelError, match="there is no model 'c'; the models are a, b"):
        fakes.pool.find("c")


def test_single_model_that_was_given_no_name_gets_that_of_its_file() -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 10}, any_name=True)
        await fakes.ask("a")
        assert fakes.models["a"].name == "file of a"
        assert fakes.pool.find("any") is fakes.models["a"]

    run(use())


def test_shutdown_refuses_waiting_requests_and_ends_all_workers() -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 60, "b": 60}, patience=1000)
        busy, done = fakes.asking("a")
        await settle()
        fakes.pool.end()
        with pytest.raises(UnavailableError, match="shutting down"):
            await fakes.ask("b")
        done.set()
        await busy
        await fakes.pool.close()
        assert fakes.events == [("start", "a"), ("terminate", "a"), ("terminate", "a"), ("stop", "a")]

    run(use())


@pytest.mark.parametrize("patience", [0.0, 1000.0])
def test_shutdown_refuses_those_who_wait_for_a_busy_model_at_once(patience: float) -> None:
    async def use() -> None:
        fakes = FakeModels({"a": 60, "b": 60}, patience=patience)
        busy, done = fakes.asking("a")
        await settle()
        waiting, _ = fakes.asking("b")
        await settle()
        fakes.pool.end()
        with pytest.raises(UnavailableError, match="shutting down"):
            await waiting
        done.set()
        await busy
        await fakes.pool.close()
        assert ("start", "b") not in fakes.events

    run(use())


@pytest.mark.parametrize("seed", range(5))
def test_random_requests_and_deaths_never_take_more_memory_than_allowed(seed: int) -> None:
    numbers = random.Random(seed)

    async def use() -> None:
        sizes = {"a": 40, "b": 40, "c": 60}
        fakes = FakeModels(sizes)
        live: set[str] = set()

        async def ask() -> None:
            name = numbers.choice("abc")
            async with fakes.pool.use(fakes.models[name]) as worker:
                assert worker.name == name
                for _ in range(numbers.randrange(5)):
                    await asyncio.sleep(0)
                    live = {n for n, m in fakes.models.items() if m.status != "unloaded"}
                    assert sum(sizes[n] for n in live) <= 100
                if numbers.random() < 0.05 and not worker._end.done():
                    worker.die()

        tasks = []
        for _ in range(200):
            tasks.append(asyncio.create_task(ask()))
            if numbers.random() < 0.5:
                await settle(numbers.randrange(5))
        await asyncio.gather(*tasks)
        assert not live
        assert all(model.users == 0 for model in fakes.models.values())

    run(use())
