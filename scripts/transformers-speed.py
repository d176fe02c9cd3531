#!/usr/bin/env python3
"""Compares the speed of training a Llama with that of transformers; the two take turns on this machine.

    cargo build --release --features models --example finetune
    python scripts/transformers-speed.py [--rounds 3] [--steps 6] [--lora 16]

Needs torch and transformers. Both train the same new model in f32 with AdamW and clipping, on the same tokens, with one core (one
thread) a stage. With --lora, both train LoRA adapters of this rank on all linear layers of the blocks, transformers with the library
PEFT. transformers runs in eager mode, with plain accumulation over the micro-batches. Prints the processor's model,
the tokens a second as the median of every run. At the end it prints the median ratio of all rounds, and the ratio of both sides' fastest
steps, which other programs on the machine disturb less: ours to transformers' for one stage, and two stages to one, with the schedules
1F1B and ZB-H1.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from peers import processor  # noqa: E402

PROGRAM = Path(__file__).resolve().parent.parent / "target/release/examples/finetune"


def configuration(arguments):
    """The configuration of the model: grouped-query attention with 2 key-value heads for 8 heads."""
    return LlamaConfig(
        vocab_size=arguments.vocabulary, hidden_size=arguments.width, intermediate_size=arguments.width * 11 // 4,
        num_hidden_layers=arguments.layers, num_attention_heads=8, num_key_value_heads=2,
        max_position_embeddings=arguments.context, tie_word_embeddings=True,
    )


def theirs(config, rows, arguments):
    """Returns the seconds of the steps of transformers, without the first."""
    torch.set_num_threads(1)
    model = LlamaForCausalLM._from_config(config, attn_implementation="eager").train()
    model.config.use_cache = False
    if arguments.lora:
        import peft  # only this needs the library

        settings = peft.LoraConfig(r=arguments.lora, lora_alpha=2 * arguments.lora, target_modules="all-linear", task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    tokens, times = torch.tensor(rows), []
    for _ in range(arguments.steps):
        began = time.perf_counter()
        for piece in tokens.split(arguments.micro_batch_size):
            loss = model(piece[:, :-1]).logits.float()
            loss = torch.nn.functional.cross_entropy(loss.flatten(0, 1), piece[:, 1:].flatten(), reduction="sum")
            (loss / (len(rows) * arguments.context)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began)
    return times[1:]


def ours(folder, stages, arguments, schedule="1f1b"):
    """Returns the seconds of the steps of Stageline, without the first."""
    log = folder / "log.jsonl"
    log.unlink(missing_ok=True)
    flags = {
        "init": folder / "config.json", "data": folder / "rows.json", "stages": stages, "schedule": schedule, "steps": arguments.steps,
        "micro-batches": arguments.micro_batches, "micro-batch-size": arguments.micro_batch_size,
        "cores-per-stage": 1, "learning-rate": 1e-3, "cut": arguments.cut, "log": log,
    }
    flags |= {"lora": arguments.lora} if arguments.lora else {}
    command = [arguments.program, *(part for name, value in flags.items() for part in (f"--{name}", str(value)))]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line["step_seconds"] for line in lines if "step_seconds" in line][1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in {
        "rounds": 3, "steps": 6, "layers": 8, "width": 512, "context": 256, "vocabulary": 4096, "micro-batches": 8,
        "micro-batch-size": 1, "lora": 0,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--cut", default="counted", help="the cut of two stages, as --cut of the program takes it")
    parser.add_argument("--program", default=PROGRAM)
    arguments = parser.parse_args()
    config = configuration(arguments)
    drawn = random.Random(0)
    samples = arguments.micro_batches * arguments.micro_batch_size
    rows = [[drawn.randrange(arguments.vocabulary) for _ in range(arguments.context + 1)] for _ in range(samples)]
    tokens = samples * arguments.context
    print(processor())
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "config.json").write_text(json.dumps(config.to_dict()))
        (folder / "rows.json").write_text(json.dumps(rows))
        programs = {
            "P = 1": lambda: ours(folder, 1, arguments),
            "P = 2": lambda: ours(folder, 2, arguments),
            "transformers": lambda: theirs(config, rows, arguments),
            "P = 2 with ZB-H1": lambda: ours(folder, 2, arguments, "zb-h1"),
        }
        rounds = []
        for _ in range(arguments.rounds):
            rounds.append({name: run() for name, run in programs.items()})
            medians = {name: statistics.median(times) for name, times in rounds[-1].items()}
            print(", ".join(f"{name} {tokens / seconds:.0f}" for name, seconds in medians.items()), "tokens/s", flush=True)
        fastest = {name: min(min(times[name]) for times in rounds) for name in programs}
        for name, other in [("P = 1", "transformers"), ("P = 2", "P = 1"), ("P = 2 with ZB-H1", "P = 1")]:
            ratios = [statistics.median(times[other]) / statistics.median(times[name]) for times in rounds]
            print(
                f"{name} to {other}: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}); "
                f"by the fastest steps {fastest[other] / fastest[name]:.3f}"
            )


if __name__ == "__main__":
    main()
