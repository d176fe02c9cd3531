#!/usr/bin/env python3
"""Measures every figure and table of the book again, and writes them to docs/book/src/figures.

    python3 scripts/book.py [NAME ...]

Without a name it measures all of them, which takes about 40 minutes on two idle cores. It builds the programs first. With
mdBook installed, `mdbook build docs/book` then makes the pages. `python3 scripts/book.py --list` prints the names, each with
what it measures.
"""

import csv
import datetime
import json
import math
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

from peers import processor

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs/book/src/figures"
GPT = ROOT / "target/release/examples/gpt"
STAGELINE = ROOT / "target/release/stageline"


def build():
    run("cargo", "build", "--locked", "--release", "--example", "gpt", "--bin", "stageline")
    run("cargo", "bench", "--locked", "--no-run", "--bench", "bubble")


def run(*command):
    print("$", *command, flush=True)
    subprocess.run(command, cwd=ROOT, check=True)


def write(name, text):
    note = f"\n*Measured on {processor()}, {os.cpu_count()} cores, {datetime.date.today().isoformat()}.*\n"
    (FIGURES / name).write_text(text.rstrip("\n") + "\n" + note)


def table(columns, rows):
    """A Markdown table with these columns and rows."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def keep(name, columns, rows, before=""):
    """Writes a table of the book as Markdown, with a text before it, and as CSV."""
    write(f"{name}.md", before + table(columns, rows))
    with (FIGURES / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def points(*flags):
    """Runs the bubble bench, and returns its measurements."""
    with tempfile.TemporaryDirectory() as folder:
        run("cargo", "bench", "--locked", "--bench", "bubble", "--", *flags, "--output", folder)
        return json.loads((pathlib.Path(folder) / "bubble.json").read_text())


def bench(name, pictures, *flags):
    """Runs the bubble bench, and keeps its tables and these of its pictures under the name of the figure."""
    with tempfile.TemporaryDirectory() as folder:
        run("cargo", "bench", "--locked", "--bench", "bubble", "--", *flags, "--output", folder)
        folder = pathlib.Path(folder)
        command = f"`cargo bench --bench bubble -- {' '.join(flags)} --output FOLDER`\n\n"
        write(f"{name}.md", command + (folder / "bubble.md").read_text())
        shutil.copy(folder / "bubble.csv", FIGURES / f"{name}.csv")
        for picture in pictures:
            shutil.copy(folder / f"{picture}.svg", FIGURES / f"{name}-{picture}.svg")
        return json.loads((folder / "bubble.json").read_text())


def bubble():
    """The bubble of four schedules against M, and 1F1B beside GPipe."""
    found = bench(
        "paced", ["bubble-p4", "live-p4", "idle-p4-1f1b"], "--kind", "paced", "--stages", "4",
        "--schedules", "1f1b,gpipe,interleaved,zb-h1", "--micro-batches", "1,2,4,8,16,32,64",
    )
    of = {(point["schedule"], point["micro_batches"]): point for point in found}
    rows = [
        [m, *(f"{number:.4f}" for number in (of["1f1b", m]["bubble_ideal"], of["1f1b", m]["bubble"], of["gpipe", m]["bubble"]))]
        for m in [4, 8, 16, 32, 64]
    ]
    keep("one-f-one-b", ["M", "ideal", "1F1B", "GPipe"], rows)


def stages():
    """The bubble against the number of workers P, at three M."""
    bench("stages", [], "--kind", "paced", "--stages", "2,4,8", "--schedules", "1f1b", "--micro-batches", "8,16,32")


# Every schedule that trains on two workers.
SCHEDULES = "1f1b,eager-1f1b,gpipe,interleaved,looped-breadth-first,zb-h1,zb-h2,zb-v,v-half,v-min,dualpipe-v"
MODEL = ["--kind", "cpu", "--stages", "2", "--width", "128", "--layers", "4"]


def throughput():
    """Throughput against M with micro-batches of a fixed size, beside predictions."""
    bench(
        "throughput", ["throughput-p2", "step-p2"], *MODEL, "--rounds", "9", "--schedules", SCHEDULES,
        "--micro-batches", "1,2,3,4,6,8,12,16,24",
    )


def predictions():
    """Predicted and measured throughput of 1F1B at nine M, with more rounds than the comparison of all schedules."""
    bench("predictions", [], *MODEL, "--rounds", "21", "--schedules", "1f1b", "--micro-batches", "1,2,3,4,6,8,12,16,24")


def batch():
    """Throughput against M with a fixed batch, beside predictions."""
    bench(
        "batch", ["throughput-p2", "step-p2"], *MODEL, "--rounds", "9", "--schedules", "1f1b,gpipe,interleaved,zb-h1",
        "--micro-batches", "1,2,4,8,16,32,64", "--batch", "64",
    )


# One stage on one core, so that the figures show the sizes of the products and nothing of a pipeline.
ALONE = ["--kind", "cpu", "--stages", "1", "--width", "128", "--layers", "4", "--schedules", "1f1b"]


def one_device():
    """Throughput and memory against M on one device, with a fixed batch."""
    flags = [*ALONE, "--rounds", "5", "--micro-batches", "1,2,4,8,16,32,64", "--batch", "64"]
    found = points(*flags)
    whole = found[0]
    rows = [
        [
            point["micro_batches"], point["micro_batch_size"], f"{1e3 * point['step_seconds']:.0f}", f"{point['throughput']:.0f}",
            f"{point['throughput'] / whole['throughput']:.2f}", f"{point['peak_bytes'] / 1e6:.1f}",
        ]
        for point in found
    ]
    columns = ["M", "samples of a micro-batch", "step, ms", "tokens/s", "over M = 1", "peak, MB"]
    keep("one-device", columns, rows, f"`cargo bench --bench bubble -- {' '.join(flags)}`\n\n")


def size():
    """Throughput and memory against the size of a micro-batch, on one device."""
    found = []
    for samples in [1, 2, 4, 8, 16, 32]:
        found += points(*ALONE, "--rounds", "5", "--micro-batches", "4", "--micro-batch-size", str(samples))
    most = max(point["throughput"] for point in found)
    rows = [
        [point["micro_batch_size"], f"{point['throughput']:.0f}", f"{point['throughput'] / most:.2f}", f"{point['peak_bytes'] / 1e6:.1f}"]
        for point in found
    ]
    write("size.md", table(["samples of a micro-batch", "tokens/s", "over the highest", "peak, MB"], rows))


def to_a_loss(name, *flags):
    with tempfile.TemporaryDirectory() as folder:
        markdown, numbers = pathlib.Path(folder) / "sweep.md", pathlib.Path(folder) / "sweep.csv"
        command = ["scripts/accumulation.py", *flags]
        # The script fails if the recommendation is off by more than a factor of 2; its table is a result all the same.
        subprocess.run([sys.executable, *command, "--table", markdown, "--csv", numbers], cwd=ROOT)
        write(f"{name}.md", f"`{' '.join(command)}`\n\n" + markdown.read_text())
        shutil.copy(numbers, FIGURES / f"{name}.csv")


def sweep():
    """The time to a held-out loss with M = 1 to 64, beside the recommendation."""
    to_a_loss("sweep", "--target-loss", "2.8")


def alone():
    """The time to a held-out loss on one stage, with micro-batches above the noise scale: accumulate or not."""
    to_a_loss("alone", "--target-loss", "2.8", "--stages", "1", "--micro-batch-size", "32", "--most", "4", "--logged", "2")


def records(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def logged(*flags):
    """Trains the example's GPT with these flags, and returns the records of its steps."""
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "run.jsonl"
        run(str(GPT), *flags, "--log", str(log))
        return [record for record in records(log) if "step_seconds" in record]


def norm(numbers):
    return math.sqrt(sum(number * number for number in numbers))


SMALL = "--stages 2 --width 64 --layers 2 --context 64 --micro-batch-size 2 --schedule-steps 100000 --warm-up 0".split()


def updates():
    """The norms of gradients and updates after 50 steps with M = 1 to 64, at the same learning rate."""
    rows = []
    for optimizer, rate in [("adamw", "1e-3"), ("sgd", "0.1")]:
        for m in [1, 2, 4, 8, 16, 32, 64]:
            steps = logged(
                *SMALL, *"--steps 50 --clip 0 --weight-decay 0 --health-every 10 --noise-every 0".split(),
                "--optimizer", optimizer, "--learning-rate", rate, "--micro-batches", str(m),
            )
            health = [step["health"] for step in steps if step.get("health")][1:]
            gradient = statistics.mean(norm(p["gradient_norm"] for p in step) for step in health)
            update = statistics.mean(norm(p["update_ratio"] * p["parameter_norm"] for p in step) for step in health)
            parameters = statistics.mean(norm(p["parameter_norm"] for p in step) for step in health)
            figures = [f"{gradient:.3f}", f"{update:.4f}", f"{update / gradient:.4f}", f"{update / parameters:.1e}"]
            rows.append([optimizer, m, *figures, f"{50 * m * 128:,}"])
    columns = ["optimizer", "M", "gradient norm", "update norm", "update / gradient", "update / parameters", "tokens in 50 steps"]
    write("updates.md", table(columns, rows))


def clipping():
    """How often the gradient norm exceeds a bound with M = 1 to 64: the median norm at M = 1."""
    rows, bound = [], None
    for m in [1, 2, 4, 8, 16, 32, 64]:
        steps = logged(*SMALL, "--steps", "110", "--clip", "0", "--noise-every", "0", "--learning-rate", "1e-3", "--micro-batches", str(m))
        norms = [step["gradient_norm"] for step in steps[10:]]
        bound = bound or statistics.median(norms)
        above = sum(found > bound for found in norms) / len(norms)
        rows.append([m, f"{statistics.median(norms):.3f}", f"{max(norms):.3f}", f"{100 * above:.0f}%"])
    columns = ["M", "median norm", "largest norm", f"steps whose norm is above {bound:.3f}"]
    write("clipping.md", table(columns, rows))


def tested(name, test):
    """Runs a measurement that is a test of the book, and keeps the table that it prints."""
    command = ["cargo", "test", "--locked", "--release", "--test", "book", test, "--", "--nocapture"]
    print("$", *command, flush=True)
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    # With one thread, the first line of the table stands behind the name of the test.
    lines = re.findall(r"(?:^|\.\.\. )(\|.*\|)$", output, re.M)
    if len(lines) < 3:
        sys.exit(f"the test `{test}` printed no table:\n{output}")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    keep(name, cells[0], cells[2:], f"`{' '.join(command)}`\n\n")


def momentum():
    """The update over the gradient under a momentum of 0.9 with M = 1 to 64, beside its closed form."""
    tested("momentum", "momentum::")


def batch_norm():
    """Gradients and running statistics of models with a batch norm and with a layer norm against M."""
    tested("batch-norm", "batch_norm::")


def memory():
    """The peak memory of the workers under 1F1B and GPipe."""
    rows = []
    for schedule in ["1f1b", "gpipe"]:
        steps = logged(
            *"--stages 2 --width 256 --layers 4 --micro-batch-size 4 --micro-batches 8 --steps 4 --noise-every 0 --schedule".split(),
            schedule,
        )
        rows.append([schedule, *(f"{worker['peak'] / 1e6:.1f}" for worker in steps[-1]["memory"])])
    columns = ["schedule", "peak of stage 0, MB", "of stage 1, MB"]
    keep("memory", columns, rows)


def recompute():
    """Step time and memory of each granularity of recomputation, in turn."""
    policies = ["none", "selective", "feed-forward", "every:2", "sqrt", "full"]
    seconds, peaks = {policy: [] for policy in policies}, {}
    for _ in range(4):
        for policy in policies:
            steps = logged(
                *"--stages 2 --width 128 --layers 16 --context 128 --micro-batch-size 4 --micro-batches 4 --steps 8".split(),
                *"--noise-every 0 --recompute".split(), policy,
            )
            seconds[policy].append(statistics.median(step["step_seconds"] for step in steps[2:]))
            peaks[policy] = [worker["peak"] / 1e6 for worker in steps[-1]["memory"]]
    rows = []
    for policy in policies:
        ratio = statistics.median(one / none for one, none in zip(seconds[policy], seconds["none"]))
        first, second = peaks[policy]
        rows.append(
            [
                f"`{policy}`", f"{1e3 * statistics.median(seconds[policy]):.0f}", f"{ratio:.2f}", f"{first:.1f}", f"{second:.1f}",
                f"{first / peaks['none'][0]:.2f}",
            ]
        )
    columns = ["recomputed", "step, ms", "step over `none`", "peak of stage 0, MB", "of stage 1, MB", "stage 0 over `none`"]
    write("recompute.md", table(columns, rows))


def simulated():
    """The bubble and the causes of idle time of equal and of unequal stages, simulated: the same on every machine."""
    texts = []
    for costs, transfer in [("5", ""), ("5,5,5,6", " --transfer 0.5")]:
        flags = f"simulate --stages 4 --micro-batches 8 --forward {costs} --input-grad {costs} --weight-grad {costs}{transfer}"
        printed = subprocess.run([STAGELINE, *flags.split()], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        texts.append(f"```text\n$ stageline {flags}\n{printed}```\n")
    (FIGURES / "simulated.md").write_text("\n".join(texts))


def read(name):
    """The rows of a figure's CSV file by column; empty if it was not measured."""
    path = FIGURES / f"{name}.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def contradictions():
    """The advice that the measured figures contradict, in one table."""
    rows = [
        [
            '["divide the loss of each micro-batch by M"](https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation)',
            "in an example that we chose, with 4 targets in one micro-batch and 1 in the other, the loss is 13 instead of 5.8"
            " ([weights](weights.md))",
        ]
    ]
    bubbles = {int(row["M"]): row for row in read("one-f-one-b")}
    peaks = {row["schedule"]: float(row["peak of stage 0, MB"]) for row in read("memory")}
    if bubbles and peaks:
        rows.append(
            [
                '1F1B has a ["smaller bubble than GPipe"](https://github.com/jdinalt/forgather/blob/6d6cabf04f67d531392642d96e3881769dedf318'
                "/docs/trainers/pipeline-parallel.md)",
                f"at P = 4 and M = 8: {bubbles[8]['1F1B']} and {bubbles[8]['GPipe']}; what it saves is memory,"
                f" {peaks['1f1b']:.0f} instead of {peaks['gpipe']:.0f} MB ([1F1B](one-f-one-b.md))",
            ]
        )
    reached = [(float(row["seconds"]), int(row["M"])) for row in read("sweep") if row["steps"]]
    if reached:
        (fastest, m), (slowest, most) = min(reached), max(reached, key=lambda found: found[1])
        rows.append(
            ['make M as large as you can', f"M = {most} took {slowest:.1f} s to a loss that M = {m} reached in {fastest:.1f} s ([M](how-large.md))"]
        )
    ratios = {int(row["M"]): float(row["update / (rate x gradient)"]) for row in read("momentum")}
    if ratios:
        rows.append(
            [
                'accumulation dilutes momentum',
                f"with a momentum of 0.9, the update over the gradient rises from {ratios[1]:.1f} at M = 1 to {ratios[64]:.1f} at M = 64"
                " ([momentum](momentum.md))",
            ]
        )
    fixed = {int(row["micro_batches"]): float(row["throughput"]) for row in read("batch") if row["schedule"] == "1f1b"}
    speeds = {int(row["M"]): float(row["over M = 1"]) for row in read("one-device")}
    if fixed and speeds:
        rows.append(
            [
                'accumulation ["doesn\'t improve throughput over training with a true large batch"]'
                "(https://huggingface.co/docs/transformers/en/grad_accumulation)",
                f"true on one device, where M = {max(speeds)} has {speeds[max(speeds)]:.2f} of the throughput of M = 1; with the same batch on two"
                f" stages, M = 16 has {fixed[16] / fixed[1]:.2f} times that of M = 1 ([accumulation](accumulation.md))",
            ]
        )
    (FIGURES / "contradictions.md").write_text(table(["advice", "what we measured"], rows) + "\n")


MEASUREMENTS = [
    bubble, stages, throughput, predictions, batch, one_device, size, sweep, alone, updates, clipping, momentum, batch_norm, memory, recompute,
    simulated, contradictions,
]


def main():
    known = {measurement.__name__: measurement for measurement in MEASUREMENTS}
    if sys.argv[1:] == ["--list"]:
        print("\n".join(f"{name:<15} {measurement.__doc__}" for name, measurement in known.items()))
        return
    names = sys.argv[1:] or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"{', '.join(unknown)}: give some of {', '.join(known)}")
    FIGURES.mkdir(parents=True, exist_ok=True)
    if names != ["contradictions"]:
        build()
    for name in names:
        known[name]()


if __name__ == "__main__":
    main()
