"""A batch: many prompts from a file, in shared rounds, and a line of JSON for each.

    python examples/batch.py [PROMPTS.txt] [--model MODEL.gguf] > texts.jsonl

Of PROMPTS.txt, each line is a prompt. A text does not depend on the others that are generated beside it. For files in
OpenAI's batch format, and to continue interrupted ones: `pymtp batch REQUESTS ANSWERS`.
"""

import argparse
import json
import sys
from pathlib import Path

from pymtp import LLM, SamplingParams

PROMPTS = [
    "def fibonacci(n):",
    "def median(numbers):",
    "def is_palindrome(text):",
    "def gcd(a, b):",
    "def flatten(nested):",
    "def is_even(n):",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", nargs="?", type=Path)
    parser.add_argument("--model", help="a GGUF file; the default is the shipped model")
    arguments = parser.parse_args()
    prompts = arguments.prompts.read_text(encoding="utf-8").splitlines() if arguments.prompts else PROMPTS

    # a seed for each prompt: the same file gives the same texts in every run
    params = [SamplingParams(max_tokens=48, temperature=0.7, seed=seed) for seed in range(len(prompts))]
    with LLM(arguments.model, n_ctx=2048, n_seq_max=4) as llm:  # four at a time
        completions = llm.generate(prompts, params)
        figures = llm.figures()
    for prompt, completion in zip(prompts, completions, strict=True):
        print(json.dumps({"prompt": prompt, "text": completion.text, "finish_reason": completion.finish_reason}))
    print(f"{len(prompts)} texts, {figures.tokens} tokens, {figures.tokens_per_second:.0f} tokens/s", file=sys.stderr)


if __name__ == "__main__":
    main()
