#!/usr/bin/env python3
"""Compares the speed of the example's GPT with that of the same model in PyTorch; the two take turns on this machine.

    cargo build --release --example gpt --example product
    python scripts/pytorch-speed.py [--rounds 5] [--steps 8] [--layers 4] [--width 256] [--context 128] ...

Needs torch and numpy. Both train in f32 with AdamW, on blocks of pre-LN attention and GELU, with the same number of tokens a step and
one core (one thread) a stage. PyTorch runs plain accumulation for one stage, and for two stages Schedule1F1B of
`torch.distributed.pipelining` in two processes over gloo. Prints the processor's model, the speed of our matrix products on one core,
the share of it that a step reaches, and seconds a step, optimizer included, as the median of every run. At the end it prints the median
ratio of all rounds, and the ratio of both programs' fastest steps, which other programs on the machine disturb less. Flags set the
shape of the model and of a step; the number of heads follows from the width, as in the example.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from peers import in_processes, processor


def parsed():
    """Returns the flags, which PyTorch's processes parse again when they import this file."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--rounds", type=int, default=5, help="number of rounds, in each of which both train [5]")
    flags.add_argument("--steps", type=int, default=8, help="number of steps of a training [8]")
    flags.add_argument("--layers", type=int, default=4, help="number of blocks of the model, even [4]")
    flags.add_argument("--width", type=int, default=256, help="width of the model [256]")
    flags.add_argument("--context", type=int, default=128, help="length of a sample, in bytes [128]")
    flags.add_argument("--micro-batch-size", type=int, default=4, help="number of samples in a micro-batch [4]")
    flags.add_argument("--micro-batches", type=int, default=8, help="number of micro-batches in a step [8]")
    given = flags.parse_args()
    if given.layers % 2:
        flags.error("--layers: two stages need an even number")
    return given


FLAGS = parsed()
LAYERS, WIDTH, CONTEXT, BYTES = FLAGS.layers, FLAGS.width, FLAGS.context, 256
MICRO_BATCH_SIZE, MICRO_BATCHES = FLAGS.micro_batch_size, FLAGS.micro_batches
HEADS = max(heads for heads in range(1, max(WIDTH // 64, 1) + 1) if WIDTH % heads == 0)  # as Shape::heads
os.environ["OMP_NUM_THREADS"] = "1"
PRODUCT = Path(__file__).resolve().parent.parent / "target/release/examples/product"
GPT = Path(__file__).resolve().parent.parent / "target/release/examples/gpt"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query_key_value, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, residual):
        batch, length, _ = residual.shape
        split = self.query_key_value(self.attention_norm(residual)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        residual = residual + self.output(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return residual + self.down(functional.gelu(self.up(self.mlp_norm(residual))))


class Embeddings(nn.Module):
    def __init__(self):
        super().__init__()
        self.bytes, self.positions = nn.Embedding(BYTES, WIDTH), nn.Embedding(CONTEXT, WIDTH)

    def forward(self, text):
        return self.bytes(text) + self.positions.weight


def head():
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, BYTES, bias=False))


def stage(index, stages):
    """Returns the part of the model that one of so many stages computes."""
    blocks = [Block() for _ in range(LAYERS // stages)]
    first, last = [Embeddings()] if index == 0 else [], [head()] if index == stages - 1 else []
    return nn.Sequential(*first, *blocks, *last)


def loss(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch():
    """Draws the inputs and targets of a step, `[samples, context]` each."""
    text = torch.randint(0, BYTES, (MICRO_BATCHES * MICRO_BATCH_SIZE, CONTEXT + 1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def timed(steps, step):
    """Runs steps and returns the seconds of each, without the first two."""
    took = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        took.append(time.perf_counter() - start)
    return took[2:]


def alone(_rank, _processes, steps):
    """Times plain gradient accumulation in one process."""
    model = stage(0, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs, targets = batch()

    def step():
        for part, wanted in zip(inputs.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES)):
            (loss(model(part), wanted) / MICRO_BATCHES).backward()
        optimizer.step()
        optimizer.zero_grad()

    return timed(steps, step)


def ranked(rank, processes, steps):
    """Times Schedule1F1B as one of two processes. Rank 0 finishes a step last, so its times are those of the pipeline."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    model = stage(rank, processes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    schedule = Schedule1F1B(PipelineStage(model, rank, processes, torch.device("cpu")), MICRO_BATCHES, loss_fn=loss)
    inputs, targets = batch()

    def step():
        schedule.step(inputs) if rank == 0 else schedule.step(target=targets, return_outputs=False)
        optimizer.step()
        optimizer.zero_grad()

    return timed(steps, step)


def ours(steps, flags, folder):
    """Runs the example and returns the seconds of its steps, without the first two."""
    log = Path(folder) / "log"
    shape = f"--layers {LAYERS} --width {WIDTH} --context {CONTEXT} --cores-per-stage 1 --clip 0"
    shape += f" --micro-batch-size {MICRO_BATCH_SIZE} --micro-batches {MICRO_BATCHES} --steps {steps}"
    command = [GPT, *shape.split(), *flags.split(), "--data", str(Path(folder) / "text"), "--log", str(log)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line["step_seconds"] for line in lines if "step_seconds" in line][2:]


def product():
    """Returns the GFLOP/s of one core in matrix products."""
    rows = MICRO_BATCH_SIZE * CONTEXT
    done = subprocess.run([PRODUCT, "--rows", str(rows), "--width", str(WIDTH)], check=True, capture_output=True, text=True)
    return float(done.stdout.rsplit(":", 1)[1].split()[0])


def step_gflop():
    """Returns the GFLOP of a step: 3 times those of a forward (Chowdhery et al., 2022, arXiv:2204.02311, appendix B)."""
    token = LAYERS * (24 * WIDTH * WIDTH + 4 * CONTEXT * WIDTH) + 2 * WIDTH * BYTES
    return 3e-9 * token * MICRO_BATCHES * MICRO_BATCH_SIZE * CONTEXT


def main():
    flags = FLAGS
    if not (GPT.is_file() and PRODUCT.is_file()):
        sys.exit(f"{GPT} or {PRODUCT} does not exist; build them: cargo build --release --example gpt --example product")
    speed = product()
    print(f"{processor()}; one core reaches {speed:.1f} GFLOP/s in products", flush=True)
    rivals = {
        "P = 1": (lambda folder: ours(flags.steps, "--stages 1", folder), lambda: in_processes(alone, 1, flags.steps)),
        "P = 2, 1F1B": (lambda folder: ours(flags.steps, "--stages 2", folder), lambda: in_processes(ranked, 2, flags.steps)),
        "P = 2, ZB-H1 beside its 1F1B": (
            lambda folder: ours(flags.steps, "--stages 2 --schedule zb-h1", folder),
            lambda: in_processes(ranked, 2, flags.steps),
        ),
    }
    ratios = {name: [] for name in rivals}
    fastest = {name: [math.inf, math.inf] for name in rivals}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "text").write_bytes(bytes(range(32, 127)) * 400)
        for turn in range(flags.rounds):
            for name, (ours_of, theirs_of) in rivals.items():
                # The two take turns in going first.
                first = ours_of(folder) if turn % 2 == 0 else None
                theirs = theirs_of()
                own = first or ours_of(folder)
                fastest[name] = [min(times) for times in zip(fastest[name], (min(own), min(theirs)))]
                rival, mine = statistics.median(theirs), statistics.median(own)
                ratios[name].append(rival / mine)
                share = step_gflop() / mine / speed / (1 if name == "P = 1" else 2)
                print(
                    f"{name}: {mine:.3f} s a step, {share:.2f} of the speed of products; PyTorch {rival:.3f} s: "
                    f"{rival / mine:.3f} of its tokens/s",
                    flush=True,
                )
    print(f"torch {torch.__version__}")
    for name, each in ratios.items():
        mine, rival = fastest[name]
        print(
            f"{name}: {statistics.median(each):.3f} of PyTorch's tokens/s ({min(each):.3f} to {max(each):.3f}); "
            f"by the fastest steps {rival / mine:.3f} (ours {mine:.3f} s, PyTorch's {rival:.3f} s)"
        )


if __name__ == "__main__":
    main()
