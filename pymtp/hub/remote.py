"""A repository as the hub has it: its files, and their bytes from any place on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pymtp.errors import ModelLoadError
from pymtp.hub.files import HubFile
from pymtp.hub.names import HubName


class Remote:
    """One revision of a repository. Raises what huggingface_hub's HTTP client does: see needed.explained."""

    def __init__(self, name: HubName, token: str | bool | None = None) -> None:
        """token: None for HF_TOKEN or the one of `hf auth login`, False for none."""
        from huggingface_hub import HfApi, constants

        self.name = name
        self._token = token
        found = HfApi().model_info(
            name.repo,
            revision=name.revision or "main",
            files_metadata=True,
            timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
            token=token,
        )
        if not found.sha:
            raise ModelLoadError(f"{constants.ENDPOINT} names no commit of {name.repo}: it is no hub")
        self.commit: str = found.sha
        self.files = [
            HubFile(file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else file.blob_id or "")
            for file in found.siblings or []
        ]

    def read(self, file: HubFile, first: int, end: int) -> Iterator[tuple[int, bytes]]:
        """The bytes from `first` to before `end`, as they come, each piece with its place. Begins with place 0 where
        the hub sends files only as a whole.

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
            at = 0 if whole else first
            size = _size(response.headers, whole)
            if size is not None and size != file.size:
                raise ModelLoadError(f"{file.path} is {file.size:,} bytes by the hub's list, but {size:,} are sent")
            for piece in response.iter_raw():
                piece = piece[: end - at]
                yield at, piece
                at += len(piece)
                if at >= end:
                    return

    def bytes_of(self, file: HubFile, offset: int, n: int) -> bytes:
        """Some bytes of a file, fewer only at its end."""
        end = min(offset + n, file.size)
        found = bytearray()
        if offset < end:
            for at, piece in self.read(file, offset, end):
                found += piece[max(0, offset - at) :]
        return bytes(found)


def _size(headers: Any, whole: bool) -> int | None:
    """Bytes of the whole file, where the answer says them."""
    said = headers.get("Content-Length", "") if whole else headers.get("Content-Range", "").rpartition("/")[2]
    return int(said) if said.isdigit() else None
