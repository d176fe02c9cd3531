#!/usr/bin/env python3
"""Measures how long a GPT trains to a held-out loss with M = 1 to 64 micro-batches, and compares the fastest M with the
one that `stageline advise` recommends from the log of a single run.

Each M is trained at several learning rates, in proportion to the square root of M, and counts with its best. Usage:
cargo build --release --example gpt --bin stageline && scripts/accumulation.py [--target-loss L] [--most M]
"""

import argparse
import json
import math
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = "--stages 2 --cores-per-stage 1 --width 64 --layers 4 --context 64 --micro-batch-size 4 --seed 1".split()
TOKENS = 64 * 4  # of a micro-batch: context x samples
RATES = [0.5, 1.0, 2.0]  # of BASE x sqrt(M / 8)
BASE = 2e-3
LIMIT = 240.0  # seconds of a run that does not reach the loss


def flags(m, rate, log):
    # The learning rate is nearly constant after the warm-up, so a run is not faster for having a shorter schedule.
    every = max(1, round(64 / m))
    return MODEL + [
        "--micro-batches", str(m), "--learning-rate", f"{rate:.6f}", "--steps", "100000", "--schedule-steps", "100000",
        "--warm-up", "samples:2000", "--validate-every", str(every), "--noise-every", "5", "--log", str(log),
    ]


def lines(path):
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def train(program, m, rate, target, log):
    """Trains until the held-out loss is at most `target`; returns the steps and the seconds of these steps, or None."""
    process = subprocess.Popen([program, *flags(m, rate, log)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    began = time.monotonic()
    reached = None
    while reached is None and process.poll() is None and time.monotonic() - began < LIMIT:
        time.sleep(0.5)
        found = [line for line in lines(log) if "validation_loss" in line and "after_steps" in line]
        reached = next((line["after_steps"] for line in found if line["validation_loss"] <= target), None)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if reached is None:
        return None
    seconds = [line["step_seconds"] for line in lines(log) if "step_seconds" in line and line["step"] < reached]
    return reached, sum(seconds)


def table(results, advice):
    """The sweep beside the predictions of `stageline advise`, as a Markdown table."""
    rows = [
        "| M | seconds | steps | tokens | learning rate | predicted seconds | predicted steps |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for m, found in results.items():
        predicted = re.search(rf"^ *{m} +\d.* (\d+) +\d+ +([\d.]+) s$", advice, re.M)
        steps, seconds = predicted.groups() if predicted else ("", "")
        if found:
            rows.append(f"| {m} | {found[0]:.1f} | {found[1]} | {found[1] * m * TOKENS:,} | {found[2]:.4f} | {seconds} | {steps} |")
        else:
            rows.append(f"| {m} | not in {LIMIT:.0f} | | | | {seconds} | {steps} |")
    return "\n".join(rows) + "\n"


def advised_m(advice):
    """The M that `stageline advise` recommends under the schedule and the P of the run."""
    found = re.findall(r"^(?:recommendation|without that change): (?:no accumulation \()?M = (\d+)", advice, re.M)
    return int(found[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target-loss", type=float, default=2.8)
    parser.add_argument("--most", type=int, default=64)
    parser.add_argument("--table", type=pathlib.Path, help="writes the sweep as a Markdown table to this file")
    parser.add_argument("--release", type=pathlib.Path, default=ROOT / "target/release")
    arguments = parser.parse_args()
    if arguments.most < 8:
        parser.error("--most: give at least 8, because the recommendation is from the log of M = 8")
    program, tool = arguments.release / "examples/gpt", arguments.release / "stageline"
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        m = 1
        while m <= arguments.most:
            rates = [BASE * math.sqrt(m / 8) * rate for rate in RATES]
            runs = [(train(program, m, rate, arguments.target_loss, folder / f"{m}-{rate}.jsonl"), rate) for rate in rates]
            runs = [(seconds, steps, rate) for found, rate in runs if found for steps, seconds in [found]]
            results[m] = min(runs) if runs else None
            if runs:
                seconds, steps, rate = results[m]
                print(f"M = {m:>3}: {seconds:7.1f} s, {steps:>5} steps, {steps * m * TOKENS:>9} tokens, learning rate {rate:.4f}", flush=True)
            else:
                print(f"M = {m:>3}: not reached in {LIMIT:.0f} s", flush=True)
            m *= 2
        if not results[8]:
            sys.exit("M = 8 did not reach the loss: give a higher --target-loss")
        logged = folder / f"8-{results[8][2]}.jsonl"
        advice = subprocess.run([tool, "advise", "--from", logged], capture_output=True, text=True, check=True).stdout
    print(advice)
    if arguments.table:
        arguments.table.write_text(table(results, advice))
    advised = advised_m(advice)
    fastest = min((found[0], m) for m, found in results.items() if found)[1]
    ratio = max(advised / fastest, fastest / advised)
    print(f"fastest in the sweep: M = {fastest}; advised: M = {advised}; a factor of {ratio:g}")
    sys.exit(0 if ratio <= 2 else 1)


if __name__ == "__main__":
    main()
