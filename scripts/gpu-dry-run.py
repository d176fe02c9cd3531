#!/usr/bin/env python3
"""Runs the example on emulated GPUs, and checks what it asks of them and which errors it gives when they fail.

    cargo build --release -p stageline-emulated-gpu
    cargo build --release --features cuda --example gpt
    cargo bench --features cuda --bench attention --no-run    # for the part `attention`
    scripts/gpu-dry-run.py [--devices 4] [--ptxas .../bin/ptxas] [--out .] [--quick]

The emulated GPU (tools/emulated-gpu) takes the place of libcuda and libnccl. Streams, events and transfers keep their order,
so that deadlocks show, and accesses to memory that nothing orders. Kernels are compiled as for an H200: CUDA_PATH must name
a CUDA toolkit, or the folder of pip's nvidia-cuda-nvcc that has nvvm/libdevice. --ptxas assembles them as well. The part
`values` runs the kernels on the CPU; the other parts compute nothing. Two of the checks of errors need a machine without a
CUDA driver and without a toolkit in its usual places.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import Table, flags

# The time limit of a run, and the time in which no device makes progress that counts as a deadlock, in seconds.
LIMIT, PATIENCE = 900, 120
# The exit status of the emulated GPU after a deadlock.
DEADLOCK = 86
# The exit status of the example after its watchdog has given up.
STALLED = 3
# The most kernels that may be launched for a layer and a micro-batch, by precision: a little more than there are.
LAUNCHES = dict(bf16=60, f16=60, full=72)
# The largest relative difference that losses and gradient norms may have from those on the CPU, by precision.
VALUES = dict(full=1e-5, bf16=2e-3)
SMALL = dict(layers=4, width=64, context=32, micro_batch_size=2, sample=0)


class DryRun(Table):
    """The parts of the dry run, each of which adds rows to the table."""

    def __init__(self, arguments):
        super().__init__()
        self.arguments = arguments
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        # NCCL has the name that NVIDIA's packages install, which cudarc does not look for by itself.
        for folder, libraries in ((self.folder, ("libcuda.so", "libnccl.so.2")), (self.folder / "without-nccl", ("libcuda.so",))):
            folder.mkdir(exist_ok=True)
            for library in libraries:
                (folder / library).symlink_to(Path(arguments.driver).resolve())
        self.kernels = self.folder / "kernels"

    def start(self, driver=None, cuda_path=None, nccl=True, **settings):
        """Runs the example; returns its error or None, the steps in its log, and the ledger of requests to the devices.

        `self.said` has its output.
        """
        ledger, log = self.folder / "ledger.json", self.folder / "run.jsonl"
        ledger.unlink(missing_ok=True)
        # On the emulated clock all kernels take equally long. The level `full` avoids a comparison of kernels with the
        # best possible time, which that would mislead.
        environment = dict(os.environ, CUBECL_AUTOTUNE_LEVEL="full", RUST_BACKTRACE="0", XDG_CACHE_HOME=str(self.folder))
        if cuda_path:
            # In a cache folder without compiled kernels, because those need no compiler.
            environment.update(CUDA_PATH=cuda_path, XDG_CACHE_HOME=str(self.folder / "no-kernels"))
        if driver is not None:
            files = dict(ledger=ledger, kernels=self.kernels, patience=PATIENCE)
            environment["STAGELINE_EMULATED_GPU"] = ",".join(f"{name}={value}" for name, value in {**files, **driver}.items())
            environment["LD_LIBRARY_PATH"] = str(self.folder if nccl else self.folder / "without-nccl")
        command = [self.arguments.program, *flags({**SMALL, **settings}), "--data", self.arguments.data, "--log", str(log)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return f"did not end within {LIMIT} s", [], {}
        self.said = done.stdout + done.stderr
        asked = json.loads(ledger.read_text()) if ledger.exists() else {}
        if done.returncode == 0:
            steps = [line for line in map(json.loads, log.read_text().splitlines()) if "step" in line]
            return None, steps, asked
        if done.returncode == DEADLOCK:
            return "deadlock: " + done.stderr[-1000:], [], asked
        return f"exit status {done.returncode}: {done.stderr}", [], asked

    def fails(self, what, said, driver=None, status=1, **settings):
        """Runs the example, which must end with one error that contains `said`: a text, or all of several texts."""
        expected = (said,) if isinstance(said, str) else said
        error, _, _ = self.start(driver, **{"steps": 4, **settings})
        ends = [f"exit status {one}" for one in {1, status}]
        held = error is not None and error.split(":")[0] in ends and all(text in error for text in expected)
        last = " ".join((error or "it trained without an error").split())
        bar = f"{', '.join(expected)}, {' or '.join(sorted(ends))}"
        self.row(what, f"one error, {error.split(':')[0]}" if held else last[-300:], bar, held)

    def errors(self):
        """Checks the errors of a driver or device that is missing, unsuitable, or fails in training."""
        one = dict(device="cuda:0", stages=1)
        self.fails("no driver", ("`cuda:0` was not found", "`nvidia-driver`"), **one)
        self.fails("a driver that does not start", ("`cuda:0` was not found", "`nvidia-driver`"), dict(init=803), **one)
        self.fails("a driver that is too old", "supports CUDA 12.4, and this program needs 12.8", dict(version=12040), **one)
        present = "`cuda:2` was not found: cuda finds 2 devices, `cuda:0` to `cuda:1`"
        self.fails("a missing device", present, dict(devices=2), device="cuda:0,cuda:2")
        self.fails("no libdevice", ("libdevice", "`nvidia-cuda-toolkit`"), dict(devices=1), cuda_path="/nonexistent", **one)
        self.fails("a device without memory", "out of device memory", dict(devices=1, memory=1000), **one)
        two = dict(device="cuda:0", stages=2)
        # The second of two runs is counted, because the first one also launches kernels to find the fastest.
        asked = [self.start(dict(devices=1), steps=4, **two)[2] for _ in range(2)][1]
        if not asked:
            raise RuntimeError("a run without any fault fails")
        peak, launches = asked["peaks"]["0"], sum(asked["launched"].values())
        self.fails("a device with too little memory", "out of device memory", dict(devices=1, memory=peak // 3), **two)
        self.fails("a device that fails in training", "stage", dict(devices=1, fault=launches - 500), **two)
        apart = dict(device="cuda:0,cuda:1", stages=2)
        asked = [self.start(dict(devices=2), steps=4, **apart)[2] for _ in range(2)][1]
        # If burn no longer responds, the watchdog ends the run. Its limit is longer than the compilation of the first
        # kernels.
        fault = sum(asked["launched"].values()) - 500
        self.fails("one of two devices that fails in training", "stage", dict(devices=2, fault=fault), STALLED, watchdog=5, **apart)

    def trains(self, what, driver, **settings):
        """Runs the example, which must train without an error, and returns the ledger of its requests."""
        error, steps, asked = self.start(driver, **{"steps": 3, **settings})
        found = error[-600:] if error else f"{len(steps)} steps, {sum(asked['launched'].values())} launches"
        transfers = sum(len(sends) for sends in asked.get("transfers", {}).values()) // 2
        self.row(what, found + (f", {transfers} transfers" if transfers else ""), "completes", error is None)
        races = asked.get("first_races", [])
        if races:
            self.row(f"{what}: unordered memory accesses", f"{asked['races']}, the first: {races[0]}", "none", False)
        return asked

    def cuts(self):
        """Checks that every cut, schedule and number of replicas trains."""
        for precision in ("full", "bf16"):
            for stages in (1, 2, 4):
                self.trains(f"{precision}, P = {stages} on one GPU", dict(devices=1), device="cuda:0", stages=stages, precision=precision)
        count = self.arguments.devices
        devices = ",".join(f"cuda:{index}" for index in range(count))
        workers = {"gpipe": 1, "1f1b": 1, "eager-1f1b": 1, "zb-h1": 1, "interleaved": 2, "zb-v": 2, "dualpipe-v": 2}
        for schedule, chunks in list(workers.items())[: 2 if self.arguments.quick else None]:
            for meeting in (0, 1):
                how = ", host threads waiting for their peers in NCCL" if meeting else ""
                self.trains(
                    f"{schedule} on {count} GPUs{how}", dict(devices=count, meeting=meeting), device=devices, schedule=schedule,
                    stages=count * chunks, layers=2 * count,
                )
        self.trains("2 replicas on 4 GPUs", dict(devices=4), device="cuda:0,cuda:1,cuda:2,cuda:3", stages=2, replicas=2)

    def ways(self):
        """Checks how tensors travel between GPUs, and that the output says so."""
        without = ("NCCL was not found", "`libnccl2`")
        for nccl, said in ((True, ("from GPU to GPU by NCCL (libnccl.so.2)",)), (False, without)):
            what = "with NCCL" if nccl else "without NCCL"
            asked = self.trains(f"2 GPUs {what}", dict(devices=2), nccl=nccl, device="cuda:0,cuda:1", stages=2)
            by_nccl = sum(len(sends) for sends in asked.get("transfers", {}).values())
            expected, missing = ", ".join(said), [text for text in said if text not in self.said]
            self.row(f"{what}: output", f"without {', '.join(missing)}" if missing else expected, expected, not missing)
            self.row(f"{what}: transfers by NCCL", by_nccl, "some" if nccl else "none", (by_nccl > 0) == nccl)

    def values(self):
        """Compares the losses and gradient norms of a few steps with those that the CPU computes by itself."""
        ways = {
            "P = 1": dict(device="cuda:0", stages=1),
            "P = 2 on one GPU": dict(device="cuda:0", stages=2),
            "P = 2 on two GPUs": dict(device="cuda:0,cuda:1", stages=2),
        }
        for precision, bar in VALUES.items():
            same = dict(steps=3, micro_batches=4, precision=precision)
            figures = lambda steps: [step[figure] for step in steps for figure in ("loss", "gradient_norm")]
            error, on_cpu, _ = self.start(device="cpu", stages=1, **same)
            if error:
                raise RuntimeError(error)
            for way, how in list(ways.items())[: 1 if self.arguments.quick else None]:
                driver = dict(devices=how["device"].count(",") + 1, computes=1, memory=4 << 30)
                error, steps, _ = self.start(driver, watchdog=LIMIT, **how, **same)
                if error:
                    self.row(f"{precision}, {way}", error[-600:], "completes", False)
                    continue
                off = max(abs(one - other) / abs(other) for one, other in zip(figures(steps), figures(on_cpu), strict=True))
                self.row(f"losses and norms in {precision}, {way}, against the CPU's", f"{off:.1e}", f"{bar:g}", off <= bar)

    def waits(self):
        """Counts the waits of the host for the device in a step, as the difference between a short and a long run."""
        _, few, many = (self.trains(f"{steps} steps", dict(devices=1), device="cuda:0", stages=2, steps=steps) for steps in (2, 6, 16))
        if few and many:
            names = sorted(name for name in many["waits"] if name.startswith("stage"))
            found = {name: (many["waits"][name] - few["waits"].get(name, 0)) / 10 for name in names}
            told = ", ".join(f"{name} {count:g}" for name, count in found.items())
            self.row("waits for the device in a step", told, "at most 1 a stage", bool(found) and all(0 <= count <= 1 for count in found.values()))
            self.row("launches a step", f"{(sum(many['launched'].values()) - sum(few['launched'].values())) / 10:g}")

    def launches(self):
        """Counts the launches that one more layer adds for one more micro-batch, which leaves out everything else."""
        shape = dict(device="cuda:0", stages=1, width=1024, context=1024, micro_batch_size=8)

        def launched(steps, **more):
            error, _, asked = self.start(dict(devices=1), steps=steps, **shape, **more)
            if error:
                raise RuntimeError(error)
            return sum(asked["launched"].values())

        def launches_a_step(**more):
            # The first four steps are left out, because they choose kernels and show fusion each operation for the
            # first time.
            counts = [launched(steps, **more) for steps in (4, 4, 8)]
            return (counts[2] - counts[1]) / 4

        for precision, bar in LAUNCHES.items():
            count = lambda layers, micro_batches: launches_a_step(layers=layers, micro_batches=micro_batches, precision=precision)
            more = (count(3, 4) - count(2, 4) - count(3, 2) + count(2, 2)) / 2
            self.row(f"launches a layer and micro-batch, in {precision}", f"{more:g}", f"{bar}", more <= bar)
            if precision != "full":
                found = len({path.name.split("_e_")[0] for path in self.kernels.glob(f"tensor_core_attention_*_e_{precision}_*")})
                self.row(f"kernels of attention for tensor cores, in {precision}", f"{found}", "3", found == 3)

    def attention(self):
        """Counts the memory that attention and its backward access, for a head that the FlashAttention kernels, which
        store no scores, support, and for a slightly larger one that they do not support."""

        if not self.arguments.attention:
            how = "give --attention the path of the bench, which `cargo bench --features cuda --bench attention --no-run` prints"
            self.row("memory accessed by attention", f"not run: {how}")
            return

        def accessed(size, precision):
            ledger = self.folder / "attention.json"
            files = dict(devices=1, computes=1, ledger=ledger, patience=PATIENCE)
            environment = dict(os.environ, CUBECL_AUTOTUNE_LEVEL="full", LD_LIBRARY_PATH=str(self.folder), XDG_CACHE_HOME=str(self.folder))
            environment["STAGELINE_EMULATED_GPU"] = ",".join(f"{name}={value}" for name, value in files.items())
            shape = dict(device="cuda:0", length=1024, heads=1, size=size, precision=precision, rounds=0)
            # The second of two runs is counted, because the first one also launches kernels to find the fastest.
            for _ in range(2):
                subprocess.run([self.arguments.attention, *flags(shape)], check=True, env=environment, capture_output=True, timeout=LIMIT)
            return sum(json.loads(ledger.read_text())["accessed"].values())

        for precision in ("full", "bf16"):
            without, composed = accessed(256, precision), accessed(264, precision)
            found = f"{without / 1e6:.1f} MB, with stored scores {composed / 1e6:.1f} MB: {without / composed:.2f}"
            self.row(f"memory accessed by attention and its backward, in {precision}", found, "a third", 3 * without <= composed)

    def memory(self):
        """Checks that the peak of memory grows neither with M under 1F1B nor with the number of steps."""

        def peak(**more):
            asked = self.trains(f"memory at {more}", dict(devices=1), device="cuda:0", stages=2, **more)
            if not asked:
                raise RuntimeError("the run failed")
            return max(asked["peaks"].values())

        peak(micro_batches=8)
        few, many = (peak(micro_batches=count) for count in (8, 32))
        self.row("memory at M = 32 against M = 8 under 1F1B", f"{many / few - 1:.1%}", "2%", many <= 1.02 * few)
        long = peak(micro_batches=8, steps=30)
        self.row("memory after 30 steps against 3", f"{long / few - 1:.1%}", "2%", long <= 1.02 * few)

    def assembles(self):
        """Checks that NVIDIA's assembler accepts every kernel that the runs have compiled."""
        if not self.arguments.ptxas:
            self.row("kernels that assemble", "no --ptxas was given")
            return
        kernels, refused = sorted(self.kernels.glob("*.ptx")), []
        for kernel in kernels:
            command = [self.arguments.ptxas, "--gpu-name", "sm_90a", "--output-file", "/dev/null", str(kernel)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                refused.append(f"{kernel.name}: {done.stderr.splitlines()[0] if done.stderr else done.returncode}")
        found = f"{len(kernels) - len(refused)} of {len(kernels)}" + "".join(f"; {text}" for text in refused[:3])
        self.row("kernels that assemble for sm_90a", found, "all, and at least one", bool(kernels) and not refused)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/examples/gpt")
    parser.add_argument("--driver", default="target/release/libstageline_emulated_gpu.so")
    parser.add_argument("--attention", help="the bench `attention`, which the part of this name runs")
    parser.add_argument("--devices", type=int, default=4, help="number of emulated GPUs")
    parser.add_argument("--data", default="crates", help="text to train on, or folder of texts")
    parser.add_argument("--ptxas", help="path of NVIDIA's assembler, for example that in pip's nvidia-cuda-nvcc")
    parser.add_argument("--out", default=".")
    parser.add_argument("--quick", action="store_true", help="try fewer schedules")
    parts = ["errors", "ways", "cuts", "values", "waits", "launches", "memory", "attention", "assembles"]
    parser.add_argument("--only", nargs="*", default=parts, choices=parts)
    arguments = parser.parse_args()
    run = DryRun(arguments)
    for part in run.arguments.only:
        run.check(part, getattr(run, part))
    run.write(run.arguments.out, "gpu-dry-run", "No GPU: emulated H200s")
    sys.exit(run.has_failed())


if __name__ == "__main__":
    main()
