"""Every real layout: kvzero writes each needed byte once and no other; the engine's own segments as measured."""

from __future__ import annotations

import pytest
from known import ENGINE_TIMES

from kvzero import geometries
from kvzero.audit.audit import audit_bytes, audit_plan
from kvzero.history import engine
from kvzero.plan.planner import plan_segments
from kvzero.plan.resize import with_num_blocks

NAMES = geometries.names()


def ends_and_middle(geometry) -> list[int]:
    return sorted({0, geometry.num_blocks // 2, geometry.num_blocks - 1})


def assert_clean_and_once(audit) -> None:
    assert (audit.missed_bytes, audit.stomped_bytes, audit.pad_bytes, audit.overrun_bytes) == (0, 0, 0, 0)
    assert audit.written_bytes == audit.needed_bytes > 0


def test_all_dumps_are_packaged():
    assert len(NAMES) == 87


@pytest.mark.parametrize("name", NAMES)
def test_by_arithmetic(name):
    geometry = geometries.load(name)
    assert_clean_and_once(audit_plan(plan_segments(geometry), geometry, range(geometry.num_blocks)))
    assert_clean_and_once(audit_plan(plan_segments(geometry), geometry, ends_and_middle(geometry)[:1]))


@pytest.mark.parametrize("name", NAMES)
def test_by_bytes(name):
    geometry = geometries.load(name)
    assert_clean_and_once(audit_bytes(geometry, ends_and_middle(geometry)))


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_by_bytes_on_a_gpu(name):
    geometry = geometries.load(name)
    assert_clean_and_once(audit_bytes(geometry, ends_and_middle(geometry), device="cuda"))


@pytest.mark.parametrize("name", NAMES)
def test_recurrent_state_too_if_it_is_asked_for(name):
    geometry = geometries.load(name)
    plan = plan_segments(geometry, layers="all")
    audit = audit_plan(plan, geometry, ends_and_middle(geometry), layers="all")
    assert_clean_and_once(audit)


@pytest.mark.parametrize("name", NAMES)
def test_what_the_engine_itself_would_write(name):
    geometry = geometries.load(name)
    audit = audit_plan(engine.plan(geometry), geometry, ends_and_middle(geometry))
    assert (audit.missed_bytes, audit.stomped_bytes, audit.pad_bytes, audit.overrun_bytes) == (0, 0, 0, 0)
    stated = ENGINE_TIMES.get(name, 1.00)
    digits = 1 if stated >= 3 else 2
    assert round(audit.written_bytes / audit.needed_bytes, digits) == stated


@pytest.mark.parametrize("name", ["dsv4_c4_full__BLHNC", "fp8_target_bf16_swa_drafter__BLHNC"])
def test_the_engine_by_bytes(name):
    geometry = geometries.load(name)
    audit = audit_bytes(geometry, [1], planner="engine")
    assert audit.ok and audit.written_bytes > audit.needed_bytes


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("numblocks1")])
def test_a_pool_of_serving_size_by_arithmetic(name):
    """The same layouts with 20,000 blocks: hundreds of GB, still no memory needed."""
    geometry = with_num_blocks(geometries.load(name), 20_000)
    assert_clean_and_once(audit_plan(plan_segments(geometry), geometry, [0, 12_345, 19_999]))
