"""A repository as the hub has it: its files, and their bytes from any place on."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.hub import errors
from pymtp.hub.errors import PASSWORDS, endpoint, is_passing, transport_errors
from pymtp.hub.files import HubFile, is_safe
from pymtp.hub.names import HubName

_COMMIT = re.compile(r"[0-9a-f]{40}")
_HASH = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")  # SHA-256 of large files, git's SHA-1 of others


class Remote:
    """One revision of a repository. Raises what huggingface_hub's HTTP client does: see errors.explained."""

    def __init__(self, name: HubName, token: str | bool | None = None) -> None:
        """token: None for HF_TOKEN or the one of `hf auth login`, False for none."""
        from huggingface_hub import HfApi, constants, errors

        self.name = name
        self._token = token
        _check_token(token)
        try:
            found = HfApi().model_info(
                name.repo,
                revision=name.revision or "main",
                files_metadata=True,
                timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
                token=token,
            )
            files = [_file(file) for file in found.siblings or []]
            commit = _COMMIT.fullmatch(found.sha or "")
        except (errors.HFValidationError, OSError, *transport_errors()):
            raise
        except ImportError as error:  # of what a proxy needs
            raise ModelLoadError(f"cannot reach {endpoint()} for {name.repo}: {error}") from error
        except Exception as error:  # of whatever the answer has in place of what a hub says, and of odd addresses
            if type(error).__name__ == "InvalidURL":  # httpx's or httpx2's; its words may be a part of a password
                raise ModelLoadError(
                    f"cannot reach {endpoint()} for {name.repo}: the hub's address or a proxy's is none; {PASSWORDS}"
                ) from None
            raise ModelLoadError(f"{endpoint()} says nothing of {name.repo} as a hub would: {error!r:.200}") from error
        if commit is None:
            raise ModelLoadError(f"{endpoint()} names no commit of {name.repo}: it is no hub")
        self.commit = commit[0]
        self.files = [file for file in files if is_safe(file.path)]

    def read(self, file: HubFile, first: int, end: int) -> Iterator[tuple[int, bytes]]:
        """The bytes from `first` to before `end`, as they come, each piece with its place; to the file's end where the
        hub sends files only as a whole.

        Raises ModelLoadError where the file that is sent is not of the size that the hub says it is.
        """
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        url = hf_hub_url(self.name.repo, file.path, revision=self.commit)
        headers = build_hf_headers(token=self._token, library_name="pymtp")
        headers |= {"Range": f"bytes={first}-{end - 1}", "Accept-Encoding": "identity"}
        with get_session().stream("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as response:
            if response.status_code >= 400:
                response.read()
            hf_raise_for_status(response)
            whole = response.status_code == 200
            size = _size(response.headers, whole)
            if size is not None and size != file.size:
                raise ModelLoadError(f"{file.path} is {file.size:,} bytes by the hub's list, but {size:,} are sent")
            if not whole and (response.status_code != 206 or _begin(response.headers) != first):
                raise ModelLoadError(f"{file.path}: the hub sends other bytes than those from {first:,} on")
            at, end = (0, file.size) if whole else (first, end)
            for piece in response.iter_raw():
                piece = piece[: end - at]
                if wanted := piece[max(0, first - at) :]:
                    yield max(first, at), wanted
                at += len(piece)
                if at >= end:
                    return

    def bytes_of(self, file: HubFile, offset: int, n: int) -> bytes:
        """Some bytes of a file, fewer only at its end. Asks again where an error may be over soon."""
        end = min(offset + n, file.size)
        failed = 0
        while True:
            found = bytearray()
            try:
                for _, piece in self.read(file, offset, end) if offset < end else ():
                    found += piece
                    if len(found) >= n:  # a hub without ranges would send all of the file
                        break
                return bytes(found[:n])
            except transport_errors() as error:
                failed += 1
                if not is_passing(error) or failed == errors.TRIES:
                    raise
            time.sleep(errors.pause(failed))


def _file(listed: Any) -> HubFile:
    etag = listed.lfs.sha256 if listed.lfs else listed.blob_id or ""
    return HubFile(str(listed.rfilename), int(listed.size or 0), etag if _HASH.fullmatch(etag) else "")


def _check_token(token: str | bool | None) -> None:
    """Raises InvalidRequestError for what is no token, which it does not show."""
    given = _token_kept() if token is None or token is True else token
    if token is True and not given:
        raise InvalidRequestError("token=True: there is none, in HF_TOKEN or of `hf auth login`")
    if given and not re.fullmatch(r"[!-~]+", str(given)):
        raise InvalidRequestError("the token has characters that no token has: spaces, line ends, or others than ASCII")


def _token_kept() -> str | None:
    """Of HF_TOKEN or `hf auth login`. Raises InvalidRequestError where it cannot be read."""
    from huggingface_hub import constants, get_token

    file = Path(constants.HF_TOKEN_PATH)
    try:
        if not os.environ.get("HF_TOKEN", "").strip() and file.exists() and not file.is_file():
            # a pipe would be waited for
            raise InvalidRequestError(f"the file of the token, {file}, is no regular file")
        return cast(str | None, get_token())
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"the file of the token, {file}, is not UTF-8") from error
    except OSError as error:
        raise InvalidRequestError(f"the file of the token, {file}, cannot be read: {error.strerror}") from error


def _begin(headers: Any) -> int | None:
    """The place of the first byte of a part."""
    found = re.match(r"bytes (\d+)-", headers.get("Content-Range", ""))
    return int(found[1]) if found else None


def _size(headers: Any, whole: bool) -> int | None:
    """Bytes of the whole file, where the answer says them."""
    said = headers.get("Content-Length", "") if whole else headers.get("Content-Range", "").rpartition("/")[2]
    return int(said) if said.isdigit() else None
