"""One audit over the caches of many ranks, with one table and one exit code.

    kvzero audit "cache-{rank}.json" --blocks 1,3                                       all files in one process
    torchrun --nproc-per-node 8 -m kvzero audit "cache-{rank}.json" --blocks 1,3        each rank on its own GPU

Under torchrun each rank audits its own file and puts its report into torch.distributed's store. Every wait has a
timeout: a rank that does not report in time is named with the stage that it reached.
"""

from __future__ import annotations

import json
import os
import signal
import socket
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
from .device import pick_device
from .outputs import json_data

POLL_S = 0.05
LAST_WORDS_S = 5.0  # for printing and leaving, after all reports are in or the launcher has asked the ranks to end


@dataclass(frozen=True)
class Rank:
    """One rank: its number, its device, and `stage(name)`, which tells the others how far it has come."""

    number: int
    device: torch.device
    stage: Callable[[str], object]


class Stopped(BaseException):
    """The launcher asked this rank to end; no `except Exception` on the way may take it for a failure."""


def run_files(work: Callable[[int], dict[str, Any]], count: int) -> dict[str, Any]:
    """Do the work of every rank in this process.

    Args:
        work: gets the number of a rank, returns its report as `run_ranks` describes it.
        count: number of ranks.

    Returns:
        The verdict, as `judge` gives it.
    """
    return judge([_guarded(lambda number=number: work(number)) for number in range(count)])


def run_ranks(
    work: Callable[[Rank], dict[str, Any]], *, device: str = "auto", time_limit_s: float = 300.0, as_json: bool = False
) -> int:
    """Do the work of this rank, collect the reports of all, and print one table from one of them.

    Args:
        work: gets the `Rank`, returns plain data: `plan` (`Plan.to_dict()`), `digest` (`Plan.digest()`), `ok`, and
            `sentence`; other keys go into the JSON form. A KvzeroError is a refusal, any other exception a failure.
        device: "auto" (this rank's GPU if there is one), "cpu" or "cuda".
        time_limit_s: how long to wait for the others after this rank is done.
        as_json: print one JSON object in place of the table.

    Returns:
        The same code on every rank: 0 all well; 1 a rank found damage, failed, did not report, or holds another plan;
        2 a rank refused its input and nothing worse.

    Raises:
        CommandError: the environment does not say where to meet, or the meeting point does not answer.
    """
    store, number, count = _meet(time_limit_s)
    try:
        store.set(f"stage/{number}", "started")
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _stop)
        try:
            report = _guarded(lambda: _work(work, number, device, store))
            store.set(f"report/{number}", json.dumps(report))
            _wait(store, [f"report/{other}" for other in range(count)], time.monotonic() + time_limit_s)
        except Stopped:
            # torchrun ends all ranks when one dies: say what is known, above all who is missing.
            if not store.check([f"report/{number}"]):
                stopped = {"status": "stopped", "sentence": "it was told to end (SIGTERM) before it had a result"}
                store.set(f"report/{number}", json.dumps(stopped))
            _wait(store, [f"report/{other}" for other in range(count)], time.monotonic() + LAST_WORDS_S / 2)
        verdict = judge([_read(store, other) for other in range(count)])
        if store.add("printer", 1) == 1:  # the first that asks
            print(json.dumps(verdict) if as_json else table(verdict), flush=True)
            store.set("printed", "")
        # The others leave when the table is out, and whoever may host the store when the others have read it.
        _wait(store, ["printed"], time.monotonic() + LAST_WORDS_S)
        store.set(f"left/{number}", "")
        if number == 0:
            present = [rank for rank, row in enumerate(verdict["ranks"]) if row["status"] != "silent"]
            _wait(store, [f"left/{rank}" for rank in present], time.monotonic() + LAST_WORDS_S)
        return verdict["exit_code"]
    except dist.DistError as error:
        # The store is gone, and with it the only way to agree on who speaks: every rank says what it knows.
        print(f"rank {number}: NOT all well: the store went away with the launcher or rank 0 ({error})", flush=True)
        return 1


def _meet(time_limit_s: float) -> tuple[Any, int, int]:
    """The store of all ranks, this rank's number and the number of ranks, as the environment states them."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise errors.CommandError("ranks", detail=f"the environment lacks {', '.join(missing)}")
    rank, count, host, port = (os.environ[name] for name in names)
    if not (_is_count(count) and _is_count(rank) and int(rank) < int(count)):
        raise errors.CommandError(
            "ranks", detail=f"RANK is {rank!r}, WORLD_SIZE {count!r}: not a rank from 0 below the size"
        )
    if not (_is_count(port) and int(port) < 2**16):
        raise errors.CommandError("ranks", detail=f"MASTER_PORT is {port!r}: not a port from 0 to 65,535")
    options: dict[str, Any] = {}
    try:
        if rank == "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            # torch itself would listen on every interface; its store asks for no password.
            family = socket.getaddrinfo(host, None)[0][0]
            listener = socket.create_server((host, int(port)), family=family)
            options = {"is_master": True, "master_listen_fd": listener.detach()}
        timeout = timedelta(seconds=max(time_limit_s, 1.0))
        store = dist.TCPStore(host, int(port), wait_for_workers=False, timeout=timeout, **options)
    except (RuntimeError, ValueError, OSError) as error:
        raise errors.CommandError(
            "ranks", detail=f"no meeting point at {host}:{port}: {str(error).rstrip('.')}"
        ) from error
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"kvzero/{attempt}", store), int(rank), int(count)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _stop(*_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: what follows takes a few seconds
    raise Stopped


def _work(work: Callable[[Rank], dict[str, Any]], number: int, wanted: str, store: Any) -> dict[str, Any]:
    device = torch.device(pick_device(wanted))
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    return {**work(Rank(number, device, lambda name: store.set(f"stage/{number}", name))), "device": str(device)}


def _guarded(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The report of a rank, whatever happens to it."""
    try:
        found = work()
    except errors.KvzeroError as error:
        return {"status": "refused", "sentence": str(error), "error": json_data(error.to_dict())}
    except Exception as error:  # whatever broke here must reach the table
        return {"status": "failed", "sentence": f"{type(error).__name__}: {error}"}
    return json_data({**found, "status": "ok" if found["ok"] else "not ok"})


def _wait(store: Any, keys: list[str], deadline: float) -> None:
    # Polled, and not `store.wait`, in which Python would not notice that the launcher sends SIGTERM.
    while not store.check(keys) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _read(store: Any, number: int) -> dict[str, Any]:
    if store.check([f"report/{number}"]):
        return json.loads(store.get(f"report/{number}"))
    if not store.check([f"stage/{number}"]):
        return {"status": "silent", "sentence": "it never came to the meeting point"}
    stage = store.get(f"stage/{number}").decode()
    return {"status": "silent", "sentence": f"it died or hangs; last stage: {stage!r}"}


def judge(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """One verdict from the reports of all ranks.

    Args:
        reports: one per rank, in order: `status` ("ok", "not ok", "refused", "failed", "stopped", "silent") and
            `sentence`, with `plan` and `digest` where a plan was made.

    Returns:
        Plain data: `ranks` (the reports, plans left out), `agree`, `differences`, `ok`, `exit_code`.

    >>> a = {"status": "ok", "sentence": "", "digest": "aa", "plan": {"num_blocks": 16, "segments": []}}
    >>> b = {**a, "digest": "bb", "plan": {"num_blocks": 12, "segments": []}}
    >>> judge([a, a, b])["differences"][0]
    'rank 2 has 12 blocks, not 16: one scheduler gives ids to all ranks, and those from 12 on lie past its pool'
    """
    plans = {number: report["plan"] for number, report in enumerate(reports) if "digest" in report}
    most = max((plan["num_blocks"] for plan in plans.values()), default=0)
    differences = [
        f"rank {number} has {plan['num_blocks']} blocks, not {most}: one scheduler gives ids to all ranks, and "
        f"those from {plan['num_blocks']} on lie past its pool"
        for number, plan in plans.items()
        if plan["num_blocks"] < most
    ]
    digests = Counter(reports[number]["digest"] for number in plans if plans[number]["num_blocks"] == most)
    if len(digests) > 1:
        usual = digests.most_common(1)[0][0]
        members = [number for number in plans if reports[number]["digest"] == usual]
        same = f"rank{'s' * (len(members) > 1)} {', '.join(map(str, members))}"
        for number, plan in plans.items():
            if plan["num_blocks"] == most and reports[number]["digest"] != usual:
                differences.append(f"rank {number} differs from {same}: {difference(plan, plans[members[0]])}")
    kinds = {report["status"] for report in reports}
    worse = bool(differences) or bool(kinds - {"ok", "refused"})
    exit_code = 1 if worse else 2 if "refused" in kinds else 0
    shown = [{key: value for key, value in report.items() if key != "plan"} for report in reports]
    return {
        "ranks": [{"rank": number, **report} for number, report in enumerate(shown)],
        "agree": not differences and len(plans) == len(reports),
        "differences": differences,
        "ok": exit_code == 0,
        "exit_code": exit_code,
    }


def difference(plan: dict[str, Any], usual: dict[str, Any]) -> str:
    """The first thing in which two plans of equal `num_blocks` (`Plan.to_dict()`) differ, in words."""
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
        lines.append(
            "Ranks of one tensor-parallel group must hold equal plans. Stages of a pipeline may hold other segments, "
            "but every rank needs the same number of blocks: give the scheduler the smallest."
        )
    count = len(verdict["ranks"])
    lines.append(f"{count} ranks: {'all well, equal plans' if verdict['ok'] else 'NOT all well'}.")
    return "\n".join(lines)
