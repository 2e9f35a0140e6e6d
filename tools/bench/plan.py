"""How each file of benchmarks/ is made: its commands, the models that they need, what they measure, and the time.

In a command, {pymtp} is the program, {python} the interpreter, {out} the folder for the files, and {NAME} the file of a
model. Parts NAME.1.json, NAME.2.json … are joined to NAME.json, as a list `series`. Minutes are those of 2 cores of a
slow machine with AVX2, where the 0.8B in Q4_0 decodes 25 tokens/s and reads prompts at 100 tokens/s. Every file is
quoted by a page: a number that no page needs is not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

MODELS = {  # options of tools/models/make_model.py
    "q4_0": "qwen3.5-0.8b --type q4_0",
    "q4_k": "qwen3.5-0.8b --type q4_k",
    "q8_0": "qwen3.5-0.8b --type q8_0",
    "moe": "qwen3.6-35b-a3b --type q4_0 --layers 8 --vocab 8192 --experts 64",
    "dense4": "qwen3.6-27b --type q4_k --layers 4 --vocab 8192",
    "plan_0.8b": "qwen3.5-0.8b --type q4_0 --no-weights",  # for `pymtp info --memory`
    "plan_27b": "qwen3.6-27b --type q4_0 --no-weights",
    "plan_35b": "qwen3.6-35b-a3b --type q4_0 --no-weights",
}

NATIVE = ("pymtp/native", "patches", "vendor/requirements.txt", "pymtp/context", "pymtp/model/model.py")
# the same for measurements of models alone, without drafts from text
ALONE = (*NATIVE, *(f":(exclude)pymtp/native/runtime/{name}*" for name in ("text_", "pymtp_text", "guess_rates")))
DECODING = (*NATIVE, "pymtp/engine", "pymtp/drafting", "pymtp/sampling.py", "pymtp/samplers")
PREFIXES = (*DECODING, "pymtp/prefix_cache")
HTTP = (*PREFIXES, "pymtp/server", "pymtp/openai", "pymtp/chat")
SHIPPED = ("pymtp/model/demo.gguf",)
PEERS = (
    "tools/bench/bench_server.py",
    "tools/bench/peer.py",
    "tools/bench/llama_server.py",
    "tools/bench/llama_build.py",
)

SERVER = "{python} tools/bench/bench_server.py"
ROUNDS = "--kinds prose --temperatures 0 --tokens 256 -t 2"
ACCEPTANCE = "0.85,0.6375,0.414,0.25,0.15,0.09,0.05"


@dataclass(frozen=True)
class Measurement:
    """The making of a file of benchmarks/.

    command: lines of a shell. minutes: about how long it takes, without the making of models and of llama.cpp's
    programs. measures: files and folders of the repository, of which a change makes the file out of date. timed:
    whether the file has times, which want a machine without other work; else it has counts. files: others that the
    command makes, such as plots.
    """

    command: str
    minutes: float
    measures: tuple[str, ...]
    timed: bool = True
    files: tuple[str, ...] = ()


def rows(model: str, threads: int, options: str) -> str:
    return f"{{pymtp}} bench rows -m {{{model}}} -t {threads} --rows 1,2,4,8 --rounds 5 {options} -o json"


ROWS = (*ALONE, "pymtp/bench/rows.py")
WHOLE = "--drafts 1,3 --memory 1024"
LAYERS = "--drafts 1 --memory 256"
DECODE = (*DECODING, "pymtp/bench/decode.py")
BATCH = (*DECODING, "pymtp/bench/batch.py")
CHECKS = ("tools/checks/same_text.py", "tools/checks/random_requests.py")

PLAN = {
    "rows_q4_0.json": Measurement(f"{rows('q4_0', 2, WHOLE)} > {{out}}/rows_q4_0.json", 1, ROWS),
    "rows_q4_k.json": Measurement(f"{rows('q4_k', 2, WHOLE)} > {{out}}/rows_q4_k.json", 1, ROWS),
    "rows_q8_0.json": Measurement(f"{rows('q8_0', 2, WHOLE)} > {{out}}/rows_q8_0.json", 1, ROWS),
    "rows_27b4_q4_k.json": Measurement(f"{rows('dense4', 1, LAYERS)} > {{out}}/rows_27b4_q4_k.json", 1, ROWS),
    "rows_35b_experts.json": Measurement(f"{rows('moe', 1, LAYERS)} > {{out}}/rows_35b_experts.json", 1, ROWS),
    "types.json": Measurement(
        "{python} tools/bench/bench_types.py -r 7 -t 1 --json {out}/types.json",
        5,
        (*ROWS, "tools/bench/bench_types.py"),
    ),
    "rounds_q4_0.json": Measurement(
        f"{{pymtp}} bench decode -m {{q4_0}} --depths none,3,auto,auto:new --rounds 5 {ROUNDS} "
        f"--synthetic-acceptance {ACCEPTANCE} -o json > {{out}}/rounds_q4_0.json",
        5,
        DECODE,
    ),
    "rounds_none_accepted.json": Measurement(
        f"{{pymtp}} bench decode -m {{q4_0}} --depths none,auto,auto:new --rounds 4 {ROUNDS} "
        "--synthetic-acceptance 0 -o json > {out}/rounds_none_accepted.json",
        4,
        DECODE,
    ),
    "batch_synthetic.json": Measurement(
        "{pymtp} bench batch -m {q4_0} --sequences 1,4,8 --depths none,1,3,auto --acceptance 0.5,0.75 "
        "--prompt 16 --tokens 128 --warm-up 64 --rounds 3 -t 2 -o json > {out}/batch_synthetic.json",
        14,
        BATCH,
    ),
    "arriving.json": Measurement(
        "{pymtp} bench batch -m {q4_0} --sequences 7 --depths none,auto --arriving 4k --prompt 64 --tokens 64 "
        "--warm-up 32 --rounds 3 -t 2 -o json > {out}/arriving.json",
        7,
        BATCH,
    ),
    "prefill.json": Measurement(
        "{pymtp} bench prefill -m {q4_0} --quick -t 2 -o json > {out}/prefill.json",
        6,
        (*ALONE, "pymtp/bench/prefill.py"),
    ),
    "prefix_08b.json": Measurement(
        "{pymtp} bench prefix -m {q4_0} --traces document,four,disk --rounds 1 -t 2 -o json > {out}/prefix_08b.json",
        8,
        (*PREFIXES, "pymtp/bench/prefix.py", "pymtp/bench/traces.py"),
    ),
    "server.json": Measurement(
        f"{SERVER} demo:1:200 -d 3,auto --server-drafts 3 -p 300 --pairs 6 --threads 2 --json {{out}}/server.1.json\n"
        f"{SERVER} {{q4_0}}:1:64 -d 3,auto --server-drafts 3 --pairs 3 --threads 2 --json {{out}}/server.2.json",
        7,
        (*DECODING, *PEERS, *SHIPPED),
    ),
    "requests.json": Measurement(
        f"{SERVER} demo:8:256 {{q4_0}}:4:64 --server-drafts 0,1,3 --pairs 3 --threads 2 --json {{out}}/requests.json",
        5,
        (*DECODING, *PEERS, *SHIPPED),
    ),
    "http.json": Measurement(
        f"{SERVER} demo:8:600 -d auto --server-drafts '' --http --pairs 4 --threads 2 --json {{out}}/http.json",
        2,
        (*HTTP, *PEERS, *SHIPPED),
    ),
    "images.json": Measurement(
        "{python} tools/models/make_mmproj.py qwen3.5-0.8b {out}/mmproj-0.8b.gguf\n"
        "{python} tools/bench/bench_images.py {q4_0} {out}/mmproj-0.8b.gguf --sizes 256x256 --pairs 2 --threads 2 "
        "--json {out}/images.json",
        3,
        (*HTTP, *PEERS, "pymtp/images", "tools/bench/bench_images.py"),
    ),
    "text_index.json": Measurement(
        "{python} tools/bench/bench_text.py times --json {out}/text_index.json",
        3,
        ("pymtp/native/runtime/text_index.cpp", "pymtp/drafting/text_index.py", "tools/bench/bench_text.py"),
    ),
    "demo_model.json": Measurement(
        "{python} tools/bench/bench_drafts.py depths --folder {out}",
        5,
        (*SHIPPED, "tools/bench/bench_drafts.py"),
        timed=False,
        files=("demo_model.svg",),
    ),
    "shipped_model.json": Measurement(
        "{python} tools/models/shipped/evaluate.py pymtp/model/demo.gguf --cases 1000 -o {out}/shipped_model.json",
        8,
        ("pymtp/model/demo.gguf", *(f"tools/models/shipped/{name}" for name in ("cases", "chats.py", "stream.py"))),
        timed=False,
    ),
    "memory.json": Measurement(
        "\n".join(
            f"{{pymtp}} info --memory {{plan_{name}}} -c 131072 -d 3 --json > {{out}}/memory.{number}.json"
            for number, name in enumerate(("0.8b", "27b", "35b"), 1)
        ),
        1,
        ALONE,
        timed=False,
    ),
    "same_text.json": Measurement(
        "{python} tools/checks/same_text.py --vary drafts --tokens 2000 --json {out}/same_text.json",
        10,
        (*DECODING, *SHIPPED, *CHECKS),
        timed=False,
    ),
    "prefixes_check.json": Measurement(
        "{python} tools/checks/same_text.py --vary prefixes --tokens 40000 --seed 20000 "
        "--json {out}/prefixes_check.json",
        8,
        (*PREFIXES, *SHIPPED, *CHECKS),
        timed=False,
    ),
    "http_same_text.json": Measurement(
        "{python} tools/checks/same_text.py --vary http --tokens 50000 --json {out}/http_same_text.json",
        5,
        (*HTTP, *SHIPPED, *CHECKS, "tools/checks/http_load.py"),
        timed=False,
    ),
    "http_load.json": Measurement(
        "{python} tools/checks/http_load.py --json {out}/http_load.json",
        3,
        (*HTTP, *SHIPPED, "tools/checks/http_load.py", "tools/checks/http_requests.py"),
        timed=False,
    ),
}
