"""Load an LLM for a command or a server: from a file or a hub name, with a saved prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from pymtp.errors import InvalidRequestError
from pymtp.hub.from_pretrained import fetch_model
from pymtp.hub.model_download import warn
from pymtp.hub.names import read_name
from pymtp.llm import LLM
from pymtp.options import LLMOptions
from pymtp.prefix_cache.file import check_header
from pymtp.validation import is_hub_name


def load(
    options: LLMOptions,
    prefix: Path | None = None,
    notify: Callable[[str], None] = warn,
    *,
    adapt: Callable[[LLMOptions], LLMOptions] = lambda options: options,
    warm_up_later: bool = False,
    status: Callable[[LLMOptions], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> LLM:
    """Load an LLM and a saved prefix for it; if its model is a hub name, download the model first.

    prefix: a file that `LLM.save_prefix` wrote, which is never evicted; None for no prefix.
    notify: called with each note for the user, about a model of the hub and about a missing head.
    adapt: returns the options to load with, from options whose files are on this machine.
    warm_up_later: as for `LLM.from_options`.
    status: returns a context manager for the load of the options' files, which are on this machine by then.

    Raises the errors of `LLM`, `LLM.from_pretrained` and `load_prefix`, and InvalidRequestError for a prefix file that
    cannot be read.
    """
    check_prefix(prefix)  # before a download, which may take hours
    local = adapt(fetch_named(options, notify))
    with status(local):
        llm = LLM.from_options(local, warm_up_later=warm_up_later)
        try:
            if prefix is not None:
                with _unreadable(prefix):
                    llm._load_prefix(prefix, kept=True)
        except BaseException:
            llm.close()
            raise
    if note := _missing_head_note(llm, options):
        notify(note)
    return llm


def fetch_named(options: LLMOptions, notify: Callable[[str], None] = warn) -> LLMOptions:
    """Download the model that the options name on the hub, with its head; return the options with the files' paths.

    Options with another model are returned unchanged. Raises the errors of `download_model`, and those of
    `ModelOptions.check_machine` before the download.
    """
    if not isinstance(options.model, str) or not is_hub_name(options.model):
        return options
    options.check_machine()
    return fetch_model(read_name(options.model), options, notify=notify)


def _missing_head_note(llm: LLM, options: LLMOptions) -> str | None:
    """Return a note for the user that the model has no head, so that nothing is drafted but from the text.

    Return None for a model with a head, if draft_tokens is given, and if the download or the load of the model has
    warned already.
    """
    already_told = (isinstance(options.model, str) and is_hub_name(options.model)) or llm.model.head_absent
    if llm.model.has_head or already_told or options.draft_tokens != "auto":
        return None
    return (
        f"{llm.model.path.name} has no multi-token-prediction head: it is decoded without a head's drafts. "
        "--head FILE gives it one"
    )


def check_prefix(prefix: Path | None) -> None:
    """Raise InvalidRequestError for a prefix file that cannot be read, or whose first bytes show another format."""
    if prefix is not None:
        with _unreadable(prefix):
            check_header(prefix)


@contextmanager
def _unreadable(prefix: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidRequestError(f"cannot read the prefix from {prefix}: {error.strerror or error}") from error
