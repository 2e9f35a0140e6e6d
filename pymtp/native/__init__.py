"""The interface to C: the compiled library, its errors, its log and its handling of signals.

Only models, contexts, samplers and depth policies may use `lib`; `lint-imports` checks this.

llama.cpp's log goes to `logging.getLogger("pymtp.native")`. While a native call runs on the main thread, Python runs
pending signal handlers about 20 times a second; an exception of a handler (KeyboardInterrupt) ends that call and is
raised by its `check`. Calls on other threads continue.
"""

import atexit
import logging
import re
import threading
from pathlib import Path
from types import TracebackType
from typing import Any
from weakref import WeakSet

from pymtp.errors import CancelledError, ContextFullError, InvalidRequestError, NativeError
from pymtp.native.locking import begin_exit, exiting, in_children
from pymtp.native.variants import choose


def _processor_features() -> list[str]:
    from pymtp.native._processor import features  # here, as a source folder does not have this module

    return features()


chosen = choose(Path(__file__).parent, _processor_features)
__path__.insert(0, str(chosen.folder))  # Python looks for _native there first

try:
    from pymtp.native._native import ffi, lib
except ModuleNotFoundError as error:
    raise ImportError(
        "this pymtp has no compiled module: it is the source folder. Run Python from elsewhere, or install "
        "this folder: pip install --no-build-isolation -e ."
    ) from error
except ImportError as error:
    if "libcudart" not in str(error) and "libcublas" not in str(error):
        raise
    raise ImportError(
        f"{error}. This pymtp was built for CUDA, whose libraries are missing or too old. If it was built with "
        "PYMTP_CUDA_WHEELS=1: pip install 'nvidia-cublas<14' 'nvidia-cuda-runtime<14'. Otherwise install the CUDA "
        "toolkit that it was built with"
    ) from error

__all__ = ["check", "chosen", "ends_before_exit", "ffi", "last_error", "lib", "startup_errors"]

_logger = logging.getLogger("pymtp.native")
_GGML_DEBUG, _GGML_INFO, _GGML_ERROR = 1, 2, 4  # enum ggml_log_level
_LEVELS = {_GGML_DEBUG: logging.DEBUG, _GGML_INFO: logging.INFO, 3: logging.WARNING, _GGML_ERROR: logging.ERROR}

# Warnings of llama.cpp that are expected, and therefore logged at level INFO: one for each tensor of an adapter whose
# weights the CPU repacks, one for each tensor of a head that is not loaded, and those of cancelled calls.
_EXPECTED = re.compile(
    "cannot use buft|has unused tensor|removing memory module entries|"
    "(graph_compute_async failed with error|failed to compute graph, compute status:) 1$|failed to decode, ret = 2$"
)

startup_errors: list[str] = []  # the reasons why CUDA failed to start, for build_info.warn_without_gpu
_started = False


class _Raised(threading.local):
    """The exception that a signal or log handler raised in this thread during a callback of native code."""

    error: BaseException | None = None


_raised = _Raised()


def _keep(_type: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    _raised.error = error


def _raise_kept() -> None:
    error = _raised.error
    if error is not None:
        _raised.error = None
        raise error


@ffi.def_extern(onerror=_keep)  # type: ignore[untyped-decorator]
def pymtp_on_log(level: int, text: Any) -> None:
    line = ffi.string(text).decode("utf-8", "replace").rstrip()
    if not _started and level == _GGML_ERROR:
        startup_errors.append(line)
    elif line:
        log_level = logging.INFO if _EXPECTED.search(line) else _LEVELS.get(level, logging.INFO)
        _logger.log(log_level, "%s", line.replace("--load-mode none", "use_mmap=False, --no-mmap"))


@ffi.def_extern(error=True, onerror=_keep)  # type: ignore[untyped-decorator]
def pymtp_on_poll() -> bool:
    # Python runs pending signal handlers when this function is entered on the main thread
    return exiting() or _raised.error is not None


def last_error() -> str:
    """Return the error message of this thread's last native call.

    Raises the exception of a signal or log handler that was called during that native call.
    """
    _raise_kept()
    text: str = ffi.string(lib.pymtp_last_error()).decode("utf-8", "replace")
    return text


def check(status: int) -> None:
    """Raise the exception that belongs to the status of a native call, unless the status is PYMTP_OK.

    Raises the exception of a signal or log handler instead, if one was called during the native call and raised.

    status: a value of enum pymtp_status in pymtp.h.
    """
    if _raised.error is not None:
        _raise_kept()
    if status == lib.PYMTP_OK:
        return
    kinds = {
        lib.PYMTP_FULL: ContextFullError,
        lib.PYMTP_CANCELLED: CancelledError,
        lib.PYMTP_INVALID: InvalidRequestError,
        lib.PYMTP_DEAD_END: InvalidRequestError,
    }
    raise kinds.get(status, NativeError)(last_error())


_EXIT_SECONDS = 10.0  # longest wait for a call at exit: it should end within a ubatch, but the process must end anyway
_locks: WeakSet[Any] = WeakSet()
_registry = threading.RLock()  # guards _locks; at exit it stays locked, which stops other threads only


def ends_before_exit(lock: Any) -> None:
    """Before the interpreter exits, end the native call that holds this lock, and keep the lock.

    Otherwise a daemon thread could be in a native call while exit() destroys the objects that the call uses.

    lock: a lock that is held during each native call of a model or context.
    """
    with _registry:
        _locks.add(lock)


@in_children
def _leave_calls() -> None:
    """Remove the locks that are held by threads which do not exist in the child, because their calls never end."""
    global _registry
    _registry = threading.RLock()
    for lock in list(_locks):
        if lock.acquire(blocking=False):
            lock.release()
        else:
            _locks.discard(lock)


def _end_calls() -> None:
    begin_exit()
    _registry.acquire()
    for lock in list(_locks):
        lock.acquire(timeout=_EXIT_SECONDS)  # not released, so that no other call begins


# native threads must not call into an interpreter that is going away
atexit.register(lib.pymtp_set_log, ffi.NULL, _GGML_INFO)
atexit.register(lib.pymtp_set_poll, ffi.NULL)
atexit.register(_end_calls)
lib.pymtp_set_log(lib.pymtp_on_log, _GGML_DEBUG if _logger.isEnabledFor(logging.DEBUG) else _GGML_INFO)
lib.pymtp_set_poll(lib.pymtp_on_poll)
lib.llama_backend_init()
_started = True
