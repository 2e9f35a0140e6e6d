"""What a measurement runs with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pymtp.cli.load import options_named
from pymtp.cli.options import CacheType, Layers, Threads
from pymtp.cli.placing import Weights
from pymtp.context.options import check_options
from pymtp.model.options import ModelOptions
from pymtp.native.cores import default_threads


@dataclass(frozen=True)
class Running(Weights):
    """Options of all measurements."""

    gpu_layers: Layers = -1
    threads: Threads = None

    def settings(self) -> dict[str, Any]:
        """By the names that settings of benches have. Raises InvalidRequestError for what no model can run with, and
        ModelLoadError for a head or adapters that are not there: ask before a model is brought."""
        threads = default_threads() if self.threads is None else self.threads
        placing = self.asked()
        with options_named():
            ModelOptions(n_gpu_layers=self.gpu_layers, **placing).find_files()
            check_options(n_threads=threads)
        return {"gpu_layers": self.gpu_layers, "threads": threads, "placing": placing}


@dataclass(frozen=True)
class BenchRunning(Running):
    """Options of all benches."""

    cache_type: CacheType = "f16"

    def settings(self) -> dict[str, Any]:
        """As Running's."""
        with options_named():
            check_options(type_k=self.cache_type, type_v=self.cache_type)
        return {**super().settings(), "cache_type": self.cache_type}
