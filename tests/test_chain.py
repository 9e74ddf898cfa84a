"""The postmortem's table: cheap checks against the audit, on every dump and every era."""

from __future__ import annotations

import re
import statistics

import pytest

from kvzero import geometries
from kvzero.audit.audit import audit_plan
from kvzero.errors import KvzeroError
from kvzero.history import PLANNERS, named
from kvzero.workbook import chain
from kvzero.workbook.figures import EVENTS, history_timeline

DUMPS = (
    "dsv4_c4_full__BLHNC", "dsv4_c4_mla_only__BHLNC", "glm52_fp8_dsmla_indexer__LBNHC",
    "mla_plus_swa_draft_padded__BLHNC", "numblocks1__LHBNC", "nvfp4__LHBNC", "dsv4_mixed_ratio__BLNHC",
)  # fmt: skip


@pytest.mark.parametrize("era", chain.ERAS)
@pytest.mark.parametrize("dump", DUMPS)
def test_the_cheap_checks_fire_where_the_audit_of_every_block_says_so(era, dump):
    geometry = geometries.load(dump)
    try:
        plan = chain.plan_of(era, geometry)
    except KvzeroError as error:
        assert chain.judge(era, dump).refused == error.rule
        return
    every = list(range(geometry.num_blocks))
    assert chain.ends_outside(plan) == (audit_plan(plan, geometry, every).overrun_bytes > 0)
    written = [
        {(name, byte) for name, pairs in plan.ranges([block]).items() for a, b in pairs for byte in range(a, b, 64)}
        for block in every
    ]
    # All starts and strides of these dumps are multiples of 64 bytes, so every 64th byte decides.
    assert all(each.base_bytes % 64 == each.block_stride_bytes % 64 == 0 for each in plan.segments)
    assert chain.blocks_share_bytes(plan) == (len(set().union(*written)) < sum(map(len, written)))


def test_whoever_is_right_passes_every_check():
    findings = chain.judge_all(("engine", "kvzero"))
    assert {name: chain.right(findings, name) for name in ("engine", "kvzero")} == dict.fromkeys(
        ("engine", "kvzero"), len(geometries.names())
    )
    assert not any(sum(row.values()) for row in chain.counts(findings, ("engine", "kvzero")).values())


def test_the_launch_of_each_era_is_the_specimens():
    programs = {era: chain.launch_programs(era, "launch-overflow-52058") for era in (*PLANNERS, "kvzero")}
    assert programs == {
        "uniform-page": "non-uniform-pages", "page-per-segment": "grid-overflow", "stride-and-span": "grid-overflow",
        "masked-grid": 12_434_700, "kvzero": programs["kvzero"],
    }  # fmt: skip
    words = [chain.launch_words(era, "launch-overflow-52058") for era in (*PLANNERS, "kvzero")]
    assert words == ["✗ refused by the planner", "✗ grid-overflow", "✗ grid-overflow", "12,434,700 programs",
                     f"{programs['kvzero']:,} programs"]  # fmt: skip
    slab = named.geometry("launch-overflow-52058")
    tiles = sum(-(-each.span_bytes // 4_096) for each in chain.plan_of("kvzero", slab).segments)
    assert programs["kvzero"] == 6_870 * tiles


def test_every_sleeper_is_in_the_history_and_comes_after_its_change():
    known = {step.source for step in EVENTS}
    assert all({each.change, each.failure} <= known and each.days > 0 for each in chain.SLEEPERS)
    assert chain.median_days() == statistics.median(each.days for each in chain.SLEEPERS)


def test_the_timeline_draws_a_line_from_each_change_and_an_arrow_to_each_failure():
    def strokes(links):
        paths = re.findall(r'<path fill="none"[^>]* d="([^"]*)"', history_timeline(links=links).svg(""))
        return sum(path.count("M") for path in paths)

    links = [(each.change, each.failure) for each in chain.SLEEPERS]
    changes = {change for change, _ in links}
    assert strokes(links) - strokes(()) == len(changes) + 2 * len(links)
    with pytest.raises(KeyError):
        history_timeline(links=[("#35219", "#0")])
