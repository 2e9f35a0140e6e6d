"""What a measurement runs with."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pymtp.cli.load import options_named
from pymtp.cli.options import CacheType, Layers, Threads
from pymtp.context_options import check_options
from pymtp.cores import default_threads
from pymtp.model_options import check_gpu_layers


@dataclass(frozen=True)
class Running:
    """Options of all benches."""

    gpu_layers: Layers = -1
    threads: Threads = None
    cache_type: CacheType = "f16"

    def settings(self) -> dict[str, Any]:
        """By the names that settings of benches have. Raises InvalidRequestError for what no model can run with: ask
        before one is brought."""
        threads = default_threads() if self.threads is None else self.threads
        with options_named():
            check_gpu_layers(self.gpu_layers)
            check_options(n_threads=threads, type_k=self.cache_type, type_v=self.cache_type)
        return asdict(self) | {"threads": threads}
