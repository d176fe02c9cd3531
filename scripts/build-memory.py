#!/usr/bin/env python3
"""Measures the host memory with which a pipeline of eight stages on eight servers is built.

    cargo build --release --bins --examples --features serve
    python scripts/build-memory.py --programs target/release [--most 1.2]

Needs Linux. Eight servers and the training run on this host. The model is a GPT of 16 blocks, cut into eight stages of two
blocks; with the default width each stage has at least 96 MiB of parameters. The peaks are `VmHWM` of each process, read when the
training prints its first line after the pipeline is built. The training is then ended. The exit status is 1 if the peak of the
training, which is the client of the servers, is more than `--most` times the parameters of the largest stage.

The costs of the layers are counted before, because the log has them: one layer after another is run on the client.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from remote_hosts import Programs, end_with_parent, text, wait

SERVERS, BLOCKS = 8, 16
# The first stage has the embeddings and two blocks, the last one two blocks and the head.
CUT = "0,3,5,7,9,11,13,15"
MIB = 1 << 20
# Seconds in which a server must begin to listen, and in which the pipeline must be built.
LISTENS, BUILT = 60, 600
BYTES_OF_A_PARAMETER = 4


def start(command, folder, name):
    """Starts a process that ends with this one, with its output in two files of the folder."""
    with open(folder / f"{name}.out", "wb") as out, open(folder / f"{name}.err", "wb") as err:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, preexec_fn=end_with_parent)


def peak(process):
    """Returns the peak of a process's resident memory so far, in bytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(re.search(r"^VmHWM:\s*(\d+) kB$", status, re.M)[1])


def printed(folder, name, pattern):
    """Returns the first match of a pattern in the output of a process, or None before it is there."""
    return re.search(pattern, (folder / f"{name}.out").read_text(), re.M)


def described(log):
    """Returns the description of the run in a log, or None before it is written."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return json.loads(lines[0]) if lines and lines[0].endswith("\n") else None


def built(programs, width, folder):
    """Builds the pipeline, and returns the peaks of the client and of the servers, and the bytes of every stage."""
    processes = []
    try:
        servers = {}
        for number in range(SERVERS):
            flags = "serve --transport websocket --allow-anyone --port 0 --cores 1"
            servers[f"server-{number}"] = start([programs.stageline, *flags.split()], folder, f"server-{number}")
            processes.append(servers[f"server-{number}"])
        devices = []
        for name, server in servers.items():
            listens = wait(lambda: printed(folder, name, r"^--device (\S+)$"), LISTENS, f"{name} listens", server)
            devices.append(listens[1])
        log = folder / "run.jsonl"
        flags = (f"--data {text(folder)} --layers {BLOCKS} --width {width} --context 32 --stages {SERVERS} --cut {CUT} --steps 1 "
                 f"--micro-batches {SERVERS} --micro-batch-size 1 --sample 0 --device {','.join(devices)} --log {log}")
        client = start([programs.gpt, *flags.split()], folder, "client")
        processes.append(client)
        # These lines are the first ones after the pipeline is built.
        first = r"^(the network between stages|validation:)"
        wait(lambda: printed(folder, "client", first), BUILT, f"the pipeline is built ({folder / 'client.err'})", client)
        peaks = peak(client), [peak(server) for server in servers.values()]
        run = wait(lambda: described(log), BUILT, "the run is described in its log", client)
        stages = Counter()
        for layer in run["layers"]:
            stages[layer["stage"]] += BYTES_OF_A_PARAMETER * layer["parameters"]
        return *peaks, [stages[stage] for stage in range(SERVERS)]
    except Exception:
        print((folder / "client.err").read_text() if (folder / "client.err").exists() else "", file=sys.stderr)
        raise
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, required=True, help="folder with `stageline` and `examples/gpt`")
    parser.add_argument("--width", type=int, default=1024, help="width of the GPT [1024]")
    parser.add_argument("--most", type=float, default=1.2, help="largest allowed peak of the client, in largest stages [1.2]")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        client, servers, stages = built(Programs(chosen.programs.resolve()), chosen.width, Path(folder))
    largest = max(stages)
    print(f"parameters: {sum(stages) / MIB:.0f} MiB, {min(stages) / MIB:.1f} to {largest / MIB:.1f} MiB a stage")
    print(f"client: peak {client / MIB:.0f} MiB, {client / largest:.2f} times the largest stage")
    shown = ", ".join(f"{server / largest:.2f}" for server in servers)
    print(f"servers: peaks {min(servers) / MIB:.0f} to {max(servers) / MIB:.0f} MiB, {shown} times the largest stage")
    if client > chosen.most * largest:
        sys.exit(f"the client has more than {chosen.most} times the largest stage")


if __name__ == "__main__":
    main()
