"""Ray on one machine: rows of a dataset get texts from workers with a model each. A cluster takes the same program.

    pip install '.[ray]'
    python examples/on_ray.py [--model MODEL.gguf] [--workers 2]

A row's text does not depend on its worker. docs/how-to/ray.md has clusters, and servers.
"""

import argparse
import os
import tempfile

import ray

import pymtp.ray
from pymtp import SamplingParams

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
    parser.add_argument("--model", help="a GGUF file at the same path on each machine, or hf:OWNER/NAME:Q4_K_M")
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    model = arguments.model
    if model and not model.startswith("hf:"):
        model = os.path.abspath(model)

    os.chdir(tempfile.gettempdir())  # workers import from the driver's folder first, where pymtp's sources may lie
    ray.init(include_dashboard=False, log_to_driver=False)
    rows = ray.data.from_items([{"id": i, "prompt": prompt} for i, prompt in enumerate(PROMPTS)])
    texts = rows.map_batches(
        pymtp.ray.Generate,
        fn_constructor_kwargs={
            "model": model,
            "params": SamplingParams(max_tokens=32, temperature=0.7, seed=1),
            "n_ctx": 1024,
        },
        batch_size=8,
        num_cpus=1,
        compute=ray.data.ActorPoolStrategy(size=arguments.workers),
    )
    for row in sorted(texts.take_all(), key=lambda row: row["id"]):
        print(f"{row['prompt']!r} -> {row['text']!r} ({row['finish_reason']})")
    ray.shutdown()


if __name__ == "__main__":
    main()
