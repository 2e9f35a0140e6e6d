"""The model's vocabulary: byte-level BPE as Qwen's, with Qwen's special tokens, trained on the prompts and answers."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

CONTROL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
)
# in Qwen's vocabulary, too, these are text and no control tokens
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
# llama.cpp's pre-tokenizer "qwen35"; the two must cut words alike
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by their ids, and the merges, as the GGUF file lists them."""

    tokens: list[str]
    merges: list[str]

    def tokenizer(self) -> Tokenizer:
        ids = {token: i for i, token in enumerate(self.tokens)}
        pairs = [tuple(merge.split(" ")) for merge in self.merges]
        return _with_words(Tokenizer(models.BPE(ids, pairs)))


def train(texts: Iterable[str], size: int) -> Vocabulary:
    """Train a vocabulary of `size` tokens."""
    tokenizer = _with_words(Tokenizer(models.BPE()))
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*CONTROL, *TAGS], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return Vocabulary(tokens, [" ".join(pair) for pair in model["merges"]])


def _with_words(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    if tokenizer.get_vocab_size():
        tokenizer.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in (*CONTROL, *TAGS)])
    return tokenizer
