#!/usr/bin/env python3
"""Measures what latency between hosts costs under 1F1B and eager 1F1B, and compares it with the simulation.

    cargo build --release --features serve --bins --examples
    python scripts/remote-latency.py --programs target/release [--rounds 3] [--delays 0,20]

Needs what remote_hosts.py needs. Two stages are on servers, each on a host of its own, and the controller is on a third host.
The schedules take turns in every round, so that a disturbance of the machine affects both. Step times are medians over the
steps of a training, without the first ones. The ratio is 1F1B over eager 1F1B in the same round. The simulation uses the
times of actions from a training in threads on this host, and the network that the trainings on servers measured. The last
columns are shares of the total stage time of 1F1B's synchronised steps: the idle time that is due to transfers, and the idle
time that the simulation of these steps cannot explain.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from remote_hosts import TRANSPORTS, Programs, Run, Violation, ended, network, steps, text

CONTROLLER, HOSTS = "controller", ["A", "B"]
MODEL = "--stages 2 --layers 4 --width 128 --context 64 --micro-batches 16 --micro-batch-size 2 --cores-per-stage 1"
PLAIN, EAGER = SCHEDULES = ["1f1b", "eager-1f1b"]
STEPS, WARM_UP, LIMIT = 12, 3, 300


def train(run, schedule, name, synchronise_every=0):
    """Runs a training on the servers and returns the path of its log."""
    log, device = run.folder / f"{name}.log", ",".join(f"{run.names[host]}/0" for host in HOSTS)
    training = run.gpt(CONTROLLER, name, f"{MODEL} --schedule {schedule} --steps {STEPS} --device {device} --log {log} "
                       f"--synchronise-every {synchronise_every}")
    if status := ended(training, LIMIT, name):
        raise Violation(f"{name} ended with status {status}: {(run.folder / f'{name}.err').read_text()}")
    return log


def measured(run, schedule, round_):
    """Returns the median seconds of a step, and the measured network from the first server to the second."""
    log = train(run, schedule, f"{schedule}-{round_}")
    with open(log) as lines:
        link = json.loads(next(lines))["links"][0]
    return statistics.median(line["step_seconds"] for line in steps(log)[WARM_UP:]), link


def idle(run):
    """Returns the shares of the total stage time that are idle due to transfers, and due to no known cause."""
    of_steps = steps(train(run, PLAIN, "synchronised", 1))[WARM_UP:]

    def share(cause):
        return sum(worker[cause] for step in of_steps for worker in step["workers"]) / sum(
            len(step["workers"]) * step["step_seconds"] for step in of_steps)

    return share("transfer"), share("other")


def simulated(programs, log, link):
    """Returns the simulated ratio of step times, 1F1B over eager 1F1B."""
    network = f"--latency {1e3 * link['latency']} --bandwidth {link['bandwidth'] / 1e9}"

    def step(schedule):
        command = [programs.stageline, *f"predict --from {log} --schedule {schedule} {network} --json".split()]
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["step_seconds"]

    return step(PLAIN) / step(EAGER)


def row(programs, transport, delay, rounds, local):
    with network([CONTROLLER, *HOSTS], delay=delay / 1e3) as hosts, tempfile.TemporaryDirectory() as folder:
        with contextlib.closing(Run(programs, transport, hosts, Path(folder))) as run:
            run.serve(*HOSTS)
            found = [[measured(run, schedule, number) for schedule in SCHEDULES] for number in range(rounds)]
            transfer, other = idle(run)
    times = [[seconds for seconds, _ in pair] for pair in found]
    plain, eager = (1e3 * statistics.median(column) for column in zip(*times))
    ratios = sorted(plain / eager for plain, eager in times)
    link = min((link for pair in found for _, link in pair), key=lambda link: link["latency"])
    figures = f"{1e3 * link['latency']:.1f} | {plain:.0f} | {eager:.0f} | {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
    return f"| {transport} | {delay} | {figures} | {simulated(programs, local, link):.3f} | {transfer:.3f} | {other:.3f} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, required=True, help="folder with `stageline` and `examples/gpt`")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds, in each of which both schedules train [3]")
    parser.add_argument("--delays", default="0,20", help="delays of packets, in ms, as a comma-separated list [0,20]")
    parser.add_argument("--transport", choices=TRANSPORTS, default=TRANSPORTS[0])
    chosen = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)
    programs = Programs(chosen.programs.resolve())
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder) / "local.log"
        command = f"{programs.gpt} {MODEL} --data {text(Path(folder))} --steps {STEPS} --log {local}"
        subprocess.run(command.split(), check=True, capture_output=True, timeout=LIMIT)
        print("| transport | packets late, ms | a transfer, ms | 1f1b, ms | eager, ms | 1f1b / eager | simulated | transfer | other |",
              "| --- | --- | --- | --- | --- | --- | --- | --- | --- |", sep="\n")
        for delay in chosen.delays.split(","):
            print(row(programs, chosen.transport, float(delay), chosen.rounds, local))


if __name__ == "__main__":
    main()
