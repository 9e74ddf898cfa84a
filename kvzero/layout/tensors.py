"""Describe live torch tensors as the plain data of a geometry, without copies and without work on a device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from kvzero import errors


def describe_tensors(
    tensors: Mapping[str, Any],
    *,
    num_blocks: int,
    block_dim: int | Mapping[str, int] | None,
    kernel_blocks_per_block: int | Mapping[str, int] | None,
    groups: Mapping[str, int | str] | None,
    not_zeroed: Iterable[str],
    device: Any,
    layer_facts: Mapping[str, Mapping[str, Any]] | None,
    name: str,
) -> dict[str, Any]:
    """Return the data that `CacheGeometry.from_dict` reads; see `CacheGeometry.from_tensors` for the arguments."""
    if not isinstance(tensors, Mapping):
        raise errors.GeometryError(
            "tensor-kind", where=name, given=kind_of(tensors), expected="a mapping of layer name to tensor"
        )
    for layer, value in tensors.items():
        if isinstance(value, (list, tuple)) and not value:
            given = f"an empty {type(value).__name__}"
            raise errors.GeometryError(
                "tensor-kind", where=f"{name}, layer {layer}", given=given, expected="one tensor or more"
            )
    if not isinstance(groups, (Mapping, type(None))):
        raise errors.GeometryError(
            "wrong-type", where=name, key="groups", value=groups, expected="a mapping of name to group"
        )
    if not isinstance(not_zeroed, Iterable):
        raise errors.GeometryError(
            "wrong-type", where=name, key="not_zeroed", value=not_zeroed, expected="names of layers"
        )
    views = list(named_views(tensors))
    for _, view, tensor in views:
        if not is_dense(tensor):
            raise errors.GeometryError(
                "tensor-kind", where=f"{name}, layer {view}", given=kind_of(tensor), expected="a dense torch tensor"
            )
    left_alone = {not_zeroed} if isinstance(not_zeroed, str) else set(not_zeroed)
    known = [*dict.fromkeys(each for layer, view, _ in views for each in (layer, view))]
    for option in (block_dim, kernel_blocks_per_block, groups, layer_facts, left_alone):
        for unknown in option if isinstance(option, (Mapping, set)) else ():
            if unknown not in known:
                raise errors.GeometryError("unknown-selection", where=name, kind="layer", name=unknown, known=known)
    ids = storage_ids(tensor for _, _, tensor in views)
    views, elsewhere = _on_one_device(views, device, name)

    def chosen(option, view: str, layer: str):
        return option.get(view, option.get(layer)) if isinstance(option, Mapping) else option

    layers = []
    for layer, view, tensor in views:
        record = {
            "name": view,
            "storage": ids[_address(tensor)],
            "byte_offset": tensor.storage_offset() * tensor.element_size(),
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "itemsize": tensor.element_size(),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "group": chosen(groups or {}, view, layer),
            "zeroed_by_engine": layer not in left_alone and view not in left_alone,
            "block_dim": chosen(block_dim, view, layer),
            "kernel_blocks_per_block": chosen(kernel_blocks_per_block, view, layer),
            **(chosen(layer_facts or {}, view, layer) or {}),
        }
        layers.append({key: value for key, value in record.items() if value is not None})
    sizes = {_address(tensor): tensor.untyped_storage().nbytes() for _, _, tensor in views}
    _check_apart(views)
    storages = [{"id": ids[address], "nbytes": nbytes} for address, nbytes in sizes.items()]
    data = {"name": name, "num_blocks": num_blocks, "storages": storages, "layers": layers}
    if elsewhere:
        data |= {"device": str(views[0][2].device), "views_on_other_devices": elsewhere}
    return data


def named_views(tensors: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield (layer name, view name, tensor) for layers of one or of several tensors."""
    for layer, value in tensors.items():
        if isinstance(value, (list, tuple)):
            for index, tensor in enumerate(value):
                yield layer, f"{layer}#{index}", tensor
        else:
            yield layer, layer, value


def _on_one_device(views: list, device: Any, where: str) -> tuple[list, dict[str, str]]:
    """Split the views into those of the pool's device and the names and devices of all others."""
    wanted = views[0][2].device if device is None and views else device
    own = [each for each in views if same_device(each[2].device, wanted)]
    elsewhere = {view: str(tensor.device) for _, view, tensor in views if not same_device(tensor.device, wanted)}
    if elsewhere and (device is None or not own):
        view = next(iter(elsewhere))
        raise errors.ZeroingError(
            "storage-device", what=f"{where}, layer {view}", device=elsewhere[view],
            expected=f"{wanted}, the pool's device; state device=, and views on other devices are left out and named",
        )  # fmt: skip
    return own, elsewhere


def same_device(actual: Any, wanted: Any) -> bool:
    """Whether a tensor's device is the wanted one; "cuda" without an index stands for every GPU.

    >>> import torch
    >>> same_device(torch.device("cuda:1"), "cuda"), same_device(torch.device("cuda:1"), "cuda:0")
    (True, False)
    """
    kind, _, index = str(wanted).partition(":")
    return actual.type == kind and (not index or actual.index is None or str(actual.index) == index)


def is_dense(memory: Any) -> bool:
    """Whether this is a storage, or a tensor whose shape and stride describe its memory."""
    if str(getattr(memory, "layout", "torch.strided")) != "torch.strided" or getattr(memory, "is_nested", False):
        return False
    return hasattr(memory, "untyped_storage") or type(memory).__name__ == "UntypedStorage"


def kind_of(memory: Any) -> str:
    """Describe a non-dense object for an error message.

    >>> kind_of([1, 2])
    'a list'
    """
    layout = str(getattr(memory, "layout", "")).removeprefix("torch.")
    return f"a {layout} tensor" if layout not in ("", "strided") else f"a {type(memory).__name__}"


def _address(tensor: Any) -> int:
    """The address of the tensor's storage; a storage without memory (meta tensors) is identified as an object."""
    storage = tensor.untyped_storage()
    return storage.data_ptr() or -id(storage)


def _check_apart(views) -> None:
    """Raise ZeroingError if two storages share bytes, as slices of one NumPy array do."""
    places = {(_address(tensor), tensor.untyped_storage().nbytes()): view for _, view, tensor in views}
    taken = sorted(place for place in places if place[0] > 0 and place[1])
    for one, other in pairwise(taken):
        if other[0] < one[0] + one[1]:
            raise errors.ZeroingError(
                "storage-alias", what_a=f"layer {places[one]}", what_b=f"layer {places[other]}", address=other[0]
            )


def storage_ids(tensors: Iterable[Any]) -> dict[int, int]:
    """Storage address to storage id, numbered in the order of first use."""
    ids: dict[int, int] = {}
    for tensor in tensors:
        ids.setdefault(_address(tensor), len(ids))
    return ids


def storage_tensors(tensors: Mapping[str, Any]) -> dict[int, Any]:
    """The whole storages under live tensors, as uint8 tensors, by the ids that `from_tensors` gives them.

    Args:
        tensors: the same mapping as `CacheGeometry.from_tensors` takes.

    >>> import torch
    >>> storage_tensors({"layer.0": torch.zeros(8, 4)[2:]})[0].shape
    torch.Size([128])
    """
    views = [tensor for _, _, tensor in named_views(tensors)]
    ids = storage_ids(views)
    return {ids[_address(tensor)]: bytes_of(tensor.untyped_storage()) for tensor in views}


def bytes_of(storage: Any) -> Any:
    """Every byte of an `UntypedStorage`, as a uint8 tensor over the same memory."""
    import torch

    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
