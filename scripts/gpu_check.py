"""Checks correctness, memory, overhead, bubble and throughput of the example on GPUs; `gpu-check.sh` runs it."""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from checks import Table, flags

# The largest relative difference that losses of one training may have: among cuts on one device, and between devices or
# precisions.
CUTS_AGREE, DEVICES_AGREE = 1e-3, 1e-2
# The largest cost of two stages on one GPU over one stage, and the largest change of peak memory, as shares.
TWO_STAGES_COST, MEMORY_MOVES = 0.05, 0.02


class Checks(Table):
    """The parts of the check, each of which adds rows to the table."""

    def __init__(self, arguments):
        super().__init__()
        self.arguments = arguments
        self.devices = arguments.device.split(",")
        self.first = self.devices[0]
        # Runs start in this folder. Its cubecl.toml makes them keep compiled kernels for the later ones.
        self.folder = tempfile.TemporaryDirectory()
        (Path(self.folder.name) / "cubecl.toml").write_text("[compilation]\ncache = true\n")

    def run(self, **settings):
        """Runs the example and returns the steps in its log. `self.bits` becomes the digest of the trained parameters."""
        program, data, log = Path(self.arguments.program).resolve(), Path(self.arguments.data).resolve(), Path(self.folder.name) / "run.jsonl"
        command = [str(program), *flags(settings), "--log", str(log), "--data", str(data), "--sample", "0"]
        log.unlink(missing_ok=True)
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder.name)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-2000:]}")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        self.bits = lines[-1]["parameters_sha256"]
        return [line for line in lines if "step" in line]

    def correctness(self):
        """Compares losses and bits among cuts, and losses with the CPU's and between bf16 and f32."""
        small = dict(layers=4, width=128, context=128, steps=20 if self.arguments.quick else 200)
        losses = lambda **more: [step["loss"] for step in self.run(**small, **more)]
        apart = lambda one, other: max(abs(a - b) / abs(b) for a, b in zip(one, other, strict=True))
        whole = losses(device=self.first, stages=1)
        bits = self.bits
        for stages in (2, 4):
            off = apart(losses(device=self.arguments.device, stages=stages), whole)
            self.row(f"losses of P = {stages} against P = 1", f"{off:.1e}", f"{CUTS_AGREE:g}", off <= CUTS_AGREE)
            same = self.bits == bits
            self.row(f"trained parameters of P = {stages} and P = 1", "the same bits" if same else "other bits", "the same bits", same)
        on_cpu = losses(device="cpu", stages=1)
        off = apart(whole, on_cpu)
        self.row("losses in f32 against the CPU's", f"{off:.1e}", f"{DEVICES_AGREE:g}", off <= DEVICES_AGREE)
        lower = losses(device=self.first, stages=2, precision="bf16")
        off = abs(statistics.mean(lower[-10:]) / statistics.mean(on_cpu[-10:]) - 1)
        self.row("last ten losses in bf16 against the CPU's in f32", f"{off:.1e}", f"{DEVICES_AGREE:g}", off <= DEVICES_AGREE)

    def memory(self):
        """Checks that peak memory grows neither with M under 1F1B nor with the number of steps."""
        small = dict(layers=4, width=256, context=256, device=self.first, stages=2, synchronise_every=1)
        peaks = lambda steps: [max(worker["peak"] for worker in step["memory"]) for step in steps if "memory" in step]
        few, many = (peaks(self.run(**small, micro_batches=m, steps=6)) for m in (8, 32))
        if not few or not many:
            self.row("memory", "the device does not report it", "", None)
            return
        moves = lambda one, other: abs(other / one - 1)
        off = moves(few[-1], many[-1])
        self.row("peak memory at M = 32 against M = 8 under 1F1B", f"{off:.1%}", f"{MEMORY_MOVES:.0%}", off <= MEMORY_MOVES)
        long = peaks(self.run(**small, micro_batches=8, steps=40 if self.arguments.quick else 500))
        off = moves(long[2], long[-1])
        self.row(f"peak memory after {len(long)} steps", f"{off:.1%}", f"{MEMORY_MOVES:.0%}", off <= MEMORY_MOVES)

    def shape(self):
        """Returns the model and the micro-batch size of the measurements."""
        if self.arguments.quick:
            return dict(layers=4, width=64, context=64, micro_batch_size=2)
        return dict(layers=24, width=1024, context=1024, micro_batch_size=16)

    def rate(self, stages, micro_batches=8, device=None, precision="bf16", **more):
        """Returns the median tokens a second of a run, without its first three steps, and all its steps."""
        steps = self.run(
            **self.shape(), stages=stages, micro_batches=micro_batches, device=device or self.first, precision=precision,
            steps=12, peak_tflops=self.arguments.peak_tflops, **more,
        )
        tokens = statistics.median(step["tokens_per_s"] for step in steps[3:])
        print(f"P = {stages}, M = {micro_batches}: {tokens:.0f} tokens a second", flush=True)
        return tokens, steps

    def throughput(self):
        """Measures tokens a second at P = 1 and P = 2 on one GPU, and compares them with PyTorch."""
        # P = 1 and P = 2 take turns, because other programs may disturb the machine.
        pairs = [[self.rate(stages) for stages in (1, 2)] for _ in range(3)]
        whole, cut = (statistics.median(pair[at][0] for pair in pairs) for at in (0, 1))
        self.row("tokens a second, P = 1", f"{whole:.0f}", "", None)
        utilisation = statistics.median(step["model_flop_utilisation"] for step in pairs[-1][0][1][3:])
        self.row(f"model FLOP utilisation of {self.arguments.peak_tflops:g} TFLOP/s", f"{utilisation:.1%}", "", None)
        cost = statistics.median(pair[0][0] / pair[1][0] - 1 for pair in pairs)
        self.row("P = 2 on one GPU, tokens a second", f"{cut:.0f}", "", None)
        self.row("cost of P = 2 on one GPU over P = 1", f"{cost:.1%}", f"{TWO_STAGES_COST:.0%}", cost <= TWO_STAGES_COST)
        peer = pytorch_rate(self.first, self.shape())
        if peer is None:
            self.row("tokens a second of PyTorch eager", "torch is not installed", "", None)
            return
        self.row("tokens a second of PyTorch eager", f"{peer:.0f}", "", None)
        self.row("tokens a second, as a share of PyTorch's", f"{whole / peer:.2f}", "0.8", whole / peer >= 0.8)

    def bubbles(self):
        """Measures the bubble over several GPUs at three numbers of micro-batches."""
        if len(self.devices) < 2:
            self.row("bubble over several GPUs", "needs several devices", "", None)
            return
        workers = len(self.devices)
        for micro_batches in (workers, 4 * workers, 16 * workers):
            _, steps = self.rate(workers, micro_batches, device=self.arguments.device, synchronise_every=1)
            found, ideal = (statistics.median(step[figure] for step in steps[3:]) for figure in ("bubble", "bubble_ideal"))
            self.row(f"bubble at P = {workers}, M = {micro_batches}", f"{found:.3f}, ideal {ideal:.3f}", "", None)


def hardware():
    """Describes the GPUs, the system and the date, for the head of the table."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().replace("\n", "; ")
    except (OSError, subprocess.CalledProcessError):
        gpus = "no NVIDIA GPU"
    return f"{gpus}; {platform.platform()}, {time.strftime('%Y-%m-%d')}"


def pytorch_rate(device, shape):
    """Returns the tokens a second of the same model and precision in eager PyTorch; None without torch."""
    try:
        import torch
        from torch import nn
        from torch.nn import functional as F
    except ImportError:
        return None
    if device.startswith("cuda") and not torch.cuda.is_available():
        return None
    layers, width, context, batch = (shape[name] for name in ("layers", "width", "context", "micro_batch_size"))
    heads, micro_batches = max(width // 64, 1), 8

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.query_key_value, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            split = self.query_key_value(self.before(x)).view(*x.shape[:2], 3, heads, width // heads)
            attended = F.scaled_dot_product_attention(*split.permute(2, 0, 3, 1, 4), is_causal=True)
            x = x + self.output(attended.transpose(1, 2).reshape(x.shape))
            return x + self.down(F.gelu(self.up(self.between(x))))

    embedding, positions = nn.Embedding(256, width), nn.Embedding(context, width)
    model = nn.ModuleList([embedding, positions, *(Block() for _ in range(layers)), nn.LayerNorm(width), nn.Linear(width, 256, bias=False)])
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(256, (batch, context), device=device)
    kind = device.split(":")[0]

    def step():
        for _ in range(micro_batches):
            with torch.autocast(kind, dtype=torch.bfloat16):
                x = embedding(tokens) + positions.weight
                for layer in model[2:]:
                    x = layer(x)
            (F.cross_entropy(x.float().flatten(0, 1), tokens.flatten(), reduction="sum") / (micro_batches * tokens.numel())).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if kind == "cuda":
            torch.cuda.synchronize()

    def timed():
        start = time.perf_counter()
        step()
        return time.perf_counter() - start

    seconds = statistics.median([timed() for _ in range(12)][3:])
    return micro_batches * tokens.numel() / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0", help="device to check, or a comma-separated list of devices")
    parser.add_argument("--program", default="target/release/examples/gpt")
    parser.add_argument("--data", default="crates", help="text to train on, or folder of texts")
    parser.add_argument("--peak-tflops", type=float, default=989.0, help="peak TFLOP/s of one device in bf16; an H100 or H200 has 989")
    parser.add_argument("--out", default=".")
    parser.add_argument("--quick", action="store_true", help="use small models, to test the script")
    parts = ["correctness", "memory", "throughput", "bubbles"]
    parser.add_argument("--only", nargs="*", default=parts, choices=parts)
    checks = Checks(parser.parse_args())
    for part in checks.arguments.only:
        checks.check(part, getattr(checks, part))
    checks.write(checks.arguments.out, "gpu-check", hardware())
    sys.exit(checks.has_failed())


if __name__ == "__main__":
    main()
