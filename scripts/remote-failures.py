#!/usr/bin/env python3
"""What a training promises when a host or the network fails, proved in network namespaces.

    cargo build --release --bins --examples
    python scripts/remote-failures.py --programs target/release [--times 20] [--transport both] [--case all]

Needs Linux, root, /dev/net/tun and `ip`. Five hosts, each a network namespace without a name, are joined by a process that hands
packets from one to the other, late or not at all where a case asks for it. The first trains four stages, of which the last three
are on servers on the next three hosts. The cases:

- kill, freeze, cut: at a random time in a random step the server of stage 2 gets SIGKILL or SIGSTOP, or the link of its host goes
  down. The training ends by itself in time, with an error that names stage and host, and no other one; every checkpoint is whole;
  and with that stage on the fifth host, and the others on the servers that they were on, it goes on from the latest to the bits
  of a training on one host.
- delay, loss: every packet is 20 ms late, or 5% of them are lost. The training ends with the bits of one on one host.

Nothing is left behind, however it ends: namespaces and devices go with the processes that hold them, and those with this one.
Only the folder of a repetition that failed stays, for whom wants to know why; its name is printed. The status is 1 if any failed.
"""

import argparse
import contextlib
import ctypes
import fcntl
import hashlib
import heapq
import itertools
import json
import multiprocessing
import os
import random
import re
import select
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONTROLLER, A, B, C, SPARE = "controller", "A", "B", "C", "spare"
HOSTS = [CONTROLLER, A, B, C, SPARE]
PORT, MTU = 4433, 1500
MICRO_BATCHES = 4
MODEL = f"--stages 4 --layers 4 --width 32 --context 32 --micro-batches {MICRO_BATCHES} --micro-batch-size 2"
STEPS, EVERY = 400, 5
# In how many steps the fault is, and how many follow the checkpoint; or all, where the network is only bad.
BEFORE, AFTER, FEW = range(5, 16), 3, 3
DELAY, LOSS = 0.020, 0.05
# Seconds in which nothing begins, before hosts are asked.
WATCHDOG = 2
# More seconds: to ask hosts whether they are there, for threads to end, and for a machine that is busy.
ASKING, THREADS, BUSY = 5, 5, 13
LIMIT_OF_STARTING, LIMIT_OF_TRAINING = 60, 180


class Violation(Exception):
    """A promise that was not kept."""


# Namespaces.

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET, PR_SET_PDEATHSIG = 0x40000000, 1
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


def system(call, *arguments):
    if call(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{call.__name__}: {os.strerror(ctypes.get_errno())}")


def end_with_parent():
    system(LIBC.prctl, PR_SET_PDEATHSIG, signal.SIGKILL)


class Host:
    """A network namespace with a TUN device, whose other end is `tun`."""

    def __init__(self, address, home):
        self.address, self.home = address, home
        system(LIBC.unshare, CLONE_NEWNET)
        try:
            self.namespace = os.open("/proc/self/ns/net", os.O_RDONLY)
            self.tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(self.tun, TUNSETIFF, struct.pack("16sH22x", b"net", IFF_TUN | IFF_NO_PI))
        finally:
            system(LIBC.setns, home, CLONE_NEWNET)
        for command in ["link set lo up", f"address add {address}/24 dev net", f"link set net mtu {MTU} up"]:
            self.ip(command)

    @contextlib.contextmanager
    def inside(self):
        system(LIBC.setns, self.namespace, CLONE_NEWNET)
        try:
            yield
        finally:
            system(LIBC.setns, self.home, CLONE_NEWNET)

    def ip(self, command):
        with self.inside():
            subprocess.run(["ip", *command.split()], check=True)

    def cut(self):
        self.ip("link set net down")

    def start(self, command, folder, name):
        """A process on this host, which writes what it says into two files."""
        with self.inside(), open(folder / f"{name}.out", "wb") as out, open(folder / f"{name}.err", "wb") as err:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, process_group=0,
                                    preexec_fn=end_with_parent, env={**os.environ, "RUST_BACKTRACE": "0"})

    def close(self):
        os.close(self.namespace)
        os.close(self.tun)


@contextlib.contextmanager
def network(delay, loss, seed):
    """All hosts by their names, and the network between them."""
    with contextlib.ExitStack() as held:
        home = os.open("/proc/self/ns/net", os.O_RDONLY)
        held.callback(os.close, home)
        hosts = {}
        for number, name in enumerate(HOSTS, start=1):
            hosts[name] = Host(f"10.77.0.{number}", home)
            held.callback(hosts[name].close)
        tuns = {socket.inet_aton(host.address): host.tun for host in hosts.values()}
        hub = multiprocessing.get_context("fork").Process(target=carry, args=(tuns, delay, loss, seed))
        hub.start()
        held.callback(hub.join)
        held.callback(hub.kill)
        yield hosts


def carry(tuns, delay, loss, seed):
    """Hands every packet to the host it is for, so many seconds late, and some of them not at all."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    chance, numbers, late = random.Random(seed), itertools.count(), []
    ready = select.epoll()
    for tun in tuns.values():
        ready.register(tun, select.EPOLLIN)
    while True:
        for tun, _ in ready.poll(max(0, late[0][0] - time.monotonic()) if late else None):
            due = time.monotonic() + delay
            for packet in packets(tun):
                # What is not IPv4 has something else there.
                to = tuns.get(packet[16:20])
                if to is not None and chance.random() >= loss:
                    heapq.heappush(late, (due, next(numbers), to, packet))
        now = time.monotonic()
        while late and late[0][0] <= now:
            _, _, to, packet = heapq.heappop(late)
            # A link that is down, or a queue that is full, takes none.
            with contextlib.suppress(OSError):
                os.write(to, packet)


def packets(tun, most=64):
    """Those that wait there, or a part of them, so that others get their turn."""
    for _ in range(most):
        try:
            yield os.read(tun, MTU)
        except OSError:
            return


# Programs.


class Programs:
    def __init__(self, folder):
        self.stageline, self.references = folder / "stageline", {}
        self.gpt = next((path for path in [folder / "examples/gpt", folder / "gpt"] if path.exists()), None)
        if self.gpt is None or not self.stageline.exists():
            sys.exit(f"{folder} lacks `stageline` or `examples/gpt`; build them as this script's beginning says")

    def reference(self, steps):
        """The parameters after so many steps of a training on one host."""
        if steps not in self.references:
            with tempfile.TemporaryDirectory() as folder:
                flags = f"--data {text(Path(folder))} --steps {steps} --schedule-steps {STEPS}"
                command = [self.gpt, *MODEL.split(), *flags.split()]
                training = subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_OF_TRAINING)
                self.references[steps] = parameters(training.stdout)
        return self.references[steps]


def text(folder):
    path = folder / "text"
    path.write_text("".join(f"line {line} of {line * line % 97}\n" for line in range(400)))
    return path


def parameters(said):
    found = re.search(rb"parameters, sha256 (\w+)", said)
    return found and found[1].decode()


class Repetition:
    """The servers and trainings of a repetition, with a folder of their own."""

    def __init__(self, programs, transport, hosts, folder):
        self.programs, self.transport, self.hosts, self.folder = programs, transport, hosts, folder
        self.text, self.token, self.kept, self.log = text(folder), folder / "token", folder / "kept", folder / "log"
        self.token.write_text("a secret\n")
        self.processes, self.servers, self.names = [], {}, {}

    def start(self, host, command, name):
        process = self.hosts[host].start(command, self.folder, name)
        self.processes.append(process)
        return process

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()

    def serve(self, *hosts):
        """Starts servers; they have names once they listen."""
        for host in hosts:
            reach = {"iroh": f"iroh --relays disabled --key {self.folder}/key-{host}", "websocket": "websocket"}
            flags = f"serve --transport {reach[self.transport]} --token-file {self.token} --port {PORT}"
            self.servers[host] = self.start(host, [self.programs.stageline, *flags.split()], f"server-{host}")
        for host in hosts:
            printed = wait(lambda: self.listening(host), LIMIT_OF_STARTING, f"server {host} listens", self.servers[host])
            address = f"{self.hosts[host].address}:{PORT}"
            # Without a default route a server does not know its address.
            self.names[host] = f"iroh:{printed['id']}@{address}" if self.transport == "iroh" else f"ws://{address}"

    def listening(self, host):
        return re.search(r"^--device (?:iroh:(?P<id>\w+)|ws:).*\n", (self.folder / f"server-{host}.out").read_text(), re.M)

    def train(self, name, steps, servers, *flags):
        """A training with its first stage on the controller and the other ones on these servers."""
        device = ",".join(["cpu", *(f"{self.names[host]}/0" for host in servers)])
        common = f"--token-file {self.token} --checkpoint {self.kept} --every {EVERY} --watchdog {WATCHDOG}"
        return self.gpt(CONTROLLER, name, f"--device {device} --steps {steps} {common}", *flags)

    def gpt(self, host, name, *flags):
        words = " ".join([f"{MODEL} --data {self.text}", *flags]).split()
        return self.start(host, [self.programs.gpt, *words], name)

    def steps(self):
        """Those that are in the log."""
        lines = self.log.read_bytes().splitlines(keepends=True) if self.log.exists() else []
        written = [json.loads(line) for line in lines if line.endswith(b"\n")]
        return [line for line in written if "step" in line]

    def checkpoints(self):
        """After how many steps there is one, and its folder."""
        folders = self.kept.glob("[0-9]*-step-*")
        return {int(folder.name.rpartition("-")[2]): folder for folder in folders}

    def ends_well(self, training, name, steps):
        """It must end with the bits of a training on one host."""
        status = ended(training, LIMIT_OF_TRAINING, name)
        if status != 0:
            raise Violation(f"{name} ended with status {status}")
        found = parameters((self.folder / f"{name}.out").read_bytes())
        if found != self.programs.reference(steps):
            raise Violation(f"{name}: parameters {found} after {steps} steps, {self.programs.reference(steps)} on one host")

    def error(self):
        """What the training said on stderr."""
        return (self.folder / "training.err").read_text(errors="replace")


def wait(condition, limit, what, process):
    """What is true at last; it is a violation that it takes too long, or that the process ends before."""
    end = time.monotonic() + limit
    while not (found := condition()):
        if process.poll() is not None:
            raise Violation(f"it ended with status {process.returncode} before {what}")
        if time.monotonic() > end:
            raise Violation(f"not within {limit} s: {what}")
        time.sleep(0.005)
    return found


def ended(process, limit, name):
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        raise Violation(f"{name} did not end within {limit} s") from None


# Cases. Each gives how many seconds the training took to end, from the fault or from its start.


def bad_network(run, chance):
    run.serve(A, B, C)
    began = time.monotonic()
    training = run.train("training", FEW, [A, B, C], f"--schedule-steps {STEPS}")
    run.ends_well(training, "training", FEW)
    return time.monotonic() - began


def lost_host(fault):
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
        goes_on_elsewhere(run)
        return took

    return case


def somewhere_in_a_step(run, training, chance):
    """Waits for a random number of steps, and then for a random part of one."""
    wait(run.steps, LIMIT_OF_TRAINING, "a step", training)
    began, steps = time.monotonic(), chance.choice(BEFORE)
    wait(lambda: len(run.steps()) >= steps and run.checkpoints(), LIMIT_OF_TRAINING, f"{steps} steps", training)
    time.sleep(chance.random() * (time.monotonic() - began) / (len(run.steps()) - 1))


def in_time(took):
    limit = WATCHDOG + ASKING + THREADS + BUSY
    if took > limit:
        raise Violation(f"it took {took:.1f} s to end, and {limit} s are enough")


def names_the_host(run, status):
    if status <= 0 or status == 101:
        raise Violation(f"the training ended with status {status}")
    expected = f"Error: the host of stage 2 (`{run.names[B]}`) is lost: "
    _, found, rest = run.error().partition(expected)
    if not found:
        raise Violation(f"no `{expected}`")
    if others := [host for host in [A, C] if run.names[host] + "`) is lost" in rest]:
        raise Violation(f"the error names {', '.join(others)} as lost as well")


def is_whole(checkpoint):
    """The manifest ends with the hash of what is before it, and has those of all files."""
    try:
        sealed, seal = (checkpoint / "manifest.json").read_bytes().split(b',\n  "sha256": "')
        hashes = {file["name"]: file["sha256"] for file in json.loads(sealed + b"}")["files"]}
        good = seal == hashlib.sha256(sealed).hexdigest().encode() + b'"\n}\n' and all(
            hashlib.sha256((checkpoint / name).read_bytes()).hexdigest() == sha256 for name, sha256 in hashes.items())
    except (OSError, ValueError, LookupError) as error:
        raise Violation(f"{checkpoint.name} cannot be read: {error}") from None
    if not good:
        raise Violation(f"{checkpoint.name} is damaged")


def goes_on_elsewhere(run):
    steps = max(run.checkpoints()) + AFTER
    run.serve(SPARE)
    run.ends_well(run.train("resumed", steps, [A, SPARE, C], "--resume latest"), "resumed", steps)


CASES = {
    "kill": lost_host(lambda run: run.servers[B].kill()),
    "freeze": lost_host(lambda run: run.servers[B].send_signal(signal.SIGSTOP)),
    "cut": lost_host(lambda run: run.hosts[B].cut()),
    "delay": bad_network,
    "loss": bad_network,
}
TRANSPORTS = ["iroh", "websocket"]


def repeat(programs, transport, case, seed):
    """Seconds, or nothing where a promise was not kept."""
    folder, kept = Path(tempfile.mkdtemp(prefix=f"stageline-{transport}-{case}-")), False
    delay, loss = DELAY if case == "delay" else 0, LOSS if case == "loss" else 0
    try:
        with network(delay, loss, seed) as hosts:
            with contextlib.closing(Repetition(programs, transport, hosts, folder)) as run:
                return CASES[case](run, random.Random(seed))
    except Violation as violation:
        kept = True
        print(f"  {violation}", *said(folder), f"  more is in {folder}", sep="\n")
        return None
    finally:
        if not kept:
            shutil.rmtree(folder)


def said(folder, lines=12):
    """The ends of what programs said, without what is only information."""
    for path in sorted(folder.glob("*.err")):
        errors = re.sub(r"\x1b\[\d*m", "", path.read_text(errors="replace")).splitlines()
        errors = [line for line in errors if " INFO " not in line][-lines:]
        yield from (f"    {path.stem}: {line[:1000]}" for line in errors)


def row(transport, case, results):
    seconds = [took for took in results if took is not None]
    figures = f"{statistics.median(seconds):.1f} | {max(seconds):.1f}" if seconds else "|"
    return f"| {transport} | {case} | {len(results)} | {len(seconds)} | {figures} |"


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, required=True, help="the folder with `stageline` and `examples/gpt`")
    parser.add_argument("--times", type=int, default=20, help="how often each case is repeated [20]")
    parser.add_argument("--transport", choices=[*TRANSPORTS, "both"], default="both")
    parser.add_argument("--case", choices=[*CASES, "all"], default="all")
    parser.add_argument("--seed", type=int, default=0, help="of the places of faults, and of what is lost [0]")
    return parser.parse_args()


def main():
    chosen = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    sys.stdout.reconfigure(line_buffering=True)
    programs = Programs(chosen.programs.resolve())
    rows, failed = [], False
    for transport in TRANSPORTS if chosen.transport == "both" else [chosen.transport]:
        for case in CASES if chosen.case == "all" else [chosen.case]:
            results = []
            for number in range(1, chosen.times + 1):
                took = repeat(programs, transport, case, f"{chosen.seed} {transport} {case} {number}")
                results.append(took)
                print(f"{transport} {case} {number}/{chosen.times}: {'FAILED' if took is None else f'{took:.1f} s'}")
            rows.append(row(transport, case, results))
            failed |= None in results
    print("\n| transport | case | times | as promised | median, s | worst, s |", "| --- | --- | --- | --- | --- | --- |",
          *rows, sep="\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
