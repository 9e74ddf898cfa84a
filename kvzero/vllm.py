"""A zeroer with the constructor and the methods of vLLM 0.33's `KVBlockZeroer`, to swap in and compare.

In a worker, once the caches are allocated:

    from kvzero.vllm import KVBlockZeroer, from_runner
    runner.kv_block_zeroer = from_runner(runner)           # model runner V2; V1 keeps it in _kv_block_zeroer

It differs from vLLM's zeroer on purpose: every needed byte is written once; a block id outside the pool is refused
before anything is written; `warmup` leaves every byte as it was (vLLM's clears block 0); pages need not be a multiple
of 4 bytes. vLLM is not imported: its objects are read by the names of their fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvzero.layout import capture
from kvzero.plan.planner import plan_segments
from kvzero.zero.zeroer import BlockZeroer


class KVBlockZeroer:
    """Zeroes freshly allocated blocks of a vLLM worker, by a plan that is proven at construction.

    Args:
        device: device of the caches; layers on another device are left alone and named in
            `geometry.extra["views_on_other_devices"]`.
        attn_groups_iter: the worker's attention groups.
        kernel_block_sizes: tokens of a kernel block, by cache group id.
        static_forward_context: layer name to an object that holds `kv_cache`.
        num_blocks: blocks in the pool.
        runner_only_attn_layers: layers that the pool does not own.

    Raises:
        KvzeroError: the layout cannot be proven; the message names the layer and both numbers.

    Attributes:
        geometry, plan: what was read and what will be written; None if there is no attention cache.
    """

    def __init__(
        self,
        device: Any,
        attn_groups_iter: Iterable[Any],
        kernel_block_sizes: list[int],
        static_forward_context: Mapping[str, Any],
        num_blocks: int,
        runner_only_attn_layers: set[str] | None = None,
    ) -> None:
        self.device = device
        self.geometry = self.plan = self._zeroer = None
        caches = capture.read_vllm_groups(
            device, attn_groups_iter, kernel_block_sizes, static_forward_context, num_blocks, runner_only_attn_layers
        )
        if len(caches.not_zeroed) == len(caches.tensors):
            return
        self.geometry = caches.geometry()
        self.plan = plan_segments(self.geometry)
        self._zeroer = BlockZeroer(self.plan, caches.storages())

    def zero_block_ids(self, block_ids: list[int]) -> None:
        """Clear these blocks, on the current stream; an empty list does nothing.

        Raises:
            IdOutOfRangeError: an id is negative or outside the pool; nothing was written.
        """
        if self._zeroer is not None:
            self._zeroer.zero(block_ids)

    def warmup(self, num_kv_blocks: int) -> None:
        """Compile the kernel before the first request; no byte of any cache changes."""
        if self._zeroer is not None and num_kv_blocks > 0:
            self._zeroer.warmup()


def from_runner(runner: Any) -> KVBlockZeroer:
    """The zeroer for a model runner (or worker) whose caches are allocated.

    Raises:
        CommandError: the object does not hold a field that is needed.
    """
    return KVBlockZeroer(**capture.vllm_fields(runner))
