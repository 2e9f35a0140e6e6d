"""Import huggingface_hub, which is only needed for models of the hub, and translate its errors."""

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

MAX_TIMEOUT = 1_000_000  # seconds to wait for a response
_ADDRESS = re.compile(r"https?://([^\s/@?#]*@)?[^\s/@?#]+(/[^\s@?#]*)?", re.IGNORECASE)
PASSWORD_HINT = "in a user name and password, write @, /, ? and # as %40, %2F, %3F and %23"


class UnreachableError(ModelLoadError):
    """The hub does not answer, or answers with a temporary failure: a cached model can be used instead."""


def check_installed() -> None:
    """Raise InvalidRequestError if huggingface_hub is missing, or cannot read its cache's environment variables."""
    if find_spec("huggingface_hub") is None:
        raise InvalidRequestError("models of the hub need one more package: pip install huggingface-hub")
    _import_submodule("constants")


def check_settings() -> None:
    """Raise InvalidRequestError if huggingface_hub cannot read the environment variables of its requests."""
    _check_variables(_import_submodule("constants"))
    _import_submodule("hf_api")


def _import_submodule(name: str) -> Any:
    """Import a module of huggingface_hub by its full name, because the lazy import of the package prints errors.

    Raises InvalidRequestError if it cannot be imported.
    """
    try:
        return import_module(f"huggingface_hub.{name}")
    except (ImportError, ValueError) as error:
        given = sorted(name for name in os.environ if name.startswith("HF_"))  # without values, such as tokens
        variables = f"; these variables are set: {', '.join(given)}" if given else ""
        raise InvalidRequestError(f"huggingface_hub cannot be loaded: {_first_line(error)}{variables}") from error


def _check_variables(constants: Any) -> None:
    """Raise InvalidRequestError for values that huggingface_hub accepts but fails with later.

    The message does not show the address, because it may hold a password.
    """
    for name in ("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"):
        if not 0 < getattr(constants, name) <= MAX_TIMEOUT:
            raise InvalidRequestError(f"{name} must be a number of seconds, from 1 to {MAX_TIMEOUT}")
    if not _ADDRESS.fullmatch(str(constants.ENDPOINT)):
        raise InvalidRequestError(f"HF_ENDPOINT must be like https://huggingface.co; {PASSWORD_HINT}")


def endpoint() -> str:
    """Return the hub's address for messages: HF_ENDPOINT or that of Hugging Face, without user name and password."""
    from huggingface_hub import constants

    return _without_password(str(constants.ENDPOINT))


def _without_password(text: str) -> str:
    return re.sub(r"(?<=://)[^/\s@]*@", "", text)


def is_transient(error: Exception) -> bool:
    """Tell whether an HTTP error is temporary: a lost connection, or a busy hub."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in (408, 429) or error.response.status_code >= 500
    return isinstance(error, transport_errors())


def transport_errors() -> tuple[type[Exception], ...]:
    """Return the errors of huggingface_hub's HTTP client, which depends on the version of huggingface_hub."""
    from huggingface_hub import errors

    return (errors.HTTPError,)  # from httpx or httpx2


@contextmanager
def translate_errors(name: HubName) -> Iterator[None]:
    """Translate errors of huggingface_hub and of the disk to ModelLoadError and InvalidRequestError."""
    from huggingface_hub import errors

    repo = name.repo
    page = f"{endpoint()}/{repo}"
    try:
        yield
    except errors.HFValidationError as error:
        raise InvalidRequestError(f"{repo!r} is not the name of a repository: {_first_line(error)}") from error
    except errors.GatedRepoError as error:  # before RepositoryNotFoundError, its base class
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
        raise UnreachableError(f"HF_HUB_OFFLINE is set: the hub is not asked for {repo}") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise ModelLoadError(
                f"{endpoint()} refuses {repo} ({status}): the token (HF_TOKEN, or of `hf auth login`) is wrong, or has "
                "no right to read it"
            ) from error
        kind = UnreachableError if is_transient(error) else ModelLoadError
        raise kind(f"{endpoint()} answers {status} for {repo}: {_first_line(error)}") from error
    except transport_errors() as error:
        raise UnreachableError(f"cannot reach {endpoint()} for {repo}: {_first_line(error)}") from error
    except errors.LocalEntryNotFoundError as error:  # hf_hub_download had no response
        raise UnreachableError(f"cannot reach {endpoint()} for {repo}: {_first_line(error)}") from error
    except ssl.SSLError as error:
        raise ModelLoadError(f"cannot reach {endpoint()} for {repo}: {_first_line(error)}{_certificates()}") from error
    except OSError as error:
        # an error about certificates has no filename, an error about a file of the cache has one
        if (
            isinstance(error, (FileNotFoundError, IsADirectoryError, PermissionError))
            and error.filename is None
            and _certificates()
        ):
            raise ModelLoadError(f"cannot download {repo}: {_first_line(error)}{_certificates()}") from error
        raise ModelLoadError(f"cannot read or write {repo} in the cache: {_first_line(error)}") from error


def _certificates() -> str:
    """Return the set variables that name certificates, for a message; "" if none is set."""
    given = [f"{name} is {os.environ[name]}" for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if name in os.environ]
    return "".join(f"; {text}" for text in given)


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message, or the name of its type if it has no message."""
    lines = (line.strip() for line in _without_password(str(error)).splitlines())
    return next((line for line in lines if line), type(error).__name__)
