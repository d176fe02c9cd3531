#!/usr/bin/env python3
"""Reads the files that `--tensorboard FOLDER` writes with TensorBoard's own reader, and compares them with the log.

    cargo run --release --example gpt -- --steps 30 --tensorboard /tmp/board --log /tmp/run.jsonl
    python scripts/read-tensorboard.py /tmp/board /tmp/run.jsonl

Needs tensorboard. It ends with an error if the loss, gradient norm or bubble of a step differs.
"""

import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def main():
    folder, log = sys.argv[1:3]
    board = EventAccumulator(folder)
    board.Reload()
    steps = [line for line in map(json.loads, open(log)) if "step" in line]
    for tag, field in [("loss", "loss"), ("gradient norm", "gradient_norm"), ("bubble/measured, host clock", "bubble")]:
        found = {event.step: event.value for event in board.Scalars(tag)}
        expected = {line["step"]: line[field] for line in steps if line[field] is not None}
        assert found.keys() == expected.keys(), f"{tag}: steps {sorted(found)} against {sorted(expected)}"
        for step, value in expected.items():
            assert abs(found[step] - value) <= 1e-6 * abs(value), f"{tag} of step {step}: {found[step]} against {value}"
        print(f"{tag}: {len(found)} steps agree")


if __name__ == "__main__":
    main()
