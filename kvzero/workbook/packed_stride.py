"""What the notebook about the packed slab experiments with: rival plans, and a pool that recycles its blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from kvzero.audit.arena import Arena
from kvzero.history import parts, planner
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.intervals import as_ranges, intersect, subtract, total, union
from kvzero.layout.ownership import needed_ranges
from kvzero.layout.records import Segment
from kvzero.plan.planner import Plan

LIVE = 0xA5  # what a request writes into its blocks; any value but 0


def span_as_stride(plan: Plan) -> Plan:
    """The mistake told the other way round: blocks one span apart, as if pages of one layer were neighbours.

    Args:
        plan: a right plan; only its block strides change.

    Example:
        >>> from kvzero.plan.planner import plan_segments
        >>> from kvzero.history import named
        >>> span_as_stride(plan_segments(named.geometry("packed-slab-51288"))).segments[3].start_bytes(99)
        3812544
    """
    segments = tuple(replace(segment, block_stride_bytes=segment.span_bytes) for segment in plan.segments)
    return replace(plan, planner="span-as-stride", segments=segments)


def whole_slab(geometry: CacheGeometry) -> Plan:
    """The rival fix of #52709 (our reconstruction): each storage once, from its base, a full block stride.

    Args:
        geometry: a pool in which the views of a storage have one block stride.

    Raises:
        ValueError: a storage holds views of several block strides, so it has no row to clear.

    Example:
        >>> from kvzero.history import named
        >>> whole_slab(named.geometry("packed-slab-51288")).segments
        (Segment(storage='slab', base_bytes=0, block_stride_bytes=149760, span_bytes=149760),)
    """
    segments = []
    for storage in geometry.storages:
        strides = {view.block_stride_bytes for view in geometry.layers if view.storage == storage.id}
        if len(strides) != 1:
            raise ValueError(f"storage {storage.id!r} has block strides {sorted(strides)}, not one row size")
        (row_bytes,) = strides
        segments.append(Segment(storage.id, 0, row_bytes, row_bytes))
    return parts.unproven_plan("whole-slab", geometry, segments, None, None)


@dataclass(frozen=True)
class Event:
    """A block is taken (zeroed, then filled with live data) or freed, for a request."""

    request: int
    taken: bool
    block: int


def serve(
    num_blocks: int,
    *,
    requests: int,
    blocks_each: int,
    alive: int,
    give_back: Callable[[deque, Sequence[int]], None],
) -> list[Event]:
    """Run requests through a pool: each takes blocks from the front of the free queue, oldest finish first.

    Args:
        num_blocks: blocks in the pool; the queue starts in the order of ids.
        requests: how many requests arrive, one after the other.
        blocks_each: blocks that each takes.
        alive: requests that are alive at once.
        give_back: how a finished request's blocks return: `give_back(queue, blocks)`.

    Returns:
        The events in order; the requests alive at the end keep their blocks.

    Example:
        >>> order = serve(4, requests=3, blocks_each=2, alive=1, give_back=last_block_first)
        >>> [event.block for event in order if event.taken]
        [0, 1, 2, 3, 1, 0]
    """
    free, held, events = deque(range(num_blocks)), deque(), []
    for request in range(requests):
        if len(held) == alive:
            done, blocks = held.popleft()
            events += [Event(done, False, block) for block in blocks]
            give_back(free, blocks)
        blocks = [free.popleft() for _ in range(blocks_each)]
        events += [Event(request, True, block) for block in blocks]
        held.append((request, blocks))
    return events


def first_block_first(queue: deque, blocks: Sequence[int]) -> None:
    """Return a request's blocks in the order in which it took them."""
    queue.extend(blocks)


def last_block_first(queue: deque, blocks: Sequence[int]) -> None:
    """Return a request's blocks from its last to its first, so that the end of a prompt is reused first."""
    queue.extend(reversed(blocks))


def lowest_id_first(queue: deque, blocks: Sequence[int]) -> None:
    """Keep the queue sorted, so that the lowest free id is always taken next."""
    everything = sorted([*queue, *blocks])
    queue.clear()
    queue.extend(everything)


@dataclass(frozen=True)
class Harm:
    """What zeroing one block did to others that were in use.

    Args:
        request, block: whose fresh block was zeroed.
        victims: block in use to live bytes of it that were wiped by this.
        outside_bytes: bytes written outside the storages.
    """

    request: int
    block: int
    victims: dict[int, int]
    outside_bytes: int


def harm_of(plan: Plan, geometry: CacheGeometry, events: Iterable[Event]) -> list[Harm]:
    """What each zeroing of a run does to blocks in use, by arithmetic.

    Args:
        plan: the plan that zeroes a block when it is taken, proven or not.
        geometry: the pool; everything in a taken block counts as live.
        events: what `serve` returns.

    Returns:
        One record per taken block. A byte that is wiped twice while its block is in use counts once.
    """
    dirty: dict[int, dict] = {}  # block in use -> storage -> its bytes that still hold data
    found = []
    for event in events:
        if not event.taken:
            del dirty[event.block]
            continue
        issued = plan.ranges([event.block])
        outside_bytes = sum(
            total(subtract(union(issued[storage.id]), as_ranges([(0, storage.nbytes)])))
            for storage in geometry.storages
        )
        victims = {}
        for block, live in dirty.items():
            hit = {key: intersect(issued[key], ranges) for key, ranges in live.items() if _meet(issued[key], ranges)}
            wiped_bytes = sum(map(total, hit.values()))
            if wiped_bytes:
                victims[block] = wiped_bytes
                live.update({key: subtract(live[key], ranges) for key, ranges in hit.items()})
        dirty[event.block] = needed_ranges(geometry.layers, [event.block])
        found.append(Harm(event.request, event.block, victims, outside_bytes))
    return found


def _meet(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether the hulls of two sets of ranges meet; most blocks are told apart by this alone."""
    return bool(len(a) and len(b) and a[:, 0].min() < b[:, 1].max() and b[:, 0].min() < a[:, 1].max())


def harm_in_memory(
    planner_name: str, geometry: CacheGeometry, events: Iterable[Event], device: str = "cpu"
) -> list[dict[int, int]]:
    """The same run on memory: the specimen's kernel zeroes, the request writes its data, every live block is read.

    Args:
        planner_name: a specimen of `kvzero.history`.
        geometry: a small pool of views of one-byte elements, block dimension first.
        events: what `serve` returns.
        device: where the memory is.

    Returns:
        For each taken block: block in use to live bytes that were wiped.
    """
    specimen = planner(planner_name)
    plan = specimen.plan(geometry, layers="all")
    row_bytes = max(segment.block_stride_bytes + segment.span_bytes for segment in plan.segments)
    arena = Arena(geometry, device, redzone_bytes=2 * row_bytes)
    in_use: set[int] = set()

    def wiped(block: int) -> int:
        return sum(int(torch.count_nonzero(view[block] == 0)) for view in arena.views.values())

    found, before = [], {}
    for event in events:
        if not event.taken:
            in_use.discard(event.block)
            continue
        specimen.write(plan, arena.storages, [event.block])
        after = {block: wiped(block) for block in in_use}
        grown = {block: count - before.get(block, 0) for block, count in after.items()}
        found.append({block: count for block, count in grown.items() if count})
        for view in arena.views.values():
            view[event.block].fill_(LIVE)
        in_use.add(event.block)
        before = {**after, event.block: 0}
    return found
