"""One audit on many GPUs: every rank judges its own cache, one table says what each found, nobody waits for ever.

    torchrun --nproc-per-node 8 -m kvzero audit "cache-{rank}.json" --blocks 1,3 --device auto

Each rank works on its own device and puts its report into the store that torchrun provides. A rank that does not
report is named, with the stage it reached: "stuck" if its process still beats, "silent" if not. Only when all have
reported do the ranks talk through a collective (NCCL on GPUs, gloo on CPUs), which must bring the same plan digests.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from . import errors

BEAT_S = 0.5
SILENCE_S = 10.0  # a process that does not beat for so long is dead, stopped or unreachable
POLL_S = 0.05
PRINT_WAIT_S = 5.0


def is_distributed() -> bool:
    """Whether this process is one of several ranks, by the environment that torchrun sets."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@dataclass(frozen=True)
class Rank:
    """One rank: its number, its device, and `stage(name)`, which tells the others how far it has come."""

    number: int
    count: int
    device: torch.device
    stage: Callable[[str], None]


def run_ranks(
    work: Callable[[Rank], dict[str, Any]],
    *,
    device: str = "auto",
    time_limit_s: float = 300.0,
    as_json: bool = False,
) -> int:
    """Do the work of this rank, meet the others, and print one table from one of them.

    Args:
        work: gets the `Rank`, returns plain data: `plan` (`Plan.to_dict()`), `digest` (`Plan.digest()`), `ok`, and
            `sentence`; other keys go into the JSON form. A KvzeroError is a refusal, any other exception a failure.
        device: "auto" (this rank's GPU if there is one), "cpu" or "cuda".
        time_limit_s: how long to wait for the others after this rank is done, and for the collective.
        as_json: print one JSON object in place of the table.

    Returns:
        The same code on every rank: 0 all well; 1 a rank found damage, failed, did not answer, or holds another plan;
        2 a rank refused its input and nothing worse.

    Raises:
        RanksError: the environment does not say where to meet, or the meeting point does not answer.
    """
    meeting = _Meeting.join(time_limit_s)
    try:
        return _run(meeting, work, device, time_limit_s, as_json)
    except dist.DistError as error:
        # The store is gone, and with it the only way to agree on who speaks: every rank says what it knows.
        host = "the launcher" if meeting.agent_hosts else "rank 0"
        print(f"rank {meeting.rank}: NOT all well: the meeting point went away with {host} ({error})", flush=True)
        return 1


def _run(meeting: _Meeting, work: Callable[[Rank], dict], device: str, time_limit_s: float, as_json: bool) -> int:
    rank = Rank(meeting.rank, meeting.count, _device(device), meeting.stage)
    try:
        meeting.start_beating()
        meeting.report(_guarded(work, rank))
        reports = meeting.collect(time_limit_s)
        exchange = _exchange(meeting, rank, reports, time_limit_s)
    except _Stopped:
        # torchrun ends all ranks when one dies: say what is known, above all who is missing.
        reports, exchange = meeting.collect(6 * BEAT_S), "not tried: the ranks were told to stop"
    verdict = judge(reports, exchange)
    if meeting.may_print():
        print(json.dumps(verdict) if as_json else table(verdict), flush=True)
        meeting.printed()
    meeting.leave(present=sum(report["status"] not in ("silent", "stuck") for report in reports))
    if exchange.startswith("no answer"):
        sys.stdout.flush()
        os._exit(verdict["exit_code"])  # a thread still hangs in the collective; leaving normally could hang too
    return verdict["exit_code"]


def judge(reports: list[dict[str, Any]], exchange: str = "ok") -> dict[str, Any]:
    """One verdict from the reports of all ranks.

    Args:
        reports: one per rank, in order: `status` ("ok", "not ok", "refused", "failed", "silent", "stuck") and
            `sentence`, with `plan` and `digest` where a plan was made.
        exchange: "ok", or what went wrong in the collective.

    Returns:
        Plain data: `ranks` (the reports, plans left out), `agree`, `differences`, `exchange`, `ok`, `exit_code`.

    >>> a = {"status": "ok", "sentence": "", "digest": "aa", "plan": {"num_blocks": 16, "segments": []}}
    >>> b = {**a, "digest": "bb", "plan": {"num_blocks": 12, "segments": []}}
    >>> judge([a, a, b])["differences"]
    ['rank 2 differs from ranks 0, 1: num_blocks is 12, not 16']
    """
    digests = Counter(report["digest"] for report in reports if "digest" in report)
    differences = []
    if len(digests) > 1:
        usual = digests.most_common(1)[0][0]
        members = [number for number, report in enumerate(reports) if report.get("digest") == usual]
        for number, report in enumerate(reports):
            if report.get("digest", usual) != usual:
                same = ", ".join(map(str, members))
                why = difference(report["plan"], reports[members[0]]["plan"])
                differences.append(f"rank {number} differs from rank{'s' * (len(members) > 1)} {same}: {why}")
    kinds = {report["status"] for report in reports}
    exchanged = exchange == "ok" or exchange.startswith("not tried")  # that is the reports' doing, and counted there
    worse = bool(differences) or not exchanged or bool(kinds - {"ok", "refused"})
    exit_code = 1 if worse else 2 if "refused" in kinds else 0
    shown = [{key: value for key, value in report.items() if key != "plan"} for report in reports]
    return {
        "ranks": [{"rank": number, **report} for number, report in enumerate(shown)],
        "agree": len(digests) == 1 and not any("digest" not in report for report in reports),
        "differences": differences,
        "exchange": exchange,
        "ok": exit_code == 0,
        "exit_code": exit_code,
    }


def difference(plan: dict[str, Any], usual: dict[str, Any]) -> str:
    """The first thing in which two plans (`Plan.to_dict()`) differ, in words."""
    if plan["num_blocks"] != usual["num_blocks"]:
        return f"num_blocks is {plan['num_blocks']}, not {usual['num_blocks']}"
    ours, theirs = plan["segments"], usual["segments"]
    for index, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        for key in ("storage", "base_bytes", "block_stride_bytes", "span_bytes"):
            if one[key] != other[key]:
                return f"segment {index} has {key} {one[key]}, not {other[key]}"
    if len(ours) != len(theirs):
        return f"it has {len(ours)} segments, not {len(theirs)}"
    return "the sizes of the storages"


def table(verdict: dict[str, Any]) -> str:
    """The verdict as text: one row per rank, then what differs, then one sentence."""
    rows = [("rank", "device", "plan", "verdict")]
    for report in verdict["ranks"]:
        text = report["status"] if report["status"] == "ok" else f"{report['status'].upper()}: {report['sentence']}"
        rows.append((str(report["rank"]), report.get("device", "-"), report.get("digest", "-"), text))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = []
    for row in rows:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*padded, row[3]]))
    lines += verdict["differences"]
    if verdict["differences"]:
        lines.append("Ranks of one tensor-parallel group must hold equal plans; stages of a pipeline may differ.")
    if verdict["exchange"] != "ok":
        lines.append(f"collective: {verdict['exchange']}")
    count = len(verdict["ranks"])
    lines.append(f"{count} ranks: {'all well, equal plans' if verdict['ok'] else 'NOT all well'}.")
    return "\n".join(lines)


class _Stopped(Exception):
    """The launcher asked this rank to end."""


class _Meeting:
    """The ranks' common store: stages, beats and reports under one prefix."""

    def __init__(self, store: Any, rank: int, count: int, agent_hosts: bool) -> None:
        self.store, self.rank, self.count, self.agent_hosts = store, rank, count, agent_hosts
        self.ended = threading.Event()

    @classmethod
    def join(cls, time_limit_s: float) -> _Meeting:
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        missing = [name for name in names if name not in os.environ]
        if missing:
            raise errors.RanksError(detail=f"the environment lacks {', '.join(missing)}")
        rank, count, host, port = (os.environ[name] for name in names)
        agent_hosts = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        try:
            store = dist.TCPStore(
                host, int(port), is_master=rank == "0" and not agent_hosts, wait_for_workers=False,
                timeout=timedelta(seconds=max(time_limit_s, 1.0)), multi_tenant=True,
            )  # fmt: skip
        except (RuntimeError, ValueError) as error:
            raise errors.RanksError(detail=f"no meeting point at {host}:{port}: {error}") from error
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


def _stop(*_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: what follows takes a few seconds
    raise _Stopped


def _device(wanted: str) -> torch.device:
    has_gpu = torch.cuda.is_available()
    if wanted == "cuda" and not has_gpu:
        raise errors.DeviceNotAvailableError(device=wanted, available=["cpu"])
    if wanted == "cpu" or not has_gpu:
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _guarded(work: Callable[[Rank], dict[str, Any]], rank: Rank) -> dict[str, Any]:
    about = {"device": str(rank.device)}
    try:
        found = work(rank)
    except errors.KvzeroError as error:
        return {**about, "status": "refused", "sentence": str(error), "error": json.loads(_plain(error.to_dict()))}
    except _Stopped:
        raise
    except Exception as error:  # whatever broke here must reach the table of the other ranks
        return {**about, "status": "failed", "sentence": f"{type(error).__name__}: {error}"}
    return json.loads(_plain({**found, **about, "status": "ok" if found["ok"] else "not ok"}))


def _plain(data: Any) -> str:
    return json.dumps(data, default=str)


def _exchange(meeting: _Meeting, rank: Rank, reports: list[dict[str, Any]], time_limit_s: float) -> str:
    """All-gather the plan digests on the ranks' devices; "ok" if they are those of the reports."""
    if any("digest" not in report for report in reports):
        return "not tried: a rank has no plan"
    outcome = []

    def gather() -> None:
        try:
            backend = "nccl" if rank.device.type == "cuda" else "gloo"
            dist.init_process_group(
                backend, store=dist.PrefixStore("collective", meeting.store), rank=rank.number, world_size=rank.count,
                timeout=timedelta(seconds=max(time_limit_s, 1.0)),
            )  # fmt: skip
            mine = torch.tensor(list(reports[rank.number]["digest"].encode()), dtype=torch.uint8, device=rank.device)
            parts = [torch.empty_like(mine) for _ in range(rank.count)]
            dist.all_gather(parts, mine)
            digests = [bytes(part.tolist()).decode() for part in parts]
            dist.destroy_process_group()
            same = digests == [report["digest"] for report in reports]
            outcome.append("ok" if same else f"it brought other digests than the reports: {digests}")
        except (RuntimeError, ValueError) as error:
            outcome.append(f"it failed: {error}")

    thread = threading.Thread(target=gather, daemon=True)
    thread.start()
    thread.join(time_limit_s)
    return outcome[0] if outcome else f"no answer in {time_limit_s:g} s"
