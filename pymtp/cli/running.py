"""Options of `pymtp tap` and of all benches: devices, threads, and placement of the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pymtp.cli.load import option_names
from pymtp.cli.options import CacheType, Layers, Threads
from pymtp.cli.placing import WeightOptions
from pymtp.context.options import check_options
from pymtp.model.options import ModelOptions
from pymtp.native.cores import default_threads


@dataclass(frozen=True)
class RunOptions(WeightOptions):
    """Options of `pymtp tap` and of all benches."""

    gpu_layers: Layers = -1
    threads: Threads = None

    def settings(self) -> dict[str, Any]:
        """Return the options by the names of fields that the settings of all benches have.

        Call this method before a model is downloaded, so that mistakes are found early. Raises InvalidRequestError for
        invalid values, and ModelLoadError for a head or adapters that do not exist.
        """
        threads = default_threads() if self.threads is None else self.threads
        placing = self.non_default()
        with option_names():
            ModelOptions(n_gpu_layers=self.gpu_layers, **placing).check_files()
            check_options(n_threads=threads)
        return {"gpu_layers": self.gpu_layers, "threads": threads, "placing": placing}


@dataclass(frozen=True)
class BenchOptions(RunOptions):
    """Options of all benches."""

    cache_type: CacheType = "f16"

    def settings(self) -> dict[str, Any]:
        """Return the options of RunOptions.settings, and `cache_type`. Raises the same errors."""
        with option_names():
            check_options(type_k=self.cache_type, type_v=self.cache_type)
        return {**super().settings(), "cache_type": self.cache_type}
