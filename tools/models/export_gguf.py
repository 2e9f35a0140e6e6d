"""Converts the demo model's checkpoint to GGUF with llama.cpp's own converter from the pinned source.

    python tools/models/export_gguf.py build/demo pymtp/model/demo.gguf
    python tools/models/export_gguf.py build/demo build/demo-f32.gguf --type f32

Published checkpoints are converted in the same way; `register_demo_model` has the differences. Needs the packages of
train_demo_model.py.
"""

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "vendor"))

import layout

TYPES = ("q8_0", "f32")
CONVERTER = ("convert_hf_to_gguf.py", "conversion", "gguf-py")
METADATA = {
    "general.name": "pymtp demo",
    "general.description": (
        "A Qwen3.5 of 5.2M parameters with a multi-token-prediction head, trained on Python's standard library. "
        "Made for demonstrations and tests of speculative decoding; it is not a useful assistant."
    ),
    "general.basename": "pymtp-demo",
    # otherwise, the converter guesses these from the name of the folder
    "general.finetune": None,
    "general.version": None,
    "general.size_label": None,
}


def register_demo_model() -> None:
    """Register a subclass of the converter's Qwen3.5 that adds facts which are not in the checkpoint."""
    from conversion.base import ModelBase
    from conversion.qwen import Qwen3_5TextModel

    @ModelBase.register("Qwen3_5ForCausalLM")
    class DemoModel(Qwen3_5TextModel):
        model_arch = Qwen3_5TextModel.model_arch

        def get_vocab_base_pre(self, tokenizer: object) -> str:
            """Return the pre-tokenizer's name, which the converter knows only for known vocabularies, by a hash.

            The demo's tokenizer splits words by the pattern of Qwen3.5 (WORDS in train_demo_model.py).
            """
            return "qwen35"

        def set_vocab(self) -> None:
            """Add keys for BOS, which Qwen does not have: without them, llama.cpp takes token 11, as for GPT-2."""
            super().set_vocab()
            self.gguf_writer.add_bos_token_id(self.hparams["pad_token_id"])
            self.gguf_writer.add_add_bos_token(False)

        def set_gguf_parameters(self) -> None:
            """Add `nextn_tap`, a key of pymtp: llama.cpp has none for the hidden row on which the head was trained."""
            super().set_gguf_parameters()
            self.gguf_writer.add_license("MIT")  # --metadata has no key for it
            self.gguf_writer.add_string(f"{self.gguf_writer.arch}.nextn_tap", "post_norm")


@contextmanager
def converter_source() -> Iterator[Path]:
    """Extract the converter from the source distribution that the build compiles to a temporary folder."""
    paths = layout.Paths.default()
    sdist = layout.fetch(paths, layout.Pin.read(paths.requirements))
    with tempfile.TemporaryDirectory() as folder, tarfile.open(sdist) as archive:
        for member in archive:
            _, vendor, project, path = [*member.name.split("/", 3), "", "", ""][:4]
            if (vendor, project) == ("vendor", "llama.cpp") and path.split("/")[0] in CONVERTER:
                archive.extract(member.replace(name=path), folder, filter="data")
        yield Path(folder)


def convert(source: Path, checkpoint: Path, target: Path, outtype: str) -> None:
    """Run the converter's main in this process, which must not have imported another `gguf`."""
    sys.path[:0] = [str(source), str(source / "gguf-py")]
    import convert_hf_to_gguf

    register_demo_model()
    with tempfile.TemporaryDirectory() as folder:
        metadata = Path(folder) / "metadata.json"
        metadata.write_text(json.dumps(METADATA))
        options = ["--outtype", outtype, "--outfile", str(target), "--metadata", str(metadata)]
        sys.argv = [convert_hf_to_gguf.__file__, str(checkpoint), *options]
        convert_hf_to_gguf.main()


def export(checkpoint: Path, target: Path, outtype: str = "q8_0") -> None:
    """Convert `checkpoint` (a folder in HF format) to the file `target`, in an interpreter of its own.

    The converter has its own `gguf`, which may differ from the one that the caller has imported.
    Raises subprocess.CalledProcessError if it fails; it logs to stderr.
    """
    subprocess.run([sys.executable, __file__, str(checkpoint), str(target), "--type", outtype], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="folder that train_demo_model.py wrote")
    parser.add_argument("target", type=Path, help="GGUF file to write")
    parser.add_argument("--type", choices=TYPES, default="q8_0", help="type of the weight matrices")
    args = parser.parse_args()
    with converter_source() as source:
        convert(source, args.checkpoint, args.target, args.type)


if __name__ == "__main__":
    main()
