"""Computes the golden outputs of the shipped model after pictures, with transformers and a torch MTP head.

    pip install torch==2.13.0 transformers==5.23.0 gguf==0.19.0 tokenizers pillow
    python tests/reference/make_golden_images.py

Trunk and head are those of make_golden.py. The vision tower is transformers' own, with the weights of the projector of
tests/makers/image_oracle.py, and so are the normalisation of pixels and the positions of pictures (get_rope_index).
All of it runs in float64.

golden_images.npz holds, for A tokens after the last picture, a picture of T tokens, a width of E, a vocabulary of V,
and each `prompt` and `picture` of image_oracle.py:

    model_sha256               str               of the shipped model's weights
    mmproj_sha256              str               of the projector's tensors
    {picture}.rows             (T, E) float32    output of the encoder
    {prompt}.logits            (A, V) float32    of the trunk
    {prompt}.next              () int32          argmax of the last row: the token the drafts follow
    {prompt}.{tap}.logits      (3, V) float32    of the head, per chained draft step, for tap post_norm and pre_norm
    {prompt}.{tap}.drafts      (3,) int32        their argmax
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from PIL import Image
from torch import Tensor
from torch.nn import functional
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5Config, Qwen3_5VisionConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForConditionalGeneration

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "reference")]

from make_golden import (  # noqa: E402
    BLOCK_NAMES,
    DRAFT_STEPS,
    TAPS,
    Float64,
    MtpHead,
    read_config,
    read_states,
    tokenizer_of,
    undo_conversion,
)
from makers import image_oracle as oracle  # noqa: E402
from makers.next_oracle import weights_sha256  # noqa: E402

# names in a projector's file and in a checkpoint
VISION_NAMES = {
    "v.patch_embd.bias": "patch_embed.proj.bias",
    "v.position_embd.weight": "pos_embed.weight",
    "v.post_ln": "merger.norm",
    "mm.0": "merger.linear_fc1",
    "mm.2": "merger.linear_fc2",
}
VISION_BLOCK_NAMES = {
    "ln1": "norm1",
    "attn_qkv": "attn.qkv",
    "attn_out": "attn.proj",
    "ln2": "norm2",
    "ffn_up": "mlp.linear_fc1",
    "ffn_down": "mlp.linear_fc2",
}


def read_vision(reader: GGUFReader) -> tuple[Qwen3_5VisionConfig, Qwen2VLImageProcessorPil]:
    """The tower's configuration and the normalisation of pixels, in transformers' terms."""
    keys = {name: field.contents() for name, field in reader.fields.items()}
    get = {name.removeprefix("clip.vision."): value for name, value in keys.items()}.__getitem__
    config = Qwen3_5VisionConfig(
        depth=get("block_count"),
        hidden_size=get("embedding_length"),
        intermediate_size=get("feed_forward_length"),
        num_heads=get("attention.head_count"),
        patch_size=get("patch_size"),
        spatial_merge_size=get("spatial_merge_size"),
        out_hidden_size=get("projection_dim"),
        num_position_embeddings=(get("image_size") // get("patch_size")) ** 2,
        attn_implementation="eager",
    )
    processor = Qwen2VLImageProcessorPil(
        patch_size=get("patch_size"),
        merge_size=get("spatial_merge_size"),
        image_mean=get("image_mean"),
        image_std=get("image_std"),
        do_resize=False,
    )
    return config, processor


def vision_state(reader: GGUFReader) -> dict[str, Tensor]:
    """The projector's tensors in float64, under their names in a checkpoint."""
    state: dict[str, Tensor] = {}
    for tensor in reader.tensors:
        value = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float64))
        _, _, in_block = tensor.name.partition("v.blk.")
        if in_block:
            block, name, kind = in_block.split(".")
            state[f"blocks.{block}.{VISION_BLOCK_NAMES[name]}.{kind}"] = value
        elif tensor.name in VISION_NAMES or tensor.name.startswith("v.patch_embd.weight"):
            state[VISION_NAMES.get(tensor.name, tensor.name)] = value
        else:
            name, _, kind = tensor.name.rpartition(".")
            state[f"{VISION_NAMES[name]}.{kind}"] = value
    frames = [state.pop("v.patch_embd.weight"), state.pop("v.patch_embd.weight.1")]
    state["patch_embed.proj.weight"] = torch.stack(frames, dim=2)
    return state


def load(path: Path, mmproj: Path) -> tuple[Qwen3_5ForConditionalGeneration, MtpHead, Qwen2VLImageProcessorPil]:
    """Trunk with vision tower, head, and processor of pixels, in the default dtype."""
    reader, projector = GGUFReader(path), GGUFReader(mmproj)
    config = read_config(reader)
    vision_config, processor = read_vision(projector)
    # any token that no prompt has will do as the picture's
    ids = {"image_token_id": config.vocab_size - 1, "video_token_id": config.vocab_size - 2}
    whole = Qwen3_5Config(
        text_config=config, vision_config=vision_config, tie_word_embeddings=config.tie_word_embeddings, **ids
    )
    trunk, head = Qwen3_5ForConditionalGeneration._from_config(whole, attn_implementation="eager"), MtpHead(config)
    trunk_state, head_state = read_states(reader, config, BLOCK_NAMES, undo_conversion)
    state = {name.replace("model.", "model.language_model.", 1): value for name, value in trunk_state.items()}
    state |= {f"model.visual.{name}": value for name, value in vision_state(projector).items()}
    trunk.load_state_dict(state)
    head.load_state_dict(head_state)
    return trunk.eval(), head.eval(), processor


def resized(pixels: np.ndarray, name: str) -> np.ndarray:
    """Resize as llama.cpp's tools/mtmd does: keep the aspect, bicubic as Pillow's, black around to whole tokens.

    transformers would stretch the picture instead.
    """
    width, height = (oracle.PIXELS * n for n in oracle.GRIDS[name])
    if pixels.shape[:2] == (height, width):
        return pixels
    scale = np.float32(min(np.float32(width) / pixels.shape[1], np.float32(height) / pixels.shape[0]))
    w, h = (min(int(np.ceil(old * scale)), new) for old, new in zip(pixels.shape[1::-1], (width, height), strict=True))
    whole = np.zeros((height, width, 3), np.uint8)
    left, top = (width - w) // 2, (height - h) // 2
    image = Image.fromarray(pixels).resize((w, h), Image.Resampling.BICUBIC)
    whole[top : top + h, left : left + w] = np.asarray(image)
    return whole


def encode(trunk: Any, processor: Any, name: str) -> tuple[Tensor, Tensor]:
    """Rows (T, E) of a picture, and its grid of patches (1, 3)."""
    pixels = resized(oracle.picture(name), name)
    batch = processor(images=[pixels], return_tensors="pt", input_data_format="channels_last")
    features = trunk.model.get_image_features(batch["pixel_values"].double(), batch["image_grid_thw"])
    (rows,) = features.pooler_output
    return rows, batch["image_grid_thw"]


def positions(trunk: Any, tokens: list[int], grids: Tensor) -> Tensor:
    """Positions (3, 1, N) of tokens, of which the negative ones are pictures'."""
    row = torch.tensor([tokens])
    found, _ = trunk.model.get_rope_index(row, (row < 0).int(), image_grid_thw=grids)
    return found


def run_trunk(trunk: Any, embedding: Tensor, where: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits (N, V), and the hidden rows (N, width) before and after the final norm, by the tap's name."""
    rows = {}

    def keep(module: torch.nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        rows["pre_norm"], rows["post_norm"] = inputs[0][0], output[0]

    model = trunk.model.language_model
    hook = model.norm.register_forward_hook(keep)
    hidden = model(inputs_embeds=embedding, position_ids=where, use_cache=False).last_hidden_state
    hook.remove()
    return trunk.lm_head(hidden)[0], rows


def run_head(
    trunk: Any, head: MtpHead, embedding: Tensor, tokens: list[int], grids: Tensor, hidden: Tensor, tap: str
) -> tuple[Tensor, list[int]]:
    """Chained draft steps after N+1 `tokens`, with the `hidden` rows (N, width) and the `embedding` of the first N.

    Returns logits (DRAFT_STEPS, V) and the drafted tokens.
    """
    model = trunk.model.language_model
    tokens, rows = list(tokens), functional.pad(hidden, (0, 0, 1, 0))
    logits, drafts = [], []
    for _ in range(DRAFT_STEPS):
        embedding = torch.cat([embedding, model.embed_tokens(torch.tensor([tokens[-1:]]))], dim=1)
        rope = model.rotary_emb(embedding, positions(trunk, tokens, grids))
        pre_norm, post_norm = head(embedding, rows[None], rope)
        logits.append(trunk.lm_head(post_norm[0, -1]))
        drafts.append(int(logits[-1].argmax()))
        tokens.append(drafts[-1])
        recycled = post_norm if tap == "post_norm" else pre_norm
        rows = torch.cat([rows, recycled[0, -1:]])
    return torch.stack(logits), drafts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "pymtp" / "model" / "demo.gguf")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("golden_images.npz"))
    args = parser.parse_args()
    golden: dict[str, Any] = {"model_sha256": weights_sha256(args.model)}
    torch.set_default_dtype(torch.float64)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode(), Float64():
        mmproj = oracle.make_image_oracle(Path(folder) / "mmproj.gguf")
        golden["mmproj_sha256"] = weights_sha256(mmproj)
        trunk, head, processor = load(args.model, mmproj)
        encoded = {name: encode(trunk, processor, name) for name in oracle.SIZES}
        for name, (rows, grid) in encoded.items():
            assert grid.tolist() == [[1, 2 * oracle.GRIDS[name][1], 2 * oracle.GRIDS[name][0]]]
            golden[f"{name}.rows"] = rows.numpy().astype(np.float32)
        tokenize = tokenizer_of(args.model)
        for prompt in oracle.PROMPTS:
            tokens, names = oracle.tokens(prompt, tokenize), oracle.pictures(prompt)
            grids = torch.cat([encoded[name][1] for name in names])
            embedding = trunk.model.language_model.embed_tokens(torch.tensor([tokens]).clamp(min=0))
            embedding[0, torch.tensor(tokens) < 0] = torch.cat([encoded[name][0] for name in names])
            where = positions(trunk, tokens, grids)
            logits, rows = run_trunk(trunk, embedding, where)
            following = int(logits[-1].argmax())
            n_after = next(i for i, token in enumerate(reversed(tokens)) if token < 0)
            golden[f"{prompt}.logits"] = logits[-n_after:].numpy().astype(np.float32)
            golden[f"{prompt}.next"] = np.int32(following)
            for tap in TAPS:
                drafted, drafts = run_head(trunk, head, embedding, [*tokens, following], grids, rows[tap], tap)
                golden[f"{prompt}.{tap}.logits"] = drafted.numpy().astype(np.float32)
                golden[f"{prompt}.{tap}.drafts"] = np.array(drafts, dtype=np.int32)
                best = torch.cat([logits[-1:], drafted]).topk(2).values
                margin = (best[:, 0] - best[:, 1]).min().item()  # near 0 the drafts would hang on rounding
                print(f"{prompt}: {len(tokens)} tokens, next {following}, {tap} drafts {drafts}, margin {margin:.3f}")
    np.savez_compressed(args.out, **golden)
    print(f"{args.out}: {args.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
