"""Reading a geometry: what is right round-trips, what is wrong is named by file, layer and key."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import raises_rule
from strategies import engine_layouts, wild_views

from kvzero import errors, geometries
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.tensors import storage_tensors
from kvzero.plan.planner import plan_segments

GOOD = {
    "name": "two",
    "num_blocks": 4,
    "storages": [{"id": "a", "nbytes": 400}],
    "layers": [
        {"name": "k", "storage": "a", "byte_offset": 0, "shape": [4, 16], "stride": [100, 1], "itemsize": 1},
        {"name": "v", "storage": "a", "byte_offset": 20, "shape": [4, 16], "stride": [100, 1], "itemsize": 1},
    ],
}


def changed(path: list, value) -> dict:
    """The good file with one entry replaced; a value of `...` removes it."""
    data = copy.deepcopy(GOOD)
    target = data
    for key in path[:-1]:
        target = target[key]
    if value is ...:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return data


@pytest.mark.parametrize("name", geometries.names())
def test_a_real_dump_round_trips_through_json(name, tmp_path):
    geometry = geometries.load(name)
    geometry.to_json(tmp_path / "again.json")
    again = CacheGeometry.from_json(tmp_path / "again.json")
    assert again.to_dict() == json.loads(json.dumps(geometry.to_dict()))
    assert plan_segments(again) == plan_segments(geometry)
    assert "made_by" in again.extra  # unknown keys are kept


@given(st.one_of(engine_layouts(), wild_views()))
def test_random_layouts_round_trip(geometry):
    assert CacheGeometry.from_dict(json.loads(json.dumps(geometry.to_dict()))) == geometry


BAD = [
    (changed(["name"], ...), "missing-key", {"key": "name"}),
    (changed(["num_blocks"], ...), "missing-key", {"key": "num_blocks"}),
    (changed(["num_blocks"], 0), "no-blocks", {"num_blocks": 0}),
    (changed(["num_blocks"], -1), "no-blocks", {"num_blocks": -1}),
    (changed(["num_blocks"], "4"), "wrong-type", {"key": "num_blocks"}),
    (changed(["num_blocks"], 4.0), "wrong-type", {"key": "num_blocks"}),
    (changed(["num_blocks"], True), "wrong-type", {"key": "num_blocks"}),
    (changed(["storages"], {}), "wrong-type", {"key": "storages"}),
    (changed(["layers"], []), "wrong-type", {"key": "layers"}),
    (changed(["layers", 1], 7), "wrong-type", {"value": 7}),
    (changed(["storages", 0, "nbytes"], ...), "missing-key", {"key": "nbytes"}),
    (changed(["storages", 0, "nbytes"], -1), "wrong-type", {"key": "nbytes"}),
    (changed(["storages", 0, "nbytes"], 2**48 + 1), "integer-range", {"value": 2**48 + 1, "limit": 2**48}),
    (changed(["engine_segments"], [{"storage": "a", "byte_offset": 0, "block_stride_bytes": 2**48, "span_bytes": 1}]),
     "integer-range", {"value": 3 * 2**48 + 1}),
    (changed(["layers", 1, "shape"], ...), "missing-key", {"key": "shape"}),
    (changed(["layers", 1, "shape"], [4, 0]), "wrong-type", {"key": "shape"}),
    (changed(["layers", 1, "shape"], []), "wrong-type", {"key": "shape"}),
    (changed(["layers", 1, "shape"], [4, "16"]), "wrong-type", {"key": "shape"}),
    (changed(["layers", 1, "stride"], [100]), "shape-stride", {"shape_dims": 2, "stride_dims": 1}),
    (changed(["layers", 1, "stride"], [100, -1]), "negative-stride", {"dim": 1, "stride_elements": -1}),
    (changed(["layers", 1, "itemsize"], 0), "wrong-type", {"key": "itemsize"}),
    (changed(["layers", 1, "itemsize"], ...), "missing-key", {"key": "itemsize"}),
    (changed(["layers", 1, "dtype"], "bfloat16"), "itemsize", {"itemsize": 1, "dtype_bytes": 2}),
    (changed(["layers", 1, "byte_offset"], -4), "wrong-type", {"key": "byte_offset"}),
    (changed(["layers", 1, "byte_offset"], 90), "view-outside-storage", {"excess_bytes": 6}),
    (changed(["layers", 1, "byte_offset"], 10**25), "view-outside-storage", {"first_bad_block": 0}),
    (changed(["layers", 1, "storage"], "b"), "unknown-storage", {"storage": "b", "known": ["a"]}),
    (changed(["layers", 1, "name"], "k"), "duplicate-name", {"name": "k"}),
    (changed(["layers", 1, "shape"], [6, 16]), "block-dim-not-found", {"num_blocks": 4}),
    (changed(["layers", 1, "block_dim"], 1) | {"num_blocks": 3}, "block-dim-not-found", {"num_blocks": 3}),
    (changed(["layers", 1, "block_dim"], 5), "wrong-type", {"key": "block_dim"}),
    (changed(["layers", 1, "kernel_blocks_per_block"], 2), "kernel-blocks",
     {"kernel_blocks_per_block": 1, "stated_kernel_blocks_per_block": 2}),
    (changed(["storages"], [{"id": "a", "nbytes": 400}] * 2), "duplicate-name",
     {"kind": "storage", "name": "a"}),
    (changed(["storages", 0, "nbytes"], 335), "view-outside-storage",
     {"end_bytes": 336, "excess_bytes": 1, "nbytes": 335}),
    (changed(["layers", 1, "zeroed_by_engine"], "yes"), "wrong-type", {"key": "zeroed_by_engine"}),
    (changed(["layers", 1, "group"], [1]), "wrong-type", {"key": "group"}),
    (changed(["name"], "\ud800"), "wrong-type", {"key": "name"}),
    (changed(["layers", 1, "name"], "a\nb"), "wrong-type", {"key": "name"}),
    (changed(["layers", 1, "group"], "\u202e"), "wrong-type", {"key": "group"}),
    (changed(["engine_segments"], [{}]), "missing-key", {}),
    ([1, 2], "geometry-file", {}),
]  # fmt: skip


@pytest.mark.parametrize(("data", "kind", "facts"), BAD)
def test_a_bad_file_is_refused_by_rule_with_its_numbers(data, kind, facts, tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(data))
    with pytest.raises(errors.KvzeroError) as caught:
        CacheGeometry.from_json(path)
    assert caught.value.rule == kind
    assert str(path) in str(caught.value)
    assert facts.items() <= caught.value.facts.items()
    assert "\n" not in str(caught.value)
    if "layers" in data and data["layers"] and isinstance(data["layers"][-1], dict) and "key" in facts:
        assert facts["key"] in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "{", "\x00", "NaN", "[" * 100_000, '{"name": "x"', '{"a": 1, "a": 2}', "9" * 5000]
)
def test_what_is_not_json_is_refused(text, tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with raises_rule("geometry-file", match="bad.json"):
        CacheGeometry.from_json(path)


def test_a_message_stays_one_readable_line():
    with raises_rule("wrong-type") as caught:
        CacheGeometry.from_dict(changed(["layers", 1, "shape"], ["line\n" * 10_000]))
    with raises_rule("wrong-type", match=r"layer \\x1b\[2J\\u2028: "):
        CacheGeometry.from_dict(changed(["layers", 1], {"name": "\x1b[2J\u2028"}))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000
    assert caught.value.value == ["line\n" * 10_000]


@pytest.mark.parametrize("name", ["absent.json", "."])
def test_what_cannot_be_read_is_refused(name, tmp_path):
    with raises_rule("geometry-file"):
        CacheGeometry.from_json(tmp_path / name)


def test_block_counts_of_one_pool_agree():
    data = changed(["layers", 1, "shape"], [5, 16])
    data["layers"][1]["block_dim"] = 0
    data["storages"][0]["nbytes"] = 600
    with raises_rule("block-count") as caught:
        CacheGeometry.from_dict(data)
    assert (caught.value.size, caught.value.num_blocks) == (5, 4)


def test_stated_kernel_blocks_must_agree_with_the_shape():
    data = changed(["layers", 1, "kernel_blocks_per_block"], 2)
    data["layers"][1]["block_dim"] = 0
    with raises_rule("kernel-blocks") as caught:
        CacheGeometry.from_dict(data)
    assert (caught.value.kernel_blocks_per_block, caught.value.stated_kernel_blocks_per_block) == (1, 2)


@pytest.mark.parametrize(
    ("shape", "num_blocks", "found"),
    [
        ((100, 64, 584), 100, 0),
        ((2, 100, 16, 8, 128), 100, 1),
        ((2, 8, 16, 4), 8, 1),  # 16 is a multiple too, but not the outermost
        ((8, 16, 4, 9), 8, 0),
        ((24, 5, 7), 6, 0),  # four kernel blocks in a block
        ((1, 24, 5, 7), 6, 1),  # the stride of a dimension of size 1 is never used
    ],
)
def test_the_block_dimension_is_found_where_it_is_clear(shape, num_blocks, found):
    cache = torch.zeros(shape, dtype=torch.uint8)
    view = CacheGeometry.from_tensors({"k": cache}, num_blocks=num_blocks).layer("k")
    assert view.block_dim == found


@pytest.mark.parametrize(
    ("shape", "num_blocks"),
    [((8, 2, 16, 8, 128), 8), ((24, 6, 7), 6), ((4, 4), 4), ((2, 256, 16, 8, 64), 64), ((3, 24, 6), 6)],
)
def test_the_block_dimension_is_never_guessed(shape, num_blocks):
    cache = torch.zeros(shape, dtype=torch.uint8)
    with pytest.raises(errors.AmbiguousBlockDimError) as caught:
        CacheGeometry.from_tensors({"k": cache}, num_blocks=num_blocks)
    assert len(caught.value.candidates) > 1
    for dim in caught.value.candidates:
        stated = CacheGeometry.from_tensors({"k": cache}, num_blocks=num_blocks, block_dim={"k": dim})
        assert stated.layer("k").block_dim == dim


def test_live_tensors_share_storages_and_are_not_copied():
    slab = torch.arange(4 * 100, dtype=torch.uint8)
    k, v = slab.as_strided((4, 16), (100, 1), 0), slab.as_strided((4, 16), (100, 1), 20)
    state = torch.zeros(4, 3, 5)
    tensors = {"layer.0": [k, v], "state": state}
    geometry = CacheGeometry.from_tensors(
        tensors, num_blocks=4, groups={"state": 1}, not_zeroed=["state"], block_dim={"layer.0": 0}
    )
    assert [view.name for view in geometry.layers] == ["layer.0#0", "layer.0#1", "state"]
    assert [view.storage for view in geometry.layers] == [0, 0, 1]
    assert geometry.layer("layer.0#1").byte_offset == 20
    assert geometry.layer("state").dtype == "float32"
    assert [view.name for view in geometry.select()] == ["layer.0#0", "layer.0#1"]
    whole = storage_tensors(tensors)
    assert whole[0].data_ptr() == slab.data_ptr() and whole[0].numel() == 400
    assert whole[1].numel() == state.numel() * 4


def test_tensors_without_memory_keep_storages_of_their_own():
    pool = torch.empty(8, 6, device="meta")
    tensors = {"k": pool[:, :3], "v": pool[:, 3:], "other": torch.empty(8, 6, device="meta")}
    assert [view.storage for view in CacheGeometry.from_tensors(tensors, num_blocks=8).layers] == [0, 0, 1]


@pytest.mark.parametrize("cut", [slice(0, 256), slice(64, 576)])
def test_arrays_cut_from_one_another_are_refused(cut):
    array = np.zeros(1024, np.uint8)
    tensors = {"k": torch.from_numpy(array[:512]).view(8, -1), "v": torch.from_numpy(array[cut]).view(8, -1)}
    with raises_rule("storage-alias", match="layer [kv] and layer [kv]"):
        CacheGeometry.from_tensors(tensors, num_blocks=8, block_dim=0)
    tensors["v"] = torch.from_numpy(array[512:]).view(8, -1)
    assert len(CacheGeometry.from_tensors(tensors, num_blocks=8, block_dim=0).storages) == 2


@pytest.mark.parametrize(
    "tensors",
    [None, [torch.zeros(8, 4)], {"k": None}, {"k": np.zeros((8, 4))}, {"k": [[torch.zeros(8, 4)]]},
     {"k": torch.zeros(8, 4).to_sparse()}, {"k": torch.zeros(8, 4), "v": []}],
)  # fmt: skip
def test_what_is_no_dense_tensor_is_refused(tensors):
    with raises_rule("tensor-kind"):
        CacheGeometry.from_tensors(tensors, num_blocks=8)


@pytest.mark.parametrize("option", ["block_dim", "kernel_blocks_per_block", "groups", "not_zeroed"])
def test_an_option_for_a_layer_that_is_not_there_is_refused(option):
    with raises_rule("unknown-selection") as caught:
        CacheGeometry.from_tensors({"k": torch.zeros(8, 4)}, num_blocks=8, **{option: {"kk": 1}})
    assert (caught.value.name, caught.value.known) == ("kk", ["k"])


@pytest.mark.parametrize("option", [{"groups": ["k"]}, {"groups": []}, {"not_zeroed": None}, {"not_zeroed": 1}])
def test_an_option_of_another_kind_is_refused(option):
    with raises_rule("wrong-type") as caught:
        CacheGeometry.from_tensors({"k": torch.zeros(8, 4)}, num_blocks=8, **option)
    assert caught.value.key in option


def test_a_group_is_given_by_layer_or_by_view():
    pair = [torch.zeros(8, 4), torch.zeros(8, 4)]
    geometry = CacheGeometry.from_tensors({"l": pair, "m": pair[0]}, num_blocks=8, groups={"l": 1, "l#1": 5})
    assert [view.group for view in geometry.layers] == [1, 5, 0]


def test_a_geometry_comes_back_equal_through_json_and_can_be_a_key():
    for name in geometries.names():
        geometry = replace(geometries.load(name), source="")
        again = CacheGeometry.from_dict(json.loads(json.dumps(geometry.to_dict())))
        assert again == geometry and hash(again) == hash(geometry), name


def test_kernel_blocks_by_tokens_agree_with_a_stated_block_dim():
    record = changed(["layers", 0, "block_dim"], 0)["layers"][0]
    stated = {**record, "manager_block_size": 32, "kernel_block_size": 16}
    with raises_rule("kernel-blocks") as caught:
        CacheGeometry.from_dict(changed(["layers", 0], stated))
    assert (caught.value.kernel_blocks_per_block, caught.value.stated_kernel_blocks_per_block) == (1, 2)


@pytest.mark.parametrize("stated", [None, 0])
def test_a_multiple_of_the_blocks_is_no_proof_of_kernel_blocks(stated):
    """A view of another pool, with twice the blocks, must not pass for one with two kernel blocks per block."""
    tensors = {"own": torch.zeros(8, 64, 5), "other": torch.zeros(16, 64, 3)}
    with raises_rule("unstated-kernel-blocks", match="may belong to another block pool") as caught:
        CacheGeometry.from_tensors(tensors, num_blocks=8, block_dim=stated)
    assert (caught.value.size, caught.value.other_layer, caught.value.other_size) == (16, "own", 8)
    sizes = {"other": {"manager_block_size": 64, "kernel_block_size": 64}}
    with raises_rule("kernel-blocks", match="may belong|belongs to another block pool") as caught:
        CacheGeometry.from_tensors(tensors, num_blocks=8, block_dim=stated, layer_facts=sizes)
    assert (caught.value.kernel_blocks_per_block, caught.value.stated_kernel_blocks_per_block) == (2, 1)
    for facts in ({"manager_block_size": 64, "kernel_block_size": 32}, {"kernel_blocks_per_block": 2}):
        geometry = CacheGeometry.from_tensors(tensors, num_blocks=8, block_dim=stated, layer_facts={"other": facts})
        assert geometry.layer("other").kernel_blocks_per_block == 2


def test_all_views_with_the_same_multiple_need_no_statement():
    tensors = {"k": torch.zeros(32, 5), "v": torch.zeros(32, 3)}
    geometry = CacheGeometry.from_tensors(tensors, num_blocks=8)
    assert [view.kernel_blocks_per_block for view in geometry.layers] == [4, 4]


@pytest.mark.parametrize("key", ["page_size_bytes", "unpadded_page_size_bytes"])
def test_a_page_larger_than_stated_is_refused(key):
    assert CacheGeometry.from_dict(changed(["layers", 0, key], 16)).layer("k").page_bytes == 16
    with raises_rule("page-size") as caught:
        CacheGeometry.from_dict(changed(["layers", 0, key], 15))
    assert (caught.value.page_bytes, caught.value.stated_bytes, caught.value.key) == (16, 15, key)


def test_token_sizes_that_do_not_divide_are_refused():
    data = changed(["layers", 0, "manager_block_size"], 528)
    data["layers"][0]["kernel_block_size"] = 100
    with raises_rule("wrong-type", match="a divisor of manager_block_size, 528"):
        CacheGeometry.from_dict(data)


@pytest.mark.parametrize(
    ("changes", "kind", "facts"),
    [
        ({"shape": [1643, 64, 132]}, "kernel-blocks",
         {"kernel_blocks_per_block": 3, "stated_kernel_blocks_per_block": 2}),
        ({"kernel_blocks_per_block": 4}, "kernel-blocks", {"stated_kernel_blocks_per_block": 4}),
        ({"kernel_block_stride": 327}, "kernel-blocks", {"kernel_blocks_per_block": 7}),
        ({"manager_view_stride": [2770943, 16896, 132, 1]}, "wrong-type", {"key": "manager_view_stride"}),
        ({"manager_view_shape": [12, 1, 64, 132]}, "kernel-blocks", {"kernel_blocks_per_block": 2}),
    ],
)  # fmt: skip
def test_strided_kernel_blocks_agree_with_the_view_by_block(changes, kind, facts):
    text = (resources.files(geometries) / "glm53_kpool_packed_kernel_stride__BLHNC.json").read_text()
    data = json.loads(text)
    view = next(layer for layer in data["layers"] if layer["kernel_block_stride"])
    view.update(changes)
    with pytest.raises(errors.KvzeroError) as caught:
        CacheGeometry.from_dict(data)
    assert caught.value.rule == kind and facts.items() <= caught.value.facts.items()


def test_tensors_on_two_devices_are_never_mixed():
    tensors = {"a": torch.zeros(8, 4), "b": [torch.zeros(8, 4, device="meta"), torch.zeros(8, 4)]}
    with raises_rule("storage-device", match="layer b#0 lies on meta") as caught:
        CacheGeometry.from_tensors(tensors, num_blocks=8, block_dim=0)
    assert (caught.value.device, caught.value.what) == ("meta", "live, layer b#0")
    geometry = CacheGeometry.from_tensors(tensors, num_blocks=8, block_dim=0, device="cpu")
    assert [view.name for view in geometry.layers] == ["a", "b#1"]
    assert geometry.extra == {"device": "cpu", "views_on_other_devices": {"b#0": "meta"}}
    assert [storage.id for storage in geometry.storages] == [0, 2]
    whole = storage_tensors(tensors)
    assert whole[2].data_ptr() == tensors["b"][1].data_ptr()
    with raises_rule("storage-device", match="it must lie on cuda"):
        CacheGeometry.from_tensors(tensors, num_blocks=8, block_dim=0, device="cuda")


@pytest.mark.parametrize(
    ("shape", "stride"),
    [([4, 2**62], [100, 0]), ([4, 2], [100, 0]), ([4, 16], [0, 1]), ([4, 8, 8], [10, 1, 1]), ([4] * 90, [1] * 90),
     ([8, 12], [10, 1]), ([4, 2, 8], [100, 0, 3])],
)  # fmt: skip
def test_elements_that_share_bytes_are_refused(shape, stride):
    data = changed(["layers", 0, "shape"], shape) | {"storages": [{"id": "a", "nbytes": 2**40}]}
    data["layers"][1]["kernel_blocks_per_block"] = 1
    data["layers"][0] |= {"stride": stride, "block_dim": 0, "kernel_blocks_per_block": shape[0] // 4}
    with raises_rule("repeated-elements") as caught:
        CacheGeometry.from_dict(data)
    assert (caught.value.shape, caught.value.stride) == (tuple(shape), tuple(stride))


def test_the_stride_of_a_size_1_dimension_may_be_negative_and_a_storage_as_large_as_the_limit():
    data = changed(["layers", 0, "shape"], [4, 1, 16])
    data["layers"][0]["stride"], data["storages"][0]["nbytes"] = [100, -7, 1], 2**48
    assert plan_segments(CacheGeometry.from_dict(data)).bytes_per_block == 32


def test_the_stride_of_a_lone_block_may_be_any_number():
    data = changed(["layers"], [{**GOOD["layers"][0], "shape": [1, 16], "stride": [10**40, 1]}]) | {"num_blocks": 1}
    assert plan_segments(CacheGeometry.from_dict(data)).bytes_per_block == 16


def test_a_single_name_is_not_taken_for_letters():
    tensors = {"ab": torch.zeros(8, 4), "a": torch.zeros(8, 4)}
    geometry = CacheGeometry.from_tensors(tensors, num_blocks=8, not_zeroed="ab")
    assert [view.name for view in geometry.select()] == ["a"]


def test_strided_kernel_blocks_are_read_by_block():
    geometry = geometries.load("glm53_kpool_packed_kernel_stride__BLHNC")
    view = geometry.layer("model.layers.0.self_attn.indexer.k_cache")
    assert view.shape == (6, 1, 128, 132)
    assert view.page_bytes == view.extra["page_size_bytes"] == 16_896


@pytest.mark.parametrize("name", geometries.names())
def test_page_bytes_are_those_the_engine_states(name):
    for view in geometries.load(name).layers:
        assert view.page_bytes == view.extra["unpadded_page_size_bytes"]


def test_selections_are_checked():
    geometry = CacheGeometry.from_dict(GOOD)
    with raises_rule("unknown-selection", match="layer 'x'"):
        geometry.select(layers=["x"])
    with raises_rule("unknown-selection", match="group 3"):
        geometry.select(groups=[3])
    with raises_rule("unknown-selection"):
        geometry.storage("zzz")
    none = changed(["layers", 0, "zeroed_by_engine"], False)
    none["layers"][1]["spec_kind"] = "mamba"
    with pytest.raises(errors.NothingSelectedError) as caught:
        CacheGeometry.from_dict(none).select()
    assert caught.value.num_layers == 2
    assert len(CacheGeometry.from_dict(none).select(layers="all")) == 2


def test_errors_cross_a_process_border():
    with pytest.raises(errors.KvzeroError) as caught:
        CacheGeometry.from_dict(changed(["num_blocks"], 0))
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is errors.GeometryError and again.rule == "no-blocks"
    assert again.to_dict() == caught.value.to_dict() == {
        "rule": "no-blocks", "message": str(caught.value), "where": "two", "num_blocks": 0,
    }  # fmt: skip


def test_an_unknown_dump_is_named():
    with raises_rule("unknown-selection", match="no dump 'nope'"):
        geometries.load("nope")
