#!/usr/bin/env python3
"""Measures every figure and table of the book again, and writes them to docs/book/src/figures.

    python3 scripts/book.py [bubble] [throughput] [batch] [sweep] [updates] [recompute]

Without a name it measures all of them, which takes about 25 minutes on two idle cores. It builds the programs first. With
mdBook installed, `mdbook build docs/book` then makes the pages.
"""

import datetime
import json
import math
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs/book/src/figures"
GPT = ROOT / "target/release/examples/gpt"


def build():
    run("cargo", "build", "--locked", "--release", "--example", "gpt", "--bin", "stageline")
    run("cargo", "bench", "--locked", "--no-run", "--bench", "bubble")


def run(*command):
    print("$", *command, flush=True)
    subprocess.run(command, cwd=ROOT, check=True)


def processor():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown processor")
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    vectors = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "no AVX2"
    return f"{model}, {vectors}, {len([line for line in lines if line.startswith('processor')])} cores"


def write(name, text):
    note = f"\n*Measured on {processor()}, {datetime.date.today().isoformat()}.*\n"
    (FIGURES / name).write_text(text.rstrip("\n") + "\n" + note)


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


def bubble():
    bench(
        "paced", ["bubble-p4", "live-p4", "idle-p4-1f1b"], "--kind", "paced", "--stages", "4",
        "--schedules", "1f1b,gpipe,interleaved,zb-h1", "--micro-batches", "1,2,4,8,16,32,64",
    )


MODEL = ["--kind", "cpu", "--stages", "2", "--width", "128", "--layers", "4"]


def throughput():
    bench(
        "throughput", ["throughput-p2", "step-p2"], *MODEL, "--rounds", "21", "--schedules", "1f1b,gpipe,interleaved,zb-h1",
        "--micro-batches", "1,2,3,4,6,8,12,16",
    )


def batch():
    bench(
        "batch", ["throughput-p2", "step-p2"], *MODEL, "--rounds", "9", "--schedules", "1f1b,gpipe,interleaved,zb-h1",
        "--micro-batches", "2,4,8,16,32,64", "--batch", "64",
    )


def sweep():
    with tempfile.TemporaryDirectory() as folder:
        table = pathlib.Path(folder) / "sweep.md"
        # The script fails if the recommendation is off by more than a factor of 2; its table is a result all the same.
        subprocess.run([sys.executable, "scripts/accumulation.py", "--target-loss", "2.8", "--table", table], cwd=ROOT)
        write("sweep.md", table.read_text())


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


def updates():
    """The norms of gradients and updates after 50 steps with M = 1 to 64, at the same learning rate."""
    rows = []
    for optimizer, rate in [("adamw", "1e-3"), ("sgd", "0.1")]:
        for m in [1, 2, 4, 8, 16, 32, 64]:
            steps = logged(
                *"--stages 2 --width 64 --layers 2 --context 64 --micro-batch-size 2 --steps 50 --schedule-steps 100000".split(),
                *"--warm-up 0 --clip 0 --weight-decay 0 --health-every 10 --noise-every 0".split(),
                "--optimizer", optimizer, "--learning-rate", rate, "--micro-batches", str(m),
            )
            health = [step["health"] for step in steps if step.get("health")][1:]
            gradient = statistics.mean(norm(p["gradient_norm"] for p in step) for step in health)
            update = statistics.mean(norm(p["update_ratio"] * p["parameter_norm"] for p in step) for step in health)
            parameters = statistics.mean(norm(p["parameter_norm"] for p in step) for step in health)
            rows.append(
                f"| {optimizer} | {m} | {gradient:.3f} | {update:.4f} | {update / gradient:.4f} | {update / parameters:.1e} |"
                f" {50 * m * 128:,} |"
            )
    header = (
        "| optimizer | M | gradient norm | update norm | update / gradient | update / parameters | tokens in 50 steps |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n"
    )
    write("updates.md", header + "\n".join(rows))


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
            f"| `{policy}` | {1e3 * statistics.median(seconds[policy]):.0f} | {ratio:.2f} | {first:.1f} | {second:.1f} |"
            f" {first / peaks['none'][0]:.2f} |"
        )
    header = (
        "| recomputed | step, ms | step over `none` | peak of stage 0, MB | of stage 1, MB | stage 0 over `none` |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
    )
    write("recompute.md", header + "\n".join(rows))


MEASUREMENTS = [bubble, throughput, batch, sweep, updates, recompute]


def main():
    names = sys.argv[1:] or [measurement.__name__ for measurement in MEASUREMENTS]
    known = {measurement.__name__: measurement for measurement in MEASUREMENTS}
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"{', '.join(unknown)}: give some of {', '.join(known)}")
    FIGURES.mkdir(parents=True, exist_ok=True)
    build()
    for name in names:
        known[name]()


if __name__ == "__main__":
    main()
