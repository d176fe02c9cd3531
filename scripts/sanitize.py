#!/usr/bin/env python3
"""Runs tests under Miri, and tests of several threads under ThreadSanitizer; neither is part of `cargo test`.

    rustup toolchain install nightly --component miri,rust-src
    scripts/sanitize.py miri [SECONDS]    # tests the crates that do not use burn, and the allocator by itself
    scripts/sanitize.py threads           # tests the writer of checkpoints, and the pipeline

Miri is some hundred times slower than a plain run. A test that takes longer than SECONDS [60] is ended and counted as too
slow, which is not a failure.
"""

import os
import re
import selectors
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
# Words in the names of tests that are not run under Miri: those that start programs, which Miri cannot, and those that
# try thousands of mutations.
BEYOND_MIRI = ["seeds", "child", "kills", "disk_full", "unreadable"]
ALLOCATOR = f"""#![allow(dead_code)]
mod recording {{
    #[path = "{ROOT}/crates/stageline/src/recording/allocator.rs"]
    mod allocator;
    pub mod events {{
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Held {{ pub end: u64, pub peak: u64, pub kept: i64 }}
    }}
}}
"""
MANIFEST = """[package]
name = "allocator"
version = "0.0.0"
edition = "2024"
[dev-dependencies]
proptest = { version = "1", default-features = false, features = ["std"] }
[workspace]
"""
# Flags that leave out tests of the example program, because it is not built with ThreadSanitizer.
NO_EXAMPLE = [word for tests in ("command", "keeping", "frozen", "remedies") for word in ("--skip", f"{tests}::")]


def once(command, environment, done, limit):
    """Runs the tests that are not done, until one takes too long.

    Returns the results by name, and the name of the slow test; None if all tests passed, and "" if one failed.
    """
    skips = [word for name in done for word in ("--skip", name)]
    command = [*command, "--", "--test-threads=1", *(["--exact", *skips] if done else [])]
    results, rest = {}, b""
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, start_new_session=True) as child:
        waiting = selectors.DefaultSelector()
        waiting.register(child.stdout, selectors.EVENT_READ)
        while True:
            # There is no limit before the first test, because cargo still builds.
            running = re.search(rb"test (\S+)(?: - should panic)? \.\.\. $", rest)
            if not waiting.select(limit if running else None):
                os.killpg(child.pid, 9)
                return results, running[1].decode()
            read = os.read(child.stdout.fileno(), 65536)
            rest = (rest + read)[-65536:]
            for name, result in re.findall(r"test (\S+)(?: - should panic)? \.\.\. (?:.*\n)*?(ok|FAILED|ignored)", rest.decode(errors="replace")):
                results.setdefault(name, result)
            if not read:
                return results, None if child.wait() == 0 else ""


def miri(limit, what, flags=""):
    """Runs the tests that `what` selects under Miri, and returns whether none failed."""
    environment = {**os.environ, "PROPTEST_CASES": "2", "MIRIFLAGS": f"-Zmiri-disable-isolation {flags}"}
    listed = ["cargo", "+nightly", "miri", "test", *what]
    names = subprocess.run([*listed, "--", "--list"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    names = re.findall(r"^(\S+): test$", names.stdout, re.M)
    beyond = {name for name in names if any(word in name for word in BEYOND_MIRI)}
    results, slow = {}, []
    while left := set(names) - beyond - set(results) - set(slow):
        done = sorted(set(names) - left)
        new, ended = once(listed, environment, done, limit)
        results.update(new)
        if ended is None:
            break
        if ended == "":
            print(f"miri {' '.join(what)}: FAILED after {len(results)} tests")
            return False
        slow.append(ended)
    failed = [name for name, result in results.items() if result == "FAILED"]
    if failed:
        print(f"miri {' '.join(what)}: FAILED: {', '.join(failed)}")
        return False
    passed = sum(result == "ok" for result in results.values())
    print(f"miri {' '.join(what)}: {passed} passed, {len(slow)} took longer than {limit} s, {len(beyond)} left out")
    print("".join(f"  too slow: {name}\n" for name in slow), end="", flush=True)
    return True


def all_under_miri(limit):
    """Runs all tests that Miri can run, and returns whether none failed."""
    # The allocator needs only the type of a reading from its crate, so a crate of its own builds it without burn.
    folder = TARGET / "allocator"
    (folder / "src").mkdir(parents=True, exist_ok=True)
    (folder / "Cargo.toml").write_text(MANIFEST)
    (folder / "src/lib.rs").write_text(ALLOCATOR)
    # The allocator leaks its meters on purpose.
    flags = "-Zmiri-ignore-leaks -Zmiri-strict-provenance"
    sound = miri(2 * limit, ["--manifest-path", str(folder / "Cargo.toml"), "--lib"], flags)
    for package in ["schedule", "report", "checkpoint", "data"]:
        sound &= miri(limit, ["-p", f"stageline-{package}", "--lib"])
    for package, test in [("schedule", "schedule"), ("checkpoint", "checkpoint"), ("data", "corpus")]:
        sound &= miri(limit, ["-p", f"stageline-{package}", "--test", test])
    return sound


def threads():
    """Runs the tests of several threads under ThreadSanitizer, and returns whether all passed."""
    environment = {**os.environ, "RUSTFLAGS": "-Zsanitizer=thread"}
    command = ["cargo", "+nightly", "test", "-Zbuild-std", "--target", "x86_64-unknown-linux-gnu"]
    # ThreadSanitizer needs more address space than the tests with little memory allow.
    writer = ["-p", "stageline-checkpoint", "--lib", "--test", "checkpoint", "--", "--skip", "little_memory"]
    runs = [[*command, *writer], [*command, "--test", "pipeline", "--", *NO_EXAMPLE]]
    return all([subprocess.run(run, cwd=ROOT, env=environment).returncode == 0 for run in runs])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["miri", *limit]:
            sys.exit(not all_under_miri(float(limit[0]) if limit else 60.0))
        case ["threads"]:
            sys.exit(not threads())
        case _:
            sys.exit(__doc__)
