"""Number formats: every pattern against torch, and densities against independent arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvzero.workbook.formats import FINITE, FORMATS, INF, NAN, census

TORCH = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "e4m3fn": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e8m0": torch.float8_e8m0fnu,
}


def by_torch(name: str) -> np.ndarray:
    kind = np.uint16 if FORMATS[name].bits == 16 else np.uint8
    patterns = torch.from_numpy(np.arange(2 ** FORMATS[name].bits).astype(kind))
    return patterns.view(TORCH[name]).float().double().numpy()


@pytest.mark.parametrize("name", TORCH)
def test_every_pattern_has_the_value_that_torch_gives_it(name):
    np.testing.assert_array_equal(FORMATS[name].values(), by_torch(name))


@pytest.mark.parametrize("name", TORCH)
def test_classes_say_which_values_are_no_numbers(name):
    values, classes = by_torch(name), FORMATS[name].classes()
    assert np.array_equal(classes == NAN, np.isnan(values))
    assert np.array_equal(classes == INF, np.isinf(values))
    assert np.array_equal(classes == FINITE, np.isfinite(values))


def test_e2m1_has_eight_magnitudes_and_no_nan():
    assert FORMATS["e2m1"].values().tolist()[:8] == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert FORMATS["e2m1"].values().tolist()[8:] == [-0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
    assert not FORMATS["e2m1"].classes().any()


@pytest.mark.parametrize("name", TORCH)
def test_a_census_counts_what_torch_counts(name):
    stale = np.random.default_rng(7).standard_normal(50_000, dtype=np.float32)
    values = torch.from_numpy(stale).view(TORCH[name]).float().reshape(-1, FORMATS[name].lanes)
    found = census(stale, name)
    assert found.nan == pytest.approx(values.isnan().float().mean().item())
    assert found.inf == pytest.approx(values.isinf().float().mean().item(), abs=1e-7)
    by_lane = (~values.isfinite()).float().mean(0).tolist()
    assert found.by_lane == pytest.approx(by_lane, abs=1e-7)


def test_a_census_of_nothing_is_zero():
    assert census(np.empty(0, np.float32), "bf16").non_finite == 0
