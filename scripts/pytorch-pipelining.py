#!/usr/bin/env python3
"""Compares Stageline's pipeline with `torch.distributed.pipelining`, without a model; the two take turns on this machine.

    python scripts/pytorch-pipelining.py [--rounds 3] [--stages 2,4,8] [--micro-batches 8,32,128] [--paced-stages 4,8] ...

Needs torch and numpy. PyTorch has one process with one thread a worker, over gloo. Every table has the median of all rounds.

The first table has microseconds an action (a forward or a backward of one micro-batch) under 1F1B, for stages that multiply by
one parameter: the time of a step with its SGD step, divided by 2M. Most of it is what the pipeline itself takes.

The second table has the bubble of stages that wait instead of computing, 5 ms in a forward and in each half of a backward: the
share of a step that is left beside these waits, 1 - 15 ms x M / step. Each wait ends 5 ms after its start to the microsecond, on
both sides. With two stages a worker, each waits half as long.
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
WAIT = 0.005  # seconds
LATE = 0.0002  # seconds by which a sleeping thread may wake up too late
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


def wait(until):
    """Waits until the clock shows `until`: sleeps for most of the time, and polls the clock at the end, as our stages do."""
    left = until - time.perf_counter()
    if left > LATE:
        time.sleep(left - LATE)
    while time.perf_counter() < until:
        pass


class WaitForInput(torch.autograd.Function):
    """Waits in the forward, and in the half of the backward that has the gradient of the input."""

    @staticmethod
    def forward(context, tensor, seconds):
        until, context.seconds = time.perf_counter() + seconds, seconds
        output = tensor.clone()
        wait(until)
        return output

    @staticmethod
    def backward(context, gradient):
        wait(time.perf_counter() + context.seconds)
        return gradient, None


class WaitForWeight(torch.autograd.Function):
    """Waits in the half of the backward that has the gradient of the weight."""

    @staticmethod
    def forward(context, weight, seconds):
        context.seconds = seconds
        return weight.clone()

    @staticmethod
    def backward(context, gradient):
        wait(time.perf_counter() + context.seconds)
        return gradient, None


class Paced(nn.Module):
    """A stage that waits instead of computing."""

    def __init__(self, seconds):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.seconds = seconds

    def forward(self, tensor):
        # The first stage waits for a gradient of its input as well, as ours does.
        tensor = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        return WaitForInput.apply(tensor, self.seconds) + WaitForWeight.apply(self.weight, self.seconds)


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


def bubble(micro_batches, seconds):
    """Returns the bubble of a step of so many seconds: the share that is left beside the waits of a worker."""
    return 1 - 3 * WAIT * micro_batches / seconds


def bubbles(rank, workers, name, all_micro_batches, steps):
    """Returns PyTorch's bubble of a schedule for every M. Where PyTorch refuses the schedule, it is the reason as text."""
    found = []
    for micro_batches in all_micro_batches:
        seconds = WAIT / SCHEDULES[name][1]
        try:
            step, _ = stepping(rank, workers, name, micro_batches, lambda: Paced(seconds))
        except ValueError as refusal:
            found.append(str(refusal))
            continue
        took = []
        for _ in range(2 + steps):
            began = time.perf_counter()
            step()
            every = [None] * workers
            all_gather_object(every, time.perf_counter() - began)
            took.append(max(every))
        found.append(bubble(micro_batches, statistics.median(took[2:])))
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
    found = lambda point: (bubble(point["micro_batches"], point["step_seconds"]), point["bubble_ideal"])
    return {point["micro_batches"]: found(point) for point in points}


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
            ours, theirs, case = [], [], (workers, name, flags.paced_micro_batches, flags.steps)
            for turn in range(flags.rounds):
                # The two take turns in going first.
                first = our_bubbles(*case) if turn % 2 == 0 else None
                theirs.append(in_processes(bubbles, *case))
                ours.append(first or our_bubbles(*case))
            for index, micro_batches in enumerate(flags.paced_micro_batches):
                each = [turn[index] for turn in theirs]
                refusals = [refusal for refusal in each if isinstance(refusal, str)]
                their = f"refused: {refusals[0]}" if refusals else f"{statistics.median(each):.4f}"
                ideal, mine = "", "left out"
                if micro_batches in ours[0]:
                    ideal = f"{ours[0][micro_batches][1]:.4f}"
                    mine = f"{statistics.median(turn[micro_batches][0] for turn in ours):.4f}"
                print(f"| {workers} | {name} | {micro_batches} | {ideal} | {mine} | {their} |", flush=True)


def main():
    def numbers(of):
        """Returns the parser of a list of numbers, each of which must be in `of`."""

        def parse(text):
            found = [int(number) for number in text.split(",")]
            if wrong := [number for number in found if number not in of]:
                raise argparse.ArgumentTypeError(f"{wrong[0]} is not one of {', '.join(map(str, of))}")
            return found

        return parse

    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--rounds", type=int, default=3, help="number of rounds, in each of which both are measured [3]")
    flags.add_argument("--stages", type=numbers((2, 4, 8)), default="2,4,8", help="values of P in the first table [2,4,8]")
    flags.add_argument("--micro-batches", type=numbers((8, 32, 128)), default="8,32,128", help="values of M in it [8,32,128]")
    flags.add_argument("--paced-stages", type=numbers(range(2, 65)), default="4,8", help="values of P in the second table [4,8]")
    flags.add_argument("--paced-micro-batches", type=numbers(range(1, 1025)), default="8,16,32", help="values of M in it [8,16,32]")
    flags.add_argument("--schedules", type=lambda text: text.split(","), default=",".join(SCHEDULES), help="its schedules [all]")
    flags.add_argument("--steps", type=int, default=3, help="measured steps of every case in the second table [3]")
    given = flags.parse_args()
    print(f"{processor()}, torch {torch.__version__}\n", flush=True)
    compare_actions(given)
    print()
    compare_bubbles(given)


if __name__ == "__main__":
    main()
