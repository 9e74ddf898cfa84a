"""`CacheGeometry`: the storages of one block pool and the views that lie in them, as plain data.

Nothing here needs torch or memory. A geometry comes from a JSON file, from live tensors, or from plain
construction through `CacheGeometry.from_dict`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvzero import errors
from kvzero.layout.reading import read_geometry, unique_keys
from kvzero.layout.records import LayerView, Name, Segment, Storage
from kvzero.layout.tensors import describe_tensors


@dataclass(frozen=True, slots=True)
class CacheGeometry:
    """The storages and views of one block pool.

    Build it with `from_json`, `from_dict` or `from_tensors`: they check what is read. `source` names the file
    and goes into error messages; `engine_segments` is what the engine itself would zero, where a dump says so.

    Example:
        >>> slab = CacheGeometry.from_dict({
        ...     "name": "slab", "num_blocks": 100, "storages": [{"id": 0, "nbytes": 14_976_000}],
        ...     "layers": [{"name": f"layer.{i}", "storage": 0, "byte_offset": 37_440 * i, "itemsize": 1,
        ...                 "shape": [100, 64, 584], "stride": [149_760, 584, 1]} for i in range(4)]})
        >>> slab.layer("layer.3").block_stride_bytes, slab.layer("layer.3").page_bytes
        (149760, 37376)
    """

    name: str
    num_blocks: int
    storages: tuple[Storage, ...]
    layers: tuple[LayerView, ...]
    engine: str = ""
    layout: str = ""
    source: str = ""
    engine_segments: tuple[Segment, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def from_json(cls, path: str | Path) -> CacheGeometry:
        """Read a geometry file.

        Args:
            path: a JSON file; the keys are those of `from_dict`.

        Raises:
            GeometryError: the file cannot be read or is not JSON, or a rule of `from_dict` is broken.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=unique_keys)
        except (OSError, ValueError, RecursionError) as error:
            detail = getattr(error, "strerror", None) or str(error)
            raise errors.GeometryError("geometry-file", where=str(path), detail=detail) from error
        return cls.from_dict(data, source=str(path))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], source: str = "") -> CacheGeometry:
        """Build a geometry from plain data and check it.

        Args:
            data: `name`, `num_blocks`, `storages` (each `id`, `nbytes`), `layers` (each `name`, `storage`,
                `byte_offset` in bytes, `shape`, `stride` in elements, `itemsize` in bytes); optional per layer
                `block_dim`, `group`, `dtype`, `zeroed_by_engine`, `spec_kind`, `manager_block_size` and
                `kernel_block_size` in tokens, `kernel_block_stride` with `manager_view_shape` and
                `manager_view_stride`; optional `engine`, `layout`, `engine_segments`. Other keys are kept.
            source: the file's name, for messages.

        Raises:
            GeometryError: a rule is broken; `rule` names it, and the message the file, the layer and the key.
        """
        return cls(**read_geometry(data, source))

    @classmethod
    def from_tensors(
        cls,
        tensors: Mapping[str, Any],
        *,
        num_blocks: int,
        block_dim: int | Mapping[str, int] | None = None,
        kernel_blocks_per_block: int | Mapping[str, int] | None = None,
        groups: Mapping[str, Name] | None = None,
        not_zeroed: Iterable[str] = (),
        device: Any = None,
        layer_facts: Mapping[str, Mapping[str, Any]] | None = None,
        name: str = "live",
    ) -> CacheGeometry:
        """Describe live torch tensors, on any device; nothing is copied and nothing is launched.

        Args:
            tensors: layer name to tensor, or to several tensors (K and V apart, recurrent state), which become
                views named "layer#0", "layer#1" and so on. Tensors of one allocation share a storage.
            num_blocks: blocks in the pool.
            block_dim: the dimension that counts blocks, for all or by layer or view name; found if it is clear.
            kernel_blocks_per_block: kernel blocks in a block, for all or by name. May be omitted if the block
                dimensions of all views have the same size, or exactly `num_blocks` entries.
            groups: cache group by layer or view name; group 0 if absent.
            not_zeroed: layers whose bytes a fresh block keeps (recurrent state).
            device: device of the pool, such as "cuda:0"; needed only if the tensors lie on several. Tensors on
                other devices are left out and listed in `extra["views_on_other_devices"]` and in the file.
            layer_facts: further keys of `from_dict` by layer or view name, such as `manager_block_size` and
                `kernel_block_size`; they are compared with the tensors.
            name: name of the geometry.

        Raises:
            AmbiguousBlockDimError: several dimensions could count the blocks, and `block_dim` is not stated.
            GeometryError: a value is not a dense tensor, an option is of the wrong type or names a layer that is
                not there, or a rule of `from_dict` is broken, for example a view that has more blocks than the pool.
            ZeroingError: the tensors lie on several devices and `device` does not name one of them, or two tensors
                share bytes although torch gives them different storages.

        Example:
            >>> import torch
            >>> cache = torch.zeros(8, 2, 16, 4, 64)
            >>> CacheGeometry.from_tensors({"layer.0": cache}, num_blocks=8).layer("layer.0").page_bytes
            32768
        """
        data = describe_tensors(
            tensors,
            num_blocks=num_blocks,
            block_dim=block_dim,
            kernel_blocks_per_block=kernel_blocks_per_block,
            groups=groups,
            not_zeroed=not_zeroed,
            device=device,
            layer_facts=layer_facts,
            name=name,
        )
        return cls.from_dict(data, source=name)

    def to_dict(self) -> dict[str, Any]:
        """The geometry as plain data; `from_dict` reads it back to an equal geometry, all but `source`."""
        layers = [
            {
                "name": view.name,
                "group": view.group,
                "storage": view.storage,
                "byte_offset": view.byte_offset,
                "shape": list(view.shape),
                "stride": list(view.stride),
                "block_dim": view.block_dim,
                "kernel_blocks_per_block": view.kernel_blocks_per_block,
                "itemsize": view.itemsize,
                "dtype": view.dtype,
                "spec_kind": view.spec_kind,
                "zeroed_by_engine": view.zeroed,
                **view.extra,
            }
            for view in self.layers
        ]
        segments = [
            {
                "storage": segment.storage,
                "byte_offset": segment.base_bytes,
                "block_stride_bytes": segment.block_stride_bytes,
                "span_bytes": segment.span_bytes,
            }
            for segment in self.engine_segments
        ]
        return {
            "name": self.name,
            "engine": self.engine,
            "layout": self.layout,
            "num_blocks": self.num_blocks,
            "storages": [{"id": storage.id, "nbytes": storage.nbytes} for storage in self.storages],
            "layers": layers,
            "engine_segments": segments,
            **self.extra,
        }

    def to_json(self, path: str | Path) -> None:
        """Write the geometry as a JSON file that `from_json` reads."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")

    def storage(self, storage_id: Name) -> Storage:
        """The storage with this id; raises GeometryError."""
        return _by_key(self.storages, "id", storage_id, "storage", self.where)

    def layer(self, name: str) -> LayerView:
        """The view with this name; raises GeometryError."""
        return _by_key(self.layers, "name", name, "layer", self.where)

    @property
    def where(self) -> str:
        """How messages name this geometry: its file, else its name."""
        return self.source or self.name

    def select(
        self, layers: str | Sequence[str] | None = None, groups: Name | Sequence[Name] | None = None
    ) -> tuple[LayerView, ...]:
        """The views whose bytes a fresh block zeroes.

        Args:
            layers: None for every view with `zeroed` set, "all" for every view, or names of layers.
            groups: None for all groups, or the ids of those wanted.

        Raises:
            GeometryError: a name or a group that the geometry does not have.
            NothingSelectedError: no view is left.
        """
        if layers is None:
            views = [view for view in self.layers if view.zeroed]
        elif layers == "all":
            views = list(self.layers)
        else:
            names = [layers] if isinstance(layers, str) else list(layers)
            by_name = {view.name: view for view in self.layers}
            for name in names:
                if name not in by_name:
                    raise errors.GeometryError(
                        "unknown-selection", where=self.where, kind="layer", name=name, known=list(by_name)
                    )
            views = [by_name[name] for name in dict.fromkeys(names)]
        if groups is not None:
            groups = [groups] if isinstance(groups, (int, str)) else list(groups)
            known = sorted({view.group for view in self.layers}, key=str)
            for group in groups:
                if group not in known:
                    raise errors.GeometryError(
                        "unknown-selection", where=self.where, kind="group", name=group, known=known
                    )
            views = [view for view in views if view.group in groups]
        if not views:
            raise errors.NothingSelectedError(where=self.where, num_layers=len(self.layers))
        return tuple(views)


def _by_key(items, key: str, wanted: Name, kind: str, where: str):
    for item in items:
        if getattr(item, key) == wanted:
            return item
    known = [getattr(item, key) for item in items]
    raise errors.GeometryError("unknown-selection", where=where, kind=kind, name=wanted, known=known)
