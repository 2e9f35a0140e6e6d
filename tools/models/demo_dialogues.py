"""Questions and answers for the training of the shipped model, made from its corpus."""

import ast
from collections.abc import Iterator


def dialogues(source: str) -> Iterator[tuple[str, str]]:
    """Yield (question, answer) pairs for the documented functions of a file: name and summary, then the source."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    lines = source.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.col_offset or node.end_lineno is None:
            continue
        summary = (ast.get_docstring(node) or "").split("\n", 1)[0].strip()
        body = lines[node.lineno - 1 : node.end_lineno]
        if summary and len(body) <= 40:
            yield f"Write a function {node.name}: {summary}", "```python\n" + "\n".join(body) + "\n```"
