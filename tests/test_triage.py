"""Triage: agrees with what is known of every real dump, is right or refuses on what it never met, says it plainly."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known import ENGINE_TIMES
from refusals import raises_rule
from strategies import engine_layouts, wild_views

from kvzero import geometries
from kvzero import history as specimens
from kvzero.__main__ import main
from kvzero.audit.audit import audit_plan
from kvzero.errors import KvzeroError
from kvzero.history import named
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.records import Segment
from kvzero.plan.planner import plan_segments
from kvzero.plan.resize import with_num_blocks
from kvzero.triage import triage
from kvzero.triage.judging import judge_planner, telling_blocks
from kvzero.triage.shrink import shrink
from kvzero.workbook.triage import (
    caches_table,
    counts_text,
    trial_pool,
    two_witnesses,
)

OLD = ("uniform-page", "page-per-segment")
# (file, planner) to {kind of fault: bytes}; {} is right.
ERAS = {
    ("dsv4_c4_mla_only__BLHNC", OLD): {"stomped": 112_128, "overrun": 112_320},
    ("dsv4_c4_mla_only__BLHNC", ("stride-and-span",)): {},
    ("dsv4_c4_full__BLHNC", OLD): {"stomped": 175_296, "overrun": 175_680},
    ("dsv4_c4_full__BLHNC", ("stride-and-span",)): {"missed": 448},
    ("dsv32_fp8_dsmla_indexer__BLHNC", OLD): {"stomped": 3_067_904, "overrun": 3_067_904},
    ("dsv32_fp8_dsmla_indexer__BLHNC", ("stride-and-span",)): {},
    ("llama3_8b_bf16__LHBNC", OLD): {"missed": 1_835_008},
    ("llama3_8b_bf16__LHBNC", ("stride-and-span",)): {"stomped": 12_845_056},
    ("gptoss_18sw_18full__LHBNC", ("stride-and-span",)): {"stomped": 3_612_672},
    ("glm52_fp8_dsmla_indexer__LBNHC", ("page-per-segment", "stride-and-span")): {},
}
REFUSED_WORDS = {
    "glm52_fp8_dsmla_indexer__LBNHC": {10_496, 2_112},
    "dsv32_fp8_dsmla_indexer__LBNHC": {10_496, 2_112},
    "dsv32_bf16_mla_indexer__LBNHC": {18_432, 2_112},
}


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs `kvzero triage` in an empty folder; gives the exit status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        status = main(["triage", *words])
        return status, *capsys.readouterr()

    return run


@pytest.mark.parametrize("name", geometries.names())
def test_the_engines_own_plan_is_right_on_every_dump(name):
    report = triage(geometries.load(name))
    assert report.ok and report.engine.faults == ()
    decimals = 1 if report.engine.written_over_needed > 2 else 2
    assert round(report.engine.written_over_needed, decimals) == ENGINE_TIMES.get(name, 1.0)
    assert report.text() and json.dumps(report.to_dict())


@pytest.mark.parametrize("name, planners", ERAS)
def test_the_eras_do_what_is_known(name, planners):
    report = triage(geometries.load(name))
    for planner in planners:
        finding = report.finding(planner)
        found = {fault.kind: fault.count_bytes for fault in finding.faults if not fault.harmless}
        assert found == ERAS[name, planners], planner


@pytest.mark.parametrize("name", REFUSED_WORDS)
def test_uniform_pages_are_refused_with_both_numbers(name):
    report = triage(geometries.load(name))
    fault = report.finding("uniform-page").fault("refuses")
    assert {fault.error["first_page_words"], fault.error["page_words"]} == REFUSED_WORDS[name]
    assert fault.fixed_by == "#49704"
    assert report.right_since() == "#49704"


def test_fixes_are_found_by_running_the_later_eras():
    report = triage(geometries.load("dsv4_c4_full__BLHNC"))
    assert report.finding("page-per-segment").fault("overrun").fixed_by == "#50276"
    assert report.finding("stride-and-span").fault("missed").fixed_by == "#51749"
    heads_outside = triage(geometries.load("llama3_8b_bf16__LHBNC"))
    assert heads_outside.finding("masked-grid").fault("stomped").fixed_by == "#51718"
    assert heads_outside.right_since() == "#51718"
    blind = triage(replace(geometries.load("llama3_8b_bf16__LHBNC"), engine_segments=()))
    assert blind.finding("masked-grid").fault("stomped").fixed_by == "" and blind.right_since() == ""


def test_a_change_inside_an_era_is_named_as_what_is_needed():
    for name, said in (
        ("dsv4_c4_full__BLHNC", "needs #51749, which every version from #52058 on contains"),
        ("dsv4_c4_mla_only__BLHNC", "needs a version with #50276 or newer"),
    ):
        assert said in " ".join(triage(geometries.load(name)).text().split())


@pytest.mark.parametrize("name", geometries.names())
def test_no_line_is_too_long_to_paste(name):
    report = triage(geometries.load(name))
    long = [line for line in report.text().splitlines() if len(line) > 100]
    assert [line for line in long if " " in line.strip()] == []


def test_where_it_shows_first_and_whom_it_hits():
    report = triage(named.geometry("packed-slab-51288"))
    finding = report.finding("page-per-segment")
    stomped, overrun = finding.fault("stomped"), finding.fault("overrun")
    assert (stomped.smallest_block, stomped.hit_blocks, set(stomped.layers)) == (
        0, (1, 1), {"layer.0", "layer.1", "layer.2"},
    )  # fmt: skip
    assert (overrun.block, overrun.smallest_block) == (99, 99)
    assert "layer.0" in report.text() and "112,320 bytes past the end" in report.text()


def test_the_launch_that_overflowed():
    report = triage(named.geometry("launch-overflow-52058"))
    fault = report.finding("stride-and-span").fault("launch")
    assert (fault.error["programs"], fault.fixed_by) == (2_904_745_920, "#52058")
    assert report.finding("masked-grid").programs == 12_434_700


@given(geometry=engine_layouts(max_blocks=24), planner=st.sampled_from(list(specimens.PLANNERS)))
def test_a_few_blocks_tell_what_all_blocks_do(geometry, planner):
    """The audits that triage picks against audits of every block, one at a time."""
    finding = judge_planner(geometry, planner)
    if finding.fault("refuses"):
        return
    plan = specimens.planner(planner).plan(geometry)
    audits = [audit_plan(plan, geometry, [block]) for block in range(geometry.num_blocks)]
    for kind in ("missed", "stomped", "overrun"):
        hits = [audit.blocks[0] for audit in audits if getattr(audit, f"{kind}_bytes")]
        fault = finding.fault(kind)
        assert (fault is not None) == bool(hits)
        if hits:
            assert fault.smallest_block == hits[0]
            assert fault.count_bytes == max(getattr(audit, f"{kind}_bytes") for audit in audits)


@given(geometry=wild_views())
def test_what_it_never_met_is_right_or_refused(geometry):
    try:
        plan_segments(geometry)
    except KvzeroError as refusal:
        with raises_rule(refusal.rule):
            triage(geometry)
        return
    report = triage(geometry)
    assert report.plan.proven and report.ok
    assert report.text() and report.html()


@settings(max_examples=50)
@given(geometry=engine_layouts(), data=st.data())
def test_the_engines_segments_are_judged(geometry, data):
    """kvzero's own segments given as the engine's are right; one shifted or missing is found."""
    segments = plan_segments(geometry).segments
    assert triage(replace(geometry, engine_segments=segments)).ok
    index = data.draw(st.integers(0, len(segments) - 1))
    short = Segment(
        segments[index].storage, segments[index].base_bytes, segments[index].block_stride_bytes,
        segments[index].span_bytes - 1,
    )  # fmt: skip
    report = triage(replace(geometry, engine_segments=(*segments[:index], short, *segments[index + 1 :])))
    assert not report.ok
    assert report.engine.fault("missed").count_bytes == 1


def test_a_140_gb_cache_takes_under_two_seconds():
    for name in ("dsv32_fp8_dsmla_indexer__BLHNC", "llama3_8b_bf16__LHBNC"):
        small = geometries.load(name)
        per_block = sum(storage.nbytes for storage in small.storages) // small.num_blocks
        big = with_num_blocks(small, 140_000_000_000 // per_block)
        start = time.perf_counter()
        report = triage(big)
        assert time.perf_counter() - start < 2.0
        assert report.ok and not report.finding("uniform-page").ok
        assert telling_blocks(report.plan, big)[-1] == big.num_blocks - 1


@pytest.mark.parametrize(
    "name, planner, views, blocks",
    [
        ("dsv4_c4_mla_only__BLHNC", "page-per-segment", 2, 2),
        ("dsv32_fp8_dsmla_indexer__BLHNC", "page-per-segment", 2, 2),
        ("llama3_8b_bf16__LHBNC", "masked-grid", 1, 2),
        ("glm52_fp8_dsmla_indexer__LBNHC", "uniform-page", 2, 1),
    ],
)
def test_the_smallest_geometry_still_shows_it(name, planner, views, blocks):
    geometry = geometries.load(name)
    small = shrink(geometry, planner)
    assert (len(small.layers), small.num_blocks) == (views, blocks)
    before, after = judge_planner(geometry, planner), judge_planner(small, planner)
    wrong = {fault.kind for fault in before.faults if not fault.harmless}
    assert {fault.kind for fault in after.faults if not fault.harmless} >= wrong
    for view in small.layers:
        rest = [layer for layer in small.to_dict()["layers"] if layer["name"] != view.name]
        if rest:
            fewer = judge_planner(CacheGeometry.from_dict({**small.to_dict(), "layers": rest}), planner)
            assert not {fault.kind for fault in fewer.faults} >= wrong, f"{view.name} was not needed"


def test_a_cache_that_an_era_does_not_zero_at_all():
    """Sliding-window layers alone: nothing to launch before #51749, and every byte stays dirty."""
    full = geometries.load("dsv4_c4_mla_only__BLHNC").to_dict()
    for layer in full["layers"]:
        layer["spec_kind"] = "sliding_window"
    report = triage(CacheGeometry.from_dict(full))
    finding = report.finding("stride-and-span")
    assert (finding.segments, finding.programs) == (0, None)
    assert (finding.fault("missed").count_bytes, finding.fault("missed").fixed_by) == (149_504, "#51749")
    assert "zeroes no layer" in report.text()


def test_nothing_to_shrink_is_said():
    with raises_rule("nothing-to-shrink"):
        shrink(geometries.load("dsv4_c4_mla_only__BLHNC"), "stride-and-span")


def test_the_command_writes_report_page_and_smallest(tmp_path, command):
    status, out, _ = command("dsv4_c4_mla_only__BLHNC", "--html", "r.html", "--shrink", "s.json", "--json")
    data = json.loads(out)
    assert status == 0 and data["ok"]
    assert data["smallest"] == {"planner": "page-per-segment", "num_blocks": 2, "views": 2}
    page = (tmp_path / "r.html").read_text()
    page = page.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "112,128 bytes" in page and page.count("<svg") == 2 and 'name="viewport"' in page
    assert '<a href="https://github.com/vllm-project/vllm/pull/50276">#50276</a>' in page
    assert page.index("What to do") < page.index("What the engine's own plan does") < page.index("Earlier planners")
    assert not re.search(r"url\((?!#)|@import|<script|src=", page)
    links = re.findall(r'href="(?!#)([^"]*)"', page)
    assert all(link.startswith("https://github.com/vllm-project/vllm/pull/") for link in links)
    assert len(CacheGeometry.from_json(tmp_path / "s.json").layers) == 2
    status, out, _ = command("s.json")
    assert status == 0 and "wipes" in out and str(tmp_path) not in out


def test_the_command_exits_1_on_a_wrong_engine_plan(tmp_path, command):
    data = geometries.load("dsv4_c4_mla_only__BLHNC").to_dict()
    for segment in data["engine_segments"]:
        segment["span_bytes"] = segment["block_stride_bytes"]
    (tmp_path / "wrong.json").write_text(json.dumps(data))
    status, out, _ = command("wrong.json", "--shrink", "s.json")
    assert status == 1
    assert "WRONG: the engine's own plan writes" in out and "swap in kvzero" in out and "page-per-segment" in out
    small = CacheGeometry.from_json(tmp_path / "s.json")
    assert (small.num_blocks, len(small.layers), len(small.engine_segments)) == (2, 2, 2)


@pytest.mark.parametrize(
    "text, rule",
    [
        ("not json", "geometry-file"),
        ("[1, 2]", "geometry-file"),
        ('{"name": "x", "num_blocks": 0, "storages": [], "layers": []}', "no-blocks"),
        ('{"name": "x", "num_blocks": 2, "storages": [{"id": 0, "nbytes": 64}], "layers": [{"name": "a", "storage": 0, '
         '"byte_offset": 0, "shape": [2, 16], "stride": [8, 1], "itemsize": 1}]}', "span-exceeds-stride"),
        ('{"name": "x", "num_blocks": 2, "storages": [{"id": 0, "nbytes": 64}], "layers": [{"name": "a", "storage": 0, '
         '"byte_offset": 40, "shape": [2, 16], "stride": [16, 1], "itemsize": 1}]}', "view-outside-storage"),
    ],
)  # fmt: skip
def test_a_bad_file_gives_one_line_and_no_files(tmp_path, command, text, rule):
    (tmp_path / "bad.json").write_text(text)
    status, out, err = command("bad.json", "--html", "r.html", "--shrink", "s.json")
    assert status == 2 and out == "" and err.count("\n") == 1 and f"[{rule}]" in err
    assert [file.name for file in tmp_path.iterdir()] == ["bad.json"]


def test_other_refusals_of_the_command(tmp_path, command):
    slab = "dsv4_c4_mla_only__BLHNC"
    cases = {
        "geometry-file": ["no-such-file.json"],
        "unknown-planner": [slab, "--shrink", "s.json", "--planner", "nobody"],
        "nothing-to-shrink": [slab, "--html", "r.html", "--shrink", "s.json", "--planner", "engine"],
        "unknown-planner ": [slab, "--planner", "nobody"],
        "output-file": [slab, "--html", "no/such/folder/r.html"],
        "output-file ": [slab, "--html", "r.html", "--shrink", "no/such/folder/s.json"],
        "output-file  ": [slab, "--html", "r", "--shrink", "r"],
        "output-file   ": [slab, "--html", ""],
        "output-file    ": [slab, "--html", slab],
    }
    for rule, words in cases.items():
        rule = rule.strip()
        status, out, _ = command(*words, "--json")
        assert status == 2 and json.loads(out)["error"]["rule"] == rule
    assert list(tmp_path.iterdir()) == []


def test_the_text_to_paste_holds_the_smallest_geometry():
    report = triage(geometries.load("dsv4_c4_mla_only__BLHNC"))
    small = shrink(report.geometry, report.worst().planner)
    text = report.markdown(small)
    data = json.loads(text.split("```json\n")[1].split("\n```")[0])
    assert CacheGeometry.from_dict(data) == small
    assert not any("manager_view_shape" in layer for layer in data["layers"])  # it was that of 16 blocks
    assert report.markdown().count("```") == 2
    assert "vllm-project/vllm#50276" in text and not re.search(r"(?<!vllm)#\d{5}", text)


def test_trials_fit_and_keep_the_layout():
    big = with_num_blocks(geometries.load("dsv4_c4_mla_only__BLHNC"), 100_000)
    trial = trial_pool(big, 10_000_000)
    assert sum(storage.nbytes for storage in trial.storages) <= 10_000_000
    assert plan_segments(trial).segments == plan_segments(big).segments
    assert trial_pool(geometries.load("numblocks1__LBNHC"), 1) is None


def test_both_faults_of_the_smallest_cache_are_there_in_memory():
    geometry = geometries.load("dsv4_c4_full__BLHNC")
    small = shrink(geometry, "page-per-segment")
    pairs = two_witnesses(small, judge_planner(small, "page-per-segment"), "cpu")
    assert {block: counts_text(by_memory) for block, (_, by_memory) in pairs.items()} == {
        0: "wiped 37,376, past the end 0, left dirty 0, pad 109,632",
        1: "wiped 0, past the end 112,320, left dirty 0, pad 34,688",
    }
    assert all(counts_text(by_arithmetic) == counts_text(by_memory) for by_arithmetic, by_memory in pairs.values())
    refusing = geometries.load("glm52_fp8_dsmla_indexer__LBNHC")
    assert two_witnesses(refusing, judge_planner(refusing, "uniform-page"), "cpu") == {}


def test_what_the_notebook_says_of_a_cache():
    geometry = geometries.load("dsv4_c4_full__BLHNC")
    _, rows = caches_table(geometry)
    assert rows[0] == ["swa_cache", 4, 0, "sliding_window_mla", 37_376, 184_320, "0 to 112,320"]
    assert sum(row[1] for row in rows) == 20


def test_a_segment_that_drifts_over_the_views_is_found_wherever_it_goes_wrong():
    """500 of 1,000 bytes are the layer's; 10 more, at a stride of 1,050, reach those in blocks 8 to 17."""
    data = {
        "name": "drift", "num_blocks": 20, "storages": [{"id": 0, "nbytes": 21_000}],
        "layers": [{"name": "l", "storage": 0, "byte_offset": 0, "shape": [20, 500], "stride": [1_000, 1],
                    "itemsize": 1}],
        "engine_segments": [
            {"storage": 0, "byte_offset": 0, "block_stride_bytes": 1_000, "span_bytes": 500},
            {"storage": 0, "byte_offset": 600, "block_stride_bytes": 1_050, "span_bytes": 10},
        ],
    }  # fmt: skip
    report = triage(CacheGeometry.from_dict(data))
    stomped = report.engine.fault("stomped")
    assert not report.ok and (stomped.count_bytes, stomped.smallest_block) == (10, 8)


# ---- public reports as small files: what the command says of them ----

FIELD = Path(__file__).parent / "field"


@pytest.mark.parametrize("name", ["plan", "audit", "triage"])
def test_a_cache_of_recurrent_state_alone_names_the_option_that_selects_it(name, capsys):
    path = str(FIELD / "state_only.json")
    assert main([name, path]) == 2
    assert "--layers all" in capsys.readouterr().err
    assert main([name, path, "--layers", "all", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data.get("needed_bytes_per_block", data.get("needed_bytes")) == 270_336
    assert main([name, path, "--layers", "gdn.0#0", "--groups", "0", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data.get("needed_bytes_per_block", data.get("needed_bytes")) == 8_192
    for words in (["--layers", "nobody"], ["--groups", "7"]):
        assert main([name, path, *words, "--json"]) == 2
        assert json.loads(capsys.readouterr().out)["error"]["rule"] == "unknown-selection"


def test_views_that_nobody_zeroes_are_listed_by_kind(tmp_path, command):
    data = json.loads((FIELD / "state_only.json").read_text())
    data["layers"][0]["zeroed_by_engine"] = True
    (tmp_path / "half.json").write_text(json.dumps(data))
    status, out, _ = command("half.json")
    assert status == 0
    assert "Left as they are in a fresh block: 1 view of kind mamba (gdn.0#1)." in " ".join(out.split())
    assert json.loads(command("half.json", "--json")[1])["not_zeroed"] == {"mamba": ["gdn.0#1"]}


def test_where_every_planner_is_right_the_report_says_what_was_not_judged(command):
    status, out, _ = command(str(FIELD / "kv_axis_or_heads.json"))
    text = " ".join(out.split())
    assert status == 0 and "Nothing: every planner is right" not in text
    for said in ("nothing else was judged", "Not judged: when blocks", "transfers", "how kernels read", "audit_live"):
        assert said in text


def test_a_transfer_table_is_not_told_to_swap_in_a_zeroer(command):
    path = str(FIELD / "transfer_table_wrong_axis.json")
    status, out, _ = command(path)
    assert status == 1 and "KVBlockZeroer" not in out and "the table of a transfer" in " ".join(out.split())
    faults = {
        fault["kind"]: fault["count_bytes"] for fault in json.loads(command(path, "--json")[1])["engine_plan"]["faults"]
    }
    assert faults == {"stomped": 65_536, "missed": 65_536}


def test_a_segment_in_an_empty_storage_is_judged_and_drawn(tmp_path, command):
    status, out, _ = command(str(FIELD / "empty_storage.json"), "--html", "r.html")
    assert status == 1 and "writes 64 bytes past the end" in out and "leaves 64 of 64 bytes dirty" in out
    assert "64 bytes past the end of storage spare" in (tmp_path / "r.html").read_text()
    assert main(["audit", str(FIELD / "empty_storage.json"), "--planner", "engine"]) == 1
