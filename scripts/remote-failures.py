#!/usr/bin/env python3
"""Tests in network namespaces what a training promises when a host or the network fails.

    cargo build --release --features serve --bins --examples
    python scripts/remote-failures.py --programs target/release [--times 20] [--transport both] [--case all]

Needs Linux, root, /dev/net/tun and `ip`. Five hosts, each a network namespace without a name, are joined by a process that
forwards packets, and delays or drops them in some cases. The first host, the controller, trains four stages, of which the
last three are on servers on the next three hosts. The cases:

- kill, freeze, cut: at a random time in a random step, the server of stage 2 gets SIGKILL or SIGSTOP, or the link of its host
  goes down. The training must end by itself in time, with an error that names this stage and host and no other. Every
  checkpoint must be complete. With that stage on the fifth host, and the others on their former servers, the training must
  resume from the latest checkpoint to the bits of a training on one host.
- part: the hosts of stages 2 and 3 no longer reach each other, while the controller reaches both. Over Iroh the training must
  end by itself in time, with an error that names both hosts, and every checkpoint must be complete. (Over WebSocket nothing
  is sent between servers, so there is no such case.)
- delay, loss: every packet is delayed by 20 ms, or 5% of them are lost. The training must end with the bits of a training on
  one host.

However a run ends, it leaves nothing behind: namespaces and devices end with the processes that hold them, and those
processes end with this one. Only the folder of a failed repetition stays, and its name is printed, so that the cause can be
found. The exit status is 1 if any repetition failed.
"""

import argparse
import contextlib
import hashlib
import json
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from remote_hosts import TRANSPORTS, Programs, Run, Violation, ended, network, steps, text, wait

CONTROLLER, A, B, C, SPARE = "controller", "A", "B", "C", "spare"
HOSTS = [CONTROLLER, A, B, C, SPARE]
MICRO_BATCHES = 4
MODEL = f"--stages 4 --layers 4 --width 32 --context 32 --micro-batches {MICRO_BATCHES} --micro-batch-size 2"
STEPS, EVERY = 400, 5
# The number of steps before a fault, of steps after the resumed checkpoint, and of all steps on a bad network.
BEFORE, AFTER, FEW = range(5, 16), 3, 3
# The delay of packets, in seconds, and the share of lost packets.
DELAY, LOSS = 0.020, 0.05
# The limit of the watchdog: seconds in which no action begins before all hosts are checked.
WATCHDOG = 2
# Further seconds that are allowed: to check hosts, for threads to end, and for a busy machine.
ASKING, THREADS, BUSY = 5, 5, 13
# Further seconds that are allowed until the watchdog gives up although all hosts respond, or a connection breaks.
SILENCE = 10 * WATCHDOG + 30
LIMIT_OF_TRAINING = 180


class References:
    """The results of trainings on one host, with which all others are compared."""

    def __init__(self, programs):
        self.programs, self.parameters = programs, {}

    def after(self, steps):
        """Returns the hash of the parameters after a number of steps on one host."""
        if steps not in self.parameters:
            with tempfile.TemporaryDirectory() as folder:
                flags = f"--data {text(Path(folder))} --steps {steps} --schedule-steps {STEPS}"
                command = [self.programs.gpt, *MODEL.split(), *flags.split()]
                training = subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_OF_TRAINING)
                self.parameters[steps] = parameters(training.stdout)
        return self.parameters[steps]


def parameters(said):
    """Returns the hash of the parameters in the output of a training, or None."""
    found = re.search(rb"parameters, sha256 (\w+)", said)
    return found and found[1].decode()


class Repetition(Run):
    """One repetition of a case: a training of four stages, the first on the controller."""

    def __init__(self, references, transport, hosts, folder):
        super().__init__(references.programs, transport, hosts, folder)
        self.references = references
        self.kept, self.log = folder / "kept", folder / "log"

    def train(self, name, steps, servers, *flags):
        """Starts a training with its first stage on the controller and the others on these servers."""
        device = ",".join(["cpu", *(f"{self.names[host]}/0" for host in servers)])
        common = f"{MODEL} --checkpoint {self.kept} --every {EVERY} --watchdog {WATCHDOG}"
        return self.gpt(CONTROLLER, name, f"--device {device} --steps {steps} {common}", *flags)

    def checkpoints(self):
        """Returns the folder of each checkpoint by its number of steps."""
        folders = self.kept.glob("[0-9]*-step-*")
        return {int(folder.name.rpartition("-")[2]): folder for folder in folders}

    def ends_well(self, training, name, steps):
        """Waits for the end of a training, which must give the same bits as a training on one host."""
        status = ended(training, LIMIT_OF_TRAINING, name)
        if status != 0:
            raise Violation(f"{name} ended with status {status}")
        found = parameters((self.folder / f"{name}.out").read_bytes())
        if found != (expected := self.references.after(steps)):
            raise Violation(f"{name}: parameters {found} after {steps} steps, {expected} on one host")

    def error(self):
        """Returns the stderr of the training."""
        return (self.folder / "training.err").read_text(errors="replace")


# The cases. Each returns the seconds that the training took to end, from the fault or from its start.


def bad_network(run, chance):
    """Trains a few steps on a network that delays or loses packets."""
    run.serve(A, B, C)
    began = time.monotonic()
    training = run.train("training", FEW, [A, B, C], f"--schedule-steps {STEPS}")
    run.ends_well(training, "training", FEW)
    return time.monotonic() - began


def lost_host(fault):
    """Returns the case in which `fault` takes the host of stage 2 away."""

    def case(run, chance):
        run.serve(A, B, C)
        training = run.train("training", STEPS, [A, B, C], f"--log {run.log}")
        somewhere_in_a_step(run, training, chance)
        fault(run)
        began = time.monotonic()
        status = ended(training, LIMIT_OF_TRAINING, "the training")
        took = time.monotonic() - began
        in_time(took)
        names_the_host(run, status)
        for checkpoint in run.checkpoints().values():
            is_whole(checkpoint)
        resumes_elsewhere(run)
        return took

    return case


def parted(run, chance):
    """Separates the hosts of stages 2 and 3 from each other."""
    run.serve(A, B, C)
    training = run.train("training", STEPS, [A, B, C], f"--log {run.log}")
    somewhere_in_a_step(run, training, chance)
    for one, other in [(B, C), (C, B)]:
        run.hosts[one].ip(f"route add blackhole {run.hosts[other].address}/32")
    began = time.monotonic()
    status = ended(training, LIMIT_OF_TRAINING, "the training")
    took = time.monotonic() - began
    in_time(took, SILENCE)
    expected = [f"no tensor gets from `{run.names[one]}` to `{run.names[other]}`" for one, other in [(B, C), (C, B)]]
    if status <= 0 or status == 101 or not any(each in run.error() for each in expected):
        raise Violation(f"the training ended with status {status} and without `{expected[0]}`, in this or the other direction")
    for checkpoint in run.checkpoints().values():
        is_whole(checkpoint)
    return took


def somewhere_in_a_step(run, training, chance):
    """Waits for a random number of steps, and then for a random part of the next one."""
    wait(lambda: steps(run.log), LIMIT_OF_TRAINING, "a step", training)
    began, before = time.monotonic(), chance.choice(BEFORE)
    wait(lambda: len(steps(run.log)) >= before and run.checkpoints(), LIMIT_OF_TRAINING, f"{before} steps", training)
    time.sleep(chance.random() * (time.monotonic() - began) / (len(steps(run.log)) - 1))


def in_time(took, more=0):
    """Raises a violation if the training took too long to end."""
    limit = WATCHDOG + ASKING + THREADS + BUSY + more
    if took > limit:
        raise Violation(f"the training took {took:.1f} s to end, and {limit} s are allowed")


def names_the_host(run, status):
    """Raises a violation unless the error names the lost host, with its stage, and no other host."""
    if status <= 0 or status == 101:
        raise Violation(f"the training ended with status {status}")
    expected = f"Error: the host of stage 2 (`{run.names[B]}`) is lost: "
    _, found, rest = run.error().partition(expected)
    if not found:
        raise Violation(f"no `{expected}`")
    if others := [host for host in [A, C] if run.names[host] + "`) is lost" in rest]:
        raise Violation(f"the error names {', '.join(others)} as lost as well")


def is_whole(checkpoint):
    """Raises a violation unless the manifest ends with its own hash, and the hashes in it are those of the files."""
    try:
        sealed, seal = (checkpoint / "manifest.json").read_bytes().split(b',\n  "sha256": "')
        hashes = {file["name"]: file["sha256"] for file in json.loads(sealed + b"}")["files"]}
        good = seal == hashlib.sha256(sealed).hexdigest().encode() + b'"\n}\n' and all(
            hashlib.sha256((checkpoint / name).read_bytes()).hexdigest() == sha256 for name, sha256 in hashes.items())
    except (OSError, ValueError, LookupError) as error:
        raise Violation(f"{checkpoint.name} cannot be read: {error}") from None
    if not good:
        raise Violation(f"{checkpoint.name} is damaged")


def resumes_elsewhere(run):
    """Resumes from the latest checkpoint, with the lost stage on the spare host."""
    until = max(run.checkpoints()) + AFTER
    run.serve(SPARE)
    run.ends_well(run.train("resumed", until, [A, SPARE, C], "--resume latest"), "resumed", until)


CASES = {
    "kill": lost_host(lambda run: run.servers[B].kill()),
    "freeze": lost_host(lambda run: run.servers[B].send_signal(signal.SIGSTOP)),
    "cut": lost_host(lambda run: run.hosts[B].cut()),
    "part": parted,
    "delay": bad_network,
    "loss": bad_network,
}


def repeat(references, transport, case, seed):
    """Runs a case once and returns its seconds, or None if a promise was not kept."""
    folder, kept = Path(tempfile.mkdtemp(prefix=f"stageline-{transport}-{case}-")), False
    delay, loss = DELAY if case == "delay" else 0, LOSS if case == "loss" else 0
    try:
        with network(HOSTS, delay, loss, seed) as hosts:
            with contextlib.closing(Repetition(references, transport, hosts, folder)) as run:
                return CASES[case](run, random.Random(seed))
    except Violation as violation:
        kept = True
        print(f"  {violation}", *said(folder), f"  all files are in {folder}", sep="\n")
        return None
    finally:
        if not kept:
            shutil.rmtree(folder)


def said(folder, lines=12):
    """Yields the last lines that each program wrote to stderr, without those of the level INFO."""
    for path in sorted(folder.glob("*.err")):
        errors = re.sub(r"\x1b\[\d*m", "", path.read_text(errors="replace")).splitlines()
        errors = [line for line in errors if " INFO " not in line][-lines:]
        yield from (f"    {path.stem}: {line[:1000]}" for line in errors)


def row(transport, case, results):
    """Returns the row of a case in the table."""
    seconds = [took for took in results if took is not None]
    figures = f"{statistics.median(seconds):.1f} | {max(seconds):.1f}" if seconds else "|"
    return f"| {transport} | {case} | {len(results)} | {len(seconds)} | {figures} |"


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, required=True, help="folder with `stageline` and `examples/gpt`")
    parser.add_argument("--times", type=int, default=20, help="number of repetitions of each case [20]")
    parser.add_argument("--transport", choices=[*TRANSPORTS, "both"], default="both")
    parser.add_argument("--case", choices=[*CASES, "all"], default="all")
    parser.add_argument("--seed", type=int, default=0, help="seed of the times of faults and of the lost packets [0]")
    return parser.parse_args()


def main():
    chosen = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    sys.stdout.reconfigure(line_buffering=True)
    references = References(Programs(chosen.programs.resolve()))
    rows, failed = [], False
    for transport in TRANSPORTS if chosen.transport == "both" else [chosen.transport]:
        for case in CASES if chosen.case == "all" else [chosen.case]:
            if case == "part" and transport == "websocket":
                continue
            results = []
            for number in range(1, chosen.times + 1):
                took = repeat(references, transport, case, f"{chosen.seed} {transport} {case} {number}")
                results.append(took)
                print(f"{transport} {case} {number}/{chosen.times}: {'FAILED' if took is None else f'{took:.1f} s'}")
            rows.append(row(transport, case, results))
            failed |= None in results
    print("\n| transport | case | times | as promised | median, s | worst, s |", "| --- | --- | --- | --- | --- | --- |",
          *rows, sep="\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
