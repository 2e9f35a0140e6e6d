"""The routes of Ollama's API about the server's model: /api/tags, /api/ps, /api/show, /api/version."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from fastapi import APIRouter

from pymtp.errors import InvalidRequestError
from pymtp.openai.infill import read_fim_tokens
from pymtp.server.dependencies import ServiceDep
from pymtp.server.facts import ModelFacts
from pymtp.server.http.response_schema import error_responses
from pymtp.server.ollama.types import OllamaErrorBody, OllamaShowRequest
from pymtp.server.service import Service

router = APIRouter(tags=["Ollama"])
API_VERSION = "0.12.0"  # Ollama's version with this API: clients refuse versions that they take for too old
LATEST = ":latest"  # Ollama's clients add it to names without a tag
_OLLAMA_NAMES = {"repetition_penalty": "repeat_penalty", "penalty_last_n": "repeat_last_n", "max_tokens": "num_predict"}
NEVER = "9999-12-31T23:59:59Z"


def check_model(service: Service, name: str | None) -> str:
    """Return the name of a request's model for the answer. Raises UnknownModelError for an unknown name."""
    if name is None:
        return service.model_name
    known = name.removesuffix(LATEST) if name not in service.model_names else name
    service.check_model(known)
    return name


@router.get("/api/version", responses=error_responses(OllamaErrorBody))
async def version() -> dict[str, str]:
    """Return the version of Ollama whose API this is."""
    return {"version": API_VERSION}


@router.get("/api/tags", responses=error_responses(OllamaErrorBody))
async def tags(service: ServiceDep) -> dict[str, Any]:
    """List the model once under each of its names."""
    return model_tags(service.facts)


@router.get("/api/ps", responses=error_responses(OllamaErrorBody))
async def running_models(service: ServiceDep) -> dict[str, Any]:
    """List the loaded model."""
    facts = service.facts
    loaded = {"expires_at": NEVER, "size_vram": 0, "context_length": facts.n_ctx}
    return {"models": [_card(facts, facts.names[0]) | loaded]}


@router.post("/api/show", responses=error_responses(OllamaErrorBody))
async def show(body: OllamaShowRequest, service: ServiceDep) -> dict[str, Any]:
    """Return the model's details: its template, its sampling defaults, its sizes and what it can do."""
    check_model(service, body.model or body.name)
    return model_details(service.facts)


def model_tags(facts: ModelFacts) -> dict[str, Any]:
    """Return the list of a model under each of its names."""
    return {"models": [_card(facts, name) for name in facts.names]}


def model_details(facts: ModelFacts) -> dict[str, Any]:
    """Return the details of a model, as /api/show has them."""
    model, template = facts.model, facts.template or ""
    card, capabilities = _card(facts, facts.names[0]), _capabilities(facts)
    parameters = {"num_ctx": facts.n_ctx}
    parameters |= {_OLLAMA_NAMES.get(name, name): value for name, value in facts.sampling.items() if value is not None}
    return {
        "modelfile": f"FROM {model.path.name}\n",
        "parameters": "\n".join(f"{name} {value}" for name, value in parameters.items()),
        # Continue completes in the middle of a text if it finds .Suffix in the template: here it is a comment
        "template": f"{template}{{# .Suffix #}}" if "insert" in capabilities else template,
        "details": card["details"],
        "model_info": {
            "general.architecture": model.architecture,
            "general.parameter_count": model.n_params,
            f"{model.architecture}.block_count": model.n_layer,
            f"{model.architecture}.context_length": facts.n_ctx,
            f"{model.architecture}.embedding_length": model.n_embd,
        },
        "capabilities": capabilities,
        "modified_at": card["modified_at"],
    }


def _capabilities(facts: ModelFacts) -> list[str]:
    template = facts.template or ""
    found = ["completion", "embedding"]
    found += ["tools"] if "tools" in template else []
    found += ["thinking"] if "<think>" in template else []
    found += ["vision"] if facts.sees_images else []
    try:
        read_fim_tokens(facts.model)
    except InvalidRequestError:
        return found
    return [*found, "insert"]


def _card(facts: ModelFacts, name: str) -> dict[str, Any]:
    model, size, modified, digest = facts.model, 0, 0.0, ""
    if facts.whole_file:
        digest = model.digest
        with suppress(OSError):  # the file was removed since it was loaded
            file = model.path.stat()
            size, modified = file.st_size, file.st_mtime
    return {
        "name": name,
        "model": name,
        "modified_at": datetime.fromtimestamp(modified, timezone.utc).isoformat().replace("+00:00", "Z"),
        "size": size,
        "digest": digest,
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": model.architecture,
            "families": [model.architecture],
            "parameter_size": _rounded(model.n_params),
            "quantization_level": model.weight_type.upper(),
        },
    }


def _rounded(n_params: int) -> str:
    """Return a number of parameters as Ollama writes it, such as 4.0B."""
    return f"{n_params / 1e9:.1f}B" if n_params >= 1e9 else f"{n_params / 1e6:.1f}M"
