#!/usr/bin/env python3
"""Computes the numbers that `src/sampler.rs` compares with, without any Rust code.

This is ChaCha as in RFC 8439, with two differences: 8 rounds instead of 20, and words 12 to 15 of the state hold a
64-bit block counter and a 64-bit stream number, as in rand_chacha. The script first checks itself against the block of
RFC 8439, section 2.3.2, and against the published ChaCha8 key stream for a key and a nonce of zeros.

Usage: python3 crates/stageline-data/tests/chacha8.py
"""

import struct

QUARTERS = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
QUARTERS += [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]


def quarter_round(state, a, b, c, d):
    for target, other, rotated, bits in [(a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)]:
        state[target] = (state[target] + state[other]) & 0xFFFFFFFF
        mixed = state[rotated] ^ state[target]
        state[rotated] = (mixed << bits | mixed >> (32 - bits)) & 0xFFFFFFFF


def block(key, last_words, rounds):
    start = struct.unpack("<16I", b"expand 32-byte k" + key + last_words)
    state = list(start)
    for _ in range(rounds // 2):
        for quarter in QUARTERS:
            quarter_round(state, *quarter)
    return struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(state, start)))


def draws(seed, tag, stream, count):
    """Returns the first `count` 64-bit numbers of a stream."""
    key = struct.pack("<Q", seed) + tag.ljust(24, b"\0")
    blocks = (block(key, struct.pack("<QQ", counter, stream), 8) for counter in range(-(-count // 8)))
    return struct.unpack(f"<{count}Q", b"".join(blocks)[: 8 * count])


def check():
    rfc = block(bytes(range(32)), bytes.fromhex("01000000000000090000004a00000000"), 20).hex()
    assert rfc.startswith("10f1e7e4d13b5915500fdd1fa32071c4") and rfc.endswith("b5129cd1de164eb9cbd083e8a2503c4e")
    assert block(bytes(32), bytes(16), 8).hex().startswith("3e00ef2f895f40d67f5bb8e81f09a5a1")


if __name__ == "__main__":
    check()
    for seed, step in [(0, 0), (0x0123456789ABCDEF, 0x100000005)]:
        print(f"seed {seed:#x}, step {step:#x}:", *(f"{bits:016x}" for bits in draws(seed, b"stageline sampler", step, 9)))
