"""The command `pymtp info`: describe a model file, this build and machine; plan a model's memory; price its rows."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from pymtp.chat.sampling_defaults import read_sampling_defaults
from pymtp.cli.given import given_option
from pymtp.cli.memory_table import as_table, compare_plans, plan_prefix_memory
from pymtp.cli.model_file import model_headers, model_name, show_note, with_projector_beside
from pymtp.cli.options import AsJson, ModelArgument, SeqMax, expand_options
from pymtp.cli.placing import PlacementOptions, WeightOptions
from pymtp.cli.prefix import about_prefix, is_prefix
from pymtp.cli.row_prices import PRICE, add_prices, describe_price, describe_type, load_and_measure
from pymtp.cli.tables import print_tables
from pymtp.context.gpu_layers import planned_layers
from pymtp.context.host_memory import default_cache_bytes, host_memory
from pymtp.context.options import whole_ctx
from pymtp.errors import InvalidRequestError
from pymtp.hub.weight_types import weight_types
from pymtp.model.model import Model
from pymtp.native.build_info import build_info
from pymtp.options import LLMOptions
from pymtp.validation import is_hub_name

ALWAYS_ALLOWED = {"name", "head", "memory", "prices", "json_output"}  # all other options need --memory or --prices
PRICES_ALLOW = {field.name for field in fields(WeightOptions)} | {"n_gpu_layers", "cache_type"}


@expand_options
def info(
    *,
    context: typer.Context,
    name: ModelArgument = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Show the memory that the model needs with the options below.")
    ] = False,
    prices: Annotated[
        bool,
        typer.Option(
            "--prices",
            help="Load the model and measure what 4 rows, those of a round with 3 drafts, cost on this machine, "
            "relative to one row. Takes some seconds.",
        ),
    ] = False,
    n_seq_max: SeqMax = 1,
    placing: PlacementOptions,
    json_output: AsJson = False,
) -> None:
    """Describe a model or a saved prefix, and this build of pymtp. Weights are read only with --prices."""
    if memory and prices:
        raise InvalidRequestError("--memory and --prices exclude each other: use one of them")
    if not memory:
        _check_needs_memory(context, ALWAYS_ALLOWED | PRICES_ALLOW if prices else ALWAYS_ALLOWED)
    options = with_projector_beside(placing.options(model_name(name), n_seq_max=n_seq_max))
    if memory:
        _show_memory(options, json_output)
        return
    build = build_info()
    with model_headers(options) as local:
        file = None if local.model is None else Path(str(local.model))
        if file and is_prefix(file):
            kind, about = "prefix", about_prefix(file)
        else:
            kind, about = "model", _about_model(file, local.head, local.mmproj or None)
    if prices:
        if kind == "prefix":
            raise InvalidRequestError(f"{name} is a prefix, not a model: --prices is for models")
        add_prices(about, load_and_measure(name, placing))
    for key in ("file", "head_file", "projector_file"):
        if name and is_hub_name(name) and key in about and not (path := Path(str(about[key]))).exists():
            about[key] = f"{path.name} of {name}"  # only a header was downloaded, into a temporary file
    if json_output:
        print(json.dumps({kind: about, "build": build}, ensure_ascii=False))
        return
    for title, facts in ((kind, about), ("build", dict(build))):
        table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
        for name, value in facts.items():
            if name == "sampling" and isinstance(value, dict):
                value = ", ".join(f"{field} {number}" for field, number in value.items())
            elif name == "types" and isinstance(value, list):
                value = "\n".join(describe_type(each) for each in value)
            elif name == PRICE:
                value = describe_price(value)
            table.add_row(*(Text(_readable(cell)) for cell in (name.replace("_", " "), value)))
        print_tables(table)


def _check_needs_memory(context: typer.Context, allowed: set[str]) -> None:
    """Raise InvalidRequestError for options that have no effect without --memory. allowed: all other options."""
    if (option := given_option(context, allowed)) is not None:
        raise InvalidRequestError(f"{option} has an effect only with --memory: add --memory")


def _about_model(
    model: Path | None, head: str | os.PathLike[str] | None, projector: str | os.PathLike[str] | None
) -> dict[str, object]:
    with Model(model, vocab_only=True, head=head) as loaded:
        sampling, notes = read_sampling_defaults(loaded.metadata)
        for note in notes:
            show_note(note)
        return {
            "file": str(loaded.path),
            **({} if loaded.head is None else {"head_file": loaded.head}),
            **({} if projector is None else {"projector_file": str(projector)}),
            "name": loaded.metadata.get("general.name", ""),
            "about": loaded.metadata.get("general.description", ""),
            "architecture": loaded.architecture,
            "weights": loaded.weight_type,
            "types": [
                {"type": kind.name, "tensors": kind.tensors, "bytes": kind.bytes}
                for kind in weight_types([loaded.path, *filter(None, [loaded.head])])
            ],
            "parameters": loaded.n_params,
            "size_bytes": loaded.path.stat().st_size,
            "layers": loaded.n_layer,
            "mtp_head": loaded.has_head,
            **({"mtp_head_absent": loaded.head_absent} if loaded.head_absent else {}),
            "tap": loaded.tap if loaded.has_head else None,
            "width": loaded.n_embd,
            "vocabulary": loaded.n_vocab,
            "context_trained": loaded.n_ctx_train,
            "chat_template": loaded.chat_template is not None,
            "sampling": sampling,
        }


def _show_memory(given: LLMOptions, json_output: bool) -> None:
    given.check_machine()  # before a download of headers
    adapter_bytes = given.adapter_bytes()  # shown separately, because the plan does not count adapters
    with model_headers(given) as local:
        model = None if local.model is None else Path(str(local.model))
        if model and is_prefix(model):
            raise InvalidRequestError(f"{model} is a prefix, not a model: --memory is for models")
        with Model(model, vocab_only=True, head=local.head) as header:
            row_bytes = 4 * (header.n_vocab + header.n_embd)
            ctx = whole_ctx(local.n_ctx or header.n_ctx_train)
            drafts = local.max_drafts(mtp=header.has_head)
            planned = replace(local, n_ctx=ctx)
        planned.check_adapters(header.path)
        if planned.n_gpu_layers == "auto":
            reserved = planned.projector_memory()
            gpu_layers = planned_layers(model, planned, planned, mtp=planned.takes_head, reserved=reserved)
        else:
            gpu_layers = planned.layers
        plans = compare_plans(planned, n_gpu_layers=gpu_layers)
        projector = planned.projector_memory()
    cache_bytes = planned.cache_bytes
    if cache_bytes is None:
        cache_bytes = default_cache_bytes(plan.with_mtp for plan in plans)
    prefixes = plan_prefix_memory(plans, cache_bytes, n_ctx=ctx, n_seq_max=planned.n_seq_max, row_bytes=row_bytes)
    options = {
        "n_ctx": ctx,
        "n_seq_max": planned.n_seq_max,
        "draft_tokens": drafts,
        "draft_text": planned.max_text,
        "draft_vocab": planned.draft_vocab,
        "type_k": planned.type_k,
        "type_v": planned.type_v,
        "gpu_layers": gpu_layers,
    }
    build, total = build_info(), host_memory()
    if json_output:
        result = {
            "model": header.file_names,
            "options": options,
            "devices": [plan.as_dict() for plan in plans],
            "adapter_bytes": adapter_bytes,
            "projector_bytes": sum(projector.values()),
            "host_memory": total,
            "prefixes": asdict(prefixes),
            "build": build,
        }
        print(json.dumps(result))
        return
    print_tables(f"{header.file_names}: {', '.join(f'{k} {v}' for k, v in options.items())}")
    descriptions = {device["name"]: device["description"] for device in build["devices"]}
    for plan in plans:
        print_tables(as_table(plan, descriptions.get(plan.without.device, plan.without.device)))
    if ctx > header.n_ctx_train:
        print_tables(f"The model was trained with contexts of {header.n_ctx_train:,} tokens.")
    if total is not None and sum(plan.with_mtp.total for plan in plans if plan.with_mtp.host) > total:
        print_tables(f"This is more than the {total / 2**20:,.1f} MiB of memory that the host has.")
    for gpu, nbytes in projector.items():
        print_tables(
            f"The projector takes {nbytes / 2**20:,.1f} MiB more of {gpu or 'host memory'}, and its compute buffers "
            "after the first image."
        )
    if adapter_bytes:
        print_tables(
            f"Adapters take {adapter_bytes / 2**20:,.1f} MiB more, on the devices of the tensors that they change."
        )
    print_tables(
        f"Cached prompts take up to {prefixes.cache_bytes / 2**20:,.0f} MiB of host memory "
        f"(cache_bytes): {prefixes.token_bytes / 2**10:,.1f} KiB per token and "
        f"{prefixes.checkpoint_bytes / 2**20:,.1f} MiB per checkpoint, so {prefixes.prompts(ctx):,} prompts of {ctx:,} "
        "tokens."
    )


def _readable(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(_readable(v) for v in value.values())
    if isinstance(value, list):
        separator = "\n" if any(isinstance(v, dict) or len(str(v)) > 20 for v in value) else " "
        return separator.join(_readable(v) for v in value)
    # replace control characters: a terminal would execute those that a model file holds
    printable = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in str(value))
    return "-" if value in (None, "") else printable
