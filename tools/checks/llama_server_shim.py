"""Start `pymtp serve` with the options of llama-server: the tests of llama.cpp's server run it as their llama-server.

The model is always the file that PYMTP_SHIM_MODEL names, whatever model the tests ask for. Where they ask for one that
sees images, it gets the projector that PYMTP_SHIM_MMPROJ names, and may fetch images from PYMTP_SHIM_IMAGES, where
llama_server_plugin.py serves them. Options without a counterpart are left out, which the tests that are about them then
notice.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from zlib import crc32

ROUTER_MODELS = (
    "ggml-org/tinygemma3-GGUF:Q8_0",
    "ggml-org/test-model-stories260K:F32",
    "ggml-org/test-model-stories260K-infill:F32",
)


SEEING = "tinygemma3"  # the tests' model with a projector


def serve_arguments(given: list[str], model: str, mmproj: str = "") -> list[str]:
    """Return the arguments of `pymtp serve` for arguments of llama-server. mmproj: the model's projector."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("host", "port", "temp", "seed", "alias", "ctx-size", "parallel", "threads", "api-key"):
        parser.add_argument(f"--{name}")
    for name in ("batch-size", "ubatch-size", "chat-template-file", "cors-origins", "sleep-idle-seconds", "lora"):
        parser.add_argument(f"--{name}")
    for name in ("models-max", "pooling", "spec-draft-n-max", "reasoning", "media-path"):
        parser.add_argument(f"--{name}")
    for name in ("model", "model-url", "hf-repo", "hf-file"):
        parser.add_argument(f"--{name}")
    for name in ("no-ui", "kv-unified", "metrics", "no-slots", "no-models-autoload", "no-mmproj"):
        parser.add_argument(f"--{name}", action="store_true")
    options, _ = parser.parse_known_args(given)

    if any(getattr(options, name) for name in ("model", "model_url", "hf_repo", "hf_file")):
        arguments = ["-m", alias_file(model, options.alias) if options.alias else model]
    else:
        arguments = ["--models", models_file(model)]
    if mmproj and SEEING in (options.hf_repo or "") and not options.no_mmproj:
        arguments += ["--mmproj", mmproj, "--allow-image-urls", os.environ.get("PYMTP_SHIM_IMAGES", "127.0.0.1")]
        arguments += ["--media-path", options.media_path] if options.media_path else []
    same = {"host": "host", "port": "port", "temp": "temp", "seed": "seed", "threads": "threads"}
    same |= {"sleep_idle_seconds": "idle-seconds", "models_max": "models-max", "spec_draft_n_max": "draft-tokens"}
    same |= {"pooling": "pooling", "api_key": "api-key", "chat_template_file": "chat-template-file"}
    for name, own in same.items():
        if (value := getattr(options, name)) is not None:
            arguments += [f"--{own}", value]
    n_slots = int(options.parallel or 1)
    arguments += ["--n-seq-max", str(n_slots)]
    if options.ctx_size is not None:  # llama-server shares its context among the slots
        shared = 1 if options.kv_unified else n_slots
        arguments += ["--ctx", str(int(options.ctx_size) // shared)]
    # llama-server tells every template whether to think; without the variable, its own templates would not think
    arguments += ["--chat-template-kwargs", json.dumps({"enable_thinking": options.reasoning != "off"})]
    # llama-server's own defaults: any origin, no metrics
    arguments += ["--cors-origin", options.cors_origins or "*"]
    if not options.metrics:
        arguments.append("--no-metrics")
    if options.no_slots:
        arguments.append("--no-slots")
    if options.no_models_autoload:
        arguments.append("--no-autoload")
    if options.no_ui:
        arguments.append("--no-page")
    return arguments


def alias_file(model: str, alias: str) -> str:
    """Return a link to the model whose name is an alias: answers show it, and requests may have any name.

    Names given with --served-name would be the only ones, unlike those of llama-server.
    """
    name = sorted(alias.split(","))[0].replace("/", "-")
    link = folder(model) / f"{name}.gguf"
    temporary = link.with_suffix(f".{os.getpid()}")
    temporary.symlink_to(Path(model).resolve())
    temporary.replace(link)
    return str(link)


def models_file(model: str) -> str:
    """Write a file of the models that the tests of the router name, each of which is ours; return its path."""
    file = folder(model) / f"models.{os.getpid()}.toml"
    file.write_text("".join(f'["{name}"]\nmodel = "{model}"\n' for name in ROUTER_MODELS))
    return str(file)


def folder(model: str) -> Path:
    """Return the directory for files about a model that a started server reads."""
    key = crc32(os.fsencode(Path(model).resolve()))
    found = Path(tempfile.gettempdir()) / f"pymtp-shim-{os.getuid()}" / f"{key:08x}"
    found.mkdir(parents=True, exist_ok=True)
    return found


def main() -> None:
    files = (os.environ["PYMTP_SHIM_MODEL"], os.environ.get("PYMTP_SHIM_MMPROJ", ""))
    command = [sys.executable, "-m", "pymtp", "serve", *serve_arguments(sys.argv[1:], *files)]
    print("shim:", " ".join(command), flush=True)
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main()
