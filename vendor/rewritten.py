"""Find upstream's changes to functions that our own code rewrites, which no merge of the patches shows."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from sources import Tree

REWRITTEN = (  # file and function in llama.cpp, and our file that has its own version of the function
    *(
        (f"src/models/{model}.cpp", f"llama_model_{model}::graph_mtp::graph_mtp", "graphs/draft_block.cpp")
        for model in ("qwen35", "qwen35moe", "qwen3next")
    ),
    *(
        ("src/models/delta-net-base.cpp", f"llm_build_delta_net_base::{function}", "graphs/replay_graph.cpp")
        for function in ("build_conv_state", "build_recurrent_attn")
    ),
)


def rewritten_changes(old: Tree, new: Tree) -> Iterator[tuple[str, list[str]]]:
    """Yield a sentence and a diff for each function in REWRITTEN that differs between two releases."""
    for file, function, ours in REWRITTEN:
        before, after = (_find(tree.get(file, b"").decode("utf-8", "replace"), function) for tree in (old, new))
        if before != after:
            diff = list(difflib.unified_diff(before, after, n=2, lineterm=""))[2:]
            verb = "changed" if after else "is gone"
            yield f"{function} in {file} {verb}: pymtp/native/{ours} has its own version of it", diff


def _find(text: str, function: str) -> list[str]:
    """Return the lines of a function's definition, up to the first line that is "}"; none if it is not there."""
    found = re.search(rf"^(?:[\w*]+ )*{re.escape(function)}\(.*?^\}}", text, re.MULTILINE | re.DOTALL)
    return found[0].splitlines() if found else []
