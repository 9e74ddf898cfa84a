"""`BlockZeroer` on the CPU, by indexing and by the interpreted kernel, against naive indexing."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import oracle
import pytest
import torch
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import raises_rule
from strategies import engine_layouts

from kvzero import geometries
from kvzero.bench.sets import layers_apart
from kvzero.errors import IdOutOfRangeError, KvzeroError, UnprovenPlanError
from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.planner import Plan, plan_segments
from kvzero.zero import tiles as launch
from kvzero.zero.ids import argument_values, checked_ids
from kvzero.zero.kernel import MOST_BY_VALUE
from kvzero.zero.zeroer import BlockZeroer


def slab(num_blocks: int = 6, pages=(37, 20), stride_bytes: int = 61, first_byte: int = 3) -> CacheGeometry:
    """Odd pages side by side in a slab, each a group of its own."""
    starts = np.cumsum([first_byte, *pages[:-1]]).tolist()
    layers = [
        {"name": f"layer.{i}", "storage": "slab", "byte_offset": start, "shape": [num_blocks, page],
         "stride": [stride_bytes, 1], "itemsize": 1, "block_dim": 0, "group": i}
        for i, (start, page) in enumerate(zip(starts, pages, strict=True))
    ]  # fmt: skip
    storages = [{"id": "slab", "nbytes": first_byte + num_blocks * stride_bytes}]
    return CacheGeometry.from_dict({"name": "slab", "num_blocks": num_blocks, "storages": storages, "layers": layers})


def dirty(geometry: CacheGeometry, shift_bytes: int = 0) -> dict:
    """Memory in which no byte is zero, starting `shift_bytes` after an aligned address."""
    return {
        storage.id: (torch.arange(storage.nbytes + shift_bytes) % 251 + 1).to(torch.uint8)[shift_bytes:]
        for storage in geometry.storages
    }


def assert_zeroed(geometry: CacheGeometry, memory: dict, block_ids, shift_bytes: int = 0, **selection) -> None:
    must = oracle.needed(geometry, block_ids, **selection)
    for storage, before in dirty(geometry, shift_bytes).items():
        assert torch.equal(memory[storage], before.masked_fill(must[storage], 0)), storage


@given(engine_layouts(), st.data())
def test_exactly_the_needed_bytes_of_any_layout(geometry, data):
    block_ids = data.draw(st.lists(st.integers(0, geometry.num_blocks - 1), max_size=4))
    shift_bytes = data.draw(st.integers(0, 16))
    tile_bytes = data.draw(st.sampled_from([32, 64, None]))
    memory = dirty(geometry, shift_bytes)
    BlockZeroer(plan_segments(geometry), memory, tile_bytes=tile_bytes).zero(block_ids)
    assert_zeroed(geometry, memory, block_ids, shift_bytes)


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=3),
    st.integers(0, 20),
    st.integers(0, 20),
    st.integers(0, 15),
    st.sampled_from([32, 64, 128]),
)
def test_ragged_ends_at_any_alignment(pages, pad_bytes, first_byte, shift_bytes, tile_bytes):
    geometry = slab(4, pages, sum(pages) + pad_bytes, first_byte)
    memory = dirty(geometry, shift_bytes)
    BlockZeroer(plan_segments(geometry), memory, tile_bytes=tile_bytes).zero([3, 1])
    assert_zeroed(geometry, memory, [1, 3], shift_bytes)


@pytest.mark.parametrize(
    "name", ["dsv4_c4_mla_only__BLHNC", "numblocks1__LHBNC", "nvfp4__BLNHC", "qwen35_544_fa__LBNHC"]
)
def test_real_dumps(name):
    geometry = geometries.load(name)
    memory = dirty(geometry)
    BlockZeroer(plan_segments(geometry), memory).zero([geometry.num_blocks - 1])
    assert_zeroed(geometry, memory, [geometry.num_blocks - 1])


@pytest.mark.parametrize(
    "make",
    [list, tuple, np.array, lambda ids: np.array(ids, dtype=np.uint8), torch.tensor, lambda ids: np.array(ids)[::-1],
     lambda ids: [np.int32(block_id) for block_id in ids]],
)  # fmt: skip
def test_ids_of_every_kind(make):
    geometry = slab()
    memory = dirty(geometry)
    BlockZeroer(plan_segments(geometry), memory).zero(make([5, 1, 1]))
    assert_zeroed(geometry, memory, [1, 5])


def test_zeroers_in_several_threads_do_not_mix_their_programs():
    geometry = slab()
    memories = [dirty(geometry) for _ in range(24)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda memory: BlockZeroer(plan_segments(geometry), memory).zero([1, 5]), memories))
    finally:
        sys.setswitchinterval(before)
    for memory in memories:
        assert_zeroed(geometry, memory, [1, 5])


@pytest.mark.parametrize("nothing", [[], (), np.array([]), torch.tensor([], dtype=torch.int64), range(0), {}])
def test_no_ids_do_nothing(nothing):
    geometry = slab()
    memory = dirty(geometry)
    BlockZeroer(plan_segments(geometry), memory).zero(nothing)
    assert_zeroed(geometry, memory, [])


@pytest.mark.parametrize(
    ("ids", "block_id"),
    [([6], 6), ([0, -1], -1), (np.array([1, 6, 7]), 6), (torch.tensor([-9]), -9), ([2**63], 2**63),
     ([-(2**70)], -(2**70)), (np.array([2**64 - 1], dtype=np.uint64), 2**64 - 1), (range(3, 8), 6)],
)  # fmt: skip
def test_a_bad_id_is_refused_before_anything_is_written(ids, block_id):
    geometry = slab()
    memory = dirty(geometry)
    with pytest.raises(IdOutOfRangeError) as caught:
        BlockZeroer(plan_segments(geometry), memory).zero(ids)
    facts = caught.value
    assert (facts.block_id, facts.capacity_blocks, facts.storage, facts.base_bytes) == (block_id, 6, "slab", 3)
    assert_zeroed(geometry, memory, [])


@pytest.mark.parametrize(
    "ids",
    [[1.0], [True], [0, False], [3, True], [2] * 99 + [True], [2] * 99 + [3.0],
     ["1"], "12", b"1", 3, None, [None], np.array([1.0]), np.array([True]), np.array(3),
     np.array([[1]]), torch.tensor([1.5]), torch.tensor([[1]]), torch.tensor([True]), {1, 2},
     np.array([1.5], dtype=object), np.array([True], dtype=object), np.array([1, None], dtype=object),
     torch.ones(1, dtype=torch.bfloat16), torch.ones(1, dtype=torch.int64, device="meta"),
     torch.ones(2, dtype=torch.int64).to_sparse()],
)  # fmt: skip
def test_ids_that_are_not_whole_numbers_are_refused(ids):
    geometry = slab()
    memory = dirty(geometry)
    with raises_rule("id-type"):
        BlockZeroer(plan_segments(geometry), memory).zero(ids)
    assert_zeroed(geometry, memory, [])


def test_ids_per_group_clear_only_the_owners_views():
    geometry = slab()
    memory = dirty(geometry)
    plans = {group: plan_segments(geometry, groups=[group]) for group in (0, 1)}
    zeroer = BlockZeroer(plan_segments(geometry), memory, group_plans=plans)
    for wrong, error in (({0: [1], 1: [6]}, "id-out-of-range"), ({0: [1], 2: [1]}, "unknown-group")):
        with raises_rule(error):
            zeroer.zero(wrong)
        assert_zeroed(geometry, memory, [])
    zeroer.zero({0: [1, 2], 1: [4]})
    want = dirty(geometry)["slab"]
    want[oracle.needed(geometry, [1, 2], groups=[0])["slab"] | oracle.needed(geometry, [4], groups=[1])["slab"]] = 0
    assert torch.equal(memory["slab"], want)


@pytest.mark.parametrize("name", ["dsv4_c4_full__BLHNC", "gptoss_18sw_18full__LBNHC"])
def test_bytes_that_overlaid_groups_share_are_each_groups(name):
    geometry = geometries.load(name)
    group = sorted({view.group for view in geometry.layers if view.zeroed})[-1]
    memory = dirty(geometry)
    zeroer = BlockZeroer(plan_segments(geometry), memory, group_plans={group: plan_segments(geometry, groups=[group])})
    zeroer.zero({group: [1]})
    assert_zeroed(geometry, memory, [1], groups=[group])


def test_plans_that_are_no_proof_or_of_another_pool_are_refused():
    geometry = slab()
    plan = plan_segments(geometry)
    unproven = Plan("uniform-page", plan.name, 6, plan.storages, plan.segments, plan.needed_bytes_per_block)
    changed = replace(plan, segments=(replace(plan.segments[0], span_bytes=8), *plan.segments[1:]))
    for each in unproven, changed, replace(plan):
        with pytest.raises(UnprovenPlanError):
            BlockZeroer(each, dirty(geometry))
    assert pickle.loads(pickle.dumps(plan)) == copy.deepcopy(plan) == plan and plan.proven
    with pytest.raises(UnprovenPlanError):
        BlockZeroer(plan, dirty(geometry), group_plans={0: unproven})
    with raises_rule("plan-mismatch"):
        BlockZeroer(plan, dirty(geometry), group_plans={0: plan_segments(slab(num_blocks=5))})
    fewer = geometry.to_dict()
    for layer in fewer["layers"]:
        layer["shape"][layer["block_dim"]] -= 1
    fewer = CacheGeometry.from_dict({**fewer, "num_blocks": geometry.num_blocks - 1})
    larger = geometry.to_dict()
    larger["storages"][0]["nbytes"] += 1
    for other in fewer, CacheGeometry.from_dict(larger):  # the same storages; the same number of blocks
        with raises_rule("plan-mismatch"):
            BlockZeroer(plan, dirty(geometry), group_plans={0: plan_segments(other)})


def test_memory_must_fit_the_plan():
    geometry = slab()
    plan, memory = plan_segments(geometry), dirty(geometry)
    with raises_rule("storage-missing"):
        BlockZeroer(plan, {"other": memory["slab"]})
    with raises_rule("storage-size") as caught:
        BlockZeroer(plan, {"slab": memory["slab"][1:].clone()})
    assert (caught.value.nbytes, caught.value.given_nbytes) == (369, 368)
    with raises_rule("storage-device"):
        BlockZeroer(plan, {"slab": torch.empty(369, dtype=torch.uint8, device="meta")})


@pytest.mark.parametrize("given", [np.zeros(369, np.uint8), None, [0] * 369, torch.zeros(369).to_sparse()])
def test_what_is_no_dense_memory_is_refused(given):
    with raises_rule("tensor-kind", match="storage 'slab'"):
        BlockZeroer(plan_segments(slab()), {"slab": given})


@pytest.mark.parametrize("first_byte", [0, 30, 39])
def test_one_piece_of_memory_is_not_two_storages(first_byte):
    layers = [
        {"name": name, "storage": name, "byte_offset": 0, "shape": [4, 10], "stride": [10, 1], "itemsize": 1}
        for name in "ab"
    ]
    storages = [{"id": name, "nbytes": 40} for name in "ab"]
    plan = plan_segments(
        CacheGeometry.from_dict({"name": "ab", "num_blocks": 4, "storages": storages, "layers": layers})
    )
    memory = torch.ones(80, dtype=torch.uint8)
    with raises_rule("storage-alias") as caught:
        BlockZeroer(plan, {"b": memory[:40], "a": memory[first_byte : first_byte + 40]})
    assert caught.value.address == memory.data_ptr() + first_byte
    BlockZeroer(plan, {"a": memory[40:], "b": memory[:40]}).zero([3])
    assert memory.reshape(2, 4, 10).sum(2).tolist() == [[10, 10, 10, 0]] * 2


@pytest.mark.parametrize("tile_bytes", [0, -32, 16, 33, 48, 64.0, True, "64"])
def test_a_tile_that_no_kernel_can_write_is_refused(tile_bytes):
    geometry = slab()
    with raises_rule("tile-bytes"):
        BlockZeroer(plan_segments(geometry), dirty(geometry), tile_bytes=tile_bytes)


def test_any_view_stands_for_its_whole_storage():
    geometry = slab(8, (64,), 64, 0)
    whole = dirty(geometry)["slab"]
    for memory in (whole.view(torch.float32)[4:12], whole.untyped_storage(), whole):
        BlockZeroer(plan_segments(geometry), {"slab": memory}).zero([2])
        assert_zeroed(geometry, {"slab": whole}, [2])
        whole.copy_(dirty(geometry)["slab"])


def test_a_resized_storage_is_noticed_by_check_and_warmup():
    geometry = slab(8, (64,), 64, 0)
    memory = dirty(geometry)
    zeroer = BlockZeroer(plan_segments(geometry), memory, interpret=True)  # NumPy would forbid torch to resize
    zeroer.check()
    untyped = memory["slab"].untyped_storage()
    nbytes = untyped.nbytes()
    untyped.resize_(0)
    untyped.resize_(1 << 20)
    for act in (zeroer.warmup, zeroer.check):
        with raises_rule("storage-moved") as caught:
            act()
        assert (caught.value.storage, caught.value.nbytes, caught.value.nbytes_now) == ("slab", nbytes, 1 << 20)


def test_a_zeroer_keeps_its_memory_alive_and_gives_it_back():
    geometry = slab()
    memory = dirty(geometry)
    reference = torch.multiprocessing.reductions.StorageWeakRef(memory["slab"].untyped_storage())
    zeroer = BlockZeroer(plan_segments(geometry), memory)
    memory.clear()
    gc.collect()
    assert not reference.expired()
    zeroer.zero([1])
    del zeroer
    gc.collect()
    assert reference.expired()


def test_warmup_and_check_leave_every_byte():
    geometry = slab()
    memory = dirty(geometry)
    zeroer = BlockZeroer(plan_segments(geometry), memory)
    zeroer.warmup()
    zeroer.check()
    assert_zeroed(geometry, memory, [])


def test_graphs_need_a_gpu_and_say_so():
    zeroer = BlockZeroer(plan_segments(slab()), memory := dirty(slab()))
    with raises_rule("storage-device"):
        zeroer.replayable_ids(4)
    assert memory


def test_a_call_is_split_where_a_launch_is_too_small(monkeypatch):
    monkeypatch.setattr(
        launch.CUDA.__class__, "max_programs", property(lambda limits: 5)
    )  # two blocks of 3 tiles do not fit
    geometry = slab(6, (40,), 61, 3)
    memory = dirty(geometry)
    BlockZeroer(plan_segments(geometry), memory, tile_bytes=32, interpret=True).zero([0, 2, 5])
    assert_zeroed(geometry, memory, [0, 2, 5])


def test_each_number_of_ids_arrives_as_arguments():
    """Block 0 is what free arguments name: it would be zeroed for an id that is picked from the wrong one."""
    geometry = slab(66, (5,), 7, 3)
    memory = dirty(geometry)
    zeroer = BlockZeroer(plan_segments(geometry), memory, interpret=True)
    for num_ids in range(1, MOST_BY_VALUE + 1):
        ids = np.random.default_rng(num_ids).permutation(65)[:num_ids] + 1
        memory["slab"].copy_(dirty(geometry)["slab"])
        zeroer.zero(ids.tolist())
        assert_zeroed(geometry, memory, ids)


def test_ids_beyond_16_bits_arrive_as_arguments():
    geometry = slab(70_000, (5,), 7, 3)
    memory = dirty(geometry)
    BlockZeroer(plan_segments(geometry), memory, interpret=True).zero([69_999, 3, 65_536])
    assert_zeroed(geometry, memory, [69_999, 3, 65_536])


def test_more_ids_than_arguments_hold_are_zeroed_in_parts():
    geometry = slab(150, (5,), 7, 3)
    memory = dirty(geometry)
    ids = list(range(0, 150, 2)) + [1] * 90
    BlockZeroer(plan_segments(geometry), memory, interpret=True).zero(ids)
    assert_zeroed(geometry, memory, {*ids})


def test_a_pool_that_32_bit_ids_cannot_name_is_refused():
    layers = [{"name": "a", "storage": 0, "byte_offset": 0, "shape": [2**31, 1], "stride": [1, 1], "itemsize": 1,
               "block_dim": 0}]  # fmt: skip
    geometry = CacheGeometry.from_dict(
        {"name": "wide", "num_blocks": 2**31, "storages": [{"id": 0, "nbytes": 2**31}], "layers": layers}
    )
    with raises_rule("pool-too-large"):
        BlockZeroer(plan_segments(geometry), {0: torch.empty(2**31, dtype=torch.uint8)})


def test_far_blocks_past_4_gib_and_2_to_the_31_words():
    stride_bytes, num_blocks = 1 << 20, 9_300  # 9.75 GB, of which only the pages touched become real
    geometry = slab(num_blocks, (4_096,), stride_bytes, 0)
    memory = torch.empty(geometry.storages[0].nbytes, dtype=torch.uint8)
    rows = memory.view(num_blocks, stride_bytes)
    ids = [0, 4_095, 4_096, 8_192, num_blocks - 1]
    near = [block + step for block in ids for step in (-1, 0, 1) if 0 <= block + step < num_blocks]
    for block in near:
        rows[block, :8_192] = 7
    BlockZeroer(plan_segments(geometry), {"slab": memory}).zero(ids)
    for block in near:
        assert (rows[block, :4_096] == (0 if block in ids else 7)).all() and (rows[block, 4_096:8_192] == 7).all()


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=MOST_BY_VALUE))
def test_ids_as_arguments_arrive_as_they_are(ids):
    argument_values([7] * MOST_BY_VALUE)  # what an earlier call packed must not show
    values = argument_values(ids)
    assert [values[i // 2] >> 32 * (i % 2) & 0xFFFFFFFF for i in range(MOST_BY_VALUE)][: len(ids)] == ids
    assert not any(values[(len(ids) + 1) // 2 :])


@given(
    st.lists(st.integers(-1, 9), max_size=100)
    | st.lists(st.integers(0, 2**31) | st.integers(-(2**65), 2**65), max_size=100),
    st.sampled_from([1, 2, 8, 10, 2**31 - 1]),
)
def test_ids_inside_the_pool_pass_and_others_are_refused(ids, num_blocks):
    plan = replace(plan_segments(slab()), num_blocks=num_blocks)
    for given_ids in ids, tuple(ids), np.array(ids, dtype=object):
        if all(0 <= block_id < num_blocks for block_id in ids):
            assert list(checked_ids(given_ids, plan)) == ids
        else:
            with pytest.raises(IdOutOfRangeError):
                checked_ids(given_ids, plan)


@settings(max_examples=25)
@given(engine_layouts(), st.data())
def test_the_interpreted_kernel_writes_what_indexing_writes(geometry, data):
    ids = data.draw(st.lists(st.integers(0, geometry.num_blocks - 1), max_size=4))
    indexed, interpreted = dirty(geometry), dirty(geometry)
    plan = plan_segments(geometry, layers="all")
    BlockZeroer(plan, indexed).zero(ids)
    BlockZeroer(plan, interpreted, interpret=True).zero(ids)
    for name, memory in indexed.items():
        assert torch.equal(memory, interpreted[name])


def test_memory_that_is_longer_or_in_part_elsewhere_is_refused():
    geometry = slab()
    nbytes = geometry.storages[0].nbytes
    with raises_rule("storage-size") as caught:
        BlockZeroer(plan_segments(geometry), {"slab": torch.zeros(nbytes + 1, dtype=torch.uint8)})
    assert (caught.value.nbytes, caught.value.given_nbytes) == (nbytes, nbytes + 1)
    two = layers_apart("two storages", [64, 64], 4)
    elsewhere = {0: torch.zeros(256, dtype=torch.uint8), 1: torch.zeros(256, dtype=torch.uint8, device="meta")}
    with raises_rule("storage-device") as caught:
        BlockZeroer(plan_segments(two), elsewhere)
    assert (caught.value.device, caught.value.expected) == ("meta", "cpu")


def test_pages_of_whole_lines_end_where_they_end():
    """Where everything lies on 128-byte lines, the kernel's last tile is longer than the rest of its page."""
    geometry = slab(6, (384,), 512, 0)
    nbytes = geometry.storages[0].nbytes
    room = torch.empty(nbytes + 128, dtype=torch.uint8)
    start = -room.data_ptr() % 128
    memory = {"slab": room[start : start + nbytes]}
    memory["slab"].copy_(dirty(geometry)["slab"])
    BlockZeroer(plan_segments(geometry), memory, interpret=True).zero([0, 2, 5])
    assert_zeroed(geometry, memory, [0, 2, 5])


def test_the_default_device_of_torch_changes_nothing():
    geometry = slab()
    memory, other = dirty(geometry), dirty(geometry)
    with torch.device("meta"):
        BlockZeroer(plan_segments(geometry), memory).zero([1, 3])
        BlockZeroer(plan_segments(geometry), other, interpret=True).zero(list(range(5)) * 20)
    assert_zeroed(geometry, memory, [1, 3])
    assert_zeroed(geometry, other, range(5))


def test_a_compiled_function_may_zero():
    geometry = slab()
    memory = dirty(geometry)
    zeroer = BlockZeroer(plan_segments(geometry), memory)

    @torch.compile(backend="eager")
    def step(numbers):
        zeroer.zero([2])
        return numbers + 1

    assert step(torch.zeros(3)).tolist() == [1, 1, 1]
    assert_zeroed(geometry, memory, [2])


def test_a_triton_kernel_compiles_while_another_thread_zeroes():
    """Interpreted calls patch `triton.language` for the whole process; the CPU path must not."""
    geometry = slab(2_000, (64,), 64, 0)
    zeroer = BlockZeroer(plan_segments(geometry), dirty(geometry))
    patched, load = [], tl.load
    stop = threading.Event()

    def watch():
        while not stop.is_set():
            patched.append(tl.load is not load)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(50):
        zeroer.zero(range(2_000))
    stop.set()
    watcher.join()
    assert patched and not any(patched)


def test_a_bad_group_stops_the_others_before_anything_is_written():
    geometry = slab()
    memory = dirty(geometry)
    group_plans = {group: plan_segments(geometry, groups=[group]) for group in (0, 1)}
    zeroer = BlockZeroer(plan_segments(geometry), memory, group_plans=group_plans)
    refused = {"id-out-of-range": {0: [1], 1: [6]}, "id-type": {0: [1], 1: [True]}, "unknown-group": {0: [1], 2: [1]}}
    for rule, bad in refused.items():
        with raises_rule(rule):
            zeroer.zero(bad)
    assert_zeroed(geometry, memory, [])


def test_every_error_names_its_rule():
    geometry = slab()
    memory = dirty(geometry)
    with pytest.raises(KvzeroError) as caught:
        BlockZeroer(plan_segments(geometry), memory).zero([6])
    assert caught.value.to_dict()["rule"] == "id-out-of-range" and "ids 0 to 5" in str(caught.value)


@pytest.mark.parametrize("storages", [None, 5, [torch.zeros(8, dtype=torch.uint8)]])
def test_storages_are_given_by_name(storages):
    with raises_rule("tensor-kind", match="mapping"):
        BlockZeroer(plan_segments(slab()), storages)


def test_a_masked_array_is_refused():
    geometry = slab()
    memory = dirty(geometry)
    with raises_rule("id-type", match="masked"):
        BlockZeroer(plan_segments(geometry), memory).zero(np.ma.array([1, 3], mask=[False, True]))
    assert_zeroed(geometry, memory, [])
