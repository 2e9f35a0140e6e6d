"""How each file of benchmarks/ is made: its commands, the models that they need, what they measure, and the time.

In a command, {pymtp} is the program, {python} the interpreter, {out} the folder for the files, and {NAME} the file of a
model. Parts NAME.1.json, NAME.2.json … are joined to NAME.json, as a list `series`. Times are those of 2 cores.
"""

from __future__ import annotations

from dataclasses import dataclass

MODELS = {  # options of tools/models/make_model.py
    "q4_0": "qwen3.5-0.8b --type q4_0",
    "q4_k": "qwen3.5-0.8b --type q4_k",
    "q8_0": "qwen3.5-0.8b --type q8_0",
    "moe": "qwen3.6-35b-a3b --type q4_0 --layers 8 --vocab 8192 --experts 64",
    "dense4": "qwen3.6-27b --type q4_k --layers 4 --vocab 8192",
    "dense6": "qwen3.6-27b --type q6_k --layers 4 --vocab 8192",
    "plan_0.8b": "qwen3.5-0.8b --type q4_0 --no-weights",  # for `pymtp info --memory`
    "plan_27b": "qwen3.6-27b --type q4_0 --no-weights",
    "plan_35b": "qwen3.6-35b-a3b --type q4_0 --no-weights",
}

NATIVE = ("pymtp/native", "patches", "vendor/requirements.txt", "pymtp/context", "pymtp/model/model.py")
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
    programs. measures: files and folders of the repository, of which a change makes the file out of date. files: others
    that the command makes, such as plots.
    """

    command: str
    minutes: float
    measures: tuple[str, ...]
    files: tuple[str, ...] = ()


def rows(model: str, threads: int, options: str) -> str:
    return f"{{pymtp}} bench rows -m {{{model}}} -t {threads} --rows 1,2,4,8 --rounds 7 {options} -o json"


ROWS = (*NATIVE, "pymtp/bench/rows.py")
WHOLE = "--drafts 1,3 --memory 1024"
LAYERS = "--drafts 1 --memory 256"
DECODE = (*DECODING, "pymtp/bench/decode.py")
BATCH = (*DECODING, "pymtp/bench/batch.py")
PREFIX = (*PREFIXES, "pymtp/bench/prefix.py", "pymtp/bench/traces.py")
CHECKS = ("tools/checks/same_text.py", "tools/checks/random_requests.py")

PLAN = {
    "rows_q4_0.json": Measurement(f"{rows('q4_0', 2, WHOLE)} > {{out}}/rows_q4_0.json", 2, ROWS),
    "rows_q4_k.json": Measurement(f"{rows('q4_k', 2, WHOLE)} > {{out}}/rows_q4_k.json", 2, ROWS),
    "rows_q8_0.json": Measurement(f"{rows('q8_0', 2, WHOLE)} > {{out}}/rows_q8_0.json", 2, ROWS),
    "rows_27b4_q4_k.json": Measurement(f"{rows('dense4', 1, LAYERS)} > {{out}}/rows_27b4_q4_k.json", 2, ROWS),
    "rows_27b4_q6_k.json": Measurement(f"{rows('dense6', 1, LAYERS)} > {{out}}/rows_27b4_q6_k.json", 2, ROWS),
    "rows_35b_experts.json": Measurement(f"{rows('moe', 1, LAYERS)} > {{out}}/rows_35b_experts.json", 2, ROWS),
    "rows_35b_experts_alike.json": Measurement(
        f"{rows('moe', 1, LAYERS + ' --alike')} > {{out}}/rows_35b_experts_alike.json", 2, ROWS
    ),
    "rounds_q4_0.json": Measurement(
        f"{{pymtp}} bench decode -m {{q4_0}} --depths none,3,auto,3:new,auto:new --rounds 10 {ROUNDS} "
        f"--synthetic-acceptance {ACCEPTANCE} -o json > {{out}}/rounds_q4_0.json",
        8,
        DECODE,
    ),
    "rounds_q4_k.json": Measurement(
        f"{{pymtp}} bench decode -m {{q4_k}} --depths none,3,auto,3:new,auto:new --rounds 10 {ROUNDS} "
        f"--synthetic-acceptance {ACCEPTANCE} -o json > {{out}}/rounds_q4_k.json",
        8,
        DECODE,
    ),
    "rounds_none_accepted.json": Measurement(
        f"{{pymtp}} bench decode -m {{q4_0}} --depths none,auto,none:new,auto:new --rounds 9 {ROUNDS} "
        "--synthetic-acceptance 0 -o json > {out}/rounds_none_accepted.json",
        6,
        DECODE,
    ),
    "batch_synthetic.json": Measurement(
        "{pymtp} bench batch -m {q4_0} --sequences 1,2,4,8,16 --depths none,1,2,3,5,7,auto --acceptance 0,0.5,0.75,0.9 "
        "--prompt 16 --tokens 256 --warm-up 64 --rounds 3 -t 2 -o json > {out}/batch_synthetic.json",
        100,
        BATCH,
    ),
    "arriving.json": Measurement(
        "{pymtp} bench batch -m {q4_0} --sequences 7 --depths none,auto --arriving 4k --prompt 64 --tokens 64 "
        "--warm-up 32 --rounds 5 -t 2 -o json > {out}/arriving.json",
        10,
        BATCH,
    ),
    "prefill.json": Measurement(
        "{pymtp} bench prefill -m {q4_0} --quick -t 2 -o json --plot {out}/prefill.svg > {out}/prefill.json",
        8,
        (*NATIVE, "pymtp/bench/prefill.py"),
        files=("prefill.svg",),
    ),
    "prefill_pairs.json": Measurement(
        "{python} tools/bench/pair_prefill.py {q4_0} --sizes 1k,4k,8k -r 6 -t 2 --json {out}/prefill_pairs.1.json\n"
        "{python} tools/bench/pair_prefill.py {moe} --sizes 1k,4k,8k -r 6 -t 2 --json {out}/prefill_pairs.2.json",
        40,
        (*NATIVE, "tools/bench/pair_prefill.py"),
    ),
    "prefix_08b.json": Measurement(
        "{pymtp} bench prefix -m {q4_0} --traces document,four,at-once,disk --rounds 2 -t 2 -o json "
        "> {out}/prefix_08b.json",
        8,
        PREFIX,
    ),
    "prefix_alone.json": Measurement(
        "{pymtp} bench prefix -m {q4_0} --traces alone --rounds 4 -t 2 -o json > {out}/prefix_alone.json", 10, PREFIX
    ),
    "prefix_server.json": Measurement(
        "{python} tools/bench/bench_prefix.py --traces prefixes,messages --threads 2 --json {out}/prefix_server.json",
        25,
        (*PREFIX, "tools/bench/bench_prefix.py", *SHIPPED),
    ),
    "server.json": Measurement(
        f"{SERVER} demo:1:200 -d 3,auto --server-drafts 3 -p 300 --pairs 8 --threads 1 --json {{out}}/server.1.json\n"
        f"{SERVER} demo:1:200 -d 3,auto --server-drafts 3 -p 300 --pairs 8 --threads 2 --json {{out}}/server.2.json\n"
        f"{SERVER} {{q4_0}}:1:64 -d 3,auto --server-drafts 3 --pairs 3 --threads 2 --json {{out}}/server.3.json",
        12,
        (*DECODING, *PEERS, *SHIPPED),
    ),
    "server_head_files.json": Measurement(
        f"{SERVER} demo:1:200 -d 3 --server-drafts 3 -p 300 --apart --pairs 8 --threads 2 "
        "--json {out}/server_head_files.json",
        5,
        (*DECODING, *PEERS, *SHIPPED),
    ),
    "head_files.json": Measurement(
        f"{SERVER} demo:1:400 -d 1,3,7,auto --server-drafts '' -p 1024 --apart --pairs 25 --threads 2 "
        "--json {out}/head_files.json",
        20,
        (*DECODING, *PEERS, *SHIPPED),
    ),
    "head_files_08b.json": Measurement(
        f"{SERVER} {{q4_0}}:1:48 -d 1,3,7,auto --server-drafts '' -p 1024 --apart --pairs 9 --threads 2 "
        "--json {out}/head_files_08b.json",
        60,
        (*DECODING, *PEERS),
    ),
    "requests.json": Measurement(
        f"{SERVER} demo:8:256 demo:8:256:0.7 {{q4_0}}:4:64 {{q4_0}}:8:64 {{moe}}:4:48 --threads 2 "
        "--json {out}/requests.json",
        40,
        (*DECODING, *PEERS, *SHIPPED),
    ),
    "requests_patched.json": Measurement(
        f"{SERVER} demo:8:256 {{q4_0}}:4:64 --pairs 2 --threads 2 --patched --json {{out}}/requests_patched.json",
        10,
        (*DECODING, *PEERS, *SHIPPED),
    ),
    "plain_decode.json": Measurement(
        f"{SERVER} {{q4_0}}:1:128 -d 0 --server-drafts '' -p 128 --llama-bench --pairs 12 --threads 2 "
        "--json {out}/plain_decode.json",
        10,
        (*DECODING, *PEERS, "tools/bench/llama_bench.py"),
    ),
    "http.json": Measurement(
        f"{SERVER} {{q4_0}}:8:64 demo:8:1500 demo:8:1500:0.7 -d auto --server-drafts '' --http --pairs 9 --threads 2 "
        "--json {out}/http.json",
        20,
        (*HTTP, *PEERS, *SHIPPED),
    ),
    "images.json": Measurement(
        "{python} tools/models/make_mmproj.py qwen3.5-0.8b {out}/mmproj-0.8b.gguf\n"
        "{python} tools/bench/bench_images.py {q4_0} {out}/mmproj-0.8b.gguf --pairs 3 --threads 2 "
        "--json {out}/images.json",
        45,
        (*HTTP, *PEERS, "pymtp/images", "tools/bench/bench_images.py"),
    ),
    "demo_model.json": Measurement(
        "{python} tools/bench/bench_drafts.py depths --folder {out}",
        5,
        (*SHIPPED, "tools/bench/bench_drafts.py"),
        files=("demo_model.svg",),
    ),
    "shipped_model.json": Measurement(
        "{python} tools/models/shipped/evaluate.py pymtp/model/demo.gguf --cases 1000 -o {out}/shipped_model.json",
        8,
        ("pymtp/model/demo.gguf", "tools/models/shipped"),
    ),
    "draft_vocab.json": Measurement(
        "{python} tools/bench/bench_drafts.py vocabulary {q4_0} --folder {out}",
        6,
        (*NATIVE, *SHIPPED, "tools/bench/bench_drafts.py"),
    ),
    "text_index.json": Measurement(
        "{python} tools/bench/bench_text.py times --json {out}/text_index.json",
        3,
        ("pymtp/native/runtime/text_index.cpp", "pymtp/drafting/text_index.py", "tools/bench/bench_text.py"),
    ),
    "memory.json": Measurement(
        "\n".join(
            f"{{pymtp}} info --memory {{plan_{name}}} -c 131072 -d 3 --json > {{out}}/memory.{number}.json"
            for number, name in enumerate(("0.8b", "27b", "35b"), 1)
        ),
        1,
        NATIVE,
    ),
    "same_text.json": Measurement(
        "{python} tools/checks/same_text.py --vary drafts --json {out}/same_text.json",
        40,
        (*DECODING, *SHIPPED, *CHECKS),
    ),
    "prefixes_check.json": Measurement(
        "{python} tools/checks/same_text.py --vary prefixes --seed 20000 --json {out}/prefixes_check.json",
        15,
        (*PREFIXES, *SHIPPED, *CHECKS),
    ),
    "http_same_text.json": Measurement(
        "{python} tools/checks/same_text.py --vary http --tokens 50000 --json {out}/http_same_text.json",
        5,
        (*HTTP, *SHIPPED, *CHECKS, "tools/checks/http_load.py"),
    ),
    "http_load.json": Measurement(
        "{python} tools/checks/http_load.py --json {out}/http_load.json",
        3,
        (*HTTP, *SHIPPED, "tools/checks/http_load.py", "tools/checks/http_requests.py"),
    ),
}
