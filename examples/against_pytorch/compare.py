#!/usr/bin/env python3
"""Repeats in PyTorch, on one device, what the example `against_pytorch` trained as a pipeline, and compares the two.

    cargo run --release --example against_pytorch -- --folder /tmp/against
    python examples/against_pytorch/compare.py /tmp/against

Needs torch, numpy and safetensors. The exit status is 1 if the relative difference of losses is above 1e-5 at the first
step, 1e-4 in the first ten or 1e-3 later, or if that of gradient norms is above ten times as much.
"""

import json
import math
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn import functional as F


def linear(p, name, x):
    bias = p.get(f"{name}.bias")
    x = x @ p[f"{name}.weight"]  # burn's weights are [in, out]
    return x if bias is None else x + bias


def norm(p, name, x):
    return F.layer_norm(x, x.shape[-1:], p[f"{name}.gamma"], p[f"{name}.beta"], 1e-5)


def logits(p, settings, tokens):
    """Returns the logits `[batch, length, 256]` of the next byte, for tokens `[batch, length]`."""
    batch, length = tokens.shape
    x = p["embeddings.bytes.weight"][tokens] + p["embeddings.positions"][:length]
    heads, width = settings["heads"], x.shape[-1]
    for layer in range(settings["layers"]):
        name = f"blocks.{layer}"
        qkv = linear(p, f"{name}.attention.query_key_value", norm(p, f"{name}.attention_norm", x))
        q, k, v = qkv.view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(p, f"{name}.attention.output", attended.transpose(1, 2).reshape(batch, length, width))
        x = x + linear(p, f"{name}.down", F.gelu(linear(p, f"{name}.up", norm(p, f"{name}.mlp_norm", x))))
    return linear(p, "head.logits", norm(p, "head.norm", x))


def learning_rate(settings, step):
    """Returns the learning rate of a step, by the schedule of nanoGPT's get_lr."""
    peak, warm_up, steps = settings["learning_rate"], settings["warm_up"], settings["steps"]
    if step < warm_up:
        return peak * (step + 1) / (warm_up + 1)
    if step >= steps:
        return peak / 10
    fallen = (step - warm_up) / (steps - warm_up)
    return peak / 10 + (peak - peak / 10) * (1 + math.cos(math.pi * fallen)) / 2


def train(folder):
    """Trains on the batches in the folder, and yields the loss, gradient norm and learning rate of each step."""
    settings = json.loads((folder / "settings.json").read_text())
    p = {name: tensor.requires_grad_() for name, tensor in load_file(folder / "initial.safetensors").items()}
    batches = load_file(folder / "batches.safetensors")
    optimizer = torch.optim.AdamW(
        p.values(), betas=(settings["beta_1"], settings["beta_2"]), eps=settings["epsilon"],
        weight_decay=settings["weight_decay"],
    )
    for step, (tokens, mask) in enumerate(zip(batches["bytes"].long(), batches["mask"])):
        optimizer.zero_grad()
        total, weight = 0.0, mask.sum()
        pieces = zip(tokens.tensor_split(settings["micro_batches"]), mask.tensor_split(settings["micro_batches"]))
        for tokens_piece, mask_piece in pieces:
            output = logits(p, settings, tokens_piece[:, :-1]).flatten(0, 1)
            each = F.cross_entropy(output, tokens_piece[:, 1:].flatten(), reduction="none")
            loss = (each * mask_piece.flatten()).sum()
            (loss / weight).backward()
            total += loss.item()
        gradient_norm = torch.nn.utils.clip_grad_norm_(p.values(), settings["clip"])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step)
        optimizer.step()
        yield {"loss": total / weight.item(), "gradient_norm": gradient_norm.item(), "learning_rate": group["lr"]}


def main():
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    ours = [json.loads(line) for line in (folder / "ours.jsonl").read_text().splitlines()]
    failed, largest = False, {"loss": 0.0, "gradient_norm": 0.0}
    print(f"{'step':>4} {'loss':>9} {'theirs':>9} {'relative':>9} {'norm':>9} {'theirs':>9} {'relative':>9}")
    for step, (our, their) in enumerate(zip(ours, train(folder), strict=True)):
        relative = {key: abs(our[key] - their[key]) / abs(their[key]) for key in their}
        bound = 1e-5 if step == 0 else 1e-4 if step < 10 else 1e-3
        wrong = relative["loss"] > bound or relative["gradient_norm"] > 10 * bound or relative["learning_rate"] > 1e-9
        failed |= wrong
        largest = {key: max(largest[key], relative[key]) for key in largest}
        if wrong or step < 3 or (step + 1) % 10 == 0:
            cells = [cell for key in ("loss", "gradient_norm") for cell in
                     (f"{our[key]:>9.5f}", f"{their[key]:>9.5f}", f"{relative[key]:>9.1e}")]
            print(f"{step:>4}", *cells, "WRONG" if wrong else "")
    print("the trainings differ" if failed else f"{len(ours)} steps agree", end="; ")
    print(f"largest relative difference: loss {largest['loss']:.1e}, gradient norm {largest['gradient_norm']:.1e}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
