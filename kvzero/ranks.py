"""One audit on many GPUs: every rank judges its own cache, one table says what each found, nobody waits for ever.

    torchrun --nproc-per-node 8 -m kvzero audit "cache-{rank}.json" --blocks 1,3 --device auto

Each rank works on its own device and puts its report into the store that torchrun provides. A rank that does not
report is named, with the stage it reached: "stuck" if its process still beats, "silent" if not. Only when all have
reported do the ranks talk through a collective (NCCL on GPUs, gloo on CPUs), which must bring the same plan digests.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from kvzero import errors
from kvzero.device import pick_device
from kvzero.meeting import BEAT_S, Meeting, Stopped
from kvzero.outputs import plain


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
    meeting = Meeting.join(time_limit_s)
    try:
        return _run(meeting, work, device, time_limit_s, as_json)
    except dist.DistError as error:
        # The store is gone, and with it the only way to agree on who speaks: every rank says what it knows.
        host = "the launcher" if meeting.agent_hosts else "rank 0"
        print(f"rank {meeting.rank}: NOT all well: the meeting point went away with {host} ({error})", flush=True)
        return 1


def _run(meeting: Meeting, work: Callable[[Rank], dict], device: str, time_limit_s: float, as_json: bool) -> int:
    try:
        meeting.start_beating()
        meeting.report(_guarded(work, meeting, device))
        reports = meeting.collect(time_limit_s)
        exchange = _exchange(meeting, reports, time_limit_s)
    except Stopped:
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


def _device(wanted: str) -> torch.device:
    device = torch.device(pick_device(wanted))
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    return device


def _guarded(work: Callable[[Rank], dict[str, Any]], meeting: Meeting, wanted: str) -> dict[str, Any]:
    about = {}
    try:
        # A device that is not there is this rank's refusal, and the others read it in the table.
        rank = Rank(meeting.rank, meeting.count, _device(wanted), meeting.stage)
        about["device"] = str(rank.device)
        found = work(rank)
    except errors.KvzeroError as error:
        return {**about, "status": "refused", "sentence": str(error), "error": plain(error.to_dict())}
    except Stopped:
        raise
    except Exception as error:  # whatever broke here must reach the table of the other ranks
        return {**about, "status": "failed", "sentence": f"{type(error).__name__}: {error}"}
    return plain({**found, **about, "status": "ok" if found["ok"] else "not ok"})


def _exchange(meeting: Meeting, reports: list[dict[str, Any]], time_limit_s: float) -> str:
    """All-gather the plan digests on the ranks' devices; "ok" if they are those of the reports."""
    if any("digest" not in report for report in reports):
        return "not tried: a rank has no plan"
    device = torch.device(reports[meeting.rank]["device"])
    outcome = []

    def gather() -> None:
        try:
            dist.init_process_group(
                "nccl" if device.type == "cuda" else "gloo", store=dist.PrefixStore("collective", meeting.store),
                rank=meeting.rank, world_size=meeting.count, timeout=timedelta(seconds=max(time_limit_s, 1.0)),
            )  # fmt: skip
            mine = torch.tensor(list(reports[meeting.rank]["digest"].encode()), dtype=torch.uint8, device=device)
            parts = [torch.empty_like(mine) for _ in range(meeting.count)]
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
