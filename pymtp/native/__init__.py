"""The interface to C: the compiled library, its errors, its log, its handling of signals, and calls that take turns.

Only models, contexts, samplers, depth policies and text indexes may use `lib`; `lint-imports` checks this.

llama.cpp's log goes to `logging.getLogger("pymtp.native")`. While a native call runs on the main thread, Python runs
pending signal handlers about 20 times a second; an exception of a handler (KeyboardInterrupt) ends that call and is
raised by its `check`. Calls on other threads continue.
"""

import atexit
import logging
import re
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, NoReturn, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

from pymtp.errors import CancelledError, ClosedError, ContextFullError, InvalidRequestError, NativeError
from pymtp.native.process import exiting, in_children, in_processor, tell_of_forks
from pymtp.native.variants import choose

P = ParamSpec("P")
R = TypeVar("R")


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

__all__ = ["Handle", "alone", "check", "chosen", "ends_before_exit", "ffi", "last_error", "lib", "startup_errors"]

_logger = logging.getLogger("pymtp.native")
_GGML_DEBUG, _GGML_INFO, _GGML_ERROR = 1, 2, 4  # enum ggml_log_level
_LEVELS = {_GGML_DEBUG: logging.DEBUG, _GGML_INFO: logging.INFO, 3: logging.WARNING, _GGML_ERROR: logging.ERROR}

# Warnings of llama.cpp that are expected, and therefore logged at level INFO: one for each tensor of an adapter whose
# weights the CPU repacks, one for each tensor of a head that is not loaded, one for a model of MXFP4, which llama.cpp
# computes without knowing a name for such files, and those of cancelled calls.
_EXPECTED = re.compile(
    "cannot use buft|has unused tensor|unknown type mxfp4$|removing memory module entries|"
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
    return exiting.is_set() or _raised.error is not None


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


class Handle:
    """A C object that one Python object owns: one call at a time uses it, and it is freed once, while no call runs.

    Calls from several threads take turns. A call within a call of the same thread raises InvalidRequestError: signal
    handlers and log handlers run in the middle of native calls, and may use cancel() and close() only.

    pointer: the C object; None after it was freed.
    closed: whether close() was called.
    samples: whether calls may wait for a logits processor.
    """

    def __init__(self, name: str, make: Callable[[], Any], free: Any, *, samples: bool = False) -> None:
        """Make the C object.

        name: the name of the owner in messages.
        make: calls the function of the library that makes the object.
        free: the function of the library that frees it.

        Raises NativeError if the object cannot be made.
        """
        self._name, self.samples = name, samples
        self.lock = threading.RLock()
        self.caller = 0  # id of the thread that is in a call; 0 if none is
        self.closed = False
        self._lost = False  # the process was forked during a call of another thread, which never ends in the child
        ends_before_exit(self.lock)
        with self.lock:
            pointer = make()
        if pointer == ffi.NULL:
            raise NativeError(last_error())
        # A running call, also of cancel(), holds a reference of its own. The object is freed with the last reference
        self.pointer: Any = ffi.gc(pointer, free)
        check(lib.PYMTP_OK)
        tell_of_forks(self)

    def close(self, cancel: Callable[[], None]) -> None:
        """Refuse new calls, wait for the running call, and free the C object. The second time, do nothing.

        cancel: asks a call of this thread to end soon, which frees the object at its end.
        """
        self.closed = True
        with self.lock:
            if self.caller:
                cancel()
            elif not self._lost:
                self.pointer = None

    @property
    def in_call_of_this_thread(self) -> bool:
        """Return whether this thread is in a call: then a signal or log handler runs."""
        return self.caller == threading.get_ident()

    def raise_refusal(self) -> NoReturn:
        """Raise ClosedError after close(), InvalidRequestError within a call of the same thread."""
        name = self._name
        if self._lost:
            raise ClosedError(f"this process was forked while a thread was in a call of the {name}: make a new one")
        if self.closed:
            raise ClosedError(f"the {name} is closed")
        raise InvalidRequestError(
            f"this thread is in a call of the {name}: a signal or log handler may only cancel() or close() it"
        )

    def lose(self) -> None:
        """Refuse all calls in a forked child, without freeing: a thread that used the object does not exist there."""
        self.lock, self.caller, self.closed, self._lost = threading.RLock(), 0, True, True

    def _after_fork_in_child(self) -> None:
        if self.lock.acquire(blocking=False):
            self.lock.release()
        else:
            self.lose()


class HandleOwner(Protocol):
    """An object whose methods make native calls with a Handle."""

    _handle: Handle


Owner = TypeVar("Owner", bound=HandleOwner)


def alone(method: Callable[Concatenate[Owner, P], R]) -> Callable[Concatenate[Owner, P], R]:
    """Decorate a method that makes native calls: each call waits until no other call with the handle runs.

    The method raises ClosedError after close(), and InvalidRequestError for numbers that overflow their C type.
    """

    @wraps(method)
    def call(self: Owner, /, *arguments: P.args, **keywords: P.kwargs) -> R:
        handle = self._handle
        if in_processor.running and handle.samples:
            in_processor.refuse()
        # a KeyboardInterrupt between acquire() and a `try` would leave the lock taken; the lock's own `with` is safe
        with handle.lock:
            if handle.closed or handle.caller:
                handle.raise_refusal()
            handle.caller = threading.get_ident()
            try:
                return method(self, *arguments, **keywords)
            except OverflowError as error:  # cffi raises it for a number that overflows its C type
                raise InvalidRequestError(f"a number is out of range: {error}") from error
            finally:
                handle.caller = 0
                if handle.closed:
                    handle.pointer = None

    return call


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
    exiting.set()
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
