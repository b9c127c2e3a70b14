"""A command in a job of several processes: `torchrun --nproc-per-node 4 -m feta prune …`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

from feta.cli.console import resolve_device


def processes() -> int:
    """How many processes torchrun has started; 1 without it."""
    told = os.environ.get("WORLD_SIZE", "1") if "RANK" in os.environ else "1"
    return int(told) if told.isdecimal() else 1


def device_here(name: str | None) -> str:
    """The device of this process: of several GPUs each process has its own."""
    found = resolve_device(name)
    if found == "cuda" and processes() > 1:
        return resolve_device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}")
    return found


@contextmanager
def job(device: str) -> Iterator[bool]:
    """Inside, the processes work together; whether this is the one that writes and speaks. The others are silent."""
    if processes() == 1:
        yield True
        return
    import torch
    import torch.distributed as dist

    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        if dist.get_rank() == 0:
            yield True
        else:
            with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
                yield False
    finally:
        dist.destroy_process_group()
