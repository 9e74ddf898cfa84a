"""The memory behind a plan: where each storage lies, and whether it still lies there."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch

from kvzero.errors import GeometryError, ZeroingError
from kvzero.layout.tensors import bytes_of, is_dense, kind_of

Memory = torch.Tensor | torch.UntypedStorage


class BoundStorages:
    """The memory of a plan's storages, kept alive.

    Args:
        storages: the storages of a plan (id and size).
        memory: storage id to its memory; see `whole_storages`.

    Attributes:
        device: the device that all of them lie on.
        tensors: storage id to all its bytes, a one-dimensional uint8 tensor.
        addresses: storage id to the address of its first byte.

    Raises:
        ZeroingError, GeometryError: the memory does not fit the plan.
        ZeroingError: two storages share memory.
    """

    def __init__(self, storages, memory: Mapping[Any, Memory]) -> None:
        self.tensors = whole_storages(storages, memory)
        devices = {name: tensor.device for name, tensor in self.tensors.items()}
        self.device = next(iter(devices.values()))
        for name, device in devices.items():
            if device != self.device:
                raise ZeroingError(
                    "storage-device", what=f"storage {name!r}", device=str(device), expected=str(self.device)
                )
        if self.device.type not in ("cpu", "cuda"):
            raise ZeroingError(
                "storage-device", what="the cache", device=str(self.device), expected="the CPU or a CUDA device"
            )
        self.addresses = {name: tensor.data_ptr() for name, tensor in self.tensors.items()}
        self._untyped = {name: tensor.untyped_storage() for name, tensor in self.tensors.items()}
        self._places = self._now()
        self._check_apart()

    def _now(self) -> dict[object, tuple[int, int]]:
        return {name: (untyped.data_ptr(), untyped.nbytes()) for name, untyped in self._untyped.items()}

    def _check_apart(self) -> None:
        names = [name for name, tensor in self.tensors.items() if tensor.numel()]
        for one, other in pairwise(sorted(names, key=self.addresses.__getitem__)):
            if self.addresses[other] < self.addresses[one] + self.tensors[one].numel():
                raise ZeroingError(
                    "storage-alias",
                    what_a=f"storage {one!r}",
                    what_b=f"storage {other!r}",
                    address=self.addresses[other],
                )

    def check(self) -> None:
        """Raise `ZeroingError` if a storage was resized since it was bound."""
        for name, now in self._now().items():
            address, nbytes = self._places[name]
            if now != (address, nbytes):
                raise ZeroingError(
                    "storage-moved", storage=name, address=address, nbytes=nbytes, address_now=now[0], nbytes_now=now[1]
                )


def whole_storages(storages, memory: Mapping[Any, Memory]) -> dict[Any, torch.Tensor]:
    """View every byte of each storage as a one-dimensional uint8 tensor.

    Args:
        storages: the storages of a plan or a geometry (id and size).
        memory: storage id to its memory. A one-dimensional uint8 tensor of exactly the storage's bytes is the storage
            itself; any other tensor stands for its whole `untyped_storage()`.

    Raises:
        ZeroingError, GeometryError: the memory is not that of the storages.

    Example:
        >>> from kvzero.layout.records import Storage
        >>> whole_storages([Storage("a", 128)], {"a": torch.zeros(8, 4)[:, 1:3]})["a"].shape
        torch.Size([128])
    """
    if not isinstance(memory, Mapping):
        raise GeometryError(
            "tensor-kind", where="storages", given=type(memory).__name__, expected="a mapping of storage id to memory"
        )
    whole = {}
    for storage in storages:
        if storage.id not in memory:
            raise ZeroingError("storage-missing", storage=storage.id, given=list(memory))
        given: Any = memory[storage.id]
        if not is_dense(given):
            raise GeometryError(
                "tensor-kind",
                where=f"storage {storage.id!r}",
                given=kind_of(given),
                expected="a dense tensor or an UntypedStorage",
            )
        if not _is_whole_storage(given, storage.nbytes):
            given = bytes_of(given if isinstance(given, torch.UntypedStorage) else given.untyped_storage())
            if given.numel() != storage.nbytes:
                raise ZeroingError(
                    "storage-size", storage=storage.id, nbytes=storage.nbytes, given_nbytes=given.numel()
                )
        whole[storage.id] = given.detach()
    return whole


def _is_whole_storage(memory: Memory, nbytes: int) -> bool:
    return (
        isinstance(memory, torch.Tensor)
        and memory.dtype == torch.uint8
        and memory.dim() == 1
        and memory.numel() == nbytes
        and memory.is_contiguous()
    )
