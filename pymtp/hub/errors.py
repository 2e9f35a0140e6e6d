"""huggingface_hub, which only those need who ask for models of the hub; and its failures in words."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.hub.names import HubName

MOST_SECONDS = 1_000_000  # to wait for an answer
_ADDRESS = re.compile(r"https?://([^\s/@?#]*@)?[^\s/@?#]+(/[^\s@?#]*)?", re.IGNORECASE)
PASSWORDS = "in a name and password before it, @, /, ? and # are %40, %2F, %3F and %23"  # before a machine's name
TRIES = 6  # one after the other that bring nothing
PAUSE = 1.0  # seconds before the second try; twice as long before each further one


def pause(failed: int) -> float:
    """Seconds to wait after so many tries."""
    return PAUSE * float(2 ** (failed - 1))


class UnreachableError(ModelLoadError):
    """The hub does not answer, or only that it cannot now. What is in the cache may do."""


def check_installed() -> None:
    """Raises InvalidRequestError where huggingface_hub is missing, or cannot read the variables that its cache is set
    up by."""
    if find_spec("huggingface_hub") is None:
        raise InvalidRequestError("models of the hub need one more package: pip install huggingface-hub")
    _loaded("constants")


def check_connection() -> None:
    """Raises InvalidRequestError where huggingface_hub cannot read the variables by which it asks the hub."""
    _check_variables(_loaded("constants"))
    _loaded("hf_api")


def _loaded(name: str) -> Any:
    """A module, by its full name: what the package itself imports it prints errors of."""
    try:
        return import_module(f"huggingface_hub.{name}")
    except (ImportError, ValueError) as error:
        given = sorted(name for name in os.environ if name.startswith("HF_"))  # without values, such as tokens
        about = f"; it reads {', '.join(given)}" if given else ""
        raise InvalidRequestError(f"huggingface_hub cannot be loaded: {_line(error)}{about}") from error


def _check_variables(constants: Any) -> None:
    """Raises InvalidRequestError for values that huggingface_hub takes and fails by later. The address is not shown:
    what is wrong with it may be its password."""
    for name in ("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"):
        if not 0 < getattr(constants, name) <= MOST_SECONDS:
            raise InvalidRequestError(f"{name} must be seconds, from 1 to {MOST_SECONDS}")
    if not _ADDRESS.fullmatch(str(constants.ENDPOINT)):
        raise InvalidRequestError(f"HF_ENDPOINT must be like https://huggingface.co; {PASSWORDS}")


def endpoint() -> str:
    """The hub's address for messages: HF_ENDPOINT, or that of Hugging Face. Without a name and password in it."""
    from huggingface_hub import constants

    return _without_password(str(constants.ENDPOINT))


def _without_password(text: str) -> str:
    return re.sub(r"(?<=://)[^/\s@]*@", "", text)


def is_passing(error: Exception) -> bool:
    """Whether an error of HTTP may be over soon: a connection that was lost, a hub that is busy."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in (408, 429) or error.response.status_code >= 500
    return isinstance(error, transport_errors())


def transport_errors() -> tuple[type[Exception], ...]:
    """What the HTTP client of huggingface_hub raises; which one that is depends on its version."""
    from huggingface_hub import errors

    return (errors.HTTPError,)  # of httpx or httpx2


@contextmanager
def explained(name: HubName) -> Iterator[None]:
    """Errors of huggingface_hub, and of the disk, become ModelLoadError and InvalidRequestError."""
    from huggingface_hub import errors

    repo = name.repo
    page = f"{endpoint()}/{repo}"
    try:
        yield
    except errors.HFValidationError as error:
        raise InvalidRequestError(f"{repo!r} is no name of a repository: {_line(error)}") from error
    except errors.GatedRepoError as error:  # before the one that it is a kind of
        raise ModelLoadError(
            f"{repo} is gated: ask for access at {page}, then give your token as HF_TOKEN or by `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelLoadError(
            f"no repository {repo} on {endpoint()}, or it is private: check the name; a private one needs a token, "
            "as HF_TOKEN or by `hf auth login`"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelLoadError(f"{repo} has no revision {name.revision or 'main'!r}") from error
    except errors.OfflineModeIsEnabled as error:
        raise UnreachableError(f"HF_HUB_OFFLINE is set: {repo} is not asked for") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise ModelLoadError(
                f"{endpoint()} refuses {repo} ({status}): the token (HF_TOKEN, or of `hf auth login`) is wrong, or has "
                "no right to read it"
            ) from error
        kind = UnreachableError if is_passing(error) else ModelLoadError
        raise kind(f"{endpoint()} answers {status} for {repo}: {_line(error)}") from error
    except transport_errors() as error:
        raise UnreachableError(f"cannot reach {endpoint()} for {repo}: {_line(error)}") from error
    except errors.LocalEntryNotFoundError as error:  # hf_hub_download had no answer
        raise UnreachableError(f"cannot reach {endpoint()} for {repo}: {_line(error)}") from error
    except ssl.SSLError as error:
        raise ModelLoadError(f"cannot reach {endpoint()} for {repo}: {_line(error)}{_certificates()}") from error
    except OSError as error:
        # one of certificates: those of the cache are named
        if (
            isinstance(error, (FileNotFoundError, IsADirectoryError, PermissionError))
            and error.filename is None
            and _certificates()
        ):
            raise ModelLoadError(f"cannot bring {repo}: {_line(error)}{_certificates()}") from error
        raise ModelLoadError(f"cannot read or write {repo} in the cache: {_line(error)}") from error


def _certificates() -> str:
    """Where certificates are looked for, if a variable says it."""
    given = [f"{name} is {os.environ[name]}" for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if name in os.environ]
    return "".join(f"; {each}" for each in given)


def _line(error: Exception) -> str:
    """What an error says, in one line."""
    lines = (line.strip() for line in _without_password(str(error)).splitlines())
    return next((line for line in lines if line), type(error).__name__)
