#!/usr/bin/env python3
"""Checks that PyTorch accepts the plans that Stageline writes, and that Stageline accepts those of PyTorch.

    cargo build --release -p stageline-cli
    python scripts/pytorch-plans.py target/release/stageline

Needs torch (tried with 2.15). It calls internals of torch.distributed.pipelining, which may change in any version.
"""

import csv
import itertools
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch.distributed.pipelining import schedules

# Our schedules, with the number of stages a worker (V).
OURS = {
    "gpipe": 1, "1f1b": 1, "eager-1f1b": 1, "interleaved": 2, "looped-breadth-first": 2, "zb-h1": 1, "zb-h2": 1,
    "zb-v": 2, "dualpipe-v": 2, "v-half": 2, "v-min": 2,
}
THEIRS = [
    schedules.ScheduleInterleaved1F1B, schedules.ScheduleLoopedBFS, schedules.ScheduleInterleavedZeroBubble,
    schedules.ScheduleZBVZeroBubble, schedules.ScheduleDualPipeV,
]


class Stage:
    """The attributes of a stage that a schedule of PyTorch reads before it runs."""

    def __init__(self, index, stages, workers):
        self.stage_index, self.num_stages = index, stages
        self.group_size, self.group_rank = workers, 0
        self.is_first, self.is_last = index == 0, index + 1 == stages
        self.device, self.submod = torch.device("cpu"), torch.nn.Linear(1, 1)
        self.has_backward, self.stage_index_to_group_rank = True, {}


def ours_to_pytorch(command, folder):
    """Loads our plans, compute-only and lowered, into PyTorch, which raises an error if it rejects one."""
    accepted = 0
    for (name, chunks), workers, micro_batches in itertools.product(OURS.items(), (1, 2, 3, 4, 8), (1, 4, 9, 16)):
        for lowered in (False, True):
            path = folder / "ours.csv"
            flags = ["--schedule", name, "--stages", str(workers), "--micro-batches", str(micro_batches)]
            written = subprocess.run(
                [command, "plan", *flags, "--csv", path, *(["--lowered"] if lowered else [])], capture_output=True
            )
            if written.returncode != 0:
                assert name == "interleaved" and micro_batches % workers, written.stderr
                continue
            rows = {rank: [cell for cell in row if cell] for rank, row in enumerate(csv.reader(path.open()))}
            rank_of = {
                schedules._Action.from_str(cell).stage_index: rank
                for rank, row in rows.items() for cell in row if "_" not in cell
            }
            stages = [Stage(stage, workers * chunks, workers) for stage in sorted(rank_of) if rank_of[stage] == 0]
            runtime = schedules._PipelineScheduleRuntime(stages, micro_batches, loss_fn=lambda output, target: output)
            runtime.stage_index_to_group_rank = rank_of
            for stage in runtime._stages:
                stage.stage_index_to_group_rank = rank_of
            runtime._load_csv(str(path), format="compute_comms" if lowered else "compute_only")
            if not lowered:
                actions = {rank: [schedules._Action.from_str(cell) for cell in row] for rank, row in rows.items()}
                schedules._validate_schedule(actions, workers, workers * chunks, micro_batches)
            accepted += 1
    print(f"PyTorch accepts {accepted} plans of ours")


def pytorch_to_ours(command, folder):
    """Checks and simulates the plans of PyTorch, compute-only and lowered; both forms must simulate alike."""
    accepted = 0
    for kind, (workers, rounds) in itertools.product(THEIRS, itertools.product((2, 3, 4, 8), (2, 3))):
        micro_batches, chunks = workers * rounds, 2
        in_a_v = kind in (schedules.ScheduleZBVZeroBubble, schedules.ScheduleDualPipeV)
        second = workers * chunks - 1 if in_a_v else workers
        stages = [Stage(0, workers * chunks, workers), Stage(second, workers * chunks, workers)]
        schedule = kind(stages, micro_batches, loss_fn=lambda output, target: output)
        simulated = set()
        for order in (schedule.pipeline_order, schedule.pipeline_order_with_comms):
            path = folder / "theirs.csv"
            with path.open("w", newline="") as file:
                csv.writer(file).writerows(order[rank] for rank in sorted(order))
            subprocess.run([command, "check", path, "--capacity", str(micro_batches)], check=True, stdout=subprocess.DEVNULL)
            run = [command, "simulate", "--plan", path, "--transfer", "0.25", "--json"]
            simulated.add(subprocess.run(run, check=True, capture_output=True).stdout)
            accepted += 1
        assert len(simulated) == 1, f"{kind.__name__}: the lowered plan simulates differently"
    print(f"we accept {accepted} plans of PyTorch's, and simulate them")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        ours_to_pytorch(sys.argv[1], Path(folder))
        pytorch_to_ours(sys.argv[1], Path(folder))
