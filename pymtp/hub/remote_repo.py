"""A repository on the hub: its list of files, and ranges of their bytes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.hub.errors import PASSWORD_HINT, endpoint, is_transient, transport_errors
from pymtp.hub.files import HubFile, is_safe_path
from pymtp.hub.names import HubName

CHUNK_BYTES = 1024**3  # per request: the hub's redirect links expire, and some servers limit the size of a response
MAX_TRIES = 6  # tries in a row that bring no bytes
FIRST_PAUSE = 1.0  # seconds before the first retry; each further pause is twice as long
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HASH = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")  # SHA-256 of large files, git's SHA-1 of others


class RemoteRepo:
    """One revision of a repository on the hub.

    Its methods raise the errors of huggingface_hub's HTTP client, which errors.translate_errors translates.
    """

    def __init__(self, name: HubName, token: str | bool | None = None) -> None:
        """Request the list of files.

        token: None for HF_TOKEN or the token of `hf auth login`, False for no token.
        """
        from huggingface_hub import HfApi, constants, errors

        self.name = name
        self._token = token
        _check_token(token)
        try:
            info = HfApi().model_info(
                name.repo,
                revision=name.revision or "main",
                files_metadata=True,
                timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
                token=token,
            )
            files = [_hub_file(sibling) for sibling in info.siblings or []]
            commit = _COMMIT.fullmatch(info.sha or "")
        except (errors.HFValidationError, OSError, *transport_errors()):
            raise
        except ImportError as error:  # a package that a proxy needs is missing
            raise ModelLoadError(f"cannot reach {endpoint()} for {name.repo}: {error}") from error
        except Exception as error:  # an answer unlike a hub's, or an invalid address, may raise anything
            if type(error).__name__ == "InvalidURL":  # from httpx or httpx2; its message may hold a part of a password
                raise ModelLoadError(
                    f"cannot reach {endpoint()} for {name.repo}: the address of the hub or of a proxy is invalid; "
                    f"{PASSWORD_HINT}"
                ) from None
            raise ModelLoadError(f"{endpoint()} does not answer like a hub for {name.repo}: {error!r:.200}") from error
        if commit is None:
            raise ModelLoadError(f"{endpoint()} names no commit of {name.repo}: it is not a hub")
        self.commit = commit[0]
        self.files = [file for file in files if is_safe_path(file.path)]

    def read(self, file: HubFile, first: int, end: int) -> Generator[bytes]:
        """Yield the bytes from `first` to before `end` as they arrive, in several requests if necessary.

        Requests the missing bytes again after temporary errors. Yields bytes up to the end of the file if the hub does
        not support ranges.

        Raises ModelLoadError if the file does not have the size in the hub's list, and if the hub sends nothing.
        """
        failures = 0
        while first < end:
            before, failure = first, None
            try:
                for data in self._request(file, first, min(first + CHUNK_BYTES, end)):
                    first += len(data)
                    yield data
            except transport_errors() as error:
                if not is_transient(error):
                    raise
                failure = error
            failures = failures + 1 if first == before else 0
            if failures == MAX_TRIES:
                raise failure or ModelLoadError(f"{file.path}: the hub sends nothing after {first:,} bytes")
            if failures:
                time.sleep(FIRST_PAUSE * 2 ** (failures - 1))

    def _request(self, file: HubFile, first: int, end: int) -> Iterator[bytes]:
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        url = hf_hub_url(self.name.repo, file.path, revision=self.commit)
        headers = build_hf_headers(token=self._token, library_name="pymtp")
        headers |= {"Range": f"bytes={first}-{end - 1}", "Accept-Encoding": "identity"}
        with get_session().stream("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as response:
            if response.status_code >= 400:
                response.read()
            hf_raise_for_status(response)
            is_whole_file = response.status_code == 200
            size = _total_size(response.headers, is_whole_file)
            if size is not None and size != file.size:
                raise ModelLoadError(f"{file.path} is {file.size:,} bytes by the hub's list, but {size:,} are sent")
            if not is_whole_file and (response.status_code != 206 or _range_start(response.headers) != first):
                raise ModelLoadError(f"{file.path}: the hub sends other bytes than those from {first:,} on")
            offset, end = (0, file.size) if is_whole_file else (first, end)
            for piece in response.iter_raw():
                piece = piece[: end - offset]
                if data := piece[max(0, first - offset) :]:
                    yield data
                offset += len(piece)
                if offset >= end:
                    return

    def read_range(self, file: HubFile, offset: int, n: int) -> bytes:
        """Return `n` bytes of a file, fewer only at its end."""
        data = bytearray()
        with closing(self.read(file, offset, min(offset + n, file.size))) as pieces:
            while len(data) < n and (piece := next(pieces, None)) is not None:  # it may yield more than n bytes
                data += piece
        return bytes(data[:n])


def _hub_file(sibling: Any) -> HubFile:
    etag = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id or ""
    return HubFile(str(sibling.rfilename), int(sibling.size or 0), etag if _HASH.fullmatch(etag) else "")


def _check_token(token: str | bool | None) -> None:
    """Raise InvalidRequestError for an invalid token, without showing it."""
    given = _stored_token() if token is None or token is True else token
    if token is True and not given:
        raise InvalidRequestError("token=True, but there is no token in HF_TOKEN or of `hf auth login`")
    if given and not re.fullmatch(r"[!-~]+", str(given)):
        raise InvalidRequestError("the token has characters that no token has: spaces, line ends, or others than ASCII")


def _stored_token() -> str | None:
    """Return the token of HF_TOKEN or `hf auth login`.

    Raises InvalidRequestError if it cannot be read.
    """
    from huggingface_hub import constants, get_token

    file = Path(constants.HF_TOKEN_PATH)
    try:
        if not os.environ.get("HF_TOKEN", "").strip() and file.exists() and not file.is_file():
            # reading a pipe would wait for its writer
            raise InvalidRequestError(f"the file of the token, {file}, is not a regular file")
        return cast(str | None, get_token())
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"the file of the token, {file}, is not UTF-8") from error
    except OSError as error:
        raise InvalidRequestError(f"the file of the token, {file}, cannot be read: {error.strerror}") from error


def _range_start(headers: Any) -> int | None:
    """Return the offset of the first byte of a partial response; None if the response does not give it."""
    match = re.match(r"bytes (\d+)-", headers.get("Content-Range", ""))
    return int(match[1]) if match else None


def _total_size(headers: Any, is_whole_file: bool) -> int | None:
    """Return the size of the whole file; None if the response does not give it."""
    size = headers.get("Content-Length", "") if is_whole_file else headers.get("Content-Range", "").rpartition("/")[2]
    return int(size) if size.isdigit() else None
