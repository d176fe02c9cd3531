#!/usr/bin/env python3
"""Measures how long a training takes to a held-out loss with M = 1, 2, 4, ... micro-batches, and compares the fastest M with
those that `stageline advise` recommends from the logs of these trainings.

Usage: cargo build --release --example gpt --bin stageline && scripts/accumulation.py [--target-loss L] [--most M] [--stages P]

The training is that of the example's GPT, or with --program and --flags that of another program of stageline-train. Each M
counts with its best learning rate: rates in steps of a factor of 2 are tried until the best one has a rate on both sides that
is not better. All M have the same warm-up in samples.
"""

import argparse
import csv
import dataclasses
import json
import math
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
GPT = "--width 64 --layers 4 --context 64"
# The learning rate is nearly constant after the warm-up, so a run is not faster for having a shorter schedule.
COMMON = "--cores-per-stage 1 --steps 100000 --schedule-steps 100000 --noise-every 5".split()
EVALUATED = 96  # samples of training between two evaluations with M = 1
KNOWN = 0.05  # the share of the steps within which the step of the loss is to be known
LIMIT = 240.0  # seconds of a run that does not reach the loss
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


@dataclasses.dataclass
class Training:
    """A training with one learning rate and one seed; without reaching the loss, `steps` and `seconds` are infinite."""

    rate: float
    log: pathlib.Path
    steps: float = math.inf
    seconds: float = math.inf


@dataclasses.dataclass
class Result:
    """The trainings of one M that reached the loss, and those with its best learning rate, one for each seed."""

    reached: list
    best: list
    tried: int  # learning rates
    place: str  # of the best rate among those tried: interior, lowest or highest
    every: int  # steps between two evaluations

    def steps(self):
        return statistics.median(training.steps for training in self.best) if self.best else math.inf

    def seconds(self):
        return statistics.median(training.seconds for training in self.best) if self.best else math.inf

    def spread(self):
        return f"{min(training.seconds for training in self.best):.1f} to {max(training.seconds for training in self.best):.1f}"

    def rate(self):
        return f"{self.place}, {self.tried} tried"


def command(arguments, m, every, rate, seed, log):
    return [
        str(arguments.program), *shlex.split(arguments.flags), *COMMON, "--stages", str(arguments.stages),
        "--micro-batch-size", str(arguments.micro_batch_size), "--micro-batches", str(m), "--learning-rate", f"{rate:.6g}",
        "--warm-up", f"samples:{arguments.warm_up_samples}", "--validate-every", str(every), "--seed", str(seed), "--log", str(log),
    ]


def new_lines(log, offset):
    """The complete lines of a log from an offset on, parsed, and the offset behind them."""
    if not log.exists():
        return [], offset
    with log.open("rb") as file:
        file.seek(offset)
        data = file.read()
    end = data.rfind(b"\n") + 1
    return [json.loads(line) for line in data[:end].splitlines()], offset + end


def reaches(loss, target):
    # A loss that is not finite is null in the log.
    return loss is not None and loss <= target


def train(arguments, m, every, rate, seed, folder, most_steps=math.inf):
    """Trains until the held-out loss is at most the target, or until that is not possible in `most_steps` any more."""
    log = folder / f"{m}-{rate:.6g}-{seed}.jsonl"
    program = command(arguments, m, every, rate, seed, log)
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    began, offset, ended, times, reached = time.monotonic(), 0, None, {}, math.inf
    try:
        while ended is None and math.isinf(reached) and len(times) <= most_steps and time.monotonic() - began < LIMIT:
            time.sleep(0.2)
            # The state is read before the log, so that no line of a process that has ended is missed.
            ended = process.poll()
            lines, offset = new_lines(log, offset)
            times.update((line["step"], line["step_seconds"]) for line in lines if "step_seconds" in line)
            evaluated = [line for line in lines if "after_steps" in line]
            reached = next((line["after_steps"] for line in evaluated if reaches(line["validation_loss"], arguments.target_loss)), math.inf)
    finally:
        process.kill()
        process.wait()
    if reached <= most_steps and not math.isinf(reached):
        return Training(rate, log, reached, sum(seconds for step, seconds in times.items() if step < reached))
    if ended and not times:
        sys.exit(f"{arguments.program} ended with status {ended}; run it with {shlex.join(program[1:])}")
    if ended:
        print(f"M = {m}, learning rate {rate:.2g}: ended with status {ended}, which counts as a loss that is not reached", flush=True)
    return Training(rate, log)


def best_power(found):
    """The power of 2 whose learning rate took the fewest steps, of equal ones one that has others on both sides, or None."""
    fewest = min(training.steps for training in found.values())
    if math.isinf(fewest):
        return None
    equal = [power for power, training in found.items() if training.steps == fewest]
    return next((power for power in equal if {power - 1, power + 1} <= found.keys()), equal[0])


def search(arguments, m, every, middle, folder):
    """Trains with learning rates around `middle`, and with more beyond the best one while it is the lowest or the highest."""
    found, untried = {}, [0, 1, -1]
    while untried:
        power = untried.pop(0)
        fewest = min((training.steps for training in found.values()), default=math.inf)
        found[power] = train(arguments, m, every, middle * 2.0**power, 1, folder, fewest)
        best = best_power(found)
        if not untried and best is not None and len(found) < 3 + arguments.extensions:
            untried = [power for power in (best - 1, best + 1) if power not in found]
    reached = [training for training in found.values() if not math.isinf(training.steps)]
    if best is None:
        return Result(reached, [], len(found), "none", every)
    place = "lowest" if best == min(found) else "highest" if best == max(found) else "interior"
    others = [train(arguments, m, every, found[best].rate, seed, folder) for seed in range(2, arguments.seeds + 1)]
    reached += [training for training in others if not math.isinf(training.steps)]
    return Result(reached, [found[best], *others], len(found), place, every)


def sweep(arguments, folder):
    results, m, middle = {}, 1, arguments.learning_rate * math.sqrt(arguments.micro_batch_size / 32)
    every = max(1, round(EVALUATED / arguments.micro_batch_size))
    while m <= arguments.most:
        found = results[m] = search(arguments, m, every, middle, folder)
        middle = found.best[0].rate if found.best else middle
        if math.isinf(found.seconds()):
            print(f"M = {m:>3}: not reached", flush=True)
        else:
            seconds = f"{found.seconds():7.1f} s" + (f" ({found.spread()})" if arguments.seeds > 1 else "")
            print(f"M = {m:>3}: {seconds}, {found.steps():>5.0f} steps, learning rate {middle:.2g} ({found.rate()})", flush=True)
        # Twice the batch needs at least half of the steps.
        least = found.steps() / 2.0
        every = max(1, every // 2 if math.isinf(least) else round(KNOWN * least))
        m, middle = 2 * m, middle * math.sqrt(2.0)
    return results


def advise(arguments, log):
    return subprocess.run([arguments.release / "stageline", "advise", "--from", log], capture_output=True, text=True, check=True).stdout


def predicted(advice, m):
    """The seconds and the steps that `stageline advise` predicts for a number of micro-batches, or None."""
    found = re.search(rf"^ *{m} +\d.* (\d+) +\d+ +([\d.]+) (s|min|h)$", advice, re.M)
    return found and (float(found[2]) * UNITS[found[3]], int(found[1]))


def noise_scales(advice):
    """The noise scale as `stageline advise` prints it: the median and that at the end, in tokens, or None."""
    found = re.search(r"by its noise scale \(median (.*), at its end (.*)\):$", advice, re.M)
    return found and (found[1], found[2])


def advised_m(advice):
    """The M that `stageline advise` recommends under the schedule and the P of the run; None if there is none."""
    found = re.findall(r"^(?:recommendation|without that change): (?:no accumulation \()?M = (\d+)", advice, re.M)
    return int(found[-1]) if found else None


def turning_point(results, tokens):
    """The N for which steps in proportion to 1 + N / B fit the measured steps best, relative to each, in tokens."""
    # steps = a + c / B with N = c / a: a linear fit of the two, each equation divided by its steps.
    steps = {m: found.steps() for m, found in results.items() if not math.isinf(found.steps())}
    points = [(1.0 / found, 1.0 / (m * tokens * found)) for m, found in steps.items()]
    if len(points) < 2:
        return None
    aa, ac, cc = (sum(p[i] * p[j] for p in points) for i, j in [(0, 0), (0, 1), (1, 1)])
    a1, c1 = (sum(p[i] for p in points) for i in (0, 1))
    determinant = aa * cc - ac * ac
    if determinant == 0.0:
        return None
    a, c = (a1 * cc - c1 * ac) / determinant, (c1 * aa - a1 * ac) / determinant
    return c / a if a > 0.0 else math.inf


def columns(arguments):
    spread = [f"of {arguments.seeds} seeds"] if arguments.seeds > 1 else []
    return [
        "M", "seconds", *spread, "steps", "tokens", "learning rate", "best rate", "predicted seconds", "predicted steps",
        "M recommended by its log", "over the fastest M",
    ]


def rows(arguments, results, advice, recommended, tokens, fastest):
    """The sweep beside the predictions and the recommendations of `stageline advise`, as rows of texts."""
    for m, found in results.items():
        seconds, steps = predicted(advice, m) or ("", "")
        seconds = f"{seconds:.1f}" if steps else ""
        spread = 1 if arguments.seeds > 1 else 0
        if math.isinf(found.seconds()):
            yield [m, "not reached", *[""] * (4 + spread), seconds, steps, "", ""]
            continue
        advised = recommended.get(found.best[0].log)
        yield [
            m, f"{found.seconds():.1f}", *[found.spread()] * spread, f"{found.steps():.0f}", f"{found.steps() * m * tokens:,.0f}",
            f"{found.best[0].rate:.2g}", found.rate(), seconds, steps, advised or "", f"{advised / fastest:g}" if advised else "",
        ]


def summary(arguments, results, advice, recommended, tokens, fastest):
    fit = turning_point(results, tokens)
    # A fit without a turning point has steps that do not depend on M (0) or fall with every M (infinite).
    fit = "none" if fit is None else "beyond all M" if math.isinf(fit) else f"{max(fit, 0.0):,.0f} tokens"
    scales = noise_scales(advice)
    scales = f"median {scales[0]}, at the end {scales[1]}" if scales else "not measured"
    equal = [str(m) for m, found in results.items() if found.seconds() <= 1.1 * results[fastest].seconds()]
    known = max(found.every / training.steps for found in results.values() for training in found.best)
    advised = advised_m(advice)
    advised = f"M = {advised}" if advised else "no M"
    close = [max(m / fastest, fastest / m) <= 2.0 for m in recommended.values() if m]
    return (
        f"Fastest: M = {fastest}; at most 10% slower: M = {', '.join(equal)}. The step of the loss is known within {known:.0%}. "
        f"Recommended by the log of M = {arguments.logged}: {advised}. Of all {len(recommended)} logs with M = 2 or more that reached the loss, "
        f"at every learning rate, {len(close)} have a recommendation, and {sum(close)} one within a factor of 2 of the fastest. "
        f"The measured steps fit a turning point of: {fit}. Noise scale of the log of M = {arguments.logged}: {scales}.\n"
    )


def write(arguments, body, text):
    if arguments.table:
        lines = [body[0], ["---"] * len(body[0]), *body[1:]]
        arguments.table.write_text("\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + f"\n\n{text}")
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            csv.writer(file).writerows(body)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target-loss", type=float, default=2.8)
    parser.add_argument("--most", type=int, default=64, help="largest M")
    parser.add_argument("--logged", type=int, default=8, help="the M whose log gives the predictions, a power of two from 2 on")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--micro-batch-size", type=int, default=4, help="samples of a micro-batch")
    parser.add_argument("--warm-up-samples", type=int, default=200, help="samples over which the learning rate rises, for every M")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="first rate, for a batch of 32 samples")
    parser.add_argument("--extensions", type=int, default=4, help="learning rates of each M beyond the first three, at most")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each M with its best rate; medians and their spread are printed")
    parser.add_argument("--program", type=pathlib.Path, help="a training program of stageline-train, instead of the example's GPT")
    parser.add_argument("--flags", help=f'flags of the model, as in --flags="{GPT}", which is that of the GPT')
    parser.add_argument("--table", type=pathlib.Path, help="writes the sweep as a Markdown table to this file")
    parser.add_argument("--csv", type=pathlib.Path, help="writes the sweep as CSV to this file")
    parser.add_argument("--release", type=pathlib.Path, default=ROOT / "target/release", help="folder of the built programs")
    arguments = parser.parse_args()
    if arguments.logged < 2 or arguments.logged & (arguments.logged - 1) or arguments.most < arguments.logged:
        parser.error("--logged: give a power of two from 2 to --most")
    if arguments.seeds < 1 or arguments.extensions < 0 or arguments.warm_up_samples < 0:
        parser.error("give 1 or more --seeds, and 0 or more --extensions and --warm-up-samples")
    if arguments.flags is None:
        arguments.flags = "" if arguments.program else GPT
    arguments.program = arguments.program or arguments.release / "examples/gpt"
    return arguments


def main():
    arguments = parse()
    with tempfile.TemporaryDirectory() as folder:
        results = sweep(arguments, pathlib.Path(folder))
        if not results[arguments.logged].best:
            sys.exit(f"M = {arguments.logged} did not reach the loss: give a higher --target-loss")
        logged = results[arguments.logged].best[0].log
        # A run with M = 1 cannot measure the noise.
        logs = [(m, training) for m, found in results.items() if m > 1 for training in found.reached]
        advices = {training.log: advise(arguments, training.log) for _, training in logs}
        tokens = new_lines(logged, 0)[0][0]["tokens_per_micro_batch"]
    print(advices[logged])
    recommended = {log: advised_m(advice) for log, advice in advices.items()}
    fastest = min(results, key=lambda m: results[m].seconds())
    for m, training in logs:
        advised = recommended[training.log]
        found = f"M = {advised}, {advised / fastest:g} times the fastest" if advised else "no M"
        print(f"recommended by the log of M = {m} with a learning rate of {training.rate:.2g}: {found}")
    body = [columns(arguments), *rows(arguments, results, advices[logged], recommended, tokens, fastest)]
    text = summary(arguments, results, advices[logged], recommended, tokens, fastest)
    write(arguments, body, text)
    print(text, end="")
    advised = recommended[logged]
    if advised is None:
        sys.exit("`stageline advise` recommends no M")
    ratio = max(advised / fastest, fastest / advised)
    print(f"fastest in the sweep: M = {fastest}; advised: M = {advised}; a factor of {ratio:g}")
    sys.exit(0 if ratio <= 2 else 1)


if __name__ == "__main__":
    main()
