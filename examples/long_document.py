"""A long document with a saved prefix: it is computed once, and later processes only load it.

    python examples/long_document.py [DOCUMENT.txt] [--model MODEL.gguf]

The first `LLM` computes the document and saves its state. The second, as in another process, loads the file and
computes only the questions. Its texts are those of a prompt that is computed as a whole.
"""

import argparse
import inspect
import tempfile
import textwrap
from pathlib import Path
from time import perf_counter

from pymtp import LLM

QUESTIONS = ["\n\n# In one sentence:", "\n\n# An example:"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("document", nargs="?", type=Path, help="the default is a module of Python's library")
    parser.add_argument("--model", help="a GGUF file; the default is the shipped model")
    parser.add_argument("--n-ctx", type=int, default=8192, help="tokens of the document and a question with its answer")
    arguments = parser.parse_args()
    document = arguments.document.read_text(encoding="utf-8") if arguments.document else inspect.getsource(textwrap)

    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "document.prefix"
        with LLM(arguments.model, n_ctx=arguments.n_ctx) as llm:
            begin = perf_counter()
            n_tokens = llm.save_prefix(document, prefix)
            print(f"computed and saved: {n_tokens} tokens in {perf_counter() - begin:.2f} s")

        with LLM(arguments.model, n_ctx=arguments.n_ctx) as llm:
            begin = perf_counter()
            llm.load_prefix(prefix)
            print(f"loaded in {perf_counter() - begin:.2f} s")
            for question in QUESTIONS:
                completion = llm.generate(document + question, max_tokens=32)
                print(f"{completion.stats.cached_tokens} of {completion.stats.prompt_tokens} tokens cached:", end=" ")
                print(repr(completion.text))


if __name__ == "__main__":
    main()
