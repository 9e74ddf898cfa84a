"""Each specimen fails exactly as it must, by arithmetic and in memory, and kvzero passes where it fails."""

from __future__ import annotations

import pytest
import torch
from refusals import raises_rule
from test_audit import same_verdict

from kvzero import geometries
from kvzero.audit.arena import Arena
from kvzero.audit.audit import audit_bytes, audit_plan
from kvzero.audit.child import run_in_child
from kvzero.errors import GridOverflowError, KvzeroError, UnprovenPlanError, WordAlignmentError
from kvzero.history import PLANNERS, named, planner, ring_id_buffer, shared_id_buffer
from kvzero.history.stream_model import CudaStream, StreamModel
from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.planner import plan_segments
from kvzero.zero.tiles import AMD, CUDA, launch_for
from kvzero.zero.zeroer import BlockZeroer

OBLIGATIONS = [(name, duty) for name, module in PLANNERS.items() for duty in module.MUST_DO]
WRITES = [(name, duty) for name, duty in OBLIGATIONS if duty.audit]
# The interpreter runs about 1,000 programs a second; longer writes are judged by arithmetic here, by bytes on a GPU.
CPU_PROGRAMS = 2_400


def label(value) -> str | None:
    if isinstance(value, str):
        return value
    return f"{value.geometry}-{','.join(map(str, value.blocks)) or value.num_ids or 'plan'}"


def cheap(name, duty) -> bool:
    plan = planner(name).plan(named.geometry(duty.geometry))
    return planner(name).launch(plan, len(duty.blocks)).programs <= CPU_PROGRAMS


@pytest.mark.parametrize(("name", "duty"), OBLIGATIONS, ids=label)
def test_a_specimen_does_what_it_must(name, duty):
    geometry, specimen = named.geometry(duty.geometry), planner(name)
    if duty.raises is not None:
        with pytest.raises(duty.raises) as caught:
            specimen.launch(specimen.plan(geometry), duty.num_ids)
        assert {key: caught.value.facts[key] for key in duty.facts} == duty.facts
        return
    plan = specimen.plan(geometry)
    assert (plan.planner, plan.proven) == (name, False)
    if duty.num_ids is not None:
        launch = specimen.launch(plan, duty.num_ids)
        assert {key: getattr(launch, key) for key in duty.launch} == duty.launch
    else:
        audit = audit_plan(plan, geometry, duty.blocks)
        assert {key: getattr(audit, key) for key in duty.audit} == duty.audit


@pytest.mark.parametrize(("name", "duty"), [pair for pair in WRITES if cheap(*pair)], ids=label)
def test_its_own_kernel_writes_what_the_arithmetic_says(name, duty):
    geometry = named.geometry(duty.geometry)
    measured = audit_bytes(geometry, duty.blocks, planner=name)
    same_verdict(audit_plan(planner(name).plan(geometry), geometry, duty.blocks), measured)


@pytest.mark.parametrize(("name", "duty"), WRITES, ids=label)
def test_kvzero_is_clean_wherever_a_specimen_is_held_to_account(name, duty):
    geometry = named.geometry(duty.geometry)
    audit = audit_plan(plan_segments(geometry), geometry, duty.blocks)
    assert audit.ok and audit.written_bytes == audit.needed_bytes


@pytest.mark.parametrize("name", ["uniform-page", "page-per-segment", "stride-and-span", "masked-grid"])
def test_every_planner_is_required_to_fail_somewhere(name):
    faults = ("missed_bytes", "stomped_bytes", "pad_bytes", "overrun_bytes")
    duties = planner(name).MUST_DO
    assert any(any(duty.audit.get(fault) for fault in faults) for duty in duties)
    assert any(duty.audit and not any(duty.audit.get(fault, 0) for fault in faults) for duty in duties)


# What the eras do to real dumps: (file, blocks) to (missed, stomped, overrun), each checked against a byte map.
TABLE = {
    "uniform-page": {
        ("dsv4_c4_full__BLHNC", 3): (0, 175_296, 0),
        ("dsv4_c4_full__BLHNC", 15): (0, 0, 175_680),
        ("dsv4_mixed_ratio__BLHNC", 3): (0, 140_192, 0),
        ("dsv4_mixed_ratio__BLHNC", 15): (0, 0, 141_696),
        ("glm52_fp8_dsmla_indexer__BLHNC", 0): (0, 3_401_728, 0),
        ("glm53_kpool_packed_kernel_stride__BLHNC", 5): (0, 0, 1_394_176),
        ("gptoss_18sw_18full__LHBNC", 0): (516_096, 0, 0),
        ("nvfp4__LHBNC", 0): (276_480, 0, 0),
        ("numblocks1__BLHNC", 0): (0, 0, 196_608),
        ("qwen35_544_fa__BLHNC", 0): (0, 5_570_560, 0),
        ("qwen35_544_fa__LBNHC", 0): (0, 0, 0),
        ("qwen3next_528_fi16__LBNHC", 4): (0, 0, 0),
    },
    "stride-and-span": {
        ("dsv4_c4_full__BLHNC", 15): (448, 0, 0),
        ("dsv4_mixed_ratio__BLHNC", 3): (384, 0, 0),
        ("glm52_fp8_dsmla_indexer__BLHNC", 5): (0, 0, 0),
        ("int8_per_token_head__LHBNC", 0): (0, 3_311_616, 0),
        ("fp8_target_bf16_swa_drafter__LHBNC", 0): (0, 802_816, 0),
        ("numblocks1__LHBNC", 0): (0, 0, 0),
    },
    "masked-grid": {
        ("dsv4_mixed_ratio__BLHNC", 3): (0, 0, 0),
        ("gptoss_18sw_18full__LHBNC", 0): (0, 3_612_672, 0),
    },
}


@pytest.mark.parametrize("name", sorted(TABLE))
def test_the_table_of_eras_on_real_dumps(name):
    found = {}
    for file, block in TABLE[name]:
        geometry = geometries.load(file)
        audit = audit_plan(planner(name).plan(geometry), geometry, [block])
        found[file, block] = (audit.missed_bytes, audit.stomped_bytes, audit.overrun_bytes)
    assert found == TABLE[name]


def test_the_uniform_page_planner_refuses_the_dumps_with_layers_apart_and_mixed_pages():
    refused = {}
    for name in geometries.names():
        try:
            planner("uniform-page").plan(geometries.load(name))
        except KvzeroError as error:
            refused[name] = (error.rule, error.first_page_words, error.page_words)
    apart = ("LBHNC", "LBNHC")
    expected = {f"glm52_fp8_dsmla_indexer__{layout}": (10_496, 2_112) for layout in apart}
    expected |= {f"dsv32_fp8_dsmla_indexer__{layout}": (10_496, 2_112) for layout in apart}
    expected |= {f"dsv32_bf16_mla_indexer__{layout}": (18_432, 2_112) for layout in apart}
    expected |= {f"fp8_target_bf16_drafter_same_heads__{layout}": (8_192, 16_384) for layout in apart}
    assert refused == {name: ("non-uniform-pages", *words) for name, words in expected.items()}


@pytest.mark.parametrize("name", [*PLANNERS, "engine"])
def test_an_unproven_plan_is_not_launched_on_live_memory(name):
    geometry = geometries.load("dsv4_c4_mla_only__BLHNC")
    with pytest.raises(UnprovenPlanError):
        BlockZeroer(planner(name).plan(geometry), Arena(geometry).storages)


@pytest.mark.parametrize("name", sorted(PLANNERS))
def test_a_view_that_starts_between_words_is_refused(name):
    layer = {"name": "k", "storage": 0, "byte_offset": 2, "shape": [4, 8], "stride": [8, 1], "itemsize": 4}
    geometry = CacheGeometry.from_dict(
        {"name": "between", "num_blocks": 4, "storages": [{"id": 0, "nbytes": 130}], "layers": [layer]}
    )
    with pytest.raises(WordAlignmentError) as caught:
        planner(name).plan(geometry)
    assert (caught.value.what, caught.value.value_bytes) == ("address", 2)
    assert audit_bytes(geometry, [1]).ok  # kvzero takes it


@pytest.mark.parametrize("name", ["uniform-page", "page-per-segment", "stride-and-span"])
def test_an_era_that_zeroes_no_layer_of_a_cache_launches_nothing_and_leaves_all_dirty(name):
    """Until #51749 sliding windows were not zeroed."""
    layer = {"name": "k", "storage": 0, "byte_offset": 0, "shape": [4, 64], "stride": [64, 1], "itemsize": 4}
    layer["spec_kind"] = "sliding_window"
    geometry = CacheGeometry.from_dict(
        {"name": "window", "num_blocks": 4, "storages": [{"id": 0, "nbytes": 1024}], "layers": [layer]}
    )
    plan = planner(name).plan(geometry)
    launch = planner(name).launch(plan)
    assert (launch.programs, launch.launches, launch.num_ids) == (0, 0, 4)
    measured = audit_bytes(geometry, [1], planner=name)
    same_verdict(audit_plan(plan, geometry, [1]), measured)
    assert (measured.missed_bytes, measured.written_bytes) == (256, 0)


def test_engine_segments_of_odd_length_are_judged_but_not_run():
    stated = named.geometry("odd-page").to_dict()
    stated["engine_segments"] = [{"storage": 0, "byte_offset": 0, "block_stride_bytes": 1_026, "span_bytes": 1_026}]
    geometry = CacheGeometry.from_dict(stated)
    assert audit_plan(planner("engine").plan(geometry), geometry, [1]).ok
    with pytest.raises(WordAlignmentError) as caught:
        audit_bytes(geometry, [1], planner="engine")
    assert caught.value.value_bytes == 1_026


def test_an_unknown_planner_is_refused_by_name():
    with raises_rule("unknown-planner") as caught:
        planner("uniform")
    assert caught.value.name == "uniform" and "uniform-page" in caught.value.known


# ---- launches ----


def test_the_launch_that_overflowed_and_the_ones_that_do_not():
    geometry = named.geometry("launch-overflow-52058")
    flat = planner("stride-and-span")
    counted = flat.launch(flat.plan(geometry), 6_870, limits=None)
    assert (counted.programs, counted.tile_bytes) == (2_904_745_920, 16)
    # The largest call that still fitted, and one id more.
    fits = (2**31 - 1) // (181 * 2_336)
    assert flat.launch(flat.plan(geometry), fits).programs <= CUDA.max_programs
    with pytest.raises(GridOverflowError):
        flat.launch(flat.plan(geometry), fits + 1)
    assert launch_for(plan_segments(geometry), 6_870).empty_programs_per_block == 0


def test_amd_counts_work_items_and_overflows_far_earlier():
    """#50485: the flat grid is refused on MI355 where CUDA would still take it; the 3-D grid passes."""
    geometry = named.geometry("launch-overflow-52058")
    flat, masked = planner("stride-and-span"), planner("masked-grid")
    with pytest.raises(GridOverflowError) as caught:
        flat.launch(flat.plan(geometry), 100, limits=AMD)
    assert (caught.value.programs, caught.value.device) == (42_281_600, "AMD")
    assert flat.launch(flat.plan(geometry), 100, limits=CUDA).programs == 42_281_600
    assert masked.launch(masked.plan(geometry), 6_870, limits=AMD).programs == 12_434_700


def test_a_grid_dimension_of_chunks_has_a_limit_of_its_own():
    layer = {"name": "k", "storage": 0, "byte_offset": 0, "shape": [2, 65_536 * 1_024], "itemsize": 4}
    geometry = CacheGeometry.from_dict(
        {
            "name": "one-large-page", "num_blocks": 2, "storages": [{"id": 0, "nbytes": 2 * 65_536 * 4_096}],
            "layers": [{**layer, "stride": [65_536 * 1_024, 1]}],
        }
    )  # fmt: skip
    masked = planner("masked-grid")
    with pytest.raises(GridOverflowError) as caught:
        masked.launch(masked.plan(geometry), 1)
    error = caught.value
    assert (error.axis, error.axis_programs, error.limit_programs) == ("third dimension", 65_536, 65_535)
    assert "65536 in its third dimension, where CUDA allows 65535" in str(error)


# ---- memory without a redzone ----


@pytest.mark.parametrize(("block", "survives"), [(98, True), (99, False)])
def test_the_last_block_kills_the_process_and_the_one_before_looks_fine(block, survives):
    arguments = {"geometry": "packed-slab-51288", "planner_name": "uniform-page", "blocks": [block]}
    child = run_in_child("kvzero.history.guarded:write_guarded", arguments)
    assert child.ok == survives
    assert child.value == ({"zero_bytes": 149_760 + 112_320} if survives else None)
    assert child.signal_name == (None if survives else "SIGSEGV")


def test_the_plan_of_51288_survives_at_the_same_place():
    arguments = {"geometry": "packed-slab-51288", "planner_name": "stride-and-span", "blocks": [99]}
    assert run_in_child("kvzero.history.guarded:write_guarded", arguments).value == {"zero_bytes": 149_504}


# ---- block ids in flight ----

POOL = named.geometry("overlaid")  # four blocks


def zeroed_blocks(arena: Arena) -> set[int]:
    return {block for block in range(POOL.num_blocks) if arena.audit([block]).missed_bytes == 0}


def write_to(arena: Arena):
    plan = plan_segments(POOL)

    def zero(ids: torch.Tensor) -> None:
        # The segment is one range per block, so indexing by the device's ids is the whole kernel.
        (segment,) = plan.segments
        rows = arena.storages[0].view(POOL.num_blocks, segment.block_stride_bytes)
        rows.index_fill_(0, ids, 0)

    return zero


def run_calls(path, calls) -> bool | None:
    for block_ids in calls:
        path.zero(block_ids)
    return path.stream.synchronize()


def test_one_shared_buffer_zeroes_one_block_twice_and_leaves_the_other():
    arena, stream, given = Arena(POOL), StreamModel(), []
    zero = write_to(arena)

    def kernel(ids: torch.Tensor) -> None:
        given.append(ids.tolist())
        zero(ids)

    run_calls(shared_id_buffer.SharedIdBuffer(stream, kernel), shared_id_buffer.MUST_DO["calls"])
    assert zeroed_blocks(arena) == shared_id_buffer.MUST_DO["zeroed"]
    assert given == [[2], [2]]


def test_the_shared_buffer_is_right_while_the_stream_keeps_up():
    arena, stream = Arena(POOL), StreamModel()
    path = shared_id_buffer.SharedIdBuffer(stream, write_to(arena))
    path.zero([1])
    assert stream.run_next()  # the copy has run: from here on the buffer may be filled again
    path.zero([2])
    stream.synchronize()
    assert zeroed_blocks(arena) == {1, 2}


@pytest.mark.parametrize("duty", ring_id_buffer.MUST_DO, ids=lambda duty: f"{len(duty['calls'])}-calls")
def test_a_ring_is_right_for_as_many_calls_as_it_has_buffers(duty):
    arena, stream = Arena(POOL), StreamModel()
    path = ring_id_buffer.RingIdBuffer(stream, write_to(arena), buffers=duty["buffers"])
    run_calls(path, duty["calls"])
    assert zeroed_blocks(arena) == duty["zeroed"]


def test_a_ring_waits_before_it_grows():
    arena, stream = Arena(POOL), StreamModel()
    path = ring_id_buffer.RingIdBuffer(stream, write_to(arena), buffers=2, capacity_ids=1)
    path.zero([1])
    path.zero([2, 3])
    assert stream.ran == ["copy", "kernel"]
    stream.synchronize()
    assert zeroed_blocks(arena) == {1, 2, 3}
    assert path.nbytes == 2 * 2 * 8


# ---- on a GPU ----


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "duty"), WRITES, ids=label)
def test_the_compiled_kernel_writes_what_the_arithmetic_says(name, duty):
    geometry = named.geometry(duty.geometry)
    measured = audit_bytes(geometry, duty.blocks, planner=name, device="cuda")
    same_verdict(audit_plan(planner(name).plan(geometry), geometry, duty.blocks), measured)


@pytest.mark.gpu
def test_the_id_race_on_a_real_stream():
    arena, stream = Arena(POOL, device="cuda"), CudaStream()
    path = shared_id_buffer.SharedIdBuffer(stream, write_to(arena))
    warm(stream, arena)
    stream.hold()
    assert run_calls(path, shared_id_buffer.MUST_DO["calls"]), "the stream was not held"
    assert zeroed_blocks(arena) == shared_id_buffer.MUST_DO["zeroed"]


@pytest.mark.gpu
def test_the_ring_on_a_real_stream():
    duty = ring_id_buffer.MUST_DO[0]
    arena, stream = Arena(POOL, device="cuda"), CudaStream()
    path = ring_id_buffer.RingIdBuffer(stream, write_to(arena), buffers=duty["buffers"])
    warm(stream, arena)
    stream.hold()
    assert run_calls(path, duty["calls"]), "the stream was not held"
    assert zeroed_blocks(arena) == duty["zeroed"]


def warm(stream, arena) -> None:
    """Load every kernel first: a lazy load would wait for the held stream and let the copies run."""
    write_to(arena)(torch.tensor([0], device="cuda"))
    torch.cuda.synchronize()
    arena.refill()
    torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.parametrize("caching", [True, False])
def test_an_overrun_of_bare_gpu_memory_stays_in_its_child(caching):
    arguments = {
        "geometry": "packed-slab-51288", "planner_name": "uniform-page", "blocks": [13], "device": "cuda",
        "num_blocks": 14,
    }  # fmt: skip
    environment = {} if caching else {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    child = run_in_child("kvzero.history.guarded:write_guarded", arguments, environment=environment)
    # 14 blocks end 512 bytes before 2 MiB, the unit in which the driver maps memory. The caching allocator has
    # taken more than that, and the write looks fine; without it the overrun leaves what is mapped, and the
    # process is aborted as soon as it frees memory.
    if caching:
        assert child.value == {"zero_bytes": 149_760}
    else:
        assert not child.ok and child.value is None and "illegal memory access" in child.stderr
    assert torch.zeros(8, device="cuda").sum().item() == 0  # and this process lives
