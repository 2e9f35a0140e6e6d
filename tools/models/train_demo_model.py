"""Trains the small Qwen3.5 with an MTP head that ships with the package, and writes it as HF checkpoint and GGUF.

    pip install . torch==2.13.0 transformers gguf sentencepiece
    python tools/models/train_demo_model.py --out build/demo --minutes 75

The corpus is the running Python's standard library (see tests/makers/demo_corpus.py). Trunk and head train together:
the trunk on the next token, the head on matching the trunk's own distribution over three chained draft steps, which is
what acceptance asks of it. Gradients of the head reach the trunk, with a small weight, as in DeepSeek-V3 (arXiv
2412.19437, section 2.2). The learning rate follows the share of the time that is spent, so the schedule always ends.
tools/models/polish_demo_head.py goes on from here.
"""

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from demo_dialogues import dialogues
from export_gguf import TYPES, export
from mtp_head import MtpHead, shift_rows
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.demo_corpus import documents

END, START_TURN, END_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# llama.cpp's pre-tokenizer "qwen35"; the two must cut words alike
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
DRAFT_STEPS = 3
STEP_WEIGHTS = (0.4, 0.25, 0.15)


def train_tokenizer(texts: list[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on `texts`, with Qwen's special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END, START_TURN, END_TURN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_TURN, pad_token=END)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def encode_corpus(tokenizer: PreTrainedTokenizerFast, texts: list[str], rng: random.Random) -> np.ndarray:
    """Return all training documents, code and dialogues in random order, as one row of token ids."""
    end, turn = tokenizer.convert_tokens_to_ids([END, END_TURN])
    pieces = [tokenizer(text)["input_ids"] + [end] for text in texts]
    for text in texts:
        for question, answer in dialogues(text):
            asked = [{"role": "user", "content": question}]
            prompt = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
            pieces.append(tokenizer(prompt + answer)["input_ids"] + [turn])
    rng.shuffle(pieces)
    return np.concatenate([np.asarray(p, dtype=np.int32) for p in pieces])


def model_config(vocab_size: int, tokenizer: PreTrainedTokenizerFast) -> Qwen3_5TextConfig:
    """Return the config: eight layers, gated delta net and full attention 3:1; 2 key heads serve 4 value heads."""
    return Qwen3_5TextConfig(
        vocab_size=vocab_size,
        hidden_size=192,
        intermediate_size=576,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [6, 5, 5],
        },
        eos_token_id=tokenizer.convert_tokens_to_ids(END_TURN),
        pad_token_id=tokenizer.convert_tokens_to_ids(END),
        architectures=["Qwen3_5ForCausalLM"],
        mtp_num_hidden_layers=1,
    )


def spread_final_norms(model: Qwen3_5ForCausalLM, head: MtpHead) -> None:
    """Initialize the final norms of trunk and head with scales as uneven as those of a large model.

    A head first divides by the row's own scale, so only these weights make pre-norm and post-norm rows differ for it.
    With the usual initialization they stay nearly even in a model this small, and a wrong tap would not be noticed.
    """
    with torch.no_grad():
        scale = torch.randn_like(model.model.norm.weight).mul(0.7).exp()
        model.model.norm.weight.copy_(scale - 1)
        head.norm.weight.copy_(scale - 1)


def head_losses(
    model: Qwen3_5ForCausalLM, head: MtpHead, inputs: Tensor, hidden: Tensor, wanted: Tensor, first: int = 0
) -> tuple[Tensor, list[float]]:
    """Return the head's loss against the distributions `wanted`, and the share of equal argmaxes of each draft step.

    wanted: (batch, tokens, vocabulary). The draft steps are weighted; rows before `first` do not count.

    Row i of every step predicts what row i of the trunk predicts.
    """
    rope = model.model.rotary_emb(hidden, torch.arange(inputs.shape[1])[None, None])
    embedding = model.model.embed_tokens(inputs)
    total, agreement = hidden.new_zeros(()), []
    for step, rows in enumerate(head.chained(embedding, shift_rows(hidden), rope, DRAFT_STEPS)):
        counted = max(first, step)
        drafted, target = model.lm_head(rows[:, counted:]), wanted[:, counted:]
        total = total - STEP_WEIGHTS[step] * (target * drafted.log_softmax(-1)).sum(-1).mean()
        agreement.append((drafted.argmax(-1) == target.argmax(-1)).float().mean().item())
    return total, agreement


def fit(
    parameters: list[Tensor],
    step_loss: Callable[[], tuple[Tensor, str]],
    minutes: float,
    lr: float,
    keep: Callable[[], None],
) -> None:
    """Train with AdamW, with warm-up and cosine decay over the given minutes.

    step_loss: returns the loss of a batch and a line about it. keep: saves the state, every ten minutes and at the end.
    """
    groups = [
        {"params": [p for p in parameters if p.ndim == 2], "weight_decay": 0.05},
        {"params": [p for p in parameters if p.ndim != 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))
    start = saved = time.monotonic()
    step = 0
    while (spent := (time.monotonic() - start) / (60 * minutes)) < 1:
        rate = lr * min(1.0, (step + 1) / 100) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * spent)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss, report = step_loss()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"{spent:6.1%} step {step} {report} lr {rate:.1e}", flush=True)
        if time.monotonic() - saved > 600:
            saved = time.monotonic()
            keep()
        step += 1
    keep()


def train(model: Qwen3_5ForCausalLM, head: MtpHead, data: np.ndarray, args: argparse.Namespace) -> None:
    """Train trunk and head together on windows of the corpus."""
    rng = np.random.default_rng(args.seed)

    def step_loss() -> tuple[Tensor, str]:
        offsets = rng.integers(0, len(data) - args.tokens - 1, args.batch)
        batch = torch.from_numpy(np.stack([data[o : o + args.tokens + 1] for o in offsets]).astype(np.int64))
        inputs, targets = batch[:, :-1], batch[:, 1:]
        hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden)
        trunk_loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        head_loss, agreement = head_losses(model, head, inputs, hidden, logits.detach().softmax(-1))
        agree = " ".join(f"{a:.2f}" for a in agreement)
        return trunk_loss + head_loss, f"trunk {trunk_loss.item():.3f} agree {agree}"

    fit(
        [*model.parameters(), *head.parameters()], step_loss, args.minutes, args.lr, lambda: save(model, head, args.out)
    )


def save(model: Qwen3_5ForCausalLM, head: MtpHead, out: Path) -> None:
    """Save the checkpoint as `transformers` does, with the head's tensors as `mtp.*`."""
    model.save_pretrained(out)
    tensors = load_file(out / "model.safetensors")
    tensors |= {f"mtp.{name}": value.contiguous() for name, value in head.state_dict().items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((out / "config.json").read_text())
    config["mtp_num_hidden_layers"] = 1
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def load(out: Path) -> tuple[Qwen3_5ForCausalLM, MtpHead]:
    """Load a checkpoint of `save`."""
    model = Qwen3_5ForCausalLM.from_pretrained(out, dtype=torch.float32)
    head = MtpHead(model.config)
    tensors = load_file(out / "model.safetensors")
    head.load_state_dict({name[4:]: value for name, value in tensors.items() if name.startswith("mtp.")})
    return model, head


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint and the GGUF files")
    parser.add_argument("--minutes", type=float, default=75, help="training time")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=512, help="training window")
    parser.add_argument("--vocab", type=int, default=2048)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)

    texts = list(documents(held_out=False))
    tokenizer = train_tokenizer(texts, args.vocab)
    tokenizer.save_pretrained(args.out)
    data = encode_corpus(tokenizer, texts, random.Random(args.seed))
    config = model_config(args.vocab, tokenizer)
    model, head = Qwen3_5ForCausalLM(config), MtpHead(config)
    spread_final_norms(model, head)
    n = sum(p.numel() for p in [*model.parameters(), *head.parameters()])
    print(f"{len(texts)} files, {len(data):,} tokens, {n:,} parameters", flush=True)
    train(model, head, data, args)
    for outtype in TYPES:
        export(args.out, args.out / f"demo-{outtype}.gguf", outtype)


if __name__ == "__main__":
    main()
