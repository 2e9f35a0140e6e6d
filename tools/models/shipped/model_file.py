"""The shipped model's GGUF file: written from a Network, and read back to train on."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from chats import template_source
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType, TokenType
from gguf.quants import dequantize, quantize
from network import EPS, Network, Shape
from vocabulary import CONTROL, TAGS, Vocabulary

ARCH = "qwen35"
TYPES = {"q8_0": LlamaFileType.MOSTLY_Q8_0, "f16": LlamaFileType.MOSTLY_F16, "f32": LlamaFileType.ALL_F32}
DESCRIPTION = (
    "A Qwen3.5 with a multi-token-prediction head, made for demonstrations and tests of pymtp. It knows small Python "
    "functions, arithmetic, capitals, extraction to JSON, tool calls and little else."
)
TEMPERATURE = 0.2  # recommended: most answers are right or wrong


def write(path: Path, network: Network, vocabulary: Vocabulary, weights: str = "q8_0") -> None:
    """Write a network as GGUF, with matrices of the type `weights`."""
    writer = GGUFWriter(path, ARCH)
    n_parameters = sum(p.numel() for p in network.parameters())
    _add_metadata(writer, network.shape, vocabulary, n_parameters, weights)
    for name, tensor in network.state_dict().items():
        values = tensor.detach().float().cpu().numpy()
        kind = GGMLQuantizationType[weights.upper()]
        if tensor.ndim == 2 and not name.endswith("ssm_conv1d.weight"):
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read(path: Path) -> tuple[Network, Vocabulary]:
    """Read a file of `write`, of any type of weights, as a network to train on."""
    reader = GGUFReader(path)
    values = {name.removeprefix(f"{ARCH}."): field.contents() for name, field in reader.fields.items()}
    vocabulary = Vocabulary(values["tokenizer.ggml.tokens"], values["tokenizer.ggml.merges"])
    shape = Shape(
        vocab=len(vocabulary.tokens),
        width=values["embedding_length"],
        hidden=values["feed_forward_length"],
        blocks=values["block_count"] - 1,
        heads=values["attention.head_count"],
        kv_heads=values["attention.head_count_kv"],
        head_dim=values["attention.key_length"],
        key_heads=values["ssm.group_count"],
        value_heads=values["ssm.time_step_rank"],
        linear_dim=values["ssm.state_size"],
        rotated=values["rope.dimension_count"],
        rope_base=values["rope.freq_base"],
        context=values["context_length"],
    )
    network = Network(shape)
    tensors = {t.name: torch.from_numpy(np.array(dequantize(t.data, t.tensor_type))) for t in reader.tensors}
    network.load_state_dict(tensors)
    return network, vocabulary


def _add_metadata(writer: GGUFWriter, shape: Shape, vocabulary: Vocabulary, n_parameters: int, weights: str) -> None:
    third = shape.rotated // 6
    own: dict[str, Any] = {
        "block_count": shape.blocks + 1,
        "context_length": shape.context,
        "embedding_length": shape.width,
        "feed_forward_length": shape.hidden,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": EPS,
        "attention.recurrent_layers": [i % 4 != 3 for i in range(shape.blocks)] + [False],
        "full_attention_interval": 4,
        "nextn_predict_layers": 1,
        "nextn_tap": "post_norm",  # a key of pymtp: the hidden row on which the head was trained
        "rope.dimension_count": shape.rotated,
        "rope.dimension_sections": [shape.rotated // 2 - 2 * third, third, third, 0],
        "rope.freq_base": shape.rope_base,
        "ssm.conv_kernel": 4,
        "ssm.state_size": shape.linear_dim,
        "ssm.group_count": shape.key_heads,
        "ssm.time_step_rank": shape.value_heads,
        "ssm.inner_size": shape.value_heads * shape.linear_dim,
    }
    kinds = dict.fromkeys(CONTROL, TokenType.CONTROL) | dict.fromkeys(TAGS, TokenType.USER_DEFINED)
    metadata = {
        "general.type": "model",
        "general.name": "pymtp demo",
        "general.basename": "pymtp-demo",
        "general.description": DESCRIPTION,
        "general.size_label": f"{n_parameters / 1e6:.1f}M",
        "general.license": "MIT",
        "general.file_type": int(TYPES[weights]),
        "general.quantization_version": 2,
        "general.sampling.temp": TEMPERATURE,
        **{f"{ARCH}.{name}": value for name, value in own.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": vocabulary.tokens,
        "tokenizer.ggml.token_type": [int(kinds.get(token, TokenType.NORMAL)) for token in vocabulary.tokens],
        "tokenizer.ggml.merges": vocabulary.merges,
        "tokenizer.ggml.eos_token_id": vocabulary.tokens.index("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": vocabulary.tokens.index("<|endoftext|>"),
        # Qwen has no BOS, and without these keys llama.cpp takes token 11, as for GPT-2
        "tokenizer.ggml.bos_token_id": vocabulary.tokens.index("<|endoftext|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": template_source(),
    }
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in metadata.items():
        (writer.add_array if isinstance(value, list) else adders[type(value)])(key, value)
