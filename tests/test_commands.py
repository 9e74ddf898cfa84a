"""`kvzero plan` and `kvzero audit`: what they print, their JSON, and their exit codes."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import raises_rule

from kvzero import geometries
from kvzero.__main__ import main
from kvzero.cli.inputs import parse_blocks
from kvzero.history import named

AUDIT_KEYS = [
    "planner", "witness", "device", "blocks", "missed_bytes", "stomped_bytes", "pad_bytes", "overrun_bytes",
    "needed_bytes", "written_bytes", "ok", "first", "by_layer",
]  # fmt: skip


@pytest.fixture
def slab(tmp_path):
    path = tmp_path / "slab.json"
    named.geometry("packed-slab-51288").to_json(path)
    return str(path)


def run(capsys, *words) -> tuple[int, str, str]:
    status = main(list(words))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def run_json(capsys, *words) -> tuple[int, dict]:
    status, out, err = run(capsys, *words, "--json")
    assert err == "" and out.count("\n") == 1
    return status, json.loads(out)


# ---- plan ----


def test_plan_json_has_the_stated_keys(capsys, slab):
    status, data = run_json(capsys, "plan", slab)
    assert status == 0
    assert list(data) == [
        "name", "num_blocks", "segments", "bytes_per_block", "needed_bytes_per_block", "launch",
    ]  # fmt: skip
    assert data["segments"][3] == {
        "storage": "slab", "base_bytes": 112_320, "block_stride_bytes": 149_760, "span_bytes": 37_376,
    }  # fmt: skip
    assert data["bytes_per_block"] == data["needed_bytes_per_block"] == 149_504
    assert data["launch"]["num_ids"] == 100 and data["launch"]["empty_programs_per_block"] == 0


def test_plan_prints_segments_for_a_reader(capsys, slab):
    status, out, err = run(capsys, "plan", slab)
    assert (status, err) == (0, "")
    assert "100 blocks, 4 segments" in out and "149,504 needed" in out
    assert "112,320" in out and "base_bytes" in out


def test_plan_takes_a_packaged_name_and_shortens_a_long_list(capsys):
    status, out, _ = run(capsys, "plan", "llama3_8b_bf16__LHBNC")
    assert status == 0
    assert f"{256 - 24:,} more" in out and len(out.splitlines()) == 4 + 24 + 1


@pytest.mark.parametrize("name", geometries.names()[::9])
def test_plan_json_of_real_dumps(capsys, name):
    status, data = run_json(capsys, "plan", name)
    assert status == 0 and data["name"] == name
    assert sum(segment["span_bytes"] for segment in data["segments"]) == data["needed_bytes_per_block"]


# ---- audit ----


@pytest.mark.parametrize("witness", ["arithmetic", "bytes"])
def test_audit_json_has_the_stated_keys(capsys, slab, witness):
    status, data = run_json(capsys, "audit", slab, "--blocks", "1,3", "--witness", witness, "--device", "cpu")
    assert status == 0
    assert list(data) == AUDIT_KEYS
    device = "none" if witness == "arithmetic" else "cpu"
    assert (data["planner"], data["witness"], data["device"]) == ("kvzero", witness, device)
    assert (data["blocks"], data["needed_bytes"], data["written_bytes"]) == ([1, 3], 299_008, 299_008)
    assert (data["ok"], data["first"]) == (True, None)


def test_the_overflow_of_a_packed_stride(capsys, slab):
    for blocks, stomped, overrun in (("98", 112_128, 0), ("last", 0, 112_320)):
        status, data = run_json(capsys, "audit", slab, "--planner", "page-per-segment", "--blocks", blocks)
        assert status == 1
        assert (data["stomped_bytes"], data["overrun_bytes"], data["missed_bytes"]) == (stomped, overrun, 0)
        assert data["first"]["kind"] == ("stomped" if stomped else "overrun")
    status, out, _ = run(capsys, "audit", slab, "--planner", "page-per-segment", "--blocks", "98")
    assert status == 1
    assert "wipes 112,128 live bytes" in out and "[X]" in out and "X stomped" in out


@pytest.mark.parametrize("planner", ["uniform-page", "page-per-segment", "stride-and-span", "masked-grid"])
def test_every_specimen_can_be_asked(capsys, slab, planner):
    status, data = run_json(capsys, "audit", slab, "--planner", planner, "--blocks", "99")
    assert (status, data["planner"]) == (1 if data["overrun_bytes"] else 0, planner)
    assert data["overrun_bytes"] == (112_320 if "page" in planner else 0)


def test_the_engines_own_segments_can_be_asked(capsys):
    status, data = run_json(capsys, "audit", "llama3_8b_bf16__BHLNC", "--planner", "engine", "--blocks", "0-2")
    assert (status, data["blocks"]) == (0, [0, 1, 2])
    assert round(data["written_bytes"] / data["needed_bytes"], 1) == 28.1


def test_a_specimen_writes_memory_too(capsys):
    status, data = run_json(capsys, "audit", "dsv4_c4_full__BLHNC", "--planner", "uniform-page", "--device", "cpu")
    assert (status, data["witness"], data["blocks"], data["overrun_bytes"]) == (1, "bytes", [15], 175_680)


# ---- layouts by name ----


def test_the_packaged_layouts_are_listed(capsys):
    status, out, _ = run(capsys, "layouts")
    assert status == 0 and len(out.splitlines()) == 1 + 87
    _, data = run_json(capsys, "layouts")
    assert [row["name"] for row in data["layouts"]] == geometries.names()
    assert data["layouts"][0] == {
        "name": "dsv32_bf16_mla_indexer__BLHNC", "engine": "vLLM 0.33.0", "num_blocks": 6, "views": 122, "storages": 1,
        "storage_bytes": 30_081_024,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("word", "meant"),
    [("dsv4_c4_ful__BLHNC", "dsv4_c4_full__BLHNC"), ("slab.jsn", "slab.json"), ("glm52_fp8__LBNHC", "glm52")],
)
def test_a_name_that_is_almost_right_gets_a_hint(capsys, slab, monkeypatch, word, meant):
    monkeypatch.chdir(Path(slab).parent)
    for command in ("plan", "audit", "triage"):
        status, _, err = run(capsys, command, word)
        assert status == 2 and f"did you mean '{meant}" in err and "`kvzero layouts`" in err


# ---- bad input: one clear line, exit 2, no traceback ----


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("audit", "glm52_fp8_dsmla_indexer__LBNHC", "--planner", "uniform-page"), "non-uniform-pages"),
        (("audit", "dsv4_c4_full__BLHNC", "--planner", "bucket"), "unknown-planner"),
        (("audit", "dsv4_c4_full__BLHNC", "--blocks", "16"), "unknown-block"),
        (("audit", "dsv4_c4_full__BLHNC", "--blocks", "3-1"), "block-list"),
        (("audit", "dsv4_c4_full__BLHNC", "--witness", "feeling"), "usage"),
        (("audit", "no-such-file.json"), "geometry-file"),
        (("plan", "no-such-file.json"), "geometry-file"),
        (("plan", "a" * 5000), "geometry-file"),
        (("plan",), "usage"),
        (("audit", "dsv4_c4_full__BLHNC", "--time-limit", "nan"), "usage"),
        (("audit", "dsv4_c4_full__BLHNC", "--witn", "bytes"), "usage"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys, words, rule):
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert err.startswith(f"error [{rule}]: ") and err.count("\n") == 1
    status, data = run_json(capsys, *words)
    assert status == 2 and list(data) == ["error"]
    assert data["error"]["rule"] == rule and data["error"]["message"] in err


@pytest.mark.parametrize("size", ["two", "-1", "1.5"])
def test_a_world_of_no_size_is_refused(capsys, monkeypatch, size):
    monkeypatch.setenv("WORLD_SIZE", size)
    status, data = run_json(capsys, "audit", "dsv4_c4_full__BLHNC")
    assert (status, data["error"]["rule"]) == (2, "ranks")


@pytest.mark.parametrize(
    ("line", "status", "err"),
    [
        ("plan no-such-file.json --json | true", 2, ""),
        ("plan dsv4_c4_full__BLHNC | true", 0, ""),
        ("audit dsv4_c4_full__BLHNC --planner uniform-page | true", 1, ""),
        ("audit llama3_8b_bf16__LHBNC --planner masked-grid --json | head -c1 > /dev/null", 1, ""),  # several buffers
        ("plan dsv4_c4_full__BLHNC > /dev/full", 2, "error [output-file]: the standard output: cannot be written"),
        ("plan dsv4_c4_full__BLHNC >&-", 0, ""),
        ("plan llama3_8b_bf16__LBHNC", 0, ""),
    ],
)
def test_an_output_that_takes_nothing_gives_no_traceback(line, status, err):
    for unbuffered in ("", "1"):
        variables = f"PYTHONUNBUFFERED={unbuffered} PYTHONIOENCODING=ascii"
        command = f"set -o pipefail; {variables} {shlex.quote(sys.executable)} -m kvzero {line}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=100)
        assert (done.returncode, done.stderr[: len(err) or None]) == (status, err)


def test_a_refusal_carries_its_numbers(capsys):
    _, data = run_json(capsys, "audit", "dsv32_bf16_mla_indexer__LBNHC", "--planner", "uniform-page")
    assert (data["error"]["first_page_words"], data["error"]["page_words"]) == (18_432, 2_112)


@pytest.mark.parametrize(("command", "number"), [("plan", "NaN"), ("audit", "-Infinity"), ("triage", "1e999")])
def test_a_refusal_of_a_number_that_json_lacks_is_json(capsys, tmp_path, command, number):
    path = tmp_path / "cache.json"
    path.write_text(f'{{"name": "n", "num_blocks": {number}, "storages": [], "layers": []}}')
    status, out, _ = run(capsys, command, str(path), "--json")
    error = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))["error"]
    assert (status, error["key"], error["value"]) == (2, "num_blocks", number.replace("1e999", "Infinity"))


def test_an_engine_that_stated_nothing_cannot_be_judged(capsys, slab):
    status, data = run_json(capsys, "audit", slab, "--planner", "engine")
    assert (status, data["error"]["rule"]) == (2, "no-engine-segments")


def test_overlapping_blocks_are_refused_by_plan(capsys, tmp_path):
    layer = {"name": "k", "storage": 0, "byte_offset": 0, "shape": [4, 20], "stride": [10, 1], "itemsize": 1}
    path = tmp_path / "overlap.json"
    path.write_text(
        json.dumps({"name": "o", "num_blocks": 4, "storages": [{"id": 0, "nbytes": 99}], "layers": [layer]})
    )
    for command in ("plan", "audit"):
        status, data = run_json(capsys, command, str(path))
        assert (status, data["error"]["rule"]) == (2, "span-exceeds-stride")
        assert (data["error"]["span_bytes"], data["error"]["block_stride_bytes"]) == (20, 10)
        assert str(path) in data["error"]["message"] and "layer k" in data["error"]["message"]


@pytest.mark.parametrize(
    ("text", "blocks"), [("1,3", [1, 3]), ("0-3", [0, 1, 2, 3]), ("last", [7]), (" 2 , 2,1-2,last", [2, 1, 7])]
)
def test_block_lists(text, blocks):
    assert parse_blocks(text, num_blocks=8) == blocks


@pytest.mark.parametrize("text", ["", "1,,2", "-1", "1-", "a", "1.5", "3-1", "0-99999999999", "²", "9" * 5000])
def test_bad_block_lists(text):
    with raises_rule("block-list"):
        parse_blocks(text, num_blocks=8)


@pytest.mark.parametrize("command", ["plan", "audit", "triage", "layouts"])
def test_help_speaks_to_a_newcomer(capsys, command):
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    out = capsys.readouterr().out
    assert left.value.code == 0 and "examples:" in out and "Exit status:" in out


def test_as_a_program(slab):
    done = subprocess.run(
        [sys.executable, "-m", "kvzero", "audit", slab, "--planner", "uniform-page", "--blocks", "99", "--json"],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout)["overrun_bytes"] == 112_320


@pytest.mark.gpu
def test_audit_on_a_gpu(capsys, slab):
    status, data = run_json(capsys, "audit", slab, "--blocks", "98,99", "--device", "cuda")
    assert (status, data["device"], data["ok"]) == (0, "cuda", True)


def test_a_long_run_in_the_interpreter_is_announced():
    command = "audit dsv32_fp8_dsmla_indexer__BLHNC --planner page-per-segment --witness bytes --device cpu".split()
    with subprocess.Popen([sys.executable, "-m", "kvzero", *command], stderr=subprocess.PIPE, text=True) as process:
        first_line = process.stderr.readline()
        process.kill()
    assert first_line.startswith("1,466,074 programs in Triton's interpreter: about 24.4 minutes")
