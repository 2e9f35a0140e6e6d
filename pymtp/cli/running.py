"""Options of `pymtp tap` and of all benches: devices, threads, and placement of the weights."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from pymtp.cli.options import CacheType, Layers, Threads, read_word
from pymtp.cli.placing import WeightOptions
from pymtp.context.options import ContextOptions
from pymtp.model.options import ModelOptions
from pymtp.native.cores import default_threads


@dataclass(frozen=True)
class RunOptions(WeightOptions):
    """Options of `pymtp tap` and of all benches."""

    n_gpu_layers: Layers = -1
    n_threads: Threads = None

    def settings(self) -> dict[str, Any]:
        """Return the options by the names of fields that the settings of all benches have.

        Call this method before a model is downloaded, so that mistakes are found early. Raises InvalidRequestError for
        invalid values, and ModelLoadError for a head or adapters that do not exist.
        """
        self.options().check_machine()
        threads = default_threads() if self.n_threads is None else self.n_threads
        return {"gpu_layers": self.n_gpu_layers, "threads": threads, "placing": self._non_default()}

    def _non_default(self) -> dict[str, Any]:
        """Return the keywords of Model whose values differ from their defaults, without n_gpu_layers."""
        given, defaults = self.keywords(), WeightOptions().keywords()
        names = {field.name for field in fields(ModelOptions)} & defaults.keys()
        return {name: value for name, value in given.items() if name in names and value != defaults[name]}


@dataclass(frozen=True)
class BenchOptions(RunOptions):
    """Options of all benches."""

    cache_type: CacheType = ContextOptions.type_k

    def settings(self) -> dict[str, Any]:
        """Return the options of RunOptions.settings, and `cache_type`. Raises the same errors."""
        return {**super().settings(), "cache_type": self.cache_type}


def read_draft_vocab(tokens: str) -> Any:
    """Parse the value of --draft-vocab: a number, "auto" or "all". Raises InvalidRequestError for any other."""
    vocabulary = read_word("--draft-vocab", tokens, "auto", "all")
    ContextOptions(draft_vocab=vocabulary)  # checks it
    return vocabulary
