#!/usr/bin/env python3
"""Compares Stageline's pipeline with `torch.distributed.pipelining`, without a model; the two take turns on this machine.

    python scripts/pytorch-pipelining.py [--rounds 3] [--stages 2,4,8] [--micro-batches 8,32,128] [--paced-stages 4,8] ...

Needs torch and numpy. PyTorch has one process with one thread a worker, over gloo. Every table has the median of all rounds.

The first table has microseconds an action (a forward or a backward of one micro-batch) under 1F1B, for stages that multiply by
one parameter: the time of a step with its SGD step, divided by 2M. Most of it is what the pipeline itself takes.

The second table has the bubble of stages that wait instead of computing (5 ms in a forward and in each half of a backward): the
share of a step in which a worker does not wait in a stage. Waits count as long as they really are. With two stages a worker,
each waits half as long.
"""

import argparse
import json
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.distributed import all_gather_object
from torch.distributed.pipelining import PipelineStage, schedules

from peers import in_processes, processor

REPOSITORY = Path(__file__).resolve().parent.parent
WAIT = 0.005
# By our name: PyTorch's schedule, the number of stages a worker, and whether the second half of them is placed in reverse order.
SCHEDULES = {
    "1f1b": (schedules.Schedule1F1B, 1, False),
    "gpipe": (schedules.ScheduleGPipe, 1, False),
    "interleaved": (schedules.ScheduleInterleaved1F1B, 2, False),
    "zb-h1": (schedules.ScheduleInterleavedZeroBubble, 1, False),
    "zb-v": (schedules.ScheduleZBVZeroBubble, 2, True),
}


class Scale(nn.Module):
    """A stage with next to no computation."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, tensor):
        return tensor * self.scale


class Waiting:
    """Waits, and sums up for how long it really did."""

    def __init__(self):
        self.waited = 0.0

    def wait(self, seconds):
        began = time.perf_counter()
        time.sleep(seconds)
        self.waited += time.perf_counter() - began


class WaitForInput(torch.autograd.Function):
    """Waits in the forward, and in the half of the backward that has the gradient of the input."""

    @staticmethod
    def forward(context, tensor, waiting, seconds):
        context.waiting, context.seconds = waiting, seconds
        waiting.wait(seconds)
        return tensor.clone()

    @staticmethod
    def backward(context, gradient):
        context.waiting.wait(context.seconds)
        return gradient, None, None


class WaitForWeight(torch.autograd.Function):
    """Waits in the half of the backward that has the gradient of the weight."""

    @staticmethod
    def forward(context, weight, waiting, seconds):
        context.waiting, context.seconds = waiting, seconds
        return weight.clone()

    @staticmethod
    def backward(context, gradient):
        context.waiting.wait(context.seconds)
        return gradient, None, None


class Paced(nn.Module):
    """A stage that waits instead of computing."""

    def __init__(self, waiting, seconds):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.waiting, self.seconds = waiting, seconds

    def forward(self, tensor):
        # The first stage waits for a gradient of its input as well, as ours does.
        tensor = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        tensor = WaitForInput.apply(tensor, self.waiting, self.seconds)
        return tensor + WaitForWeight.apply(self.weight, self.waiting, self.seconds)


def stepping(rank, workers, name, micro_batches, module):
    """Returns a function that runs one step of a schedule on this rank, and the modules of the rank's stages."""
    schedule, chunks, is_v = SCHEDULES[name]
    stages = workers * chunks
    own = [rank + workers * chunk for chunk in range(chunks)]
    if is_v:
        own = [rank, stages - 1 - rank]
    modules = [module() for _ in own]
    placed = [PipelineStage(each, index, stages, torch.device("cpu")) for each, index in zip(modules, own)]
    loss = lambda output, target: (output - target).sum()
    is_single = issubclass(schedule, schedules.PipelineScheduleSingle)
    plan = schedule(placed[0] if is_single else placed, micro_batches, loss_fn=loss)
    ones = torch.ones(micro_batches, 1)
    inputs = [ones] if 0 in own else []
    others = {"target": ones, "return_outputs": False} if stages - 1 in own else {}
    return lambda: plan.step(*inputs, **others), modules


def action_times(rank, workers, all_micro_batches):
    """Returns PyTorch's microseconds an action under 1F1B, for every M."""
    times = []
    for micro_batches in all_micro_batches:
        step, modules = stepping(rank, workers, "1f1b", micro_batches, Scale)
        optimizer = torch.optim.SGD(modules[0].parameters(), lr=1e-3)
        seconds = []
        for _ in range(3 + max(5, 384 // micro_batches)):
            began = time.perf_counter()
            step()
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.perf_counter() - began)
        times.append(1e6 * statistics.median(seconds[3:]) / (2 * micro_batches))
    return times


def bubbles(rank, workers, name, all_micro_batches, steps):
    """Returns PyTorch's bubble of a schedule for every M, or None where PyTorch refuses the schedule."""
    found = []
    for micro_batches in all_micro_batches:
        waiting, seconds = Waiting(), WAIT / SCHEDULES[name][1]
        try:
            step, _ = stepping(rank, workers, name, micro_batches, lambda: Paced(waiting, seconds))
        except ValueError:
            found.append(None)
            continue
        measured = []
        for _ in range(2 + steps):
            waiting.waited, began = 0.0, time.perf_counter()
            step()
            mine = (time.perf_counter() - began, waiting.waited)
            every = [None] * workers
            all_gather_object(every, mine)
            longest = max(took for took, _ in every)
            measured.append(1 - statistics.mean(waited for _, waited in every) / longest)
        found.append(statistics.median(measured[2:]))
    return found


def bench(name, *flags):
    """Runs one of our benches and returns what it prints."""
    command = ["cargo", "bench", "--quiet", "--bench", name, "--", *map(str, flags)]
    return subprocess.run(command, check=True, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True).stdout


def our_action_times():
    """Returns our microseconds an action of `x * w`, by P and M."""
    lines = bench("dispatch", "--seconds", 0).splitlines()
    rows = [re.fullmatch(r"\s*(\d+)\s+(\d+)\s+[\d.]+\s+([\d.]+)", line) for line in lines]
    return {(int(row[1]), int(row[2])): float(row[3]) for row in rows if row}


def our_bubbles(workers, name, micro_batches, steps):
    """Returns our bubble and the ideal one of a schedule, by M."""
    with tempfile.TemporaryDirectory() as folder:
        milliseconds = 1e3 * WAIT
        bench(
            "bubble", "--kind", "paced", "--stages", workers, "--schedules", name, "--rounds", steps, "--output", folder,
            "--micro-batches", ",".join(map(str, micro_batches)),
            "--forward-ms", milliseconds, "--backward-ms", 2 * milliseconds,
        )
        points = json.loads((Path(folder) / "bubble.json").read_text())
    return {point["micro_batches"]: (point["bubble"], point["bubble_ideal"]) for point in points}


def compare_actions(flags):
    """Prints the table of microseconds an action."""
    ours, theirs = {}, {}
    for turn in range(flags.rounds):
        mine = our_action_times() if turn % 2 == 0 else None
        for workers in flags.stages:
            times = in_processes(action_times, workers, flags.micro_batches)
            for micro_batches, time_of_one in zip(flags.micro_batches, times):
                theirs.setdefault((workers, micro_batches), []).append(time_of_one)
        for case, time_of_one in (mine or our_action_times()).items():
            ours.setdefault(case, []).append(time_of_one)
    print("| P | M | Stageline, us an action | PyTorch | PyTorch over Stageline |\n| --- | --- | --- | --- | --- |")
    for case, their_times in theirs.items():
        ratio = statistics.median(their / our for their, our in zip(their_times, ours[case]))
        mine, their = statistics.median(ours[case]), statistics.median(their_times)
        print(f"| {case[0]} | {case[1]} | {mine:.1f} | {their:.0f} | {ratio:.0f} |", flush=True)


def compare_bubbles(flags):
    """Prints the table of bubbles of paced stages."""
    print("| P | schedule | M | ideal | Stageline | PyTorch |\n| --- | --- | --- | --- | --- | --- |")
    for workers in flags.paced_stages:
        for name in flags.schedules:
            ours, theirs = [], []
            for _ in range(flags.rounds):
                ours.append(our_bubbles(workers, name, flags.paced_micro_batches, flags.steps))
                theirs.append(in_processes(bubbles, workers, name, flags.paced_micro_batches, flags.steps))
            for index, micro_batches in enumerate(flags.paced_micro_batches):
                if micro_batches not in ours[0]:
                    continue
                mine = statistics.median(turn[micro_batches][0] for turn in ours)
                each = [turn[index] for turn in theirs]
                their = "refused" if None in each else f"{statistics.median(each):.3f}"
                ideal = ours[0][micro_batches][1]
                print(f"| {workers} | {name} | {micro_batches} | {ideal:.4f} | {mine:.4f} | {their} |", flush=True)


def main():
    numbers = lambda text: [int(number) for number in text.split(",")]
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--rounds", type=int, default=3, help="number of rounds, in each of which both are measured [3]")
    flags.add_argument("--stages", type=numbers, default="2,4,8", help="values of P in the first table [2,4,8]")
    flags.add_argument("--micro-batches", type=numbers, default="8,32,128", help="values of M in it, of these [8,32,128]")
    flags.add_argument("--paced-stages", type=numbers, default="4,8", help="values of P in the second table [4,8]")
    flags.add_argument("--paced-micro-batches", type=numbers, default="8,16,32", help="values of M in it [8,16,32]")
    flags.add_argument("--schedules", type=lambda text: text.split(","), default=",".join(SCHEDULES), help="its schedules [all]")
    flags.add_argument("--steps", type=int, default=3, help="measured steps of every case in the second table [3]")
    given = flags.parse_args()
    print(f"{processor()}, torch {torch.__version__}\n", flush=True)
    compare_actions(given)
    print()
    compare_bubbles(given)


if __name__ == "__main__":
    main()
