"""Runs servers and trainings on several hosts, each of which is a network namespace of this machine.

Needs Linux, root, /dev/net/tun and `ip`. A process forwards the packets between hosts, and delays or drops them if asked to.
However a run ends, it leaves nothing behind: namespaces and devices end with the processes that hold them, and those
processes end with this one.
"""

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import json
import multiprocessing
import os
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time

PORT, MTU = 4433, 1500
# Seconds in which a server must begin to listen.
LIMIT_OF_STARTING = 60
TRANSPORTS = ["iroh", "websocket"]


class Violation(Exception):
    """A promise that was not kept."""


# The network of namespaces.

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET, PR_SET_PDEATHSIG = 0x40000000, 1
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


def system(call, *arguments):
    """Calls a C function, and raises an error unless it returns 0."""
    if call(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{call.__name__}: {os.strerror(ctypes.get_errno())}")


def end_with_parent():
    """Has the kernel kill this process when its parent ends."""
    system(LIBC.prctl, PR_SET_PDEATHSIG, signal.SIGKILL)


class Host:
    """A network namespace with a TUN device; its packets are read from and written to the file descriptor `tun`."""

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
        """Runs the body of a `with` in the namespace of this host."""
        system(LIBC.setns, self.namespace, CLONE_NEWNET)
        try:
            yield
        finally:
            system(LIBC.setns, self.home, CLONE_NEWNET)

    def ip(self, command):
        """Runs `ip` with these arguments on this host."""
        with self.inside():
            subprocess.run(["ip", *command.split()], check=True)

    def cut(self):
        """Takes the link of this host down."""
        self.ip("link set net down")

    def start(self, command, folder, name):
        """Starts a process on this host, with its output in two files."""
        with self.inside(), open(folder / f"{name}.out", "wb") as out, open(folder / f"{name}.err", "wb") as err:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, process_group=0,
                                    preexec_fn=end_with_parent, env={**os.environ, "RUST_BACKTRACE": "0"})

    def close(self):
        os.close(self.namespace)
        os.close(self.tun)


@contextlib.contextmanager
def network(names, delay=0, loss=0, seed=0):
    """Creates hosts of these names, and the network between them.

    Every packet is delayed by `delay` seconds, and a share `loss` of them, from 0 to 1, is lost at random.
    """
    with contextlib.ExitStack() as held:
        home = os.open("/proc/self/ns/net", os.O_RDONLY)
        held.callback(os.close, home)
        hosts = {}
        for number, name in enumerate(names, start=1):
            hosts[name] = Host(f"10.77.0.{number}", home)
            held.callback(hosts[name].close)
        tuns = {socket.inet_aton(host.address): host.tun for host in hosts.values()}
        hub = multiprocessing.get_context("fork").Process(target=carry, args=(tuns, delay, loss, seed))
        hub.start()
        held.callback(hub.join)
        held.callback(hub.kill)
        yield hosts


def carry(tuns, delay, loss, seed):
    """Forwards every packet to its receiver after `delay` seconds, without the share `loss` that is lost."""
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
                # These bytes are the receiver of an IPv4 packet; other packets match no host.
                to = tuns.get(packet[16:20])
                if to is not None and chance.random() >= loss:
                    heapq.heappush(late, (due, next(numbers), to, packet))
        now = time.monotonic()
        while late and late[0][0] <= now:
            _, _, to, packet = heapq.heappop(late)
            # A link that is down or a full queue drops the packet.
            with contextlib.suppress(OSError):
                os.write(to, packet)


def packets(tun, most=64):
    """Yields the packets that wait at `tun`, but at most `most`, so that other hosts get their turn."""
    for _ in range(most):
        try:
            yield os.read(tun, MTU)
        except OSError:
            return


# Programs.


class Programs:
    """The paths of the programs to run, in the folder of a build."""

    def __init__(self, folder):
        self.stageline = folder / "stageline"
        self.gpt = next((path for path in [folder / "examples/gpt", folder / "gpt"] if path.exists()), None)
        if self.gpt is None or not self.stageline.exists():
            sys.exit(f"{folder} lacks `stageline` or `examples/gpt`; build them with the command in this script's --help")


class Run:
    """The servers and trainings of one run, with a folder for their files."""

    def __init__(self, programs, transport, hosts, folder):
        self.programs, self.transport, self.hosts, self.folder = programs, transport, hosts, folder
        self.text, self.token = text(folder), folder / "token"
        self.token.write_text("a secret\n")
        self.processes, self.servers, self.names = [], {}, {}

    def start(self, host, command, name):
        process = self.hosts[host].start(command, self.folder, name)
        self.processes.append(process)
        return process

    def close(self):
        """Kills all processes of the run."""
        for process in self.processes:
            process.kill()
            process.wait()

    def serve(self, *hosts):
        """Starts a server on each host, waits until it listens, and then names its device host."""
        for host in hosts:
            reach = {"iroh": f"iroh --relays disabled --key {self.folder}/key-{host}", "websocket": "websocket"}
            flags = f"serve --transport {reach[self.transport]} --token-file {self.token} --port {PORT}"
            self.servers[host] = self.start(host, [self.programs.stageline, *flags.split()], f"server-{host}")
        for host in hosts:
            printed = wait(lambda: self.listening(host), LIMIT_OF_STARTING, f"server {host} listens", self.servers[host])
            address = f"{self.hosts[host].address}:{PORT}"
            # Without a default route a server does not know its own address, so it is added to the name.
            self.names[host] = f"iroh:{printed['id']}@{address}" if self.transport == "iroh" else f"ws://{address}"

    def listening(self, host):
        """Returns the line that a server prints when it listens, or None before."""
        return re.search(r"^--device (?:iroh:(?P<id>\w+)|ws:).*\n", (self.folder / f"server-{host}.out").read_text(), re.M)

    def gpt(self, host, name, *flags):
        """Starts a training on a host."""
        words = " ".join([f"--data {self.text} --token-file {self.token}", *flags]).split()
        return self.start(host, [self.programs.gpt, *words], name)


def text(folder):
    """Writes a text to train on, and returns its path."""
    path = folder / "text"
    path.write_text("".join(f"line {line} of {line * line % 97}\n" for line in range(400)))
    return path


def steps(log):
    """Returns the steps in a log, which may still be growing or may not exist yet."""
    lines = log.read_bytes().splitlines(keepends=True) if log.exists() else []
    written = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return [line for line in written if "step" in line]


def wait(condition, limit, what, process):
    """Waits until a condition is true and returns it; a violation if it takes too long or the process ends first."""
    end = time.monotonic() + limit
    while not (found := condition()):
        if process.poll() is not None:
            raise Violation(f"the process ended with status {process.returncode} before: {what}")
        if time.monotonic() > end:
            raise Violation(f"this took more than {limit} s: {what}")
        time.sleep(0.005)
    return found


def ended(process, limit, name):
    """Waits until a process ends and returns its status; a violation if it takes too long."""
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        raise Violation(f"{name} did not end within {limit} s") from None
