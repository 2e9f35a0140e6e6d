"""The border to C: the only place that sees a pointer's meaning. Everything above talks to `lib` through model.py and
context.py.

llama.cpp's log goes to `logging.getLogger("pymtp.native")`. While a native call runs on the main thread, Python's
signal handlers get their turn about 20 times a second; what they raise (KeyboardInterrupt) ends the call and comes
out of `check`.
"""

import atexit
import logging
from types import TracebackType
from typing import Any

from pymtp.errors import CancelledError, ContextFullError, InvalidRequestError, NativeError

try:
    from pymtp.native._native import ffi, lib
except ModuleNotFoundError as error:
    raise ImportError(
        "this pymtp has no compiled module: it is the source folder. Run Python from elsewhere, or install what is "
        "here: pip install --no-build-isolation -e ."
    ) from error
except ImportError as error:
    if "libcudart" not in str(error) and "libcublas" not in str(error):
        raise
    raise ImportError(
        f"{error}. This pymtp was built for CUDA, whose libraries are not where they were or not new enough. Mend it: "
        "pip install 'nvidia-cublas<14' 'nvidia-cuda-runtime<14' for one built with PYMTP_CUDA_WHEELS=1, otherwise "
        "install the CUDA toolkit that it was built with"
    ) from error

__all__ = ["check", "ffi", "last_error", "lib", "startup_errors"]

_logger = logging.getLogger("pymtp.native")
_GGML_DEBUG, _GGML_INFO, _GGML_ERROR = 1, 2, 4  # enum ggml_log_level
_LEVELS = {_GGML_DEBUG: logging.DEBUG, _GGML_INFO: logging.INFO, 3: logging.WARNING, _GGML_ERROR: logging.ERROR}

startup_errors: list[str] = []  # why CUDA is not there: no error of who does not ask for it, see build.warn_without_gpu
_started = False

_interrupt: BaseException | None = None  # what a signal handler raised while native code was calling back


def _keep_interrupt(_type: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    global _interrupt
    _interrupt = error


def _raise_interrupt() -> None:
    global _interrupt
    if _interrupt is not None:
        error, _interrupt = _interrupt, None
        raise error


@ffi.def_extern(onerror=_keep_interrupt)  # type: ignore[untyped-decorator]
def pymtp_on_log(level: int, text: Any) -> None:
    line = ffi.string(text).decode("utf-8", "replace").rstrip()
    if not _started and level == _GGML_ERROR:
        startup_errors.append(line)
    elif line:
        _logger.log(_LEVELS.get(level, logging.INFO), "%s", line)


@ffi.def_extern(error=True, onerror=_keep_interrupt)  # type: ignore[untyped-decorator]
def pymtp_on_poll() -> bool:
    # entering Python is what lets pending signal handlers run
    return _interrupt is not None


def last_error() -> str:
    """Why the last native call of this thread failed. Raises what a signal handler raised during it, if one did."""
    _raise_interrupt()
    text: str = ffi.string(lib.pymtp_last_error()).decode("utf-8", "replace")
    return text


def check(status: int) -> None:
    """Turns a status of pymtp.h into nothing or an exception. Raises what a signal handler raised during the call."""
    _raise_interrupt()
    if status == lib.PYMTP_OK:
        return
    kinds = {
        lib.PYMTP_FULL: ContextFullError,
        lib.PYMTP_CANCELLED: CancelledError,
        lib.PYMTP_INVALID: InvalidRequestError,
        lib.PYMTP_DEAD_END: InvalidRequestError,
    }
    raise kinds.get(status, NativeError)(last_error())


# native threads must not call into an interpreter that is going away
atexit.register(lib.pymtp_set_log, ffi.NULL, _GGML_INFO)
atexit.register(lib.pymtp_set_poll, ffi.NULL)
lib.pymtp_set_log(lib.pymtp_on_log, _GGML_DEBUG if _logger.isEnabledFor(logging.DEBUG) else _GGML_INFO)
lib.pymtp_set_poll(lib.pymtp_on_poll)
lib.llama_backend_init()
_started = True
