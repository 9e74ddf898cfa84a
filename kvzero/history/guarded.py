"""Run an old planner on memory without a redzone, in a child process, as its users' processes did.

On a CPU the storage ends flush with a page that may not be touched, as Electric Fence does it, so a write past
the end kills the process. On a GPU it is a plain allocation: whether the overrun faults, or silently hits what
lies behind, depends on what was allocated there.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import torch

from kvzero.history import named, planner
from kvzero.plan.resize import with_num_blocks


def write_guarded(
    geometry: str, planner_name: str, blocks: Sequence[int], device: str = "cpu", num_blocks: int | None = None
) -> dict[str, int]:
    """Run an old planner's kernel on memory without a redzone. Call it through `kvzero.audit.child.run_in_child`.

    Args:
        geometry: a name that `named.geometry` knows.
        planner_name: name of the old planner.
        blocks: block ids.
        device: "cpu" or "cuda".
        num_blocks: another size of the pool, or None.

    Returns:
        `zero_bytes`: how many bytes of the storages are zero afterwards, if the process lives to tell.
    """
    pool = named.geometry(geometry)
    if num_blocks is not None:
        pool = with_num_blocks(pool, num_blocks)
    old = planner(planner_name)
    plan = old.plan(pool)
    make = _fenced if device == "cpu" else lambda nbytes: torch.empty(nbytes, dtype=torch.uint8, device=device)
    storages = {storage.id: make(storage.nbytes).fill_(1) for storage in pool.storages}
    old.write(plan, storages, blocks)
    if device != "cpu":
        torch.cuda.synchronize()
    return {"zero_bytes": sum(int(torch.count_nonzero(memory == 0)) for memory in storages.values())}


def _fenced(nbytes: int) -> torch.Tensor:
    """Host memory whose last byte lies just before a page without any permission."""
    page = mmap.PAGESIZE
    usable = -(-nbytes // page) * page
    region = mmap.mmap(-1, usable + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(region))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if libc.mprotect(address + usable, page, 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    return torch.frombuffer(region, dtype=torch.uint8)[usable - nbytes : usable]
