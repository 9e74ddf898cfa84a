"""`BlockZeroer` on a GPU: exact bytes, calls in flight, streams, ids on the GPU, graphs, far addresses."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

from kvzero import idring, kernel
from kvzero.errors import (
    CaptureRoomError,
    IdOutOfRangeError,
    IdTypeError,
    NumIdsError,
    ReplayRoomError,
    StorageDeviceError,
    StorageMovedError,
)
from kvzero.geometry import CacheGeometry
from kvzero.idring import CAPTURE_IDS, SECTION_IDS, SECTIONS
from kvzero.launch import strips
from kvzero.plan import plan_segments
from kvzero.zeroer import BlockZeroer

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


def test_the_public_launch_writes_the_same(monkeypatch):
    monkeypatch.setattr(kernel, "FAST_LAUNCH_VERSIONS", ())
    pool = Pool()
    pool.zeroer.zero([2, 3])
    pool.zeroer.zero(torch.tensor([9], device="cuda", dtype=torch.int32))
    pool.assert_zeroed([2, 3, 9])


@pytest.mark.parametrize("ids_per_call", [2, 100], ids=["by value", "through the ring"])
@pytest.mark.parametrize("calls", [2, 10, 1_000])
def test_calls_in_flight_share_no_ids(calls, ids_per_call):
    num_blocks = 2 * calls * ids_per_call
    pool = Pool(num_blocks, (16,), 32)
    pool.zeroer.warmup()
    pool.zeroer.zero([num_blocks - 1] * ids_per_call)
    ring_bytes = pool.zeroer._target.ring.nbytes
    torch.cuda._sleep(HOLD_CYCLES)
    held = torch.cuda.Event()
    held.record()
    for call in range(calls):
        pool.zeroer.zero(list(range(2 * call * ids_per_call, (2 * call + 1) * ids_per_call)))
    # If the stream was not held, the calls were not in flight together and the test shows nothing.
    assert calls > 10 or not held.query()
    zeroed = torch.arange(num_blocks).view(calls, 2, ids_per_call)[:, 0].flatten()
    pool.assert_zeroed([*zeroed.tolist(), num_blocks - 1])
    assert pool.zeroer._target.ring.nbytes == ring_bytes


@pytest.mark.parametrize("num_ids", [1, 2, 63, 64, 65, 1_000])
def test_every_number_of_ids(num_ids):
    pool = Pool(num_blocks=4_096)
    ids = np.random.default_rng(num_ids).permutation(4_096)[:num_ids]
    pool.zeroer.zero(ids.tolist())
    pool.assert_zeroed(ids)
    pool.fill()
    pool.zeroer.zero(ids)
    pool.assert_zeroed(ids)


def test_the_tensor_copy_serves_where_the_driver_copy_is_missing(monkeypatch):
    monkeypatch.setattr(idring, "_driver_copy", None)
    pool = Pool(num_blocks=512)
    pool.zeroer.zero(list(range(100, 300)))
    pool.assert_zeroed(range(100, 300))


@pytest.mark.parametrize("page", [1, 5, 37, 64, 200, 1_001, 1_152])
def test_short_pages_share_a_program(page):
    pool = Pool(num_blocks=300, pages=(page, page), stride_bytes=2 * page + 7, first_byte=3)
    batch = pool.zeroer._job.tiling.ids_per_program
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
    with pytest.raises(IdOutOfRangeError, match="skipped 2 "):
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
    with pytest.raises(IdOutOfRangeError, match="skipped 2 "):
        zeroer.check()
    assert torch.equal(memory, want)


def test_a_full_ring_waits_and_overwrites_nothing():
    num_blocks = SECTIONS * SECTION_IDS + 4 * SECTION_IDS
    pool = Pool(num_blocks, (16,), 32)
    ring_bytes = pool.zeroer._target.ring.nbytes
    torch.cuda._sleep(HOLD_CYCLES)
    step = SECTION_IDS // 2 + 1  # one call a section, so that the ring is full after SECTIONS calls
    for start in range(0, num_blocks // 2, step):
        pool.zeroer.zero(np.arange(start, min(start + step, num_blocks // 2)))
    pool.assert_zeroed(list(range(num_blocks // 2)))
    assert pool.zeroer._target.ring.nbytes == ring_bytes


def test_one_call_with_more_ids_than_the_ring_holds():
    num_blocks = 2 * SECTIONS * SECTION_IDS + 5
    pool = Pool(num_blocks, (16,), 32)
    torch.cuda._sleep(HOLD_CYCLES)
    pool.zeroer.zero([1])
    pool.zeroer.zero(np.arange(2, num_blocks))
    pool.assert_zeroed(list(range(1, num_blocks)))


def test_several_streams_at_once():
    pool = Pool(num_blocks=4_096)
    pool.zeroer.warmup()
    streams = [torch.cuda.Stream() for _ in range(4)] + [torch.cuda.current_stream()]
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(HOLD_CYCLES)
    rounds = 3 * SECTIONS * SECTION_IDS // 4_096
    for round_ in range(rounds):
        for k, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                pool.zeroer.zero(np.arange(k, 4_090, len(streams)) if round_ else [k])
    pool.assert_zeroed(list(range(4_090)))


def test_a_stream_that_torch_does_not_own_is_guarded_call_by_call():
    pool = Pool()
    other = torch.cuda.Stream()
    with torch.cuda.stream(torch.cuda.ExternalStream(other.cuda_stream)):
        torch.cuda._sleep(HOLD_CYCLES // 10)
        pool.zeroer.zero([3] * 100)
        pool.zeroer.zero([4] * 100)
    ring = pool.zeroer._target.ring
    assert sum(map(len, ring._events)) == 2 and not ring._users
    pool.assert_zeroed([3, 4])


def test_a_refused_call_leaves_no_trace_of_its_stream():
    pool = Pool()
    other = torch.cuda.Stream()
    with torch.cuda.stream(torch.cuda.ExternalStream(other.cuda_stream)), pytest.raises(IdOutOfRangeError):
        pool.zeroer.zero([3] * 99 + [64])
    assert not pool.zeroer._target.ring._users


def test_the_callers_array_may_be_reused_at_once():
    pool = Pool()
    few, many = np.array([1, 2]), np.arange(1, 70) % 30
    torch.cuda._sleep(HOLD_CYCLES)
    pool.zeroer.zero(few)
    pool.zeroer.zero(many)
    few[:] = many[:] = 50
    pool.assert_zeroed(range(30))


def test_the_ring_outlives_its_zeroer_while_launches_read_it():
    pool = Pool()
    torch.cuda._sleep(HOLD_CYCLES)
    pool.zeroer.zero([1] * 100)
    pool.zeroer = None
    reuse = torch.full((SECTIONS * SECTION_IDS,), 9, dtype=torch.int64).pin_memory()
    pool.assert_zeroed([1])
    assert reuse[0] == 9


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
    with pytest.raises(IdOutOfRangeError) as caught:
        pool.zeroer.zero([5])
    assert caught.value.block_id in (64, -1, 1_000_000) and "skipped 3" in str(caught.value)
    pool.assert_zeroed([3, 9])
    pool.zeroer.zero([5])
    pool.assert_zeroed([3, 5, 9])
    pool.zeroer.check()
    pool.zeroer.zero(torch.tensor([64], device="cuda"))
    with pytest.raises(IdOutOfRangeError):
        pool.zeroer.check()


def test_ids_on_the_gpu_are_checked_for_type():
    pool = Pool()
    for wrong in (torch.tensor([1.0]), torch.tensor([True]), torch.tensor([[1]]), torch.tensor(1)):
        with pytest.raises(IdTypeError):
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


def test_warmup_leaves_every_byte_and_later_calls_compile_nothing():
    pool = Pool()
    pool.zeroer.warmup()
    pool.assert_zeroed([])
    compiled = set(pool.zeroer._target._variants)
    for ids in ([1], [1, 2], list(range(16)), list(range(17))):
        pool.zeroer.zero(ids)
        pool.zeroer.zero(torch.tensor(ids, device="cuda", dtype=torch.int32)[1:])
        pool.zeroer.zero(torch.tensor(ids, device="cuda")[1:])
    assert set(pool.zeroer._target._variants) == compiled
    pool.zeroer.check()


def test_a_captured_call_replays_its_ids():
    pool = Pool()
    pool.zeroer.warmup()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pool.zeroer.zero([3, 4])
        pool.zeroer.zero(np.full(100, 60))
    pool.assert_zeroed([])  # a capture runs nothing
    for start in range(0, SECTIONS * SECTION_IDS * 2, 4_096):  # every slot of the ring is used again
        pool.zeroer.zero(np.full(4_096, start % 2, dtype=np.int64))
    pool.fill()
    graph.replay()
    graph.replay()
    pool.assert_zeroed([3, 4, 60])


def test_a_capture_without_room_is_refused_and_can_be_given_room():
    pool = Pool(num_blocks=8_192, pages=(16,), stride_bytes=32)
    pool.zeroer.warmup()
    graph = torch.cuda.CUDAGraph()
    refused = []
    with torch.cuda.graph(graph):
        try:
            pool.zeroer.zero(np.arange(5_000))
        except CaptureRoomError as error:
            refused.append(error)
        pool.zeroer.zero([1])
    assert refused[0].num_ids == 5_000
    pool.zeroer.reserve_for_capture(5_000)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pool.zeroer.zero(np.arange(5_000))
    graph.replay()
    pool.assert_zeroed(list(range(5_000)))


def test_a_zeroer_that_is_collected_during_a_capture_does_not_end_it():
    pool, gone = Pool(), Pool()
    pool.zeroer.warmup()
    torch.cuda._sleep(HOLD_CYCLES)
    gone.zeroer.zero([1, 2])
    gone.zeroer.zero(list(range(64)) * 2)
    ring = weakref.ref(gone.zeroer._target.ring)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        del gone.zeroer
        gc.collect()
        pool.zeroer.zero([3])
    assert ring() is not None  # launches in flight may still use it
    graph.replay()
    pool.assert_zeroed([3])
    gone.assert_zeroed(range(64))
    Pool()
    assert ring() is None


def test_a_captured_call_takes_room_once_whatever_the_type_of_its_ids():
    pool = Pool(num_blocks=CAPTURE_IDS, pages=(16,), stride_bytes=32)
    pool.zeroer.warmup()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pool.zeroer.zero(np.arange(CAPTURE_IDS, dtype=np.int32))
    graph.replay()
    pool.assert_zeroed(list(range(CAPTURE_IDS)))


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
    with pytest.raises(ReplayRoomError):
        ids.set(list(range(9)))
    with pytest.raises(NumIdsError):
        pool.zeroer.replayable_ids(-1)
    pool.zeroer.zero(pool.zeroer.replayable_ids(0))
    with pytest.raises(IdTypeError):
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


def test_memory_that_is_gone_is_noticed():
    geometry = slab(8, [64], 64)
    memory = torch.full((512,), 7, dtype=torch.uint8, device="cuda")
    zeroer = BlockZeroer(plan_segments(geometry), {0: memory})
    del memory
    with pytest.raises(StorageMovedError):
        zeroer.zero([1])
    memory = torch.full((512,), 7, dtype=torch.uint8, device="cuda")
    zeroer = BlockZeroer(plan_segments(geometry), {0: memory})
    memory.untyped_storage().resize_(0)
    with pytest.raises(StorageMovedError):
        zeroer.zero([1])


def test_cpu_and_gpu_in_one_process():
    pool = Pool()
    on_cpu = torch.full((pool.geometry.storages[0].nbytes,), 7, dtype=torch.uint8)
    BlockZeroer(pool.zeroer.plan, {0: on_cpu}).zero([2])
    pool.zeroer.zero([2])
    pool.assert_zeroed([2])
    assert int((on_cpu == 0).sum()) == 788
    with pytest.raises(StorageDeviceError):
        BlockZeroer(plan_segments(slab(8, [64], 64)), {0: torch.empty(512, dtype=torch.uint8, device="meta")})


def test_the_kernel_that_runs_has_wide_stores():
    pool = Pool(64, (37_376,), 48_000)
    pool.zeroer.warmup()
    for variant in pool.zeroer._target._variants.values():
        assert "st.global.cs.v4.b32" in variant.kernel.asm["ptx"]
