"""What the scripts that compare Stageline with PyTorch share: the name of the processor, and PyTorch's processes."""

import os
import socket
from pathlib import Path


def processor():
    """Returns the processor's model, with the widest vectors that it has."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    field = lambda name: next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "unknown")
    has = field("flags").split() + field("Features").split()  # x86 has the first, aarch64 the second
    widest = next((name for name in ("avx512f", "avx2", "asimd") if name in has), "no AVX2, AVX-512 or NEON")
    return f"{field('model name')} ({widest})"


def in_processes(program, processes, *arguments):
    """Runs `program(rank, processes, *arguments)` in new processes, one thread each, that are connected by gloo if there are several.

    Returns what the program returns in the process of rank 0. `program` must be a function of a file's top level.
    """
    import torch.multiprocessing as multiprocessing

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.spawn(_process, (processes, port, results, program, arguments), nprocs=processes, join=True)
    return results.get()


def _process(rank, processes, port, results, program, arguments):
    """Connects one process to the others, runs the program, and hands over the result of rank 0."""
    import torch
    import torch.distributed as distributed

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    if processes > 1:
        distributed.init_process_group("gloo", rank=rank, world_size=processes)
    result = program(rank, processes, *arguments)
    if rank == 0:
        results.put(result)
    if processes > 1:
        distributed.destroy_process_group()
