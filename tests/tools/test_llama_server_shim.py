"""Tests of the shim that starts `pymtp serve` with the options of llama-server."""

from __future__ import annotations

from pathlib import Path

from llama_server_shim import serve_arguments


def option(arguments: list[str], name: str) -> str | None:
    return arguments[arguments.index(name) + 1] if name in arguments else None


def test_shim_maps_the_options_of_llama_server(tmp_path: Path) -> None:
    given = ["--port", "8080", "--temp", "0.8", "--seed", "42", "--host", "127.0.0.1", "--hf-repo", "ggml-org/models"]
    given += ["--batch-size", "32", "--no-slots", "--alias", "tinyllama-2", "--ctx-size", "512", "--parallel", "2"]
    given += ["--n-predict", "64", "--no-jinja", "--no-ui"]
    model = tmp_path / "m.gguf"
    model.touch()
    found = serve_arguments(given, str(model))
    assert Path(found[1]).stem == "tinyllama-2"
    assert Path(found[1]).resolve() == model
    expected = {"--port": "8080", "--temp": "0.8", "--seed": "42", "--n-seq-max": "2"}
    assert {name: option(found, name) for name in expected} == expected
    assert "--no-page" in found
    assert not {"--n-predict", "--hf-repo", "--no-jinja"} & set(found)


def test_shim_shares_the_context_among_the_slots_unless_it_is_unified() -> None:
    given = ["--hf-repo", "a/b", "--ctx-size", "512", "--parallel", "2"]
    assert option(serve_arguments(given, "m"), "--ctx") == "256"
    assert option(serve_arguments([*given, "--kv-unified"], "m"), "--ctx") == "512"


def test_shim_serves_the_models_of_the_router_where_none_is_named() -> None:
    found = serve_arguments(["--ctx-size", "512", "--models-max", "2"], "m.gguf")
    file = option(found, "--models")
    assert file is not None
    assert 'model = "m.gguf"' in Path(file).read_text()
    assert option(found, "--models-max") == "2"


def test_shim_gives_a_projector_to_the_model_that_sees() -> None:
    given = ["--hf-repo", "ggml-org/tinygemma3-GGUF:Q8_0", "--media-path", "../tools"]
    found = serve_arguments(given, "m", "p")
    assert (option(found, "--mmproj"), option(found, "--media-path")) == ("p", "../tools")
    for blind in (["--hf-repo", "a/b"], [*given, "--no-mmproj"]):
        assert not {"--mmproj", "--allow-image-urls"} & set(serve_arguments(blind, "m", "p"))
