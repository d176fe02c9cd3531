#!/usr/bin/env python3
"""Measures how long a GPT trains to a held-out loss with M = 1, 2, 4, ... micro-batches, and compares the fastest M with the
one that `stageline advise` recommends from the log of a single run.

Each M is trained at several learning rates, in proportion to the square root of the batch, and counts with its best. Usage:
cargo build --release --example gpt --bin stageline && scripts/accumulation.py [--target-loss L] [--most M] [--stages P]
"""

import argparse
import csv
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
MODEL = "--cores-per-stage 1 --width 64 --layers 4 --context 64 --seed 1".split()
CONTEXT = 64
RATES = [0.5, 1.0, 2.0]  # of BASE x sqrt(samples of a batch / 32)
BASE = 2e-3
LIMIT = 240.0  # seconds of a run that does not reach the loss
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
COLUMNS = ["M", "seconds", "steps", "tokens", "learning rate", "predicted seconds", "predicted steps"]


def flags(shape, m, rate, log):
    # The learning rate is nearly constant after the warm-up, so a run is not faster for having a shorter schedule.
    every = max(1, round(256 / (m * shape.micro_batch_size)))
    return MODEL + [
        "--stages", str(shape.stages), "--micro-batch-size", str(shape.micro_batch_size), "--micro-batches", str(m),
        "--learning-rate", f"{rate:.6f}", "--steps", "100000", "--schedule-steps", "100000", "--warm-up", "samples:2000",
        "--validate-every", str(every), "--noise-every", "5", "--log", str(log),
    ]


def lines(path):
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def train(program, shape, m, rate, target, log):
    """Trains until the held-out loss is at most `target`; returns the steps and the seconds of these steps, or None."""
    process = subprocess.Popen([program, *flags(shape, m, rate, log)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    began = time.monotonic()
    reached = None
    while reached is None and process.poll() is None and time.monotonic() - began < LIMIT:
        time.sleep(0.5)
        found = [line for line in lines(log) if "validation_loss" in line and "after_steps" in line]
        reached = next((line["after_steps"] for line in found if line["validation_loss"] <= target), None)
    ended = process.poll()
    process.send_signal(signal.SIGKILL)
    process.wait()
    if reached is None and ended not in (None, 0):
        sys.exit(f"{program} ended with status {ended}; run it with {' '.join(flags(shape, m, rate, log))}")
    if reached is None:
        return None
    seconds = [line["step_seconds"] for line in lines(log) if "step_seconds" in line and line["step"] < reached]
    return reached, sum(seconds)


def predicted(advice, m):
    """The seconds and the steps that `stageline advise` predicts for a number of micro-batches, or None."""
    found = re.search(rf"^ *{m} +\d.* (\d+) +\d+ +([\d.]+) (s|min|h)$", advice, re.M)
    return found and (float(found[2]) * UNITS[found[3]], int(found[1]))


def noise_scales(advice):
    """The noise scale as `stageline advise` prints it: the median and that at the end, in tokens, or None."""
    found = re.search(r"by its noise scale \(median (.*), at its end (.*)\):$", advice, re.M)
    return found and (found[1], found[2])


def turning_point(results, tokens):
    """The N for which steps in proportion to 1 + N / B fit the measured steps best, relative to each, in tokens."""
    # steps = a + c / B with N = c / a: a linear fit of the two, each equation divided by its steps.
    points = [(1.0 / steps, 1.0 / (m * tokens * steps)) for m, found in results.items() if found for steps in [found[1]]]
    if len(points) < 2:
        return None
    aa, ac, cc = (sum(p[i] * p[j] for p in points) for i, j in [(0, 0), (0, 1), (1, 1)])
    a1, c1 = (sum(p[i] for p in points) for i in (0, 1))
    determinant = aa * cc - ac * ac
    if determinant == 0.0:
        return None
    a, c = (a1 * cc - c1 * ac) / determinant, (c1 * aa - a1 * ac) / determinant
    return c / a if a > 0.0 else math.inf


def rows(results, advice, tokens):
    """The sweep beside the predictions of `stageline advise`, as rows of texts."""
    for m, found in results.items():
        seconds, steps = predicted(advice, m) or ("", "")
        seconds = f"{seconds:.1f}" if steps else ""
        if found:
            yield [m, f"{found[0]:.1f}", found[1], f"{found[1] * m * tokens:,}", f"{found[2]:.4f}", seconds, steps]
        else:
            yield [m, f"not in {LIMIT:.0f}", "", "", "", seconds, steps]


def summary(results, advice, tokens, advised, fastest):
    fit = turning_point(results, tokens)
    # A fit without a turning point has steps that do not depend on M (0) or fall with every M (infinite).
    fit = "none" if fit is None else "beyond all M" if math.isinf(fit) else f"{max(fit, 0.0):,.0f} tokens"
    scales = noise_scales(advice)
    scales = f"median {scales[0]}, at the end {scales[1]}" if scales else "not measured"
    return (
        f"Fastest: M = {fastest}. Recommended: {f'M = {advised}' if advised else 'no M'}. The measured steps fit a turning point of: {fit}. "
        f"Noise scale of the log: {scales}.\n"
    )


def table(results, advice, tokens, text):
    header = [COLUMNS, ["---"] * len(COLUMNS)]
    body = [f"| {' | '.join(map(str, row))} |" for row in [*header, *rows(results, advice, tokens)]]
    return "\n".join(body) + f"\n\n{text}"


def advised_m(advice):
    """The M that `stageline advise` recommends under the schedule and the P of the run; None if there is none."""
    found = re.findall(r"^(?:recommendation|without that change): (?:no accumulation \()?M = (\d+)", advice, re.M)
    return int(found[-1]) if found else None


def sweep(arguments, program, folder):
    results, m = {}, 1
    tokens = CONTEXT * arguments.micro_batch_size
    while m <= arguments.most:
        rates = [BASE * math.sqrt(m * arguments.micro_batch_size / 32) * rate for rate in RATES]
        logs = {rate: folder / f"{m}-{rate}.jsonl" for rate in rates}
        runs = [(train(program, arguments, m, rate, arguments.target_loss, logs[rate]), rate) for rate in rates]
        runs = [(seconds, steps, rate) for found, rate in runs if found for steps, seconds in [found]]
        results[m] = min(runs) if runs else None
        if runs:
            seconds, steps, rate = results[m]
            print(f"M = {m:>3}: {seconds:7.1f} s, {steps:>5} steps, {steps * m * tokens:>9} tokens, learning rate {rate:.4f}", flush=True)
        else:
            print(f"M = {m:>3}: not reached in {LIMIT:.0f} s", flush=True)
        m *= 2
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target-loss", type=float, default=2.8)
    parser.add_argument("--most", type=int, default=64, help="largest M")
    parser.add_argument("--logged", type=int, default=8, help="the M whose log gives the recommendation, a power of two from 2 on")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--micro-batch-size", type=int, default=4, help="samples of 64 bytes")
    parser.add_argument("--table", type=pathlib.Path, help="writes the sweep as a Markdown table to this file")
    parser.add_argument("--csv", type=pathlib.Path, help="writes the sweep as CSV to this file")
    parser.add_argument("--release", type=pathlib.Path, default=ROOT / "target/release")
    arguments = parser.parse_args()
    if arguments.logged < 2 or arguments.logged & (arguments.logged - 1) or arguments.most < arguments.logged:
        parser.error("--logged: give a power of two from 2 to --most")
    program, tool = arguments.release / "examples/gpt", arguments.release / "stageline"
    with tempfile.TemporaryDirectory() as folder:
        results = sweep(arguments, program, pathlib.Path(folder))
        if not results[arguments.logged]:
            sys.exit(f"M = {arguments.logged} did not reach the loss: give a higher --target-loss")
        logged = pathlib.Path(folder) / f"{arguments.logged}-{results[arguments.logged][2]}.jsonl"
        advice = subprocess.run([tool, "advise", "--from", logged], capture_output=True, text=True, check=True).stdout
    print(advice)
    tokens, advised = CONTEXT * arguments.micro_batch_size, advised_m(advice)
    fastest = min((found[0], m) for m, found in results.items() if found)[1]
    text = summary(results, advice, tokens, advised, fastest)
    if arguments.table:
        arguments.table.write_text(table(results, advice, tokens, text))
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows(results, advice, tokens)])
    print(text, end="")
    if advised is None:
        sys.exit("`stageline advise` recommends no M")
    ratio = max(advised / fastest, fastest / advised)
    print(f"fastest in the sweep: M = {fastest}; advised: M = {advised}; a factor of {ratio:g}")
    sys.exit(0 if ratio <= 2 else 1)


if __name__ == "__main__":
    main()
