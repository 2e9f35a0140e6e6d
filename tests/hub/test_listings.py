"""Tests of the file lists of published repositories: the right model and head, or a list of choices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.hub import COMMIT, Hub
from helpers.hub_listings import LISTINGS, Ask, Listing
from huggingface_hub import constants

from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.hub.model_download import LocalFiles

FetchBoth = Callable[..., LocalFiles]
ASKS = [pytest.param(listing, ask, id=f"{listing.repo}:{ask.wanted}") for listing in LISTINGS for ask in listing.asks]


def within(path: Path | None) -> str | None:
    """Return a path within its repository."""
    return None if path is None else path.as_posix().partition(f"/{COMMIT}/")[2]


@pytest.mark.parametrize(("listing", "ask"), ASKS)
def test_right_files_of_a_published_repository_are_selected_or_listed(
    hub: Hub, fetch_both: FetchBoth, listing: Listing, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files.update(listing.contents())
    if ask.error:
        with pytest.raises((InvalidRequestError, ModelLoadError), match=ask.error):
            fetch_both(ask.wanted)
        return
    found = fetch_both(ask.wanted)
    assert (within(found.model), within(found.head)) == (ask.model, ask.head)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch_both(ask.wanted) == found
