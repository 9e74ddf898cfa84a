"""What `warmup` takes in a process of its own, with Triton's cache on disk empty and then filled. Needs a GPU."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch

from kvzero.plan.planner import plan_segments
from kvzero.zero.zeroer import BlockZeroer

from .sets import Pool, slabs

WARM_RUNS = 3


def measure_warmup() -> dict:
    """Runs this module in new processes that share a new cache.

    Returns:
        `cold_cache_seconds`, `warm_cache_seconds` (the median of `WARM_RUNS`), and `wrote_bytes`: bytes that any
        warm-up changed.
    """
    with tempfile.TemporaryDirectory() as cache:
        cold, *warm = (_in_a_process(cache) for _ in range(1 + WARM_RUNS))
    return {
        "cold_cache_seconds": cold["seconds"],
        "warm_cache_seconds": statistics.median(each["seconds"] for each in warm),
        "wrote_bytes": sum(each["wrote_bytes"] for each in (cold, *warm)),
    }


def _in_a_process(cache: str) -> dict:
    environment = {**os.environ, "TRITON_CACHE_DIR": cache}
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def _main() -> None:
    geometry = slabs("warm-up", 37_376, 37_440, 64, 4, 1)
    pool = Pool(geometry, "cuda")
    zeroer = BlockZeroer(plan_segments(geometry), pool.storages)
    torch.cuda.synchronize()
    start = time.perf_counter()
    zeroer.warmup()
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "wrote_bytes": pool.wrong_bytes(np.empty(0, np.int64))}))


if __name__ == "__main__":
    _main()
