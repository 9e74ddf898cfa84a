"""The audit as a detector: injected damage comes back with its class and offset, and nothing else is flagged."""

from __future__ import annotations

import html
from dataclasses import replace

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import raises_rule
from strategies import engine_layouts, wild_views

from kvzero.audit.arena import Arena
from kvzero.audit.audit import audit_bytes, audit_plan
from kvzero.audit.live import audit_live
from kvzero.audit.result import KINDS
from kvzero.history import PLANNERS, named, planner
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.intervals import as_ranges, total
from kvzero.layout.ownership import needed_ranges, owned_within, owners_of_byte
from kvzero.layout.records import Segment, Storage
from kvzero.plan.planner import Plan, plan_segments
from kvzero.plan.resize import with_num_blocks
from kvzero.zero.zeroer import BlockZeroer

SLAB = "packed-slab-51288"
COUNTS = ("missed_bytes", "stomped_bytes", "pad_bytes", "overrun_bytes", "needed_bytes", "written_bytes")


def zeroed(arena: Arena, block_ids, **selection) -> Arena:
    """Zero the needed bytes by plain indexing, without any planner or kernel."""
    for storage, needed in oracle.needed(arena.geometry, block_ids, **selection).items():
        arena.storages[storage][needed] = 0
    return arena


def counts(audit) -> dict:
    return {name: getattr(audit, name) for name in COUNTS[:4]}


# ---- the detector, tested by damage ----


@pytest.mark.parametrize(
    ("kind", "offset", "layer", "block"),
    [
        ("missed", 98 * 149_760, "layer.0", 98),
        ("missed", 98 * 149_760 + 112_320 + 37_375, "layer.3", 98),
        ("stomped", 99 * 149_760 + 37_440, "layer.1", 99),
        ("stomped", 97 * 149_760 + 112_320 + 37_375, "layer.3", 97),
        ("pad", 98 * 149_760 + 37_376, None, None),
        ("pad", 14_975_999, None, None),
        ("overrun", 14_976_000, None, None),
        ("overrun", 14_976_000 + 4_095, None, None),
        ("overrun", -1, None, None),
        ("overrun", -4_096, None, None),
    ],
)
def test_one_damaged_byte_comes_back_with_its_class_and_offset(kind, offset, layer, block):
    arena = zeroed(Arena(named.geometry(SLAB)), [98])
    memory = arena.storages["slab"]
    # One byte, reached from the storage's own tensor, also where it lies in a redzone.
    byte = memory.as_strided((1,), (1,), memory.storage_offset() + offset)
    byte.fill_(77 if kind == "missed" else 0)
    audit = arena.audit([98])
    assert counts(audit) == {f"{each}_bytes": int(each == kind) for each in ("missed", "stomped", "pad", "overrun")}
    first = audit.first
    assert (first["kind"], first["storage"], first["byte_offset"]) == (kind, "slab", offset)
    assert (first["layer"], first["block"]) == (layer, block)
    assert {kind: ranges["slab"].tolist() for kind, ranges in audit.ranges.items() if kind in KINDS} == {
        each: [[offset, offset + 1]] if each == kind else [] for each in KINDS
    }
    hit = {name for name, damage in audit.by_layer.items() if sum(damage.values())}
    assert hit == ({layer} if layer else set())


def test_a_needed_byte_that_was_never_touched_is_missed():
    arena = zeroed(Arena(named.geometry("kv-outermost")), [7])
    canary = Arena(named.geometry("kv-outermost")).storages[0]
    arena.storages[0][491_520] = canary[491_520]
    audit = arena.audit([7])
    assert (audit.missed_bytes, audit.first["byte_offset"], audit.first["block"]) == (1, 491_520, 7)


def test_a_layer_that_is_not_to_be_zeroed_is_live_in_the_same_block():
    geometry = named.geometry("overlaid")
    arena = zeroed(Arena(geometry), [2], groups=[1])
    arena.storages[0][2 * 65_536 + 40_000] = 0  # only group 2 keeps this byte
    audit = arena.audit([2], groups=[1])
    assert (audit.stomped_bytes, audit.first["layer"], audit.first["block"]) == (1, "g2.huge", 2)
    assert audit.by_layer["g2.huge"] == {"missed_bytes": 0, "stomped_bytes": 1}


def test_a_missed_byte_is_owned_by_a_layer_that_was_to_be_zeroed():
    geometry = named.geometry("overlaid")
    for group in (1, 2):
        wanted = [view.name for view in geometry.select(groups=[group])]
        owners = Arena(geometry).audit([2], groups=[group]).first["owners"]
        assert owners and all(layer in wanted and block == 2 for layer, block in owners)


def test_the_worst_kind_is_named_first():
    arena = Arena(named.geometry(SLAB))
    arena.storages["slab"][99 * 149_760 :] = 0  # block 99 with its pad, for a call that was about block 98
    audit = arena.audit([98])
    assert audit.first["kind"] == "stomped" and audit.missed_bytes == 149_504
    assert audit.first["owners"] == [["layer.0", 99]]


@settings(max_examples=60)
@given(st.data())
def test_any_damage_is_classed_as_naive_indexing_says(data):
    geometry = data.draw(st.one_of(engine_layouts(), wild_views()))
    block_ids = data.draw(st.lists(st.integers(0, geometry.num_blocks - 1), max_size=3))
    arena = zeroed(Arena(geometry, redzone_bytes=64), block_ids)
    expected = dict.fromkeys(("missed_bytes", "stomped_bytes", "pad_bytes", "overrun_bytes"), 0)
    needed = oracle.needed(geometry, block_ids)
    live = {storage.id: torch.zeros(storage.nbytes, dtype=torch.bool) for storage in geometry.storages}
    for view in geometry.layers:
        for block in range(geometry.num_blocks):
            live[view.storage] |= oracle.owned(geometry, view, block)
    for storage in geometry.storages:
        size = storage.nbytes
        hits = data.draw(st.sets(st.integers(-arena.redzone_bytes, size + arena.redzone_bytes - 1), max_size=8))
        memory = arena.storages[storage.id]
        for offset in hits:
            inside = 0 <= offset < size
            is_needed = inside and bool(needed[storage.id][offset])
            byte = memory.as_strided((1,), (1,), memory.storage_offset() + offset)
            byte.fill_(255 if is_needed else 0)
            if not inside:
                expected["overrun_bytes"] += 1
            elif is_needed:
                expected["missed_bytes"] += 1
            else:
                expected["stomped_bytes" if live[storage.id][offset] else "pad_bytes"] += 1
    audit = arena.audit(block_ids)
    assert counts(audit) == expected
    assert audit.ok == (not any(expected.values()))
    assert (audit.first is None) == audit.ok


# ---- what must not be flagged ----


@given(engine_layouts(), st.data())
def test_a_clean_write_is_never_flagged(geometry, data):
    block_ids = data.draw(st.lists(st.integers(0, geometry.num_blocks - 1), max_size=3))
    audit = zeroed(Arena(geometry), block_ids).audit(block_ids)
    assert audit.ok and audit.first is None
    assert (
        audit.written_bytes
        == audit.needed_bytes
        == sum(int(mask.sum()) for mask in oracle.needed(geometry, block_ids).values())
    )


def test_no_blocks_need_nothing():
    geometry = named.geometry(SLAB)
    assert Arena(geometry).audit([]).ok
    assert audit_plan(plan_segments(geometry), geometry, []).needed_bytes == 0
    assert audit_bytes(geometry, []).ok
    assert audit_bytes(geometry, [], planner="uniform-page").ok


def test_rewriting_live_bytes_with_what_they_held_is_no_damage():
    geometry = named.geometry(SLAB)
    arena = zeroed(Arena(geometry), [5])
    arena.storages["slab"][:149_760] = Arena(geometry).storages["slab"][:149_760]
    assert arena.audit([5]).ok


@pytest.mark.parametrize("kind", [tuple, np.array, torch.tensor, range])
def test_blocks_may_come_in_any_container(kind):
    geometry = named.geometry(SLAB)
    block_ids = range(4, 6) if kind is range else kind([4, 5])
    for audit in (
        audit_plan(plan_segments(geometry), geometry, block_ids),
        audit_bytes(geometry, block_ids),
        audit_bytes(geometry, block_ids, planner="stride-and-span"),
    ):
        assert audit.ok and audit.blocks == (4, 5) and audit.to_dict()["blocks"] == [4, 5]


def test_duplicates_count_once_as_needed_and_twice_as_written():
    geometry = named.geometry(SLAB)
    for audit in (audit_plan(plan_segments(geometry), geometry, [3, 3]), audit_bytes(geometry, [3, 3])):
        assert audit.ok
        assert (audit.needed_bytes, audit.written_bytes) == (149_504, 299_008)


def test_absorbed_pad_is_allowed_where_it_was_asked_for():
    geometry = named.geometry(SLAB)
    plan = plan_segments(geometry, absorb_pad=True)
    allowed = audit_plan(plan, geometry, [3], pad_allowed=True)
    assert (allowed.ok, allowed.pad_bytes) == (True, 192)
    assert not audit_plan(plan, geometry, [3]).ok
    measured = audit_bytes(geometry, [3], absorb_pad=True)
    assert (measured.ok, measured.pad_bytes) == (True, 192)


def test_an_old_planner_is_never_excused_the_pad_it_writes():
    stated = named.geometry(SLAB).to_dict()
    stated["engine_segments"] = [
        {"storage": "slab", "byte_offset": 0, "block_stride_bytes": 149_760, "span_bytes": 149_760}
    ]
    audit = audit_bytes(CacheGeometry.from_dict(stated), [3], planner="engine", absorb_pad=True)
    assert (audit.ok, audit.pad_bytes, audit.missed_bytes, audit.stomped_bytes) == (False, 256, 0, 0)


# ---- two witnesses, one verdict ----


@settings(max_examples=60)
@given(st.data())
def test_arithmetic_and_bytes_agree_on_any_plan(data):
    geometry = data.draw(st.one_of(engine_layouts(), wild_views()))
    spare = Storage("spare", data.draw(st.integers(0, 3)))  # no view lies in it
    geometry = replace(geometry, storages=(*geometry.storages, spare))
    reach = max(storage.nbytes for storage in geometry.storages)
    segments = data.draw(
        st.lists(
            st.builds(
                Segment,
                st.sampled_from([storage.id for storage in geometry.storages]),
                st.integers(-20, reach),
                st.integers(0, 40),
                st.integers(1, 30),
            ),
            max_size=4,
        )
    )
    plan = Plan("random", geometry.name, geometry.num_blocks, geometry.storages, tuple(segments), 0)
    block_ids = data.draw(st.lists(st.integers(0, geometry.num_blocks - 1), max_size=3))
    arena = Arena(geometry, redzone_bytes=8192)
    for storage, ranges in plan.ranges(block_ids).items():
        memory = arena.storages[storage]
        for start, stop in ranges.tolist():
            memory.as_strided((stop - start,), (1,), memory.storage_offset() + start).zero_()
    written = sum(total(ranges) for ranges in plan.ranges(block_ids).values())
    same_verdict(audit_plan(plan, geometry, block_ids), arena.audit(block_ids, planner="random", written_bytes=written))


def same_verdict(arithmetic, measured) -> None:
    texts = [audit.text_map(columns=16) for audit in (arithmetic, measured)]
    assert texts[0] == texts[1] and ("[" in texts[0].split("A cell shows")[0]) == (arithmetic.first is not None)
    facts = [{**audit.to_dict(), "witness": "", "device": ""} for audit in (arithmetic, measured)]
    assert facts[0] == facts[1]
    for kind, by_storage in arithmetic.ranges.items():
        for storage, ranges in by_storage.items():
            # Two redzone ranges may touch in one witness and be one range in the other.
            assert np.array_equal(ranges, measured.ranges[kind][storage])


@given(st.one_of(engine_layouts(), wild_views()), st.data())
def test_ownership_is_naive_indexing(geometry, data):
    view = data.draw(st.sampled_from(geometry.layers))
    storage = geometry.storage(view.storage)
    everywhere = torch.zeros(storage.nbytes, dtype=torch.bool)
    for block in range(geometry.num_blocks):
        page = oracle.owned(geometry, view, block)
        everywhere |= page
        assert painted(needed_ranges([view], [block])[view.storage], storage.nbytes).equal(page)
    low = data.draw(st.integers(0, storage.nbytes - 1))
    high = data.draw(st.integers(low + 1, storage.nbytes))
    window = torch.zeros(storage.nbytes, dtype=torch.bool)
    window[low:high] = True
    found = owned_within(view, geometry.num_blocks, as_ranges([(low, high)]))
    assert painted(found, storage.nbytes).equal(everywhere & window)
    expected = [
        (each.name, block)
        for each in geometry.layers
        if each.storage == view.storage
        for block in range(geometry.num_blocks)
        if oracle.owned(geometry, each, block)[low]
    ]
    assert owners_of_byte(geometry, view.storage, low) == expected


def painted(ranges, size: int) -> torch.Tensor:
    mask = torch.zeros(size, dtype=torch.bool)
    for start, stop in ranges.tolist():
        mask[start:stop] = True
    return mask


@pytest.mark.parametrize("name", sorted(PLANNERS))
def test_the_verdict_does_not_depend_on_the_size_of_the_pool(name):
    """A slab of a million blocks is 150 GB: judged by arithmetic, with the numbers of the small one."""
    small = named.geometry(SLAB)
    large = with_num_blocks(small, 1_000_000)
    specimen = planner(name)
    for block, large_block in ((50, 500_000), (99, 999_999)):
        a = audit_plan(specimen.plan(small), small, [block])
        b = audit_plan(specimen.plan(large), large, [large_block])
        assert [getattr(a, count) for count in COUNTS] == [getattr(b, count) for count in COUNTS]
        assert a.first is None or a.first["kind"] == b.first["kind"]


def test_a_wipe_over_a_million_blocks_is_counted_without_listing_them():
    """Heads outside the block: one zeroed block wipes seven heads of every other block, 1.8 TB of them."""
    geometry = with_num_blocks(named.geometry("llama3_8b_bf16__LHBNC"), 1_000_000)
    audit = audit_plan(planner("stride-and-span").plan(geometry), geometry, [0])
    span_bytes = 7 * 8_192 * 1_000_000 + 8_192
    assert audit.stomped_bytes == 32 * (span_bytes - 8 * 8_192)
    assert (audit.missed_bytes, audit.overrun_bytes) == (0, 0)


# ---- sizes that no memory has ----


def vast(num_blocks: int, *layers: dict, nbytes: int | None = None) -> CacheGeometry:
    """Each layer in a storage of its own that ends with it, blocks at dimension 0, bytes as elements."""
    data = {"name": "vast", "num_blocks": num_blocks, "storages": [], "layers": []}
    for index, layer in enumerate(layers):
        view = {"name": f"k{index}", "storage": index, "byte_offset": 0, "itemsize": 1, "block_dim": 0, **layer}
        steps = zip(view["shape"], view["stride"], strict=True)
        end = view["byte_offset"] + (sum((size - 1) * step for size, step in steps) + 1) * view["itemsize"]
        data["storages"].append({"id": index, "nbytes": nbytes or end})
        data["layers"].append(view)
    return CacheGeometry.from_dict(data)


LONE_PAGE = {"shape": [1, 2**48], "stride": [2**48, 1]}  # as large as a storage may be


@pytest.mark.parametrize(
    ("geometry", "needed_bytes"),
    [
        (vast(1, LONE_PAGE), 2**48),
        (vast(1, *[LONE_PAGE] * 5), 5 * 2**48),
        (vast(2, {"shape": [2, 2**46], "stride": [2**47, 1]}, nbytes=2**48), 2**46),
        (vast(2, {"shape": [2, 2], "stride": [1, 2**47]}), 2),
        (vast(2**26, {"shape": [2**26, 2**20], "stride": [2**22, 1]}), 2**20),
    ],
)
def test_the_largest_pages_are_judged_and_drawn_by_arithmetic(geometry, needed_bytes):
    for block in (0, geometry.num_blocks - 1):
        audit = audit_plan(plan_segments(geometry), geometry, [block])
        assert (audit.ok, audit.needed_bytes, audit.written_bytes) == (True, needed_bytes, needed_bytes)
        rows = [line for line in audit.text_map().splitlines() if line.split()[0].startswith("*")]
        assert len(rows) == 1 and "#" in rows[0] and "X" not in rows[0]


def test_damage_far_up_in_a_vast_storage_is_drawn_where_it_is():
    geometry = vast(2, {"shape": [2, 2**45], "stride": [2**47, 1]}, nbytes=2**48)
    wide = Segment(0, 0, 2**47, 2**47 - 4)
    plan = Plan("wide", geometry.name, 2, geometry.storages, (wide,), 0)
    audit = audit_plan(plan, geometry, [1])
    assert (audit.pad_bytes, audit.overrun_bytes) == (2**47 - 2**45 - 4, 0)
    assert audit.first["byte_offset"] == 2**47 + 2**45
    (row,) = [line for line in audit.text_map().splitlines() if line.split()[0] == "*1"]
    assert row.count("#") == 12 and row.count("~") == 36 and "[~]" in row


def test_the_stride_of_a_lone_block_may_be_any_number():
    geometry = vast(1, {"shape": [1, 16], "stride": [10**40, 1]})
    same_verdict(audit_plan(plan_segments(geometry), geometry, [0]), audit_bytes(geometry, [0]))
    arena = Arena(geometry)
    assert arena.audit([0]).first["owners"] == [["k0", 0]]


def test_runs_without_number_are_refused_and_not_listed():
    scattered = vast(2, {"shape": [2, 2**40], "stride": [2**47, 4]})
    with raises_rule("too-many-runs") as caught:
        planner("page-per-segment").plan(scattered)
    assert caught.value.num_runs > caught.value.limit == 2**22


# ---- what an audit refuses ----


@pytest.mark.parametrize("bad", [-1, 100])
def test_a_block_outside_the_pool_is_refused(bad):
    geometry = named.geometry(SLAB)
    for ask in (
        lambda: audit_plan(plan_segments(geometry), geometry, [3, bad]),
        lambda: audit_bytes(geometry, [3, bad]),
        lambda: Arena(geometry).audit([3, bad]),
    ):
        with raises_rule("unknown-block") as caught:
            ask()
        assert (caught.value.block_id, caught.value.last_block_id) == (bad, 99)


def test_a_plan_of_another_pool_is_refused():
    small = named.geometry(SLAB)
    large = with_num_blocks(small, 200)
    with raises_rule("plan-geometry") as caught:
        audit_plan(plan_segments(large), small, [3])
    assert (caught.value.plan_value, caught.value.geometry_value) == (200, 100)
    for storages in ((Storage("slab", 14_976_001),), (Storage("other", 14_976_000),)):
        with raises_rule("plan-geometry") as caught:
            audit_plan(replace(plan_segments(small), storages=storages), small, [3])
        assert caught.value.what == "storages"


def test_a_write_too_far_away_is_not_run():
    geometry = with_num_blocks(named.geometry("dsv4_c4_full__BLHNC"), 4)
    far = Segment(geometry.storages[0].id, 1 << 40, 184_320, 4)
    stated = geometry.to_dict()
    stated["engine_segments"] = [
        {"storage": far.storage, "byte_offset": far.base_bytes, "block_stride_bytes": 184_320, "span_bytes": 4}
    ]
    moved = type(geometry).from_dict(stated)
    with raises_rule("redzone-too-large") as caught:
        audit_bytes(moved, [0], planner="engine")
    assert caught.value.overrun_bytes > caught.value.limit_bytes
    assert audit_plan(planner("engine").plan(moved), moved, [0]).overrun_bytes == 4


# ---- how it reads ----


def test_the_text_map_says_what_happened_in_words_glyphs_and_brackets():
    geometry = named.geometry(SLAB)
    audit = audit_plan(planner("uniform-page").plan(geometry), geometry, [98])
    lines = audit.text_map(columns=48).splitlines()
    assert lines[0] == audit.sentence()
    assert "wipes 112,128 live bytes" in lines[0] and "layer.0, block 99" in lines[0]
    rows = {line.split()[0]: line[9:] for line in lines if line.split()[0].strip("*").isdigit()}
    assert list(rows) == ["97", "*98", "99"]
    assert set(rows["97"].split()) == {"."}
    assert rows["*98"].count("~") == 4 and "X" not in rows["*98"]  # the pad after each page, cleared with it
    assert rows["99"].startswith("[X]") and rows["99"].count("X") == 36 and rows["99"].count(".") == 12
    text = "\n".join(lines)
    for glyph in ("> written outside", "X stomped", "! missed", "~ pad, written", "# needed", ". live", "_ pad"):
        assert glyph in text
    assert audit.text_map() == str(audit)


@pytest.mark.parametrize("cell", [0, 13, 47])
def test_the_first_offender_is_bracketed_in_its_cell(cell):
    geometry = named.geometry(SLAB)
    arena = zeroed(Arena(geometry), [98])
    offset = 98 * 149_760 + cell * 3_120 + 2_000  # a cell is 1/48 of 149,760 bytes
    arena.storages["slab"][offset] = 77
    (row,) = [line for line in arena.audit([98]).text_map(columns=48).splitlines() if line.startswith("     *98")]
    assert row[9 + 2 * cell] == "[" and row[11 + 2 * cell] == "]"


def test_the_text_map_shows_what_lies_past_the_end():
    geometry = named.geometry(SLAB)
    audit = audit_plan(planner("uniform-page").plan(geometry), geometry, [99])
    (line,) = [line for line in audit.text_map().splitlines() if line.startswith("     end")]
    assert line.split()[1].startswith("[>]") and "112,320 bytes past the end of storage slab" in line


@given(st.one_of(engine_layouts(), wild_views()), st.sampled_from(["missed", "clean"]))
def test_a_text_map_can_be_drawn_of_any_layout(geometry, what):
    arena = Arena(geometry)
    audit = (zeroed(arena, [0]) if what == "clean" else arena).audit([0])
    text = audit.text_map(columns=16)
    assert text.startswith(audit.sentence())
    assert ("[" in text.split("A cell shows")[0]) == (not audit.ok)
    assert ("!" in text.split("A cell shows")[0]) == (audit.missed_bytes > 0)


def test_html_carries_the_same_text_escaped():
    geometry = named.geometry(SLAB)
    audit = audit_plan(planner("uniform-page").plan(geometry), geometry, [99])
    page = audit._repr_html_()
    assert html.unescape(page.removeprefix("<pre>").removesuffix("</pre>")) == audit.text_map()
    assert "&gt;" in page


def test_plain_data_is_what_the_command_prints():
    geometry = named.geometry(SLAB)
    data = audit_plan(plan_segments(geometry), geometry, [1]).to_dict()
    assert list(data) == [
        "planner", "witness", "device", "blocks", "missed_bytes", "stomped_bytes", "pad_bytes", "overrun_bytes",
        "needed_bytes", "written_bytes", "ok", "first", "by_layer",
    ]  # fmt: skip
    assert (data["planner"], data["witness"], data["device"], data["blocks"]) == ("kvzero", "arithmetic", "none", [1])


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [-1, 14_976_000, 98 * 149_760, 99 * 149_760 + 5])
def test_the_detector_on_a_gpu(offset):
    arena = Arena(named.geometry(SLAB), device="cuda")
    for view in arena.views.values():
        view[98] = 0
    memory = arena.storages["slab"]
    memory.as_strided((1,), (1,), memory.storage_offset() + offset).fill_(77)
    audit = arena.audit([98])
    assert audit.first["byte_offset"] == offset
    assert sum(counts(audit).values()) == 1


@pytest.mark.parametrize("ids", [[1.5], [True], ["1"], "1", None, 1, [[1]], np.array([1.9]), torch.tensor([True])])
def test_blocks_that_are_not_whole_numbers_are_refused(ids):
    slab = named.geometry("packed-slab-51288")
    with raises_rule("id-type"):
        audit_plan(plan_segments(slab), slab, ids)


# ---- ids by group, as `BlockZeroer.zero` takes them ----


@settings(max_examples=60)
@given(st.data())
def test_ids_by_group_are_judged_by_group(data):
    geometry = data.draw(engine_layouts())
    groups = sorted({view.group for view in geometry.layers if view.zeroed})
    ids_of = {group: data.draw(st.lists(st.integers(0, geometry.num_blocks - 1), max_size=2)) for group in groups}
    plans = {group: plan_segments(geometry, groups=[group]) for group in groups}
    arithmetic = audit_plan(plan_segments(geometry), geometry, ids_of, group_plans=plans)
    measured = audit_bytes(geometry, ids_of)
    same_verdict(arithmetic, measured)
    needed = {storage.id: torch.zeros(storage.nbytes, dtype=torch.bool) for storage in geometry.storages}
    for group, ids in ids_of.items():
        for storage, mask in oracle.needed(geometry, ids, groups=[group]).items():
            needed[storage] |= mask
    assert arithmetic.ok and arithmetic.needed_bytes == sum(int(mask.sum()) for mask in needed.values())
    untouched = Arena(geometry).audit(ids_of)
    assert untouched.missed_bytes == untouched.needed_bytes == arithmetic.needed_bytes


def test_a_block_of_another_group_is_live():
    geometry = named.geometry("overlaid")
    plans = {1: plan_segments(geometry, groups=[1]), 2: plan_segments(geometry, groups=[2])}
    asked, swapped = {1: [0], 2: [3]}, {1: [3], 2: [0]}
    arena = Arena(geometry)
    BlockZeroer(plan_segments(geometry), arena.storages, group_plans=plans).zero(swapped)
    assert not arena.audit(asked).ok and arena.audit(swapped).ok
    assert audit_plan(plan_segments(geometry), geometry, swapped, group_plans=plans).ok
    crossed = audit_plan(plan_segments(geometry), geometry, asked, group_plans={1: plans[2], 2: plans[1]})
    assert crossed.missed_bytes + crossed.stomped_bytes > 0


def test_a_mapping_is_never_taken_for_a_list_of_its_keys():
    geometry = named.geometry("overlaid")
    with raises_rule("unknown-group") as caught:
        audit_plan(plan_segments(geometry), geometry, {1: [3]})
    assert caught.value.group == 1
    with raises_rule("unknown-selection"):
        Arena(geometry).audit({"none": [3]})
    with raises_rule("id-type"):
        Arena(geometry).audit({1: [3]}, groups=[1])
    with raises_rule("id-type"):
        audit_live(geometry, Arena(geometry).storages, {1: [3]}, write=lambda ids: pytest.fail("nothing is written"))
