"""Many ranks: one table, one code, and whoever fails, hangs or dies is named in good time."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from refusals import raises_rule

from kvzero import geometries
from kvzero.__main__ import main
from kvzero.errors import GeometryError
from kvzero.plan.planner import plan_segments
from kvzero.plan.resize import with_num_blocks
from kvzero.ranks import difference, judge, run_ranks, table

HERE = Path(__file__).parent


def torchrun(count, *words, module=False, cwd=None):
    """Start ranks as a user does; the launcher's exit code and what it printed."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*launcher, *(["-m"] if module else []), *map(str, words)],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def report(name="dsv4_c4_mla_only__BLHNC", blocks=16, **facts):
    plan = plan_segments(with_num_blocks(geometries.load(name), blocks))
    return {"status": "ok", "sentence": "all zero", "plan": plan.to_dict(), "digest": plan.digest(), **facts}


def test_equal_plans_are_all_well():
    verdict = judge([report(), report(), report()])
    assert (verdict["ok"], verdict["exit_code"], verdict["agree"], verdict["differences"]) == (True, 0, True, [])
    assert "3 ranks: all well, equal plans." in table(verdict)


@pytest.mark.parametrize(
    "other, words",
    [
        (
            report(blocks=12),
            "rank 1 has 12 blocks, not 16: one scheduler gives ids to all ranks, and those from 12 on lie past "
            "its pool",
        ),
        (
            report("dsv4_c4_mla_only__LBNHC"),
            "rank 1 differs from ranks 0, 2: segment 0 has block_stride_bytes 37440, not 149760",
        ),
    ],
)
def test_a_mismatch_is_found_and_explained(other, words):
    verdict = judge([report(), other, report()])
    assert verdict["differences"] == [words]
    assert verdict["exit_code"] == 1 and not verdict["agree"]


def test_plans_that_differ_late_or_in_length():
    plan = plan_segments(geometries.load("dsv4_c4_mla_only__BLHNC")).to_dict()
    shorter = {**plan, "segments": plan["segments"][:-1]}
    assert difference(shorter, plan) == "it has 3 segments, not 4"
    assert difference(plan, plan) == "the sizes of the storages"


def test_exit_codes():
    refused = {"status": "refused", "sentence": "no blocks"}
    assert judge([refused, refused])["exit_code"] == 2
    assert judge([report(), refused])["exit_code"] == 2
    assert judge([report(), {"status": "silent", "sentence": "died"}, refused])["exit_code"] == 1
    assert judge([report(), report(status="not ok")])["exit_code"] == 1


def test_without_torchrun_there_is_nowhere_to_meet(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with raises_rule("ranks") as caught:
        run_ranks(lambda rank: {})
    assert "MASTER_ADDR" in caught.value.detail


@pytest.mark.parametrize(
    ("name", "value"),
    [("RANK", "2"), ("RANK", "-1"), ("RANK", "x"), ("WORLD_SIZE", "two"), ("MASTER_PORT", "99999")],
)
def test_an_environment_that_names_no_rank_is_refused_at_once(monkeypatch, name, value):
    for key, good in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}.items():
        monkeypatch.setenv(key, good)
    monkeypatch.setenv(name, value)
    with raises_rule("ranks") as caught:
        run_ranks(lambda rank: {})
    assert f"{name} is {value!r}" in caught.value.detail or f"{name} {value!r}" in caught.value.detail


@pytest.mark.parametrize("blocks", [(16, 16), (16, 12), (16, 16, 12, 16)])
def test_the_audit_command_on_ranks(blocks, tmp_path, monkeypatch, capsys):
    """As documented: each rank its own file, one table, one code, in one process and under torchrun."""
    monkeypatch.chdir(tmp_path)
    slab = geometries.load("dsv4_c4_mla_only__BLHNC")
    for rank, num_blocks in enumerate(blocks):
        with_num_blocks(slab, num_blocks).to_json(tmp_path / f"cache-{rank}.json")
    words = ("audit", "cache-{rank}.json", "--blocks", "1,3", "--device", "cpu", "--json")
    code = main(list(words))
    verdict = json.loads(capsys.readouterr().out)
    assert [row["status"] for row in verdict["ranks"]] == ["ok"] * len(blocks)
    assert [row["needed_bytes"] for row in verdict["ranks"]] == [2 * 149_504] * len(blocks)
    short = [rank for rank, num_blocks in enumerate(blocks) if num_blocks == 12]
    assert (code, verdict["ok"]) == (len(short), not short)
    assert [text.partition(",")[0] for text in verdict["differences"]] == [f"rank {r} has 12 blocks" for r in short]
    if len(blocks) == 2:
        code_of_ranks, out, _ = torchrun(2, "kvzero", *words, module=True, cwd=tmp_path)
        under_torchrun = json.loads(out)
        for row in under_torchrun["ranks"]:
            assert row.pop("device") == "cpu"
        for row in verdict["ranks"]:
            row.pop("device")
        assert (code_of_ranks, under_torchrun) == (code, verdict)


def test_a_rank_that_dies_under_torchrun_is_named_before_all_are_ended(tmp_path):
    """The launcher ends every rank when one dies; the others still say which."""
    code, out, _ = torchrun(2, HERE / "rank_worker.py", "die", 60, tmp_path / "at-work")
    verdict = json.loads(out)
    assert code == 1 and verdict["exit_code"] == 1
    assert verdict["ranks"][0]["status"] == "ok"
    assert verdict["ranks"][1]["status"] == "silent"
    assert "died or hangs; last stage: 'planning'" in verdict["ranks"][1]["sentence"]


def forked(count, monkeypatch, capfd, work, time_limit_s=3.0, hung=None, wants_cuda=None):
    """Ranks as forks of this process, without a launcher: exit codes (None: hung, killed here) and the output.

    All are to work on the CPU, but for the one that wants what is not there.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    monkeypatch.setenv("WORLD_SIZE", str(count))
    context = multiprocessing.get_context("fork")
    processes = []
    for rank in range(count):
        monkeypatch.setenv("RANK", str(rank))
        options = {"device": "cuda" if rank == wants_cuda else "cpu", "time_limit_s": time_limit_s, "as_json": True}
        body = lambda options=options: os._exit(run_ranks(work, **options))  # noqa: E731
        processes.append(context.Process(target=body))
        processes[-1].start()
    for rank, process in enumerate(processes):
        if rank != hung:
            process.join(time_limit_s + 30)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    return codes, capfd.readouterr().out


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    "trouble, status, words",
    [
        (lambda: time.sleep(600), "silent", "died or hangs; last stage: 'planning'"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "silent", "died or hangs; last stage: 'planning'"),
        (lambda: 1 / 0, "failed", "ZeroDivisionError: division by zero"),
    ],
    ids=["hangs", "dies", "fails"],
)
def test_a_rank_in_trouble_is_named_within_the_limit(trouble, status, words, monkeypatch, capfd, request):
    def work(rank):
        rank.stage("planning")
        if rank.number == 1:
            trouble()
        return {**report(), "ok": True}

    start = time.monotonic()
    codes, out = forked(3, monkeypatch, capfd, work, hung=1 if "hangs" in request.node.name else None)
    verdict = json.loads(out)
    assert codes[0] == codes[2] == verdict["exit_code"] == 1
    assert [row["status"] for row in verdict["ranks"]] == ["ok", status, "ok"]
    assert words in verdict["ranks"][1]["sentence"]
    assert time.monotonic() - start < 60  # a limit of 3 s, and not for ever


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_refusal_on_one_rank_is_code_2_on_all(monkeypatch, capfd):
    def work(rank):
        if rank.number == 1:
            raise GeometryError("no-blocks", where="cache-1.json", num_blocks=0)
        return {**report(), "ok": True}

    codes, out = forked(2, monkeypatch, capfd, work)
    verdict = json.loads(out)
    assert codes == [2, 2] and verdict["ranks"][1]["error"]["rule"] == "no-blocks"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("lacking", [0, 1])
def test_a_rank_without_its_device_is_refused_in_the_table_of_all(lacking, monkeypatch, capfd):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    codes, out = forked(2, monkeypatch, capfd, lambda rank: {**report(), "ok": True}, wants_cuda=lacking)
    refused, well = (json.loads(out)["ranks"][rank] for rank in (lacking, 1 - lacking))
    assert codes == [2, 2]
    assert (refused["status"], refused["error"]["rule"]) == ("refused", "device-not-available")
    assert (well["status"], well["device"]) == ("ok", "cpu")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_when_the_host_of_the_meeting_dies_the_others_say_so(monkeypatch, capfd):
    def work(rank):
        if rank.number == 0:
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        return {**report(), "ok": True}

    codes, out = forked(2, monkeypatch, capfd, work, time_limit_s=20.0)
    assert codes == [-signal.SIGKILL, 1]
    assert "rank 1: NOT all well" in out and "rank 0" in out


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_rank_that_is_told_to_end_says_so_whatever_it_was_doing(monkeypatch, capfd):
    """Triton's interpreter turns every Exception of the code that it runs into one of its own."""

    def work(rank):
        if rank.number == 1:
            os.kill(os.getpid(), signal.SIGTERM)
            try:
                time.sleep(60)
            except Exception as error:
                raise RuntimeError("InterpreterError") from error
        return {**report(), "ok": True}

    codes, out = forked(2, monkeypatch, capfd, work)
    verdict = json.loads(out)
    assert codes == [1, 1] and verdict["ranks"][1]["status"] == "stopped"
    assert "SIGTERM" in verdict["ranks"][1]["sentence"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_store_listens_on_the_address_given_and_on_no_other(monkeypatch, capfd):
    def work(rank):
        with open("/proc/net/tcp", encoding="ascii") as v4, open("/proc/net/tcp6", encoding="ascii") as v6:
            rows = [line.split() for line in (*v4.readlines()[1:], *v6.readlines()[1:])]
        port = f"{int(os.environ['MASTER_PORT']):04X}"
        places = [row[1].split(":")[0] for row in rows if row[1].endswith(f":{port}") and row[3] == "0A"]
        return {**report(), "ok": True, "places": places}

    codes, out = forked(2, monkeypatch, capfd, work)
    assert codes == [0, 0] and json.loads(out)["ranks"][0]["places"] == ["0100007F"]


def test_files_of_ranks_that_lack_one_are_refused_by_number(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for rank in (0, 2):
        geometries.load("dsv4_c4_mla_only__BLHNC").to_json(f"cache-{rank}.json")
    assert main(["audit", "cache-{rank}.json", "--json"]) == 2
    verdict = json.loads(capsys.readouterr().out)
    assert [row["status"] for row in verdict["ranks"]] == ["ok", "refused", "ok"]
    assert "cache-1.json" in verdict["ranks"][1]["sentence"]
    assert main(["audit", "other-{rank}.json"]) == 2


@pytest.mark.gpu
def test_on_gpus(tmp_path):
    count = min(torch.cuda.device_count(), 2)
    geometry = geometries.load("dsv4_c4_mla_only__BLHNC")
    geometry.to_json(tmp_path / "cache.json")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    done = subprocess.run(
        [*launcher, "-m", "kvzero", "audit", "cache.json", "--blocks", "1", "--device", "cuda", "--json"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(HERE.parent)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    verdict = json.loads(done.stdout) if count > 1 else None
    if verdict:
        assert done.returncode == 0
        assert [row["device"] for row in verdict["ranks"]] == [f"cuda:{rank}" for rank in range(count)]
    else:
        assert done.returncode == 0 and json.loads(done.stdout)["ok"]
