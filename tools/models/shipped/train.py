"""Trains the shipped model on endless data: trunk on the next token, head on the trunk's distribution.

    pip install torch tokenizers gguf jinja2
    python tools/models/shipped/train.py build/shipped --minutes 60
    python tools/models/shipped/train.py build/shipped --minutes 60 --begin build/shipped  # goes on
    python tools/models/shipped/train.py build/shipped --minutes 10 --begin pymtp/model/demo.gguf  # on from a file

OUT gets model-f32.gguf, model-q8_0.gguf and optimizer.pt every few minutes; a run can go on from them, or from any such
GGUF alone. SIGTERM and Ctrl+C end a run with a checkpoint.

On a CPU, a process a core is a third faster than a thread a core:

    torchrun --nproc-per-node 2 tools/models/shipped/train.py build/shipped --threads 1 --rows 6

On a GPU: --bf16 --rows 96 --workers 6 --lr 0.02 --head-every 2
"""

import argparse
import itertools
import os
import random
import signal
import time
from pathlib import Path

import model_file
import torch
import torch.distributed as dist
import vocabulary
from batches import Batch, batches
from chats import answer_of, prompt_of
from network import Documents, Network, Shape
from optimizer import optimizers
from stream import WEIGHTS, training_cases
from torch import Tensor
from torch.nn import functional

DRAFT_STEPS = 3
WARM_UP = 30  # steps
STEP_WEIGHTS = (0.4, 0.25, 0.15)
PROMPT_SHARE, PROMPT_WEIGHT = 0.25, 0.3  # of the prompts' rows, and what a row counts next to one of an answer


def new_vocabulary(size: int, seed: int) -> vocabulary.Vocabulary:
    cases = itertools.islice(training_cases(random.Random(seed), WEIGHTS), 20_000)
    return vocabulary.train((text for case in cases for text in (prompt_of(case), answer_of(case))), size)


def losses(network: Network, batch: Batch, with_head: bool) -> tuple[Tensor, list[Tensor]]:
    """Return the loss of a batch, and figures about it: see `report`."""
    documents = Documents(batch.starts, network.shape)
    rows = network(batch.tokens, documents)
    targets = batch.tokens.roll(-1, 1)
    sampled = batch.prompts & (torch.rand(batch.tokens.shape, device=rows.device) < PROMPT_SHARE)
    counted = batch.answers | sampled
    logits = network.logits(rows[counted]).float()
    each = functional.cross_entropy(logits, targets[counted], reduction="none")
    of_answers = batch.answers[counted]
    weight = torch.where(of_answers, 1.0, PROMPT_WEIGHT)
    loss = (each * weight).sum() / weight.sum()
    wanted = logits[of_answers].detach()
    best = wanted.argmax(-1)
    figures = [each[of_answers].mean(), each[~of_answers].mean(), (best == targets[batch.answers]).float().mean()]
    if not with_head:
        return loss, figures
    wanted = wanted.softmax(-1)
    for step, drafted in enumerate(network.drafts(batch.tokens, rows, documents, DRAFT_STEPS)):
        predicted = network.logits(drafted[batch.answers]).float().log_softmax(-1)
        loss = loss - STEP_WEIGHTS[step] * (wanted * predicted).sum(-1).mean()
        figures.append((predicted.argmax(-1) == best).float().mean())
    return loss, figures


def report(figures: list[Tensor]) -> str:
    """Return a line of: loss of answers, of prompts, share of right tokens of answers, drafts that agree by step."""
    return "answers {} prompts {} right {} drafts {}".format(
        *(f"{figure.item():.3f}" for figure in figures[:3]), " ".join(f"{figure.item():.2f}" for figure in figures[3:])
    )


def rate(spent: float, step: int, decay: float) -> float:
    """Return the factor of the learning rate: a warm-up, then 1, and a fall over the last share `decay` of the time.

    step: those that the optimizers have seen.
    """
    return min(1.0, (step + 1) / WARM_UP, max(0.02, (1 - spent) / decay))


class Run:
    """One run of training: network, optimizers and what they have seen."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.out = args, Path(args.out)
        self.rank, self.processes = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.step, self.tokens = 0, 0
        start = Path(args.begin) if args.begin else None
        if start is None:
            self.vocabulary = new_vocabulary(args.vocab, args.seed)
            self.network = Network(Shape(vocab=args.vocab, width=args.width, hidden=3 * args.width))
        else:
            self.network, self.vocabulary = model_file.read(start / "model-f32.gguf" if start.is_dir() else start)
        self.network.to(self.device)
        self.optimizers = optimizers(self.network, args.lr)
        if start is not None and start.is_dir():
            state = torch.load(start / "optimizer.pt", map_location=self.device)
            self.step, self.tokens = state["step"], state["tokens"]
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
        self.bases = [args.lr, args.lr / 6]
        self.ended = False

    def _end(self, number: int, frame: object) -> None:
        self.ended = True

    def save(self) -> None:
        """Write the checkpoint, in the first process."""
        if self.rank:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        for weights in ("f32", "q8_0"):
            path = self.out / f"model-{weights}.gguf"
            model_file.write(part := path.with_suffix(".part"), self.network, self.vocabulary, weights)
            part.replace(path)
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        state = {"step": self.step, "tokens": self.tokens, "optimizers": states}
        torch.save(state, part := self.out / "optimizer.part")
        part.replace(self.out / "optimizer.pt")

    def train(self) -> None:
        args = self.args
        weights = WEIGHTS | dict(each.split("=") for each in args.weights)
        weights = {kind: float(weight) for kind, weight in weights.items()}
        seed = args.seed + self.step * self.processes + self.rank
        feed = batches(self.vocabulary.tokenizer(), weights, args.rows, args.length, seed, args.workers)
        for number in (signal.SIGTERM, signal.SIGINT):  # now that the workers, which would inherit it, have begun
            signal.signal(number, self._end)
        begun = saved = shown = time.monotonic()
        seen = 0
        while (spent := self._spent(begun)) < 1:
            factor = rate(spent, self.step, args.decay)
            for optimizer, base in zip(self.optimizers, self.bases, strict=True):
                for group in optimizer.param_groups:
                    group["lr"] = base * factor
            figures = self.one_step(next(feed).to(self.device))
            seen += args.rows * args.length * self.processes
            if (now := time.monotonic()) - shown > args.show and not self.rank:
                speed = seen / (now - shown)
                print(
                    f"{spent:6.1%} step {self.step} {self.tokens:,} {report(figures)} {speed:,.0f} tokens/s", flush=True
                )
                shown, seen = now, 0
            if now - saved > 60 * args.save:
                self.save()
                saved = time.monotonic()
        self.save()

    def _spent(self, begun: float) -> float:
        """Return the share of the time that is spent, the same in all processes; 1 when one of them is told to end."""
        share = torch.tensor(1.0 if self.ended else (time.monotonic() - begun) / (60 * self.args.minutes))
        if self.processes > 1:
            dist.all_reduce(share, dist.ReduceOp.MAX)
        return share.item()

    def _average_gradients(self) -> None:
        """Replace each gradient by its mean over all processes. In steps without the head, it has none anywhere."""
        if self.processes > 1:
            gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
            flat = torch.cat([gradient.flatten() for gradient in gradients]).div_(self.processes)
            dist.all_reduce(flat)
            for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
                gradient.copy_(mean.view_as(gradient))

    def one_step(self, batch: Batch) -> list[Tensor]:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.args.bf16):
            loss, figures = losses(self.network, batch, with_head=self.step % self.args.head_every == 0)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._average_gradients()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        with torch.no_grad():
            for block in self.network.blk:
                if hasattr(block, "ssm_a"):
                    block.ssm_a.clamp_(max=-1e-3)  # a decay, whatever the optimizer wants
        self.step += 1
        self.tokens += batch.tokens.numel() * self.processes
        return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="folder for the checkpoint")
    parser.add_argument("--begin", help="folder of a checkpoint, or a GGUF file, to go on from")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--decay", type=float, default=0.4, help="the last share of the time, in which the rate falls")
    parser.add_argument("--rows", type=int, default=8, help="rows of a batch")
    parser.add_argument("--length", type=int, default=512, help="tokens of a row; longer cases are left out")
    parser.add_argument("--lr", type=float, default=0.006, help="of Muon; 0.02 for batches of 50,000 tokens")
    parser.add_argument("--head-every", type=int, default=4, help="steps for one in which the head trains")
    parser.add_argument("--weights", nargs="*", default=[], metavar="KIND=WEIGHT", help="shares of cases")
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="processes that make data")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: torch's choice")
    parser.add_argument("--bf16", action="store_true", help="multiply in bf16: for GPUs, AMX and AVX-512 BF16")
    parser.add_argument("--save", type=float, default=5, help="minutes between checkpoints")
    parser.add_argument("--show", type=float, default=20, help="seconds between reports")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    if "RANK" in os.environ:  # started by torchrun
        dist.init_process_group("gloo")
    torch.manual_seed(args.seed)  # before the network is made: all processes make the same
    torch.set_float32_matmul_precision("high")  # TF32 on GPUs, where the delta rule stays in F32
    torch.set_flush_denormal(True)  # at starts of documents, states decay into numbers that a CPU is slow at
    run = Run(args)
    n = sum(p.numel() for p in run.network.parameters())
    if not run.rank:
        print(f"{n:,} parameters, on {run.device}, from step {run.step}", flush=True)
    torch.manual_seed(args.seed + run.step * run.processes + run.rank)  # which prompts' rows count
    run.train()


if __name__ == "__main__":
    main()
