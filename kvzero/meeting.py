"""Where ranks meet: a common store with each one's stage, heartbeat and report. Nobody waits in it for ever."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from kvzero import errors

BEAT_S = 0.5
SILENCE_S = 10.0  # a process that does not beat for so long is dead, stopped or unreachable
POLL_S = 0.05
PRINT_WAIT_S = 5.0


class Stopped(Exception):
    """The launcher asked this rank to end."""


class Meeting:
    """The ranks' common store: stages, beats and reports under one prefix."""

    def __init__(self, store: Any, rank: int, count: int, agent_hosts: bool) -> None:
        self.store, self.rank, self.count, self.agent_hosts = store, rank, count, agent_hosts
        self.ended = threading.Event()

    @classmethod
    def join(cls, time_limit_s: float) -> Meeting:
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        missing = [name for name in names if name not in os.environ]
        if missing:
            raise errors.RanksError(detail=f"the environment lacks {', '.join(missing)}")
        rank, count, host, port = (os.environ[name] for name in names)
        if not (_is_count(count) and _is_count(rank) and int(rank) < int(count)):
            raise errors.RanksError(detail=f"RANK is {rank!r}, WORLD_SIZE {count!r}: not a rank from 0 below the size")
        if not (_is_count(port) and int(port) < 2**16):
            raise errors.RanksError(detail=f"MASTER_PORT is {port!r}: not a port from 0 to 65,535")
        agent_hosts = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        try:
            store = dist.TCPStore(
                host, int(port), is_master=rank == "0" and not agent_hosts, wait_for_workers=False,
                timeout=timedelta(seconds=max(time_limit_s, 1.0)), multi_tenant=True,
            )  # fmt: skip
        except (RuntimeError, ValueError) as error:
            raise errors.RanksError(detail=f"no meeting point at {host}:{port}: {str(error).rstrip('.')}") from error
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return cls(dist.PrefixStore(f"kvzero/{attempt}", store), int(rank), int(count), agent_hosts)

    def stage(self, name: str) -> None:
        self.store.set(f"stage/{self.rank}", name)

    def start_beating(self) -> None:
        self.stage("started")
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _stop)
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while not self.ended.wait(BEAT_S):
            try:
                self.store.add(f"beat/{self.rank}", 1)
            except RuntimeError:
                return  # the store has gone, and with it anyone who listens

    def report(self, data: dict[str, Any]) -> None:
        self.store.set(f"report/{self.rank}", json.dumps(data))

    def collect(self, time_limit_s: float) -> list[dict[str, Any]]:
        """Every rank's report, or what is known of those that give none in time."""
        start = time.monotonic()
        heard = {number: (0, start) for number in range(self.count)}
        waiting = set(heard)
        while True:
            now = time.monotonic()
            waiting = {number for number in waiting if not self._has(f"report/{number}")}
            for number in waiting:
                beats = self.store.add(f"beat/{number}", 0)
                if beats != heard[number][0]:
                    heard[number] = (beats, now)
            alive = any(now - heard[number][1] < min(SILENCE_S, time_limit_s) for number in waiting)
            if not waiting or not alive or now - start >= time_limit_s:
                return [self._absent(n, now - heard[n][1]) if n in waiting else self._read(n) for n in heard]
            time.sleep(POLL_S)

    def _has(self, key: str) -> bool:
        return self.store.check([key])

    def _read(self, number: int) -> dict[str, Any]:
        return json.loads(self.store.get(f"report/{number}"))

    def _absent(self, number: int, quiet_s: float) -> dict[str, Any]:
        stage = self.store.get(f"stage/{number}").decode() if self._has(f"stage/{number}") else None
        if stage is None:
            return {"status": "silent", "sentence": "it never came to the meeting point"}
        if quiet_s < 4 * BEAT_S:
            return {"status": "stuck", "sentence": f"its process lives, but it did not get past stage {stage!r}"}
        return {"status": "silent", "sentence": f"its process died or was stopped; last stage: {stage!r}"}

    def may_print(self) -> bool:
        """True on the first rank that asks; the others wait until that one has printed."""
        if self.store.add("printer", 1) == 1:
            return True
        end = time.monotonic() + PRINT_WAIT_S
        while time.monotonic() < end and not self._has("printed"):
            time.sleep(POLL_S)
        return False

    def printed(self) -> None:
        self.store.set("printed", "1")

    def leave(self, present: int) -> None:
        """Say good-bye; a rank that hosts the store stays until those present have done so."""
        self.ended.set()
        self.store.add("left", 1)
        end = time.monotonic() + PRINT_WAIT_S
        while self.rank == 0 and not self.agent_hosts and time.monotonic() < end:
            if self.store.add("left", 0) >= present:
                return
            time.sleep(POLL_S)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _stop(*_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: what follows takes a few seconds
    raise Stopped
