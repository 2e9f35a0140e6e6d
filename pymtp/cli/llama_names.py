"""Options of llama.cpp's programs that no option of pymtp matches: those without an effect, and those that are refused.

A command that has an option of the same name uses that one. The names are those of llama-server and llama-cli, in
llama.cpp's tools/server/README.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Ignored:
    """An option that is taken without an effect.

    reason: why it has none. n_values: the number of values after the option.
    values: the values for which it has no effect, of which several may be given with commas; None for all. Other values
        are refused with `otherwise`.
    needs: an option of the commands for which the name has no effect; None for all commands.
    """

    reason: str
    n_values: int = 0
    values: tuple[str, ...] | None = None
    otherwise: str = ""
    needs: str | None = None


def _each(names: str, value: T) -> dict[str, T]:
    return dict.fromkeys(names.split(), value)


# how an option is written for pymtp: its first word is the option, "{}" in the second stands for the given value
TRANSLATED: Mapping[str, tuple[str, str]] = {
    **_each("-hf -hfr --hf-repo", ("--model", "hf:{}")),
    "-s": ("--seed", "{}"),
    **_each("--predict --n-predict", ("--max-tokens", "{}")),
    **_each("-sys --system-prompt", ("--system", "{}")),
    **_each("-sysf --system-prompt-file", ("--system-file", "{}")),
    **_each("-cmoe --cpu-moe", ("--n-cpu-moe", "10000")),
}

_MTP = "--draft-tokens and --draft-text set the drafts of the model's own MTP head, and those from the text"
_CACHE = "the prefix cache chooses by itself what it reuses; --cache limits its memory"
_HEAD = "the head has the context, the cache types, the threads and the devices of the model"
_LOG = "log lines have one form; --log-format and --log-level of `pymtp serve` change it"
_AUTO = "--draft-tokens auto chooses the number of drafts by what they cost and gain"
_LOOKUP = "--draft-text auto chooses by itself where drafts come from the text, and their number"
_PATHS = "`pymtp serve` always has these paths"

IGNORED: Mapping[str, Ignored] = {
    "--jinja": Ignored("chat templates are always Jinja"),
    **_each("-cb --cont-batching", Ignored("requests always run together")),
    **_each("--warmup --no-warmup", Ignored("pymtp chooses by itself when to warm up")),
    "--no-context-shift": Ignored("a context is never shifted"),
    **_each("--props --embedding --embeddings --rerank --reranking", Ignored(_PATHS)),
    **_each("--ui --webui", Ignored("`pymtp serve` has its pages unless --no-page is given")),
    "--swa-full": Ignored("these models have no sliding window"),
    **_each("-kvu --kv-unified -no-kvu --no-kv-unified", Ignored("each sequence has --ctx tokens of its own")),
    **_each("--cache-prompt --cache-idle-slots --no-cache-idle-slots", Ignored(_CACHE)),
    **_each(
        "--cache-reuse -sps --slot-prompt-similarity -ctxcp --ctx-checkpoints --swa-checkpoints -cms "
        "--checkpoint-min-step",
        Ignored(_CACHE, 1),
    ),
    **_each("-tb --threads-batch", Ignored("--threads holds for prompts, too", 1)),
    "--threads-http": Ignored("the server needs no threads for connections", 1),
    **_each("--prio --poll --prio-batch --poll-batch", Ignored("threads wait as pymtp chooses", 1)),
    **_each("--perf --no-perf", Ignored("figures are always printed")),
    "--no-escape": Ignored("a prompt is taken as it is written"),
    **_each("-dt --defrag-thold", Ignored("the cache is never fragmented", 1)),
    **_each("-fit --fit", Ignored("`pymtp serve` chooses what fits, and --gpu-layers auto the layers", 1)),
    **_each(
        "--log-prefix --no-log-prefix --log-timestamps --no-log-timestamps --log-disable -v --verbose --log-verbose",
        Ignored(_LOG),
    ),
    **_each("-lv --verbosity --log-verbosity --log-colors", Ignored(_LOG, 1)),
    "--reasoning-format": Ignored(
        "answers of a chat have their thinking apart",
        1,
        ("auto", "deepseek"),
        "clients get thinking apart from the answer, in no other form",
    ),
    "--spec-type": Ignored(
        _MTP,
        1,
        ("draft-mtp", "mtp", "ngram-mod", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-cache"),
        "drafts come from the model's own MTP head and from the text: see --draft-tokens and --draft-text",
    ),
    "--spec-default": Ignored(_MTP),
    **_each(
        "--draft-min --draft-n-min --spec-draft-n-min --draft-p-min --spec-draft-p-min --draft-p-split "
        "--spec-draft-p-split",
        Ignored(_AUTO, 1),
    ),
    **_each(
        "--spec-ngram-mod-n-min --spec-ngram-mod-n-max --spec-ngram-mod-n-match --spec-ngram-simple-size-n "
        "--spec-ngram-simple-size-m --spec-ngram-simple-min-hits --spec-ngram-map-k-size-n --spec-ngram-map-k-size-m "
        "--spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m "
        "--spec-ngram-map-k4v-min-hits --spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits",
        Ignored(_LOOKUP, 1),
    ),
    **_each(
        "-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl -ctkd --cache-type-k-draft "
        "--spec-draft-type-k -ctvd --cache-type-v-draft --spec-draft-type-v -cd --ctx-size-draft -td "
        "--threads-draft --spec-draft-threads -tbd --threads-batch-draft --spec-draft-threads-batch",
        Ignored(_HEAD, 1),
    ),
    **_each("--no-mmproj --no-mmproj-auto", Ignored("this command gives models only text")),
    **_each("-np --parallel", Ignored("this command has no slots", 1)),
    **_each(
        "-n --predict --n-predict",
        Ignored(
            "clients choose the number of tokens",
            1,
            ("-1",),
            "clients choose the number of tokens: max_tokens of a request",
        ),
    ),
    **_each("--simple-io --color --no-display-prompt", Ignored("only text of the model is printed")),
    **_each("-cnv --conversation -i --interactive", Ignored("`pymtp chat` always talks", needs="--system-file")),
    **_each("-mli --multiline-input", Ignored("Alt-Enter begins a line", needs="--system-file")),
    **_each("-no-cnv --no-conversation", Ignored("`pymtp generate` always continues a prompt", needs="--stop")),
    "--tags": Ignored("clients of pymtp see no tags", 1),
}

_HUB = "-m hf:OWNER/NAME:FILE.gguf downloads a model of the Hugging Face hub"
_TEXT = "--image of `pymtp generate`, and /image within `pymtp chat`, show images"
_BIAS = "logit_bias of a request, or of SamplingParams, does this"
_TEMPLATE = "--chat-template-file FILE sets another template"
_TOKENS = """--chat-template-kwargs '{"enable_thinking": false}' turns thinking off"""
_DEVICES = "--gpu-layers 0 computes on the CPU; --main-gpu and --tensor-split choose GPUs"
_PIN = "taskset -c CORES pymtp … sets the cores"
_TALK = "`pymtp chat` talks, `pymtp generate` continues a prompt"
_PROXY = "pymtp speaks plain HTTP: put a proxy in front of it"

# options that are refused, and what does nearly the same
REFUSED: Mapping[str, str] = {
    **_each("-mu --model-url -dr --docker-repo -hff --hf-file", _HUB),
    **_each("-hft --hf-token", "set the variable HF_TOKEN"),
    "--offline": "set the variable HF_HUB_OFFLINE to 1",
    **_each("-hfd -hfrd --hf-repo-draft --spec-draft-hf", "--head FILE sets the file of the head"),
    **_each("-mm --mmproj --image", _TEXT),
    **_each("-mmu --mmproj-url", "--mmproj FILE names a file, and -m hf:… downloads the projector with the model"),
    "--audio": "models hear no sound",
    **_each("--chat-template --no-jinja", _TEMPLATE),
    **_each("-rea --reasoning --reasoning-effort", _TOKENS),
    **_each("-dev --device -devd --device-draft --spec-draft-device", _DEVICES),
    "--list-devices": "`pymtp info` lists the devices",
    **_each("-C --cpu-mask -Cr --cpu-range --cpu-strict", _PIN),
    **_each("-lm --load-mode -dio --direct-io", "--mmap, --no-mmap and --mlock choose how a file is read"),
    **_each("-e --escape", "write the prompt to a file, for --file"),
    **_each("-ctk --cache-type-k -ctv --cache-type-v", "--cache-type sets both types"),
    **_each(
        "-lcs --lookup-cache-static -lcd --lookup-cache-dynamic",
        "--draft-text drafts from the prompt and earlier outputs, and reads no file",
    ),
    "--rope-scale": "--rope-freq-scale takes 1/N",
    "--no-cache-prompt": "--cache 0 keeps no prompts in the host's memory",
    "--slot-save-path": "`pymtp prefix` saves a prompt, and --prefix loads it",
    **_each("-l --logit-bias", _BIAS),
    "--grammar": "--grammar-file FILE reads a grammar",
    "-j": "--json-schema FILE reads a schema",
    **_each("-cnv --conversation -no-cnv --no-conversation -i --interactive", _TALK),
    **_each("-mli --multiline-input -p --prompt", _TALK),
    **_each("-st --single-turn", "a pipe is a chat of one turn: echo TEXT | pymtp chat"),
    **_each("--models-dir --models-preset", "--models FILE.toml lists models; -m may be given several times"),
    "--cors-origins": "--cors-origin takes one origin, and may be given several times",
    **_each("--ssl-key-file --ssl-cert-file --api-prefix", _PROXY),
    "--path": "`pymtp serve` has only its own pages, which --no-page turns off",
    "--log-file": "the log goes to stderr: 2> FILE writes it to a file",
    "--log-prompts-dir": "--log-prompts writes them to the log",
}
