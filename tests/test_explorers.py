"""Explorers: the pure functions against the real planners and models, the flips to the byte, errors that surface."""

from __future__ import annotations

import pytest

from kvzero import geometries
from kvzero.audit.audit import audit_plan
from kvzero.history import planner
from kvzero.plan.planner import plan_segments
from kvzero.workbook.explorers import layout_data, layout_knob
from kvzero.workbook.toy import ToyOptionError, make_geometry

# ---- layouts ----


def test_a_refusal_is_a_result():
    layout = layout_data(geometries.load("glm52_fp8_dsmla_indexer__LBNHC"), "uniform-page", (1,))
    assert layout.plan is None and layout.refusal.rule == "non-uniform-pages"
    assert "2112" in layout.sentence.replace(",", "") and "10496" in layout.sentence.replace(",", "")


@pytest.mark.parametrize("name", ["dsv4_c4_full__BLHNC", "llama3_8b_bf16__LHBNC", "qwen35_544_fa__LBNHC"])
@pytest.mark.parametrize("who", ["kvzero", "stride-and-span", "engine"])
def test_a_layout_is_judged_as_the_audit_judges_it(name, who):
    geometry = geometries.load(name)
    layout = layout_data(geometry, who, (1,))
    plan = plan_segments(geometry) if who == "kvzero" else planner(who).plan(geometry)
    audit = audit_plan(plan, geometry, [1])
    assert layout.audit.to_dict() == audit.to_dict()
    assert layout.map.totals.get("stomped", 0) == audit.stomped_bytes
    assert f"{len(plan.segments) - 8:,} more segments" in layout.text or len(plan.segments) <= 8
    assert f"missed {audit.missed_bytes:,} B" in layout.text


# ---- the knobs ----


def test_every_step_draws_and_says_something_of_its_own():
    turned = layout_knob()
    said = []
    for state in turned.steps.values():
        turned.set(**state)
        said.append(turned.sentence)
        assert turned.state == state and turned.errors == []
    assert len(set(said)) > 1


def test_sizes_that_do_not_go_together_are_explained():
    turned = layout_knob()
    turned.set(kernel_blocks=3)
    assert "kernel_blocks" in turned.sentence and turned.errors == []
    with pytest.raises(ToyOptionError):
        make_geometry(kernel_blocks=3)
