"""A block pool small enough to watch: attention pages and recurrent states take turns in the same blocks.

It stands for a hybrid model's pool in three ways: one storage, blocks handed out from a first-in, first-out
free list, and a kernel that reads whole pages and masks by probability. It is a model of that traffic, not an
engine: one layer of each kind, one head, random numbers for keys, values and states.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.tensors import storage_tensors
from kvzero.plan.planner import plan_segments
from kvzero.zero.zeroer import BlockZeroer

PAGE_BYTES = 8_192
WIDTH = 128  # elements of a key, and of a value


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, num_tokens: int) -> tuple[torch.Tensor, ...]:
    """One row of attention over whole pages, masked behind `num_tokens`.

    Args:
        query: fp32 of shape (width,).
        keys, values: of shape (tokens, width), any float format; the pages as they lie in memory.
        num_tokens: tokens that exist; the rest of the last page was never written.

    Returns:
        (row, probabilities): fp32 of shapes (width,) and (tokens,). A masked token's probability is exactly 0.

    Example:
        >>> ones = torch.ones(2, 4)
        >>> attend(torch.ones(4), ones, ones, 1)[1].tolist()
        [1.0, 0.0]
    """
    scores = keys.float() @ query / query.shape[0] ** 0.5
    masked = torch.arange(len(keys), device=keys.device) >= num_tokens
    probabilities = torch.softmax(scores.masked_fill(masked, float("-inf")), 0)
    return (probabilities[:, None] * values.float()).sum(0), probabilities


class Pool:
    """Blocks of one page, each lent in turn to attention (keys and values) and to recurrent state (fp32).

    Args:
        num_blocks: blocks in the pool.
        device: "cpu" or "cuda".
        dtype: torch dtype of the attention cache.
        zeroing: whether a fresh attention block is zeroed, by kvzero.
        seed: of the numbers that are written.

    Attributes:
        attention: the attention view, of shape (num_blocks, tokens, 2 * WIDTH).
        state: the recurrent state's view of the same bytes, fp32 of shape (num_blocks, PAGE_BYTES / 4).
        geometry, plan, zeroer: the same memory as kvzero sees it.
        free: block ids in the order in which they will be handed out.

    Example:
        >>> pool = Pool(4, dtype=torch.bfloat16)
        >>> pool.attention.shape, pool.allocate_attention(2), list(pool.free)
        (torch.Size([4, 16, 256]), [0, 1], [2, 3])
    """

    def __init__(
        self, num_blocks: int, *, device: str = "cpu", dtype: torch.dtype = torch.float8_e4m3fn,
        zeroing: bool = True, seed: int = 0,
    ) -> None:  # fmt: skip
        memory = torch.zeros(num_blocks * PAGE_BYTES, dtype=torch.uint8, device=device)
        self.attention = memory.view(dtype).view(num_blocks, -1, 2 * WIDTH)
        self.state = memory.view(torch.float32).view(num_blocks, -1)
        self._pages = memory.view(num_blocks, PAGE_BYTES)
        tensors = {"attention": self.attention, "state": self.state}
        self.geometry = CacheGeometry.from_tensors(
            tensors, num_blocks=num_blocks, block_dim=0, groups={"attention": 0, "state": 1}, not_zeroed=["state"],
            name="tiny pool",
        )  # fmt: skip
        self.plan = plan_segments(self.geometry)
        self.zeroer = BlockZeroer(self.plan, storage_tensors(tensors))
        self.zeroing = zeroing
        self.free: deque[int] = deque(range(num_blocks))
        self.page_tokens = self.attention.shape[1]
        self._random = torch.Generator().manual_seed(seed)

    def allocate_attention(self, count: int) -> list[int]:
        """Hand out blocks for keys and values, zeroed if the pool zeroes."""
        blocks = [self.free.popleft() for _ in range(count)]
        if self.zeroing and blocks:
            self.zeroer.zero(blocks)
        return blocks

    def allocate_state(self) -> int:
        """Hand out one block for a recurrent state; its owner writes all of it before it reads."""
        block = self.free.popleft()
        self.state[block] = self._normal(self.state.shape[1])
        return block

    def release(self, blocks: Sequence[int]) -> None:
        """Take blocks back; their bytes stay as they are."""
        self.free.extend(blocks)

    def write_tokens(self, blocks: Sequence[int], num_tokens: int) -> None:
        """Write the keys and values of the first `num_tokens` tokens of a request into its blocks."""
        for index, block in enumerate(blocks):
            here = min(num_tokens - index * self.page_tokens, self.page_tokens)
            self.attention[block, :here] = self._normal(here, 2 * WIDTH).to(self.attention.dtype)

    def read(self, blocks: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """(keys, values) of whole pages, each of shape (tokens, WIDTH), written or not."""
        # Gathered as bytes: not every device gathers every 8-bit float.
        pages = self._pages[list(blocks)].view(self.attention.dtype).view(-1, 2 * WIDTH)
        return pages[:, :WIDTH], pages[:, WIDTH:]

    def query(self) -> torch.Tensor:
        """A random query, fp32 of shape (WIDTH,)."""
        return self._normal(WIDTH)

    def random_int(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return int(torch.randint(low, high + 1, (), generator=self._random))

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._random).to(self.state.device)


@dataclass(frozen=True, slots=True)
class Served:
    """One request as the pool saw it.

    Args:
        blocks: its attention blocks.
        num_tokens: tokens it wrote.
        recycled: whether its last page had another owner before.
        nan_columns: columns of its attention row that are NaN, 0 to WIDTH.
    """

    blocks: tuple[int, ...]
    num_tokens: int
    recycled: bool
    nan_columns: int


def serve(pool: Pool, num_requests: int, *, alive: int = 4, most_pages: int = 3) -> list[Served]:
    """Serve requests of random length; each holds one state and some attention blocks until it ends.

    Args:
        pool: the pool; `alive` requests must fit.
        num_requests: requests to serve, one after another.
        alive: requests that hold their blocks at a time; the oldest one ends.
        most_pages: pages of the longest request.

    Returns:
        What each request got, in order. With the same seed the traffic is the same, zeroing or not.
    """
    served, holding, used = [], deque(), set()
    for _ in range(num_requests):
        if len(holding) == alive:
            pool.release(holding.popleft())
        state = pool.allocate_state()
        num_tokens = pool.random_int(1, most_pages * pool.page_tokens)
        blocks = pool.allocate_attention(-(-num_tokens // pool.page_tokens))
        recycled = blocks[-1] in used
        used.update([state, *blocks])
        pool.write_tokens(blocks, num_tokens)
        row, _ = attend(pool.query(), *pool.read(blocks), num_tokens)
        served.append(Served(tuple(blocks), num_tokens, recycled, int(row.isnan().sum())))
        holding.append([state, *blocks])
    return served
