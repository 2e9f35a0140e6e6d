"""Tests of saved prefixes that fail, are interrupted, or are used by several threads at once."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_llm
from helpers.interrupts import InterruptAtLine
from helpers.saved_prefixes import DOCUMENT, QUESTION, SHORT
from helpers.scripts import run_code
from safetensors.numpy import load_file

from pymtp import AsyncLLM, CancelledError, ClosedError, ContextFullError, InvalidRequestError, SamplingParams
from pymtp.engine.request import Waiter
from pymtp.prefix_cache.checkpoints import TAIL_TOKENS
from pymtp.prefix_cache.file_writer import PrefixWriter
from pymtp.prefix_cache.save import PrefixSaver


def test_load_prefix_refuses_unsuitable_files_and_the_llm_stays_usable(saved: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    whole = bytearray(saved.read_bytes())
    whole[len(whole) // 2] ^= 1
    damaged.write_bytes(whole)
    with make_llm() as llm:
        wanted = llm.generate("import ", SHORT).token_ids
        for file, error, why in (
            (damaged, InvalidRequestError, "checksum"),
            (tmp_path / "missing", FileNotFoundError, "missing"),
            (tmp_path, OSError, "directory"),
            (llm.model.path, InvalidRequestError, "not a prefix file"),
        ):
            with pytest.raises(error, match=why):
                llm.load_prefix(file)
        assert llm.figures().prefixes.nbytes == llm.figures().prefixes.checkpoints == 0
        assert llm.generate("import ", SHORT).token_ids == wanted
    for keywords, why in (
        ({"type_k": "q8_0"}, "was made with another type_k"),
        ({"draft_tokens": 0}, "was made with drafts"),
        ({"tap": "pre_norm"}, "was made with another tap"),
    ):
        with make_llm(**keywords) as llm, pytest.raises(InvalidRequestError, match=why):
            llm.load_prefix(saved)
    with make_llm(n_ctx=256) as llm, pytest.raises(ContextFullError, match="more than n_ctx = 256"):
        llm.load_prefix(saved)
    with pytest.raises(ClosedError):
        llm.load_prefix(saved)


@pytest.mark.parametrize("method", ["_check", "state", "cells"])
def test_load_prefix_refuses_a_file_that_is_truncated_during_the_load(saved: Path, path: Path, method: str) -> None:
    program = """if True:
        import os, sys
        from pymtp import LLM, InvalidRequestError, SamplingParams
        from pymtp.prefix_cache.file import PrefixFile
        path, method = sys.argv[1:]
        real = getattr(PrefixFile, method)
        def cut(self, *arguments):
            os.truncate(path, 4096)
            return real(self, *arguments)
        with LLM(n_ctx=1024, n_threads=1) as llm:
            setattr(PrefixFile, method, cut)
            try:
                llm.load_prefix(path)
            except InvalidRequestError as error:
                print(error)
            assert not llm.figures().prefixes.nbytes
            llm.generate("import ", SamplingParams(max_tokens=4))
    """
    path.write_bytes(saved.read_bytes())
    code, printed = run_code(program, [str(path), method])
    assert code == 0, printed
    assert "cut short or damaged (it ends before its tensors do)" in printed


def test_save_prefix_checks_its_arguments_before_the_prefill(path: Path) -> None:
    with make_llm(n_ctx=256) as llm:
        for prompt, file, error in (
            ("", path, InvalidRequestError),
            ([], path, InvalidRequestError),
            ([-1], path, InvalidRequestError),
            (5, path, InvalidRequestError),
            (DOCUMENT, path, ContextFullError),
            ("import ", path.parent, IsADirectoryError),
            ("import ", path.parent / "missing" / "file", FileNotFoundError),
        ):
            with pytest.raises(error):
                llm.save_prefix(prompt, file)  # type: ignore[arg-type]
        assert llm.figures().read == 0
        assert os.listdir(path.parent) == []
        llm.save_prefix("import ", path)
    with pytest.raises(ClosedError):
        llm.save_prefix("import ", path)


def fails(error: BaseException) -> Callable[..., None]:
    def call(*_: object) -> None:
        raise error

    return call


def test_save_prefix_raises_the_error_of_a_full_disk_and_keeps_the_old_file(
    path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_llm(n_seq_max=2) as llm:
        llm.save_prefix("import ", path)
        old = path.read_bytes()
        stream = llm.stream("import os\n", SamplingParams(max_tokens=40, ignore_eos=True))
        next(stream)
        for method in ("begin", "write_cells", "commit"):
            with monkeypatch.context() as patched:
                patched.setattr(PrefixWriter, method, fails(OSError(errno.ENOSPC, "no space")))
                with pytest.raises(OSError, match="no space"):
                    llm.save_prefix(DOCUMENT, path)
            assert path.read_bytes() == old
            assert os.listdir(path.parent) == [path.name]
        for _ in stream:
            pass
        assert stream.completion.finish_reason == "length"
        llm.save_prefix(DOCUMENT, path)
        assert path.read_bytes() == saved.read_bytes()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is full")
def test_save_prefix_error_of_a_full_disk_names_the_file(path: Path) -> None:
    writer = PrefixWriter(path, {})
    writer._file.close()
    writer._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115  # discard() closes the file
    with pytest.raises(OSError, match="No space left") as failed:
        writer.begin([1], {1: np.zeros(4, np.uint8)}, 4)
    assert failed.value.filename == str(path)


@pytest.mark.parametrize("end", [PrefixWriter.commit, PrefixWriter.discard])
def test_finished_prefix_writer_has_no_finalizer_left(path: Path, end: Callable[[PrefixWriter], None]) -> None:
    # an exception of a signal handler that ran in a finalizer would be lost
    writer = PrefixWriter(path, {})
    writer.begin([1], {1: np.zeros(4, np.uint8)}, 4)
    writer.write_cells(np.zeros((1, 4), np.uint8))
    end(writer)
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(f"{event} {frame.f_code.co_name}"))
    del writer
    sys.setprofile(None)
    assert [name for name in called if name.startswith("call")] == []


def test_abandoned_prefix_writer_leaves_no_file(path: Path) -> None:
    writer = PrefixWriter(path, {})
    writer.begin([1], {1: np.zeros(4, np.uint8)}, 4)
    del writer
    assert os.listdir(path.parent) == []


def test_cancel_ends_save_prefix_and_keeps_the_old_file(
    path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = PrefixWriter.write_cells
    with make_llm() as llm:
        llm.save_prefix("import ", path)
        old = path.read_bytes()

        def cancels(self: PrefixWriter, cells: Any) -> None:
            write(self, cells)
            llm.cancel()

        monkeypatch.setattr("pymtp.prefix_cache.save.CHUNK_BYTES", 100 * llm.context.state.cell_bytes)
        with monkeypatch.context() as patched:
            patched.setattr(PrefixWriter, "write_cells", cancels)
            with pytest.raises(CancelledError):
                llm.save_prefix(DOCUMENT, path)
        assert path.read_bytes() == old
        assert os.listdir(path.parent) == [path.name]
        llm.save_prefix(DOCUMENT, path)  # this prefix is written in several pieces
        assert path.read_bytes() == saved.read_bytes()


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_interrupted_save_prefix_keeps_the_old_file_and_other_requests_continue(path: Path, saved: Path) -> None:
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    with make_llm(n_seq_max=2, n_ubatch=32) as llm:
        wanted = llm.generate("import os\n", params).token_ids
        llm.save_prefix("import ", path)
        old = path.read_bytes()
        stream = llm.stream("import os\n", params)
        next(stream)
        timer = threading.Timer(0.15, lambda: os.kill(os.getpid(), signal.SIGINT))

        def save() -> None:
            timer.start()
            for i in count():
                llm.save_prefix(f"{i}{DOCUMENT}", path.with_name(str(i)))

        with pytest.raises(KeyboardInterrupt):
            save()
        timer.join()
        assert path.read_bytes() == old
        assert not [name for name in os.listdir(path.parent) if name.startswith(".")]
        for _ in stream:
            pass
        assert stream.completion.token_ids == wanted
        llm.save_prefix(DOCUMENT, path)
        found, wanted_tensors = load_file(path), load_file(saved)
        assert found.keys() == wanted_tensors.keys()
        for name in found.keys() - {"sum"}:  # the checksum differs with n_ubatch, which the file names
            np.testing.assert_array_equal(found[name], wanted_tensors[name])


def test_save_and_load_prefix_may_be_repeated_after_an_interrupt_at_any_line(saved: Path, path: Path) -> None:
    pick = random.Random(1)
    with make_llm(n_seq_max=2) as llm:
        wanted = llm.generate(DOCUMENT + QUESTION, SHORT).token_ids
        for _ in range(30):
            for call in (lambda: llm.save_prefix(DOCUMENT, path), lambda: llm.load_prefix(saved)):
                places = int(10 ** pick.uniform(0.5, 3.3))
                try:
                    with InterruptAtLine(
                        places, "pymtp/engine/prefix_files.py", "pymtp/prefix_cache/", "pymtp/engine/thread.py"
                    ):
                        call()
                except KeyboardInterrupt:
                    pass
                assert not [name for name in os.listdir(path.parent) if name.startswith(".")]
            assert llm.generate(DOCUMENT + QUESTION, SHORT).token_ids == wanted
        assert llm.save_prefix(DOCUMENT, path) == llm.load_prefix(saved)
        assert path.read_bytes() == saved.read_bytes()
        assert llm.generate(DOCUMENT + QUESTION, SHORT).token_ids == wanted


def test_async_llm_saves_and_loads_prefixes_beside_other_requests(saved: Path, path: Path) -> None:
    with make_llm(cache_prompt=False) as llm:
        wanted = llm.generate([DOCUMENT + QUESTION, "import "], SHORT)

    async def run() -> None:
        async with AsyncLLM(n_ctx=1024, n_threads=1, draft_tokens=3, n_seq_max=2) as llm:
            other = asyncio.create_task(llm.generate("import ", SHORT))
            n = await llm.save_prefix(DOCUMENT, path)
            assert path.read_bytes() == saved.read_bytes()
            assert (await other).token_ids == wanted[1].token_ids
            assert await llm.load_prefix(path) == n
            found = await llm.generate(DOCUMENT + QUESTION, SHORT)
            assert found.token_ids == wanted[0].token_ids
            with pytest.raises(FileNotFoundError):
                await llm.load_prefix(path.with_name("missing"))
            with pytest.raises(FileNotFoundError):
                await llm.save_prefix(DOCUMENT, path.parent / "missing" / "file")

    asyncio.run(run())


@pytest.mark.parametrize("cache_bytes", [None, 0])
def test_prompt_saved_to_several_files_at_once_is_prefilled_once(
    cache_bytes: int | None, saved: Path, path: Path
) -> None:
    with make_llm(n_seq_max=4, cache_bytes=cache_bytes) as llm:
        n = len(llm._maker.prompt_tokens(DOCUMENT))
        end = 4 * (TAIL_TOKENS + 1)  # tokens at the ends of four requests, each with the token before its end
        for most in (n + end, end if cache_bytes is None else n + end):  # the second time, most is cached
            before = llm.figures().read
            with ExitStack() as open_files:
                waiter = Waiter()
                savers = [open_files.enter_context(PrefixSaver()) for _ in range(3)]
                for i, saver in enumerate(savers):
                    llm._prefix_files.open_saver(saver, DOCUMENT, path.with_name(str(i)))
                asked = llm._submit([DOCUMENT], SHORT, waiter)
                for saver in savers:
                    asked += llm._submit([saver.tokens], None, waiter, saver=saver)
                llm._engine_thread.wake()
                llm._engine_thread.wait(waiter, asked, lambda: all(request.ended for request in asked))  # noqa: B023
                for i, request in enumerate(asked[1:]):
                    assert request.saver is not None
                    assert request.saver.commit() == n
                    assert path.with_name(str(i)).read_bytes() == saved.read_bytes()
            assert llm.figures().read - before <= most


def test_async_save_prefix_when_cancelled_leaves_the_old_or_the_new_file(saved: Path, path: Path) -> None:
    async def run() -> None:
        async with AsyncLLM(n_ctx=1024, n_threads=1, draft_tokens=3, n_ubatch=32, cache_prompt=False) as llm:
            await llm.save_prefix("import ", path)
            old = path.read_bytes()
            await llm.save_prefix(DOCUMENT, path)
            new = path.read_bytes()
            for i in range(12):
                path.write_bytes(old)
                task = asyncio.create_task(llm.save_prefix(DOCUMENT, path))
                await asyncio.sleep(0.004 * i)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                assert path.read_bytes() in (old, new)
            await llm.generate("import ", SHORT)
            await llm.save_prefix(DOCUMENT, path)
            assert path.read_bytes() == new

    asyncio.run(run())
    assert os.listdir(path.parent) == [path.name]


def test_threads_save_load_and_generate_at_the_same_time(saved: Path, path: Path) -> None:
    errors: list[BaseException] = []
    with make_llm(n_seq_max=2) as llm:
        wanted = llm.generate(DOCUMENT + QUESTION, SHORT).token_ids

        def work(i: int) -> None:
            try:
                for _ in range(3):
                    mine = path.with_name(str(i))
                    llm.save_prefix(DOCUMENT, mine)
                    assert mine.read_bytes() == saved.read_bytes()
                    llm.load_prefix(saved)
                    assert llm.generate(DOCUMENT + QUESTION, SHORT).token_ids == wanted
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=[i]) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
