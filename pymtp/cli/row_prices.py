"""The prices of rows for `pymtp info --prices`: their measurement, and their place in what describes the model."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pymtp.cli.model_file import model_name
from pymtp.cli.placing import PlacementOptions, WeightOptions
from pymtp.cli.running import BenchOptions
from pymtp.cli.screen import loading_status
from pymtp.errors import InvalidRequestError

if TYPE_CHECKING:
    from pymtp.bench.prices import RowPrices

PRICE = "price_of_4_rows"


def load_and_measure(name: str | None, placing: PlacementOptions) -> RowPrices:
    """Load a model, download it before if it is one of the hub, and measure the prices of its rows.

    placing: only options of the weights, of the layers on the GPU and of the cache have an effect.

    Raises InvalidRequestError for a model without a head, and the errors of Model.
    """
    # imported here: a model is described without the benches
    from pymtp.bench.prices import measure_prices
    from pymtp.cli.bench_output import bench_model
    from pymtp.cli.bench_values import check_head
    from pymtp.model.model import Model

    layers = placing.keywords()["n_gpu_layers"]
    if layers == "auto":
        raise InvalidRequestError("--gpu-layers auto depends on the context: --prices takes a number")
    weights = {field.name: getattr(placing, field.name) for field in fields(WeightOptions)}
    settings = BenchOptions(n_gpu_layers=layers, cache_type=placing.cache_type, **weights).settings()
    header = bench_model(model_name(name), settings)
    check_head(header)
    with loading_status(header.file_names):
        model = Model(header.path, n_gpu_layers=layers, **settings["placing"])
    with model:
        return measure_prices(model, threads=settings["threads"], cache_type=settings["cache_type"])


def add_prices(about: dict[str, Any], prices: RowPrices) -> None:
    """Add prices to what describes a model, and to each of its types that the CPU multiplies with."""
    about[PRICE] = prices.whole
    for kind in about["types"]:
        if (price := prices.by_type.get(kind["type"])) is not None:
            kind[PRICE] = price


def describe_type(kind: dict[str, Any]) -> str:
    """Describe a type of weights in words."""
    text = f"{kind['type']}: {kind['tensors']:,} tensors, {kind['bytes'] / 2**20:,.1f} MiB"
    return f"{text}, 4 rows cost {describe_price(kind[PRICE])}" if PRICE in kind else text


def describe_price(price: object) -> str:
    """Describe a price in words."""
    return f"{price:.2f} times one row"
