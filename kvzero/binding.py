"""The memory behind a plan: where each storage lies, and whether it still lies there."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from itertools import pairwise

import torch

from .errors import (
    StorageAliasError,
    StorageDeviceError,
    StorageMissingError,
    StorageMovedError,
    StorageSizeError,
    TensorKindError,
)
from .geometry import bytes_of, is_dense, kind_of

Memory = torch.Tensor | torch.UntypedStorage

_address = torch.UntypedStorage.data_ptr


class BoundStorages:
    """Addresses of a plan's storages; it keeps none of them alive.

    Args:
        storages: the storages of a plan (id and size).
        memory: storage id to its memory; see `whole_storages`.

    Attributes:
        device: the device that all of them lie on.
        addresses: storage id to the address of its first byte.

    Raises:
        StorageMissingError, StorageSizeError, StorageDeviceError, TensorKindError: the memory does not fit the
            plan.
        StorageAliasError: two storages share memory.
    """

    def __init__(self, storages, memory: Mapping[object, Memory]) -> None:
        self.addresses: dict[object, int] = {}
        self._untyped: list[weakref.ref] = []
        self._untyped_addresses: list[int] = []
        self._untyped_nbytes: list[int] = []
        self._names: list[object] = []
        self.device: torch.device | None = None
        for name, whole in whole_storages(storages, memory).items():
            self._bind(name, whole)
        self._check_apart(storages)
        if self.device.type not in ("cpu", "cuda"):
            raise StorageDeviceError(what="the cache", device=str(self.device), expected="the CPU or a CUDA device")

    def _check_apart(self, storages) -> None:
        taken = sorted((self.addresses[storage.id], storage.nbytes, index) for index, storage in enumerate(storages))
        for (start, nbytes, one), (other_start, _, other) in pairwise(place for place in taken if place[1]):
            if other_start < start + nbytes and self.device.type != "meta":
                raise StorageAliasError(
                    what_a=f"storage {storages[one].id!r}",
                    what_b=f"storage {storages[other].id!r}",
                    address=other_start,
                )

    def _bind(self, name, whole: torch.Tensor) -> None:
        untyped = whole.untyped_storage()
        if self.device is None:
            self.device = untyped.device
        if untyped.device != self.device:
            raise StorageDeviceError(what=f"storage {name!r}", device=str(untyped.device), expected=str(self.device))
        self.addresses[name] = whole.data_ptr()
        self._names.append(name)
        self._untyped_addresses.append(untyped.data_ptr())
        self._untyped_nbytes.append(untyped.nbytes())
        self._untyped.append(weakref.ref(untyped))

    def check(self) -> None:
        """Raises `StorageMovedError` if a storage was freed or resized since it was bound."""
        alive = [untyped() for untyped in self._untyped]
        try:
            # An allocator may give a storage that shrinks and grows its old address again: the size tells.
            if list(map(_address, alive)) == self._untyped_addresses and list(map(len, alive)) == self._untyped_nbytes:
                return
        except TypeError:  # None has no address: one was freed
            pass
        bound = zip(self._names, alive, self._untyped_addresses, self._untyped_nbytes, strict=True)
        for name, untyped, address, nbytes in bound:
            what = "freed" if untyped is None else "resized or moved"
            now = (0, 0) if untyped is None else (untyped.data_ptr(), untyped.nbytes())
            if now != (address, nbytes):
                raise StorageMovedError(
                    storage=name, what=what, address=address, nbytes=nbytes, address_now=now[0], nbytes_now=now[1]
                )


def whole_storages(storages, memory: Mapping[object, Memory]) -> dict[object, torch.Tensor]:
    """Every byte of each storage, as a one-dimensional uint8 tensor over the memory that is given for it.

    Args:
        storages: the storages of a plan or a geometry (id and size).
        memory: storage id to its memory. A one-dimensional uint8 tensor of exactly the storage's bytes is the
            storage itself; any other tensor stands for its whole `untyped_storage()`.

    Raises:
        StorageMissingError, StorageSizeError, TensorKindError: the memory is not that of the storages.

    >>> from kvzero.views import Storage
    >>> whole_storages([Storage("a", 128)], {"a": torch.zeros(8, 4)[:, 1:3]})["a"].shape
    torch.Size([128])
    """
    if not isinstance(memory, Mapping):
        raise TensorKindError(
            where="storages", given=type(memory).__name__, expected="a mapping of storage id to memory"
        )
    whole = {}
    for storage in storages:
        if storage.id not in memory:
            raise StorageMissingError(storage=storage.id, given=list(memory))
        given = memory[storage.id]
        if not is_dense(given):
            raise TensorKindError(
                where=f"storage {storage.id!r}", given=kind_of(given), expected="a dense tensor or an UntypedStorage"
            )
        if not _is_whole_storage(given, storage.nbytes):
            given = bytes_of(given if isinstance(given, torch.UntypedStorage) else given.untyped_storage())
            if given.numel() != storage.nbytes:
                raise StorageSizeError(storage=storage.id, nbytes=storage.nbytes, given_nbytes=given.numel())
        whole[storage.id] = given
    return whole


def _is_whole_storage(memory: Memory, nbytes: int) -> bool:
    return (
        isinstance(memory, torch.Tensor)
        and memory.dtype == torch.uint8
        and memory.dim() == 1
        and memory.numel() == nbytes
        and memory.is_contiguous()
    )
