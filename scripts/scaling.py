#!/usr/bin/env python3
"""Prints the tables of docs/scaling.md, which put published trainings into the simulator.

    cargo build --release -p stageline-cli
    python scripts/scaling.py target/release/stageline

The figures of the papers are in this file, each with its source; everything else is computed from them.
"""

import json
import subprocess
import sys
from dataclasses import dataclass

HALF = 2  # bytes of a number in bf16
SUM = 4  # bytes of a gradient, because micro-batches are summed in f32
WEIGHT = 4  # bytes of a parameter, because the optimizer steps it in f32
MOMENTS = 8  # bytes a parameter, because AdamW remembers two f32 moments of each
# The next three are the states of AdamW in mixed precision, in bytes a parameter.
COMPUTING = HALF + WEIGHT + SUM + MOMENTS  # 18, because the stage computes with a bf16 copy of each parameter
ROLLBACK = COMPUTING + WEIGHT + MOMENTS  # at most 30, because old values stay beside new ones while sums are freed
IN_PLACE = COMPUTING  # 18, because with `.rollback(false)` new values replace the old ones, parameter by parameter


@dataclass
class Training:
    """A published training, as one pipeline sees it."""

    name: str
    layers: int
    width: int
    length: int  # tokens in a sequence, which is a micro-batch
    parameters: float
    flops: float  # FLOPs of a sequence, forward and backward, recomputation included
    shares: tuple  # shares of these FLOPs: forward, input gradient and weight gradient
    tensor: int  # GPUs in a stage
    stages: int
    micro_batches: int
    achieved: float  # FLOP/s of a GPU, as published
    link: float  # bytes/s from a GPU to another host
    replicas: int
    kept: int = 0  # bytes a token and unit of width that a block keeps for its backward

    def stage_ms(self):
        """Returns the milliseconds that a stage takes for a micro-batch, forward and backward."""
        return 1e3 * self.flops / self.stages / (self.tensor * self.achieved)

    def boundary_bytes(self):
        """Returns the bytes of the activation that crosses a boundary, which are also those of its gradient."""
        return self.length * self.width * HALF

    def activation_bytes(self):
        """Returns the bytes of a live micro-batch on each GPU of a stage."""
        return self.kept * self.length * self.width * self.layers / (self.stages * self.tensor)

    def reduction_seconds(self):
        """Returns the seconds a step to add gradients over the replicas and return the new values.

        The first figure is for a ring of all replicas, the second for one replica that adds all the sums.
        """
        sums = SUM * self.parameters / (self.stages * self.tensor) / self.link
        return 2 * sums * (self.replicas - 1) / self.replicas, 2 * sums * (self.replicas - 1)

    def costs(self):
        """Returns the costs of a stage as flags of `stageline simulate`."""
        forward, input_gradient, weight_gradient = (self.stage_ms() * share for share in self.shares)
        # Every GPU of a stage sends its part of an activation.
        bandwidth = self.tensor * self.link / 1e9
        return (f"--forward {forward:.4f} --input-grad {input_gradient:.4f} --weight-grad {weight_gradient:.4f} "
                f"--bytes {self.boundary_bytes()} --bandwidth {bandwidth:.4g}").split()


def megatron(billions, layers, width, tensor, stages, gpus, batch, teraflops):
    """Returns a row of table 1 of arXiv:2104.04473, with FLOPs by its formula, full recomputation included."""
    length, vocabulary = 2048, 51200
    flops = 96 * length * layers * width**2 * (1 + length / (6 * width) + vocabulary / (16 * layers * width))
    replicas = gpus // (tensor * stages)
    micro_batches = batch // replicas
    # The forward is 1 part of 4; the backward is 3, because it repeats the forward.
    shares = (1 / 4, 2 / 4, 1 / 4)
    return Training(f"GPT {billions}B", layers, width, length, billions * 1e9, flops, shares, tensor, stages,
                    micro_batches, teraflops * 1e12, 25e9, replicas)


MEGATRON = [
    megatron(39.1, 48, 8192, 8, 2, 512, 1536, 138),
    megatron(76.1, 60, 10240, 8, 4, 1024, 1792, 140),
    megatron(145.6, 80, 12288, 8, 8, 1536, 2304, 148),
    megatron(310.1, 96, 16384, 8, 16, 1920, 2160, 155),
    megatron(529.6, 105, 20480, 8, 35, 2520, 2520, 163),
    megatron(1008.0, 128, 25600, 8, 64, 3072, 3072, 163),
]


def dense(name, layers, width, length, parameters, tensor, stages, micro_batches, achieved, link, replicas, kept=0):
    """Returns a training of 6 FLOPs a parameter and token, in equal parts for forward, input and weight gradient."""
    return Training(name, layers, width, length, parameters, 6 * parameters * length, (1 / 3, 1 / 3, 1 / 3), tensor,
                    stages, micro_batches, achieved, link, replicas, kept)


# The bytes a token and unit of width that a block keeps in bf16 with attention recomputed (Korthikanti et al., 2022,
# arXiv:2205.05198). Tensor and sequence parallelism divide them among GPUs.
BLOCK = 34

# Table 4 of arXiv:2407.21783: sequences of 8192 tokens, TP 8, PP 16, on 8,192 and on 16,384 H100.
LLAMA = [
    dense("Llama 3 405B, DP 64", 126, 16384, 8192, 405e9, 8, 16, 32, 430e12, 50e9, 64, BLOCK),
    dense("Llama 3 405B, DP 128", 126, 16384, 8192, 405e9, 8, 16, 16, 400e12, 50e9, 128, BLOCK),
]

# Sections 3.1, 3.2 and 4.2 of arXiv:2412.19437: 2,048 H800, PP 16, batches of up to 15,360 sequences of 4096 tokens,
# 37e9 of 671e9 parameters active for a token. The FLOP/s of its GPUs are not published; they follow from 2.664e6 GPU
# hours for 14.8e12 tokens.
DEEPSEEK = dense("DeepSeek-V3", 61, 7168, 4096, 37e9, 1, 16, 120,
                 6 * 37e9 * 14.8e12 / (2.664e6 * 3600), 50e9, 128)

SCHEDULES = [("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-h2", 1), ("zb-v", 1), ("dualpipe-v", 1), ("v-half", 1),
             ("v-min", 1)]


def simulate(program, training, schedule, chunks):
    """Returns the simulation of one step, as `stageline simulate --json` prints it."""
    command = [program, "simulate", "--schedule", schedule, "--stages", str(training.stages), "--micro-batches",
               str(training.micro_batches), "--json", *training.costs()]
    if schedule == "interleaved":
        command += ["--chunks", str(chunks)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def table(program, training, chunks):
    """Prints the table of one training: a row for each schedule, and for each V of `chunks` with interleaved stages."""
    print(f"\n### {training.name}: P = {training.stages}, M = {training.micro_batches}\n")
    print(f"A stage takes {training.stage_ms():.0f} ms for a micro-batch; {training.boundary_bytes() / 1e6:.0f} MB cross "
          f"each boundary each way, {1e3 * training.boundary_bytes() / training.stage_ms() / 1e9:.2f} GB/s.\n")
    live_gb = training.activation_bytes() / 1e9
    computing, rollback, in_place = (states(training, each) for each in (COMPUTING, ROLLBACK, IN_PLACE))
    if live_gb:
        ring, root = training.reduction_seconds()
        print(f"A live micro-batch takes {live_gb:.1f} GB of each GPU of the stage. States take {computing:.0f} GB "
              f"while computing; at the flush, {rollback:.0f} GB with rollback and {in_place:.0f} GB without. The sums of "
              f"{training.replicas} replicas take {ring:.2f} s a step in a ring, and {root:.0f} s by one of them.\n")
    columns = ["schedule", "bubble", "step, s", "live micro-batches, most and least"]
    if live_gb:
        columns += ["activations, GB a GPU", "peak with rollback, GB", "peak without, GB"]
    print("| " + " | ".join(columns) + " |")
    print("|" + " --- |" * len(columns))
    for schedule, fewest in SCHEDULES:
        for V in chunks if schedule == "interleaved" else [fewest]:
            found = simulate(program, training, schedule, V)
            # Schedules with several chunks a worker count live micro-batches by chunk, which is a part of a stage here.
            parts = V if schedule == "interleaved" else 2 if schedule in ("zb-v", "dualpipe-v", "v-half", "v-min") else 1
            live = [live / parts for live in found["peak_live"]]
            name = f"{schedule}, V = {V}" if schedule == "interleaved" else schedule
            cells = [name, f"{found['bubble_total']:.4f}", f"{found['step_ms'] / 1e3:.2f}", f"{max(live):.4g}, {min(live):.4g}"]
            if live_gb:
                activations = max(live) * live_gb
                # At the flush no activations are live, so the peak is before it or in it.
                peaks = [max(computing + activations, flush) for flush in (rollback, in_place)]
                cells += [f"{gb:.0f}" for gb in (activations, *peaks)]
            print("| " + " | ".join(cells) + " |")


def states(training, bytes_a_parameter):
    """Returns the GB of states on each GPU of a stage."""
    return bytes_a_parameter * training.parameters / (training.tensor * training.stages) / 1e9


def overview(program):
    """Prints the table of the GPT trainings of Megatron-LM, a row for each model."""
    print("\n### GPT, Megatron-LM\n")
    print("| parameters | P | M | V | 1F1B | interleaved | ZB-H1 | ZB-V | GB/s each way | states a GPU while computing | "
          "at the flush with rollback, without | R | sums in a ring, by one | step, s |")
    print("|" + " --- |" * 14)
    for training in MEGATRON:
        V = training.layers // training.stages
        found = [simulate(program, training, schedule, V) for schedule in ("1f1b", "interleaved", "zb-h1", "zb-v")]
        ring, root = training.reduction_seconds()
        rate = 1e3 * training.boundary_bytes() / training.stage_ms() / 1e9
        print(f"| {training.parameters / 1e9:.4g}e9 | {training.stages} | {training.micro_batches} | {V} | "
              + " | ".join(f"{each['bubble_total']:.4f}" for each in found)
              + f" | {rate:.2f} | {states(training, COMPUTING):.0f} GB | {states(training, ROLLBACK):.0f} GB, "
              f"{states(training, IN_PLACE):.0f} GB | {training.replicas} | {ring:.2f} s, {root:.0f} s | "
              f"{found[0]['step_ms'] / 1e3:.1f} |")


def main():
    program = sys.argv[1]
    overview(program)
    for training in LLAMA:
        table(program, training, [2, 4, 8])
    table(program, DEEPSEEK, [])  # interleaved stages take turns in groups of P, and 120 is no multiple of 16


main()
