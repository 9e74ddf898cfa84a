"""Read a geometry from plain data: check every key, and name the file, the layer and the key in every message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvzero import errors
from kvzero.layout import fields
from kvzero.layout.records import MAX_STORAGE_BYTES, LayerView, Segment, Storage

# Bytes of the element types that dumps name; a name outside this table is kept and not checked.
DTYPE_BYTES = {
    **dict.fromkeys(("uint8", "int8", "bool", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"), 1),
    **dict.fromkeys(("bfloat16", "float16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64"), 8),
}
LAYER_KEYS = {
    "name", "storage", "byte_offset", "shape", "stride", "itemsize", "block_dim", "group", "dtype",
    "zeroed_by_engine", "spec_kind", "kernel_blocks_per_block",
}  # fmt: skip
TOP_KEYS = {"name", "num_blocks", "storages", "layers", "engine", "layout", "engine_segments"}


def read_geometry(data: Any, source: str = "") -> dict[str, Any]:
    """Return the checked fields of a `CacheGeometry`; see `CacheGeometry.from_dict`."""
    where = source or "geometry"
    if not isinstance(data, Mapping):
        raise errors.GeometryError(
            "geometry-file", where=where, detail=f"the top level is {fields.describe(data)}, not an object"
        )
    name = fields.text(data, "name", where)
    where = source or name
    num_blocks = fields.integer(data, "num_blocks", where)
    if num_blocks < 1:
        raise errors.GeometryError("no-blocks", where=where, num_blocks=num_blocks)
    storages = {}
    for index, record in enumerate(fields.records(data, "storages", where)):
        storage = _storage(record, f"{where}, storage number {index}")
        if storage.id in storages:
            raise errors.GeometryError("duplicate-name", where=where, kind="storage", name=storage.id)
        storages[storage.id] = storage
    layers: dict[str, LayerView] = {}
    unstated = set()
    for index, record in enumerate(fields.records(data, "layers", where)):
        label = record.get("name", f"number {index}") if isinstance(record, Mapping) else f"number {index}"
        view, ratio_is_stated = _layer(record, f"{where}, layer {label}", num_blocks, storages)
        if view.name in layers:
            raise errors.GeometryError("duplicate-name", where=where, kind="layer", name=view.name)
        layers[view.name] = view
        if not ratio_is_stated:
            unstated.add(view.name)
    _check_unstated_ratios(layers, unstated, num_blocks, where)
    segments = tuple(
        _segment(record, f"{where}, engine segment number {index}", num_blocks, storages)
        for index, record in enumerate(fields.records({"engine_segments": [], **data}, "engine_segments", where))
    )
    return dict(
        name=name,
        num_blocks=num_blocks,
        storages=tuple(storages.values()),
        layers=tuple(layers.values()),
        engine=fields.text(data, "engine", where, default=""),
        layout=fields.text(data, "layout", where, default=""),
        source=source,
        engine_segments=segments,
        extra={key: value for key, value in data.items() if key not in TOP_KEYS},
    )


def _storage(record: Any, where: str) -> Storage:
    fields.require_object(record, where)
    nbytes = fields.integer(record, "nbytes", where, least=0)
    _check_size(nbytes, "nbytes", where)
    return Storage(id=fields.name(record, "id", where), nbytes=nbytes)


def _segment(record: Any, where: str, num_blocks: int, storages: Mapping) -> Segment:
    fields.require_object(record, where)
    keys = ("byte_offset", "block_stride_bytes", "span_bytes")
    base, stride, span = (fields.integer(record, key, where, least=0) for key in keys)
    _check_size(max(base + (num_blocks - 1) * stride + span, stride), "the end of the last block", where)
    return Segment(_known_storage(record, where, storages).id, base, stride, span)


def _layer(record: Any, where: str, num_blocks: int, storages: Mapping) -> tuple[LayerView, bool]:
    """The view of a record, and whether the record states how many kernel blocks make up a block."""
    fields.require_object(record, where)
    name = fields.text(record, "name", where)
    storage = _known_storage(record, where, storages)
    shape, stride = fields.sizes(record, "shape", where, least=1), fields.sizes(record, "stride", where, least=None)
    _check_strides(shape, stride, where)
    block_dim = fields.integer(record, "block_dim", where, least=0) if "block_dim" in record else None
    extra = {key: value for key, value in record.items() if key not in LAYER_KEYS}
    ratios = _stated_ratios(record, where)
    kernel_stride = fields.integer({"kernel_block_stride": 0, **record}, "kernel_block_stride", where, least=0)
    if kernel_stride > 0:
        # The bound view skips over other layers' kernel blocks; the view by block is the same memory.
        check_strided_kernel_blocks(shape, kernel_stride, num_blocks, ratios, where)
        del extra["kernel_block_stride"]
        extra["bound_view"] = {"shape": [*shape], "stride": [*stride], "kernel_block_stride": kernel_stride}
        shape, stride = _view_by_block(record, stride[0] * kernel_stride, num_blocks, where)
        block_dim, ratios = 0, {"manager_view_shape": 1}
    elif "bound_view" in record:  # written by `to_dict`: the view is by block, the token sizes are the bound view's
        ratios = {key: ratio for key, ratio in ratios.items() if key == "kernel_blocks_per_block"}
    elif block_dim is None and "manager_view_shape" in record:
        block_dim = 0  # the dump binds views with blocks at dimension 0, and says so by this key
    block_dim = find_block_dim(shape, stride, num_blocks, ratios, block_dim, where)
    if shape[block_dim] % num_blocks:
        raise errors.GeometryError(
            "block-count", where=where, block_dim=block_dim, shape=shape, size=shape[block_dim], num_blocks=num_blocks
        )
    found = shape[block_dim] // num_blocks
    _compare_ratios(found, ratios, shape, block_dim, num_blocks, where)
    itemsize = fields.integer(record, "itemsize", where, least=1)
    dtype = fields.text(record, "dtype", where, default="")
    if DTYPE_BYTES.get(dtype, itemsize) != itemsize:
        raise errors.GeometryError(
            "itemsize", where=where, itemsize=itemsize, dtype=dtype, dtype_bytes=DTYPE_BYTES[dtype]
        )
    spec_kind = fields.text(record, "spec_kind", where, default="")
    view = LayerView(
        name=name,
        storage=storage.id,
        byte_offset=fields.integer(record, "byte_offset", where, least=0),
        shape=shape,
        stride=stride,
        itemsize=itemsize,
        block_dim=block_dim,
        kernel_blocks_per_block=found,
        group=fields.name(record, "group", where, default=0),
        dtype=dtype,
        zeroed=fields.flag(record, "zeroed_by_engine", where, default=spec_kind != "mamba"),
        spec_kind=spec_kind,
        extra=extra,
    )
    _check_inside(view, storage, num_blocks, where)
    for key in ("page_size_bytes", "unpadded_page_size_bytes"):
        if key in record and view.page_bytes > fields.integer(record, key, where, least=0):
            raise errors.GeometryError(
                "page-size", where=where, page_bytes=view.page_bytes, key=key, stated_bytes=record[key],
                block_dim=block_dim, shape=shape, num_blocks=num_blocks,
            )  # fmt: skip
    return view, bool(ratios)


def _view_by_block(
    record: Mapping, block_stride: int, num_blocks: int, where: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The stated shape and stride of the view by block, whose first stride the bound view implies."""
    shape = fields.sizes(record, "manager_view_shape", where, least=1)
    stride = fields.sizes(record, "manager_view_stride", where, least=None)
    _check_strides(shape, stride, where)
    if stride[0] != block_stride and num_blocks > 1:
        expected = f"a list that starts with {block_stride}, which is stride[0] x kernel_block_stride"
        raise errors.GeometryError(
            "wrong-type", where=where, key="manager_view_stride", value=[*stride], expected=expected
        )
    return shape, stride


def _stated_ratios(record: Mapping, where: str) -> dict[str, int]:
    """Kernel blocks per block as the record states them, by the keys that do so."""
    ratios = {}
    if "kernel_blocks_per_block" in record:
        ratios["kernel_blocks_per_block"] = fields.integer(record, "kernel_blocks_per_block", where, least=1)
    if "manager_block_size" in record and "kernel_block_size" in record:
        tokens = fields.integer(record, "manager_block_size", where, least=1)
        kernel_tokens = fields.integer(record, "kernel_block_size", where, least=1)
        if tokens % kernel_tokens:
            expected = f"a divisor of manager_block_size, {tokens}"
            raise errors.GeometryError(
                "wrong-type", where=where, key="kernel_block_size", value=kernel_tokens, expected=expected
            )
        ratios[f"manager_block_size {tokens} / kernel_block_size {kernel_tokens}"] = tokens // kernel_tokens
    return ratios


def check_strided_kernel_blocks(
    shape: Sequence[int], kernel_block_stride: int, num_blocks: int, ratios: Mapping[str, int], where: str
) -> None:
    """Compare a bound view of strided kernel blocks with the pool's blocks and the stated ratios.

    Args:
        shape: sizes of the bound view; dimension 0 counts kernel blocks, those of other layers between them included.
        kernel_block_stride: indices of dimension 0 from one block to the next.
        num_blocks: blocks in the pool.
        ratios: kernel blocks per block, by the keys that state them.
        where: file and layer, for messages.

    Raises:
        GeometryError: the view does not hold `num_blocks` blocks of the stated number of kernel blocks.

    >>> check_strided_kernel_blocks((5 * 328 + 2, 64, 132), 328, 6, {"kernel_blocks_per_block": 2}, "k")
    """
    found = shape[0] - (num_blocks - 1) * kernel_block_stride
    if not ratios:  # then any number that fits between the starts of two blocks will do
        ratios = {f"kernel_block_stride {kernel_block_stride}": min(max(found, 1), kernel_block_stride)}
    _compare_ratios(found, ratios, shape, 0, num_blocks, where)


def _compare_ratios(
    found: int, ratios: Mapping[str, int], shape: Sequence[int], block_dim: int, num_blocks: int, where: str
) -> None:
    for source, ratio in ratios.items():
        if ratio != found:
            raise errors.GeometryError(
                "kernel-blocks", where=where, kernel_blocks_per_block=found, stated_kernel_blocks_per_block=ratio,
                source=source, block_dim=block_dim, shape=tuple(shape), num_blocks=num_blocks,
            )  # fmt: skip


def _check_unstated_ratios(views: Mapping[str, LayerView], unstated: set[str], num_blocks: int, where: str) -> None:
    """Refuse kernel blocks that follow from a multiple of `num_blocks` alone, unless every view has that multiple."""
    by_ratio = {view.kernel_blocks_per_block: view for view in views.values()}
    for view in views.values() if len(by_ratio) > 1 else ():
        ratio = view.kernel_blocks_per_block
        if view.name in unstated and ratio > 1:
            other = next(each for other_ratio, each in by_ratio.items() if other_ratio != ratio)
            raise errors.GeometryError(
                "unstated-kernel-blocks", where=f"{where}, layer {view.name}", block_dim=view.block_dim,
                shape=view.shape,
                size=view.shape[view.block_dim], kernel_blocks_per_block=ratio, num_blocks=num_blocks,
                other_layer=other.name, other_size=other.shape[other.block_dim],
            )  # fmt: skip


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict, and refuse a key that is given twice."""
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return data


def find_block_dim(
    shape: Sequence[int],
    stride: Sequence[int],
    num_blocks: int,
    ratios: Mapping[str, int],
    stated: int | None,
    where: str,
) -> int:
    """Return the dimension that counts blocks: the stated one, or the only one that can.

    Args:
        shape, stride: sizes, and strides in elements.
        num_blocks: blocks in the pool.
        ratios: kernel blocks per block, by the keys that state them; the first one decides.
        stated: the dimension as stated, or None.
        where: file and layer, for messages.

    Raises:
        AmbiguousBlockDimError: several dimensions fit.
        GeometryError: no dimension fits.

    With a stated ratio, a dimension fits if it has exactly `num_blocks * ratio` entries. Without one, a dimension of
    exactly `num_blocks` fits, and so does the outermost dimension in memory that is a multiple of `num_blocks`; alone,
    that multiple is accepted only if nothing but dimensions of size 1 lies outside it. (Where no dimension has the
    stated size, the multiple is returned too, so that the caller can report both ratios.) In a pool of one block every
    choice gives the same bytes.

    >>> find_block_dim((2, 100, 16, 8, 128), (1638400, 16384, 1024, 128, 1), 100, {}, None, "k")
    1
    """
    if stated is not None:
        if stated >= len(shape):
            raise errors.GeometryError(
                "wrong-type", where=where, key="block_dim", value=stated, expected=f"below {len(shape)}"
            )
        return stated
    source, ratio = next(iter(ratios.items()), ("", 1))
    fits = [dim for dim, size in enumerate(shape) if size == num_blocks * ratio]
    if not (ratios and fits):
        # The stride of a dimension of size 1 is never used, so it says nothing about the order in memory.
        outer_first = sorted((dim for dim, size in enumerate(shape) if size > 1), key=lambda dim: -stride[dim])
        multiple = next((dim for dim in outer_first if shape[dim] % num_blocks == 0), None)
        if multiple is not None and multiple not in fits and (fits or multiple == outer_first[0]):
            fits.append(multiple)
    if not fits:
        raise errors.GeometryError(
            "block-dim-not-found", where=where, shape=tuple(shape), num_blocks=num_blocks,
            kernel_blocks_per_block=ratio,
            size=num_blocks * ratio, stated_by=f" (stated by {source})" if source else "",
        )  # fmt: skip
    if len(fits) > 1 and num_blocks > 1:
        fits.sort()
        raise errors.AmbiguousBlockDimError(
            where=where, candidates=fits, sizes=[shape[dim] for dim in fits], shape=tuple(shape), num_blocks=num_blocks
        )
    return fits[0]


def _check_strides(shape, stride, where: str) -> None:
    if len(shape) != len(stride):
        raise errors.GeometryError("shape-stride", where=where, shape_dims=len(shape), stride_dims=len(stride))
    for dim, step in enumerate(stride):
        if step < 0 and shape[dim] > 1:
            raise errors.GeometryError("negative-stride", where=where, dim=dim, stride_elements=step)


def _check_inside(view: LayerView, storage: Storage, num_blocks: int, where: str) -> None:
    excess = view.end_bytes - storage.nbytes
    if excess > 0:
        stride = view.block_stride_bytes
        earlier = -(-excess // stride) if stride else num_blocks  # blocks to drop until the view fits
        raise errors.ViewOutsideStorageError(
            where=where, end_bytes=view.end_bytes, excess_bytes=excess, storage=storage.id, nbytes=storage.nbytes,
            first_bad_block=max(0, num_blocks - earlier),
        )  # fmt: skip
    # Blocks that share bytes are the planner's to refuse; here it is elements of one block.
    reach_bytes = view.end_bytes - view.byte_offset - (num_blocks - 1) * view.block_stride_bytes
    repeated = any(size > 1 and step == 0 for size, step in zip(view.shape, view.stride, strict=True))
    if repeated or view.page_bytes > reach_bytes:
        raise errors.GeometryError(
            "repeated-elements",
            where=where,
            shape=view.shape,
            stride=view.stride,
            page_bytes=view.page_bytes,
            reach_bytes=reach_bytes,
        )


def _check_size(nbytes: int, what: str, where: str) -> None:
    if nbytes > MAX_STORAGE_BYTES:
        raise errors.GeometryError("integer-range", where=where, what=what, value=nbytes, limit=MAX_STORAGE_BYTES)


def _known_storage(record: Mapping, where: str, storages: Mapping) -> Storage:
    storage = fields.name(record, "storage", where)
    if storage not in storages:
        raise errors.GeometryError("unknown-storage", where=where, storage=storage, known=list(storages))
    return storages[storage]
