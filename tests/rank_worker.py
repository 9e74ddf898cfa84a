"""Run by torchrun in test_ranks.py: ranks of which the last refuses, fails, hangs or dies, as it is told."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from kvzero import geometries
from kvzero.errors import GeometryError
from kvzero.plan.planner import plan_segments
from kvzero.ranks import run_ranks


def work(rank):
    rank.stage("planning")
    mode = sys.argv[1] if rank.number == int(os.environ["WORLD_SIZE"]) - 1 else "well"
    geometry = geometries.load("dsv4_c4_mla_only__BLHNC")
    if mode == "refuse":
        raise GeometryError("no-blocks", where="cache.json", num_blocks=0)
    if mode == "fail":
        raise OSError("the disk is full")
    if mode == "hang":
        time.sleep(600)
    if mode == "well" and len(sys.argv) > 3:
        Path(sys.argv[3]).touch()
    if mode == "die":
        while not Path(sys.argv[3]).exists():  # not before the other rank is at work
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    plan = plan_segments(geometry)
    return {"plan": plan.to_dict(), "digest": plan.digest(), "ok": True, "sentence": "all zero"}


if __name__ == "__main__":
    sys.exit(run_ranks(work, device="cpu", time_limit_s=float(sys.argv[2]), as_json=True))
