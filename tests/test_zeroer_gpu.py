"""`BlockZeroer` on a GPU: exact bytes, calls in flight, streams, ids on the GPU, graphs, far addresses."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch
import triton
from refusals import raises_rule

from kvzero.errors import IdOutOfRangeError, SkippedIdsError
from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.planner import plan_segments
from kvzero.zero.tiles import launch_for, strips
from kvzero.zero.zeroer import BlockZeroer

pytestmark = pytest.mark.gpu
HOLD_CYCLES = 100_000_000  # about 50 ms: far longer than it takes to enqueue what the test enqueues


def slab(num_blocks: int, pages: list[int], stride_bytes: int, first_byte: int = 0) -> CacheGeometry:
    """Pages side by side in a slab, one view each, of single bytes."""
    offsets = np.cumsum([first_byte, *pages[:-1]]).tolist()
    layers = [
        {"name": f"layer.{i}", "storage": 0, "byte_offset": offset, "shape": [num_blocks, page],
         "stride": [stride_bytes, 1], "itemsize": 1, "block_dim": 0, "group": i}
        for i, (offset, page) in enumerate(zip(offsets, pages, strict=True))
    ]  # fmt: skip
    nbytes = first_byte + num_blocks * stride_bytes
    return CacheGeometry.from_dict(
        {
            "name": "slab",
            "num_blocks": num_blocks,
            "storages": [{"id": 0, "nbytes": nbytes}],
            "layers": layers,
        }
    )


class Pool:
    """A slab on the GPU, its zeroer, and the naive truth of what a call must leave."""

    def __init__(self, num_blocks: int = 64, pages=(656, 132), stride_bytes: int = 800, first_byte: int = 0, **options):
        self.geometry = slab(num_blocks, list(pages), stride_bytes, first_byte)
        self.memory = torch.empty(self.geometry.storages[0].nbytes, dtype=torch.uint8, device="cuda")
        group_plans = {
            layer.group: plan_segments(self.geometry, groups=[layer.group]) for layer in self.geometry.layers
        }
        self.zeroer = BlockZeroer(plan_segments(self.geometry), {0: self.memory}, group_plans=group_plans, **options)
        self.fill()

    def fill(self) -> None:
        self.memory.copy_(torch.arange(len(self.memory), device="cuda") % 251 + 1)
        torch.cuda.synchronize()

    def expected(self, block_ids, groups=None) -> torch.Tensor:
        want = (torch.arange(len(self.memory), device="cuda") % 251 + 1).to(torch.uint8)
        for layer in self.geometry.layers:
            if groups is None or layer.group in groups:
                view = want[layer.byte_offset :].as_strided(layer.shape, layer.stride)
                view[torch.tensor(list(block_ids), dtype=torch.int64, device="cuda")] = 0
        return want

    def assert_zeroed(self, block_ids, groups=None) -> None:
        torch.cuda.synchronize()
        assert torch.equal(self.memory, self.expected(block_ids, groups))


@pytest.mark.parametrize(
    ("stride_bytes", "pages", "first_byte", "width_bytes"),
    [
        (48_000, (37_376, 8_448), 0, 16),
        (48_008, (37_384, 8_448), 8, 8),
        (48_004, (37_380, 8_448), 4, 4),
        (48_002, (37_378, 8_448), 2, 2),
        (48_001, (37_377, 8_448), 1, 1),
        (48_001, (3, 5), 7, 1),
        (101, (1, 99), 0, 1),
        (4_099, (4_096,), 3, 1),
        (70_001, (65_536,), 15, 1),
    ],
)
def test_exact_bytes_at_every_alignment(stride_bytes, pages, first_byte, width_bytes):
    pool = Pool(64, pages, stride_bytes, first_byte)
    assert pool.zeroer.plan.alignment_bytes == width_bytes
    pool.zeroer.zero([0, 63, 7, 7, 8, 31])
    pool.assert_zeroed([0, 7, 8, 31, 63])


@pytest.mark.parametrize("tile_bytes", [32, 64, 2048, 16_384])
def test_every_tile_gives_the_same_bytes(tile_bytes):
    pool = Pool(16, (5_000, 17), 5_101, 3, tile_bytes=tile_bytes)
    pool.zeroer.zero(range(1, 15))
    pool.assert_zeroed(list(range(1, 15)))


@pytest.mark.parametrize(
    "make",
    [
        list,
        tuple,
        np.array,
        lambda ids: np.array(ids, dtype=np.uint8),
        lambda ids: torch.tensor(ids),
        lambda ids: torch.tensor(ids, dtype=torch.int32),
        lambda ids: torch.tensor(ids, device="cuda"),
        lambda ids: torch.tensor(ids, dtype=torch.int32, device="cuda"),
        lambda ids: torch.tensor(ids, dtype=torch.int16, device="cuda"),
        lambda ids: torch.tensor([ids, ids], device="cuda").T.contiguous()[:, 0],
    ],
)
def test_ids_of_every_kind(make):
    pool = Pool()
    pool.zeroer.zero(make([5, 1, 63]))
    pool.assert_zeroed([1, 5, 63])


@pytest.mark.parametrize("ids_per_call", [2, 100], ids=["by value", "in an array"])
@pytest.mark.parametrize("calls", [2, 10, 1_000])
def test_calls_in_flight_share_no_ids(calls, ids_per_call):
    num_blocks = 2 * calls * ids_per_call
    pool = Pool(num_blocks, (16,), 32)
    pool.zeroer.warmup()
    pool.zeroer.zero([num_blocks - 1] * ids_per_call)
    torch.cuda._sleep(HOLD_CYCLES)
    held = torch.cuda.Event()
    held.record()
    for call in range(calls):
        pool.zeroer.zero(list(range(2 * call * ids_per_call, (2 * call + 1) * ids_per_call)))
    # If the stream was not held, the calls were not in flight together and the test shows nothing.
    assert calls > 10 or not held.query()
    zeroed = torch.arange(num_blocks).view(calls, 2, ids_per_call)[:, 0].flatten()
    pool.assert_zeroed([*zeroed.tolist(), num_blocks - 1])


@pytest.mark.parametrize("num_ids", [1, 2, 7, 8, 9, 64, 65, 1_000])
def test_every_number_of_ids(num_ids):
    pool = Pool(num_blocks=4_096)
    ids = np.random.default_rng(num_ids).permutation(4_096)[:num_ids]
    pool.zeroer.zero(ids.tolist())
    pool.assert_zeroed(ids)
    pool.fill()
    pool.zeroer.zero(ids)
    pool.assert_zeroed(ids)


@pytest.mark.parametrize("page", [1, 5, 37, 64, 200, 1_001, 1_152])
def test_short_pages_share_a_program(page):
    pool = Pool(num_blocks=300, pages=(page, page), stride_bytes=2 * page + 7, first_byte=3)
    batch = launch_for(pool.zeroer.plan).ids_per_program
    assert batch > 1
    shuffled = np.random.default_rng(page).permutation(300)
    for num_ids in 1, batch, 64, 65, 131:
        ids = shuffled[:num_ids]
        for given in ids.tolist(), ids, torch.from_numpy(ids).cuda(), torch.from_numpy(ids).cuda().to(torch.int32):
            pool.fill()
            pool.zeroer.zero(given)
            pool.assert_zeroed(ids)
    pool.fill()
    pool.zeroer.zero(torch.tensor([7, 300, 8, -1, 9], device="cuda"))
    with pytest.raises(SkippedIdsError, match="skipped 2 "):
        pool.zeroer.check()
    pool.assert_zeroed([7, 8, 9])


def test_programs_go_strip_by_strip_where_layers_lie_apart():
    sizes = [656, 8_448, 3, 41_984]
    starts = np.cumsum([5, *(100 * size + 11 for size in sizes)]).tolist()
    layers = [
        {"name": f"layer.{i}", "storage": 0, "byte_offset": start, "shape": [100, size], "stride": [size, 1],
         "itemsize": 1, "block_dim": 0}
        for i, (start, size) in enumerate(zip(starts, sizes, strict=False))
    ]  # fmt: skip
    geometry = CacheGeometry.from_dict(
        {"name": "apart", "num_blocks": 100, "storages": [{"id": 0, "nbytes": starts[-1]}], "layers": layers}
    )
    memory = torch.full((starts[-1],), 7, dtype=torch.uint8, device="cuda")
    plan = plan_segments(geometry)
    assert strips(plan).tolist() == [0, 1, 2, 3]
    zeroer = BlockZeroer(plan, {0: memory})
    want = memory.clone()
    ids = torch.tensor([99, 0, 41, 42, 7])
    for start, size in zip(starts, sizes, strict=False):
        want[start:].as_strided((100, size), (size, 1))[ids.cuda()] = 0
    zeroer.zero(ids)
    assert torch.equal(memory, want)
    zeroer.zero(torch.tensor([100, -1], device="cuda"))
    with pytest.raises(SkippedIdsError, match="skipped 2 "):
        zeroer.check()
    assert torch.equal(memory, want)


def test_many_calls_of_many_ids_in_flight():
    num_blocks = 60_000
    pool = Pool(num_blocks, (16,), 32)
    torch.cuda._sleep(HOLD_CYCLES)
    pool.zeroer.zero([1])
    for start in range(2, num_blocks // 2, 4_099):
        pool.zeroer.zero(np.arange(start, min(start + 4_099, num_blocks // 2)))
    pool.zeroer.zero(np.arange(num_blocks // 2, num_blocks))
    pool.assert_zeroed(list(range(1, num_blocks)))


def test_several_streams_at_once():
    pool = Pool(num_blocks=4_096)
    pool.zeroer.warmup()
    streams = [torch.cuda.Stream() for _ in range(4)] + [torch.cuda.current_stream()]
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(HOLD_CYCLES)
    for round_ in range(24):
        for k, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                pool.zeroer.zero(np.arange(k, 4_090, len(streams)) if round_ else [k])
    pool.assert_zeroed(list(range(4_090)))


def test_a_stream_that_torch_does_not_own():
    pool = Pool()
    other = torch.cuda.Stream()
    with torch.cuda.stream(torch.cuda.ExternalStream(other.cuda_stream)):
        torch.cuda._sleep(HOLD_CYCLES // 10)
        pool.zeroer.zero([3] * 100)
        pool.zeroer.zero([4] * 100)
    pool.assert_zeroed([3, 4])


def test_the_callers_array_may_be_reused_at_once():
    pool = Pool()
    few, many = np.array([1, 2]), np.arange(1, 70) % 30
    torch.cuda._sleep(HOLD_CYCLES)
    pool.zeroer.zero(few)
    pool.zeroer.zero(many)
    few[:] = many[:] = 50
    pool.assert_zeroed(range(30))


def test_what_launches_read_outlives_the_zeroer():
    pool = Pool()
    torch.cuda._sleep(HOLD_CYCLES)
    pool.zeroer.zero([1] * 100)
    pool.zeroer = None
    gc.collect()
    reuse = [torch.full((100,), 9, dtype=torch.int64, device=device) for device in ("cpu", "cuda") for _ in range(8)]
    pinned = torch.full((100,), 9, dtype=torch.int64).pin_memory()
    pool.assert_zeroed([1])
    assert all(int(each[0]) == 9 for each in (*reuse, pinned))


@pytest.mark.parametrize("ids", [[64], [-1], [0, 2**40], np.array([3, 64]), torch.tensor([-5]), [2**70]])
def test_a_bad_host_id_is_refused_before_anything_is_written(ids):
    pool = Pool()
    with pytest.raises(IdOutOfRangeError) as caught:
        pool.zeroer.zero(ids)
    assert caught.value.block_id == next(i for i in map(int, ids) if not 0 <= i < 64)
    assert (caught.value.capacity_blocks, caught.value.storage) == (64, 0)
    pool.assert_zeroed([])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_bad_ids_on_the_gpu_are_skipped_counted_and_reported(dtype):
    pool = Pool()
    pool.zeroer.zero(torch.tensor([3, 64, -1, 9, 1_000_000], device="cuda", dtype=dtype))
    pool.assert_zeroed([3, 9])
    with pytest.raises(SkippedIdsError) as caught:
        pool.zeroer.zero([5])
    assert (caught.value.num_ids, caught.value.capacity_blocks) == (3, 64)
    pool.assert_zeroed([3, 9])
    pool.zeroer.zero([5])
    pool.assert_zeroed([3, 5, 9])
    pool.zeroer.check()
    pool.zeroer.zero(torch.tensor([64], device="cuda"))
    with pytest.raises(SkippedIdsError):
        pool.zeroer.check()


def test_skipped_ids_are_counted_exactly_while_more_arrive():
    """The host only reads the counter: setting it back would lose what the GPU adds at the same moment."""
    pool = Pool(num_blocks=8, pages=(16,), stride_bytes=32)
    bad = torch.full((64,), 8, device="cuda")
    calls = reported = 0
    while calls < 20_000:
        try:
            pool.zeroer.zero(bad)
            calls += 1
        except SkippedIdsError as error:
            reported += error.num_ids
    with pytest.raises(SkippedIdsError) as caught:
        pool.zeroer.check()
    assert reported + caught.value.num_ids == 64 * calls
    pool.zeroer.check()


def test_ids_on_the_gpu_are_checked_for_type():
    pool = Pool()
    for wrong in (torch.tensor([1.0]), torch.tensor([True]), torch.tensor([[1]]), torch.tensor(1)):
        with raises_rule("id-type"):
            pool.zeroer.zero(wrong.cuda())
    pool.assert_zeroed([])


def test_groups_clear_only_their_own_views():
    pool = Pool()
    pool.zeroer.zero({0: [1, 2], 1: torch.tensor([5], device="cuda")})
    torch.cuda.synchronize()
    want = torch.minimum(pool.expected([1, 2], groups=[0]), pool.expected([5], groups=[1]))
    assert torch.equal(pool.memory, want)
    pool.fill()
    with pytest.raises(IdOutOfRangeError):
        pool.zeroer.zero({0: [1], 1: [64]})
    pool.assert_zeroed([])


def test_warmup_leaves_every_byte_and_later_calls_compile_nothing(monkeypatch):
    pool = Pool()
    pool.zeroer.warmup()
    pool.assert_zeroed([])
    compiled = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", lambda **what: compiled.append(what))
    for ids in ([1], [1, 2], list(range(16)), list(range(17)), list(range(64)) * 2):
        pool.zeroer.zero(ids)
        pool.zeroer.zero({0: ids})
        pool.zeroer.zero(torch.tensor(ids, device="cuda", dtype=torch.int32)[1:])
        pool.zeroer.zero(torch.tensor(ids, device="cuda")[1:])
    pool.zeroer.zero(pool.zeroer.replayable_ids(5))
    assert not compiled
    pool.zeroer.check()


def test_a_captured_call_replays_its_ids():
    pool = Pool()
    pool.zeroer.warmup()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pool.zeroer.zero([3, 4])
        pool.zeroer.zero(np.full(100, 60))
    pool.assert_zeroed([])  # a capture runs nothing
    for call in range(16):  # the allocators hand out again whatever they can
        pool.zeroer.zero(np.full(100, call % 2, dtype=np.int64))
    pool.fill()
    graph.replay()
    graph.replay()
    pool.assert_zeroed([3, 4, 60])


def test_a_captured_call_of_thousands_of_ids():
    pool = Pool(num_blocks=8_192, pages=(16,), stride_bytes=32)
    pool.zeroer.warmup()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pool.zeroer.zero(np.arange(5_000, dtype=np.int32))
    graph.replay()
    pool.assert_zeroed(list(range(5_000)))


def test_captures_never_run_out_of_room():
    pool = Pool()
    pool.zeroer.warmup()
    for _ in range(100):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            pool.zeroer.zero(list(range(64)) + [0] * 6)
        del graph


def test_calls_of_another_thread_leave_a_capture_alone():
    pool, other = Pool(), Pool(num_blocks=4_096)
    for each in pool, other:
        each.zeroer.warmup()
        each.zeroer.zero(np.arange(64).repeat(2))  # the allocators have memory for such a call
    torch.cuda.synchronize()
    failed = []

    def many():
        try:
            for start in range(100):
                other.zeroer.zero(np.arange(start, start + 128))
        except Exception as error:
            failed.append(error)

    pool.fill()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pool.zeroer.zero([3])
        thread = threading.Thread(target=many)
        thread.start()
        thread.join()
        pool.zeroer.zero([4])
    graph.replay()
    pool.assert_zeroed([3, 4])
    other.assert_zeroed(range(227))
    assert not failed


@pytest.mark.parametrize("num_ids", [3, 70, 20_000])
def test_host_ids_in_flight_and_their_source_may_change(num_ids):
    pool = Pool(num_blocks=40_000, pages=(16,), stride_bytes=16)
    pool.zeroer.warmup()
    ids = np.arange(num_ids)
    torch.cuda._sleep(HOLD_CYCLES)
    for _ in range(3):
        pool.zeroer.zero(ids)
        ids[:] += 1
    pool.assert_zeroed(range(num_ids + 2))


@pytest.mark.parametrize("kind", ["replayable", "tensor"])
def test_a_graph_keeps_the_ids_that_it_reads(kind):
    """If the buffer were freed, its next owner's numbers would be taken for block ids."""
    pool = Pool()
    pool.zeroer.warmup()
    if kind == "replayable":
        ids = pool.zeroer.replayable_ids(64)
        ids.set([5])
    else:
        ids = torch.tensor([5], device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pool.zeroer.zero(ids)
    del ids
    gc.collect()
    reuse = [torch.ones(65, dtype=torch.int64, device="cuda") for _ in range(64)]
    pool.fill()
    graph.replay()
    pool.assert_zeroed([5])
    assert all(int(each.sum()) == 65 for each in reuse)


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
def test_a_profilers_hook_is_called_for_each_launch(hook, monkeypatch):
    pool = Pool()
    pool.zeroer.warmup()
    calls = []
    monkeypatch.setattr(triton.knobs.runtime, hook, lambda metadata: calls.append(metadata))
    pool.zeroer.zero([1])
    pool.zeroer.zero(list(range(64)) * 2)
    assert len(calls) == 2


def test_the_default_device_of_torch_changes_nothing():
    pool = Pool()
    for device in "cuda", "meta":
        with torch.device(device):
            zeroer = BlockZeroer(pool.zeroer.plan, {0: pool.memory})
            zeroer.warmup()
            zeroer.zero([1])
            zeroer.zero([2] * 100)
            zeroer.replayable_ids(4).set([3])
    pool.assert_zeroed([1, 2])


def test_a_zeroer_that_is_collected_during_a_capture_does_not_end_it():
    pool, gone = Pool(), Pool()
    pool.zeroer.warmup()
    torch.cuda._sleep(HOLD_CYCLES)
    gone.zeroer.zero([1, 2])
    gone.zeroer.zero(list(range(64)) * 2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        del gone.zeroer
        gc.collect()
        pool.zeroer.zero([3])
    graph.replay()
    pool.assert_zeroed([3])
    gone.assert_zeroed(range(64))


def test_launches_on_a_side_stream_outlive_their_zeroer():
    """Its table was made on the default stream, where the memory would be given out again at once."""
    pool = Pool()
    pool.zeroer.warmup()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(HOLD_CYCLES)
        pool.zeroer.zero([1, 2])
        pool.zeroer.zero(torch.tensor([4]).cuda())
    del pool.zeroer
    gc.collect()
    reuse = [torch.full((size,), 7, dtype=torch.uint8, device="cuda") for size in (16, 64, 512) for _ in range(64)]
    torch.cuda.current_stream().synchronize()
    pool.assert_zeroed([1, 2, 4])
    assert all(int(each[0]) == 7 for each in reuse)


def test_ids_and_their_number_change_between_replays():
    pool = Pool()
    pool.zeroer.warmup()
    ids = pool.zeroer.replayable_ids(8)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pool.zeroer.zero(ids)
    graph.replay()
    pool.assert_zeroed([])
    torch.cuda._sleep(HOLD_CYCLES)
    for block_ids in ([3], [5, 9, 11], [], list(range(20, 28))):
        ids.set(block_ids)
        graph.replay()
    pool.assert_zeroed([3, 5, 9, 11, *range(20, 28)])
    with pytest.raises(IdOutOfRangeError):
        ids.set([64])
    with raises_rule("replay-room"):
        ids.set(list(range(9)))
    with raises_rule("num-ids"):
        pool.zeroer.replayable_ids(-1)
    pool.zeroer.zero(pool.zeroer.replayable_ids(0))
    with raises_rule("id-type"):
        pool.zeroer.zero(np.array(3))


def test_far_addresses_past_4_gib_and_2_to_the_31_words():
    stride_bytes = 1 << 20
    num_blocks = 9_300  # 9.75 GB: past 2^31 four-byte words
    if torch.cuda.mem_get_info()[0] < 22e9:
        pytest.skip("not available here: 22 GB of free GPU memory")
    geometry = slab(num_blocks, [37_376], stride_bytes)
    memory = torch.full((geometry.storages[0].nbytes,), 7, dtype=torch.uint8, device="cuda")
    zeroer = BlockZeroer(plan_segments(geometry), {0: memory})
    near = (1 << 32) // stride_bytes
    ids = [0, near - 1, near, near + 1, (1 << 33) // stride_bytes, num_blocks - 1]
    zeroer.zero(ids)
    rows = memory.view(num_blocks, stride_bytes)
    assert int((memory == 0).sum()) == len(ids) * 37_376
    assert all(int((rows[block, :37_376] == 0).sum()) == 37_376 for block in ids)


def test_a_resized_storage_is_noticed_by_check():
    geometry = slab(8, [64], 64)
    memory = torch.full((512,), 7, dtype=torch.uint8, device="cuda")
    zeroer = BlockZeroer(plan_segments(geometry), {0: memory})
    memory.untyped_storage().resize_(0)
    with raises_rule("storage-moved"):
        zeroer.check()


def test_cpu_and_gpu_in_one_process():
    pool = Pool()
    on_cpu = torch.full((pool.geometry.storages[0].nbytes,), 7, dtype=torch.uint8)
    BlockZeroer(pool.zeroer.plan, {0: on_cpu}).zero([2])
    pool.zeroer.zero([2])
    pool.assert_zeroed([2])
    assert int((on_cpu == 0).sum()) == 788
    with raises_rule("storage-device"):
        BlockZeroer(plan_segments(slab(8, [64], 64)), {0: torch.empty(512, dtype=torch.uint8, device="meta")})


def test_the_kernel_that_runs_has_wide_stores():
    pool = Pool(64, (37_376,), 48_000)
    pool.zeroer.warmup()
    for tiles in pool.zeroer._backend._tiles, pool.zeroer._backend._wide:
        assert tiles.compiled
        for kernel in tiles.compiled.values():
            assert "st.global.cs.v4.b32" in kernel.asm["ptx"]
