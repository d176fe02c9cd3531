#!/usr/bin/env python3
"""Measures the host memory with which a model is loaded onto servers: that of every server, and that of their client.

    cargo build --release --bins --examples --features serve,models
    python3 scripts/build-memory.py --programs target/release [--only gpt,hub] [--transport iroh] [--most 1.2]

Needs Linux. All servers and the client, which is the training program, run on this host. There are two cases:

- `gpt`: the example `gpt` with 16 blocks, cut into eight stages of two blocks, on eight servers. With the default width each
  stage has at least 96 MiB of parameters. The peaks are those until the training says how tensors go over the network, which is
  its first message after the pipeline is built; later it rehearses a step. The costs of the layers are counted before, because
  the log has them: one layer after another is run on the client.
- `hub`: the example `finetune --steps 0` with a folder of the Hugging Face hub, on four servers. The script makes the folder: a
  Llama of 755 MB in f32, with random values, in shards of at most 100 MB. The peaks are those until the program ends. A server
  needs about 28 MiB besides its stage, whatever the size of the stage, so smaller models have larger ratios.

Two peaks are shown of every process. Memory in use (`VmHWM`) includes pages of mapped files, such as the weights and the program
itself, which the kernel drops when memory is short. Memory of its own (`RssAnon`) is what a process has allocated; it is read
every few milliseconds, so a shorter peak can be missed.

The exit status is 1 if a bound is broken. In the case `gpt`, the memory in use of the client is at most `--most` times the
parameters of the largest stage. In the case `hub`, the memory of its own of the client and of each server is.
"""

import argparse
import array
import contextlib
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

from remote_hosts import TRANSPORTS, Programs, end_with_parent, text, wait

MIB = 1 << 20
# Seconds in which a server must begin to listen, and in which a pipeline must be built.
LISTENS, BUILT = 60, 600
# Seconds between two readings of the memory of a process.
BETWEEN = 0.005
BYTES_OF_A_PARAMETER = 4

GPT_BLOCKS = 16
# The first stage has the embeddings and two blocks, the last one two blocks and the head.
GPT_CUT = "0,3,5,7,9,11,13,15"

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816,
    "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 4096,
    "max_position_embeddings": 256, "tie_word_embeddings": False, "dtype": "float32",
}
# Layer 0 is the embeddings, layers 1 to 32 are the attentions and feed-forward parts of 16 blocks, and layer 33 is the head. The
# second stage ends, and the third one begins, with half a block.
LLAMA_CUT = "0,9,18,25"
SHARD = 100_000_000


class Process:
    """A process that ends with this one, with its output in two files, and its peaks of memory so far in bytes."""

    def __init__(self, command, folder, name):
        self.name, self.out, self.err = name, folder / f"{name}.out", folder / f"{name}.err"
        self.in_use = self.own = 0
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, preexec_fn=end_with_parent
            )

    def read_memory(self):
        """Reads the memory of the process, unless it has ended."""
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            figures = dict(re.findall(r"^(VmHWM|RssAnon):\s*(\d+) kB$", status, re.M))
            self.in_use = max(self.in_use, 1024 * int(figures.get("VmHWM", 0)))
            self.own = max(self.own, 1024 * int(figures.get("RssAnon", 0)))

    def printed(self, pattern):
        """Returns the first match of a pattern in the output of the process or its messages, or None before it is there."""
        return re.search(pattern, self.out.read_text() + self.err.read_text(), re.M)

    def end(self):
        self.process.kill()
        self.process.wait()


class Watched:
    """Processes whose memory is read until the body of a `with` ends; the processes end with it, too."""

    def __init__(self, transport, folder):
        self.transport, self.folder, self.processes, self.ended = transport, folder, [], threading.Event()
        self.thread = threading.Thread(target=self.read)

    def read(self):
        while not self.ended.wait(BETWEEN):
            for process in list(self.processes):
                process.read_memory()

    def read_last(self):
        """Reads the memory of all processes for the last time."""
        self.ended.set()
        self.thread.join()
        for process in self.processes:
            process.read_memory()

    def start(self, command, name):
        self.processes.append(Process(command, self.folder, name))
        return self.processes[-1]

    def serve(self, stageline, count):
        """Starts servers and returns the value of `--device` for all of them."""
        flags = f"serve --transport {self.transport} --allow-anyone --port 0 --cores 1"
        keys = [["--key", self.folder / f"key-{number}"] if self.transport == "iroh" else [] for number in range(count)]
        servers = [self.start([stageline, *flags.split(), *key], f"server {number}") for number, key in enumerate(keys)]
        devices = []
        for server in servers:
            listens = lambda: server.printed(r"^--device (\S+)$")  # noqa: E731
            devices.append(wait(listens, LISTENS, f"{server.name} listens", server.process)[1])
        return ",".join(devices)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, error, trace):
        self.ended.set()
        self.thread.join()
        for process in self.processes:
            process.end()
            if error is not None and process.name == "client":
                print(process.err.read_text(), file=sys.stderr)


def described(log):
    """Returns the description of the run in a log, or None before it is written."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return json.loads(lines[0]) if lines and lines[0].endswith("\n") else None


def load_gpt(programs, width, transport, folder):
    """Builds the pipeline of the GPT; returns the processes, the client last, and the bytes of every stage."""
    stages = GPT_CUT.count(",") + 1
    with Watched(transport, folder) as watched:
        devices, log = watched.serve(programs.stageline, stages), folder / "run.jsonl"
        flags = (f"--data {text(folder)} --layers {GPT_BLOCKS} --width {width} --context 32 --stages {stages} --cut {GPT_CUT} "
                 f"--steps 1 --micro-batches {stages} --micro-batch-size 1 --sample 0 --device {devices} --log {log}")
        client = watched.start([programs.gpt, *flags.split()], "client")
        built = lambda: client.printed("tensors go over the network")  # noqa: E731
        wait(built, BUILT, f"the pipeline is built ({client.err})", client.process)
        watched.read_last()
        run = wait(lambda: described(log), BUILT, "the run is described in its log", client.process)
    parameters = Counter()
    for layer in run["layers"]:
        parameters[layer["stage"]] += BYTES_OF_A_PARAMETER * layer["parameters"]
    return watched.processes, [parameters[stage] for stage in range(stages)]


def layers_of_llama():
    """Returns the tensors of every layer of the Llama, as pairs of a name and a shape. Each block is two layers."""
    width, hidden, vocabulary = LLAMA["hidden_size"], LLAMA["intermediate_size"], LLAMA["vocab_size"]
    of_keys = width // LLAMA["num_attention_heads"] * LLAMA["num_key_value_heads"]
    attention = {
        "input_layernorm": [width], "self_attn.q_proj": [width, width], "self_attn.k_proj": [of_keys, width],
        "self_attn.v_proj": [of_keys, width], "self_attn.o_proj": [width, width],
    }
    mlp = {
        "post_attention_layernorm": [width], "mlp.gate_proj": [hidden, width], "mlp.up_proj": [hidden, width],
        "mlp.down_proj": [width, hidden],
    }
    blocks = [
        [(f"model.layers.{index}.{name}.weight", shape) for name, shape in half.items()]
        for index in range(LLAMA["num_hidden_layers"]) for half in (attention, mlp)
    ]
    table = [vocabulary, width]
    head = [("model.norm.weight", [width]), ("lm_head.weight", table)]
    return [[("model.embed_tokens.weight", table)], *blocks, head]


def size(shape):
    """Returns the bytes of a tensor in f32."""
    elements = 1
    for length in shape:
        elements *= length
    return BYTES_OF_A_PARAMETER * elements


def write_tensors(path, tensors, values):
    """Writes a safetensors file whose tensors repeat the bytes `values`."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors:
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size(shape)]}
        end += size(shape)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for start in range(0, end, len(values)):
            file.write(values[: end - start])


def write_llama(folder):
    """Writes the Llama as a folder of the hub, in shards."""
    folder.mkdir()
    shards, bytes_of_last = [[]], 0
    for name, shape in [tensor for layer in layers_of_llama() for tensor in layer]:
        if shards[-1] and bytes_of_last + size(shape) > SHARD:
            shards, bytes_of_last = [*shards, []], 0
        shards[-1].append((name, shape))
        bytes_of_last += size(shape)
    numbers = random.Random(1)
    values = array.array("f", (numbers.gauss(0, 0.02) for _ in range(1 << 18))).tobytes()
    files = {}
    for number, tensors in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_tensors(folder / file, tensors, values)
        files |= {name: file for name, _ in tensors}
    total = sum(size(shape) for shard in shards for _, shape in shard)
    index = {"metadata": {"total_size": total}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(LLAMA))


def load_hub(programs, finetune, transport, folder):
    """Loads the folder of the hub; returns the processes, the client last, and the bytes of every stage."""
    write_llama(folder / "llama")
    firsts = [int(first) for first in LLAMA_CUT.split(",")]
    layers = [sum(size(shape) for _, shape in layer) for layer in layers_of_llama()]
    with Watched(transport, folder) as watched:
        devices = watched.serve(programs.stageline, len(firsts))
        flags = f"--model {folder}/llama --stages {len(firsts)} --cut {LLAMA_CUT} --steps 0 --device {devices}"
        client = watched.start([finetune, *flags.split()], "client")
        try:
            status = client.process.wait(BUILT)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the model was not loaded within {BUILT} s") from None
        if status != 0:
            raise RuntimeError(f"the client ended with status {status}")
        watched.read_last()
    return watched.processes, [sum(layers[first:next]) for first, next in zip(firsts, [*firsts[1:], len(layers)])]


def show(case, processes, stages):
    """Prints the peaks of all processes, and returns the bytes of the largest stage."""
    largest = max(stages)
    print(f"{case}: {sum(stages) / MIB:.0f} MiB of parameters, {min(stages) / MIB:.1f} to {largest / MIB:.1f} MiB a stage")
    for process in processes:
        peaks = [f"{peak / MIB:.0f} MiB ({peak / largest:.2f} of the largest stage)" for peak in (process.in_use, process.own)]
        print(f"  {process.name}: in use {peaks[0]}, of its own {peaks[1]}", flush=True)
    return largest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, required=True, help="folder with `stageline`, `examples/gpt` and `examples/finetune`")
    parser.add_argument("--only", default="gpt,hub", help="cases to measure, of gpt,hub [gpt,hub]")
    parser.add_argument("--transport", choices=TRANSPORTS, default="websocket", help="transport of the servers [websocket]")
    parser.add_argument("--width", type=int, default=1024, help="width of the GPT [1024]")
    parser.add_argument("--most", type=float, default=1.2, help="largest allowed memory, in largest stages [1.2]")
    chosen = parser.parse_args()
    cases = chosen.only.split(",")
    if unknown := set(cases) - {"gpt", "hub"}:
        parser.error(f"--only: unknown cases {', '.join(sorted(unknown))}; known are gpt,hub")
    programs, finetune = Programs(chosen.programs.resolve()), chosen.programs.resolve() / "examples/finetune"
    if "hub" in cases and not finetune.exists():
        sys.exit(f"{finetune} is missing; build it with the command in this script's --help")
    broken = []
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            if case == "gpt":
                processes, stages = load_gpt(programs, chosen.width, chosen.transport, Path(folder))
            else:
                processes, stages = load_hub(programs, finetune, chosen.transport, Path(folder))
            largest = show(case, processes, stages)
            bounded = [(processes[-1], processes[-1].in_use)] if case == "gpt" else [(each, each.own) for each in processes]
            broken += [f"{case}: {process.name}" for process, peak in bounded if peak > chosen.most * largest]
    if broken:
        sys.exit(f"more than {chosen.most} times the largest stage: {', '.join(broken)}")


if __name__ == "__main__":
    main()
