"""A picture: what is in it, by a model that sees images.

    python examples/picture.py PICTURE.png --model MODEL.gguf --mmproj mmproj-MODEL.gguf

A Qwen model sees with its projector, a file `mmproj-*.gguf` of its repository.
The shipped model has none. `tools/models/make_mmproj.py demo FILE` writes one with random weights, which shows that all
parts work together, and no more. Without a picture, the example draws one.
"""

import argparse
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from pymtp import LLM


def draw() -> Image.Image:
    """Draw a red disc on white."""
    image = Image.new("RGB", (128, 128), "white")
    ImageDraw.Draw(image).ellipse((32, 32, 96, 96), fill="red")
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file; the default is the shipped model")
    parser.add_argument("picture", nargs="?", type=Path, help="a PNG, JPEG, GIF, WebP or BMP file")
    parser.add_argument("--mmproj", help="the projector")
    parser.add_argument("--max-tokens", type=int, default=200)
    arguments = parser.parse_args()
    if arguments.mmproj is None:
        parser.error("--mmproj: a model sees with its projector; `tools/models/make_mmproj.py demo FILE` makes one")

    parts = [
        {"type": "image", "image": arguments.picture or draw()},
        {"type": "text", "text": "Describe this picture in one sentence."},
    ]
    messages: list[Any] = [{"role": "user", "content": parts}]
    with LLM(arguments.model, mmproj=arguments.mmproj, n_ctx=8192) as llm:
        completion = llm.chat(messages, max_tokens=arguments.max_tokens)
    print(completion.content)
    print(f"{completion.stats.prompt_tokens} tokens of the prompt, most of them of the picture")


if __name__ == "__main__":
    main()
