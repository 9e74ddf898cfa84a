"""Number formats of a cache, decoded from their definition: which bit patterns are NaN, and how dense they are.

Torch knows most of these formats too; the tests hold every pattern against it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FINITE, NAN, INF = 0, 1, 2


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """A binary number format of at most 16 bits.

    Args:
        name: its usual name.
        exponent_bits, mantissa_bits: widths of the fields; what is left of `bits` is the sign.
        bias: what is subtracted from the exponent field.
        bits: width of a value.
        non_finite: where NaN and Inf live. "ieee": exponent all ones, Inf where the mantissa is 0; "all ones":
            exponent and mantissa all ones are NaN, no Inf; "minus zero": the pattern of -0 is NaN, no Inf;
            "none": every pattern is a number.

    Example:
        >>> [hex(pattern) for pattern in np.flatnonzero(FORMATS["e4m3fn"].classes() == NAN)]
        ['0x7f', '0xff']
        >>> float(FORMATS["e4m3fn"].values()[0x7E])
        448.0
    """

    name: str
    bits: int
    exponent_bits: int
    mantissa_bits: int
    bias: int
    non_finite: str

    @property
    def lanes(self) -> int:
        """How many values one stale fp32 is read as, lowest address first."""
        return 32 // self.bits

    def classes(self) -> np.ndarray:
        """FINITE, NAN or INF for each of the 2**bits patterns, as uint8."""
        patterns = np.arange(2**self.bits)
        mantissa = patterns & (2**self.mantissa_bits - 1)
        exponent = patterns >> self.mantissa_bits & (2**self.exponent_bits - 1)
        top = exponent == 2**self.exponent_bits - 1
        found = np.zeros(2**self.bits, np.uint8)
        if self.non_finite == "ieee":
            found[top & (mantissa != 0)] = NAN
            found[top & (mantissa == 0)] = INF
        elif self.non_finite == "all ones":
            found[top & (mantissa == 2**self.mantissa_bits - 1)] = NAN
        elif self.non_finite == "minus zero":
            found[2 ** (self.bits - 1)] = NAN
        return found

    def values(self) -> np.ndarray:
        """The value of each of the 2**bits patterns, as float64."""
        patterns = np.arange(2**self.bits)
        mantissa = (patterns & (2**self.mantissa_bits - 1)) / 2**self.mantissa_bits
        exponent = patterns >> self.mantissa_bits & (2**self.exponent_bits - 1)
        signed = self.bits > self.exponent_bits + self.mantissa_bits
        sign = np.where(patterns >> (self.bits - 1) & 1, -1.0, 1.0) if signed else 1.0
        # A format without a mantissa (a scale) has no subnormals: its exponent 0 is a power of two like any other.
        tiny = (exponent == 0) & (self.mantissa_bits > 0)
        scale = 2.0 ** (np.where(tiny, 1, exponent) - self.bias)
        values = sign * scale * np.where(tiny, mantissa, 1 + mantissa)
        classes = self.classes()
        values[classes == NAN] = np.nan
        values[classes == INF] = np.copysign(np.inf, values[classes == INF])
        return values


FORMATS: dict[str, NumberFormat] = {
    each.name: each
    for each in (
        NumberFormat("bf16", 16, 8, 7, 127, "ieee"),
        NumberFormat("fp16", 16, 5, 10, 15, "ieee"),
        NumberFormat("e4m3fn", 8, 4, 3, 7, "all ones"),
        NumberFormat("e5m2", 8, 5, 2, 15, "ieee"),
        NumberFormat("e4m3fnuz", 8, 4, 3, 8, "minus zero"),
        NumberFormat("e8m0", 8, 8, 0, 127, "all ones"),
        NumberFormat("e2m1", 4, 2, 1, 1, "none"),
    )
}
"""The formats of caches and of their scales, by name."""


@dataclass(frozen=True, slots=True)
class Census:
    """What share of the values read from stale memory is NaN or Inf.

    Args:
        nan, inf: shares of all values, 0 to 1.
        by_lane: share of NaN and Inf together for each lane of an fp32, lowest address first.
    """

    nan: float
    inf: float
    by_lane: tuple[float, ...]

    @property
    def non_finite(self) -> float:
        """Share of NaN and Inf together."""
        return self.nan + self.inf


def census(stale: np.ndarray, name: str) -> Census:
    """Read stale memory in another format and count what is no number.

    Args:
        stale: fp32 array, the memory of the former owner, little endian.
        name: a key of `FORMATS`.

    Example:
        >>> census(np.full(8, np.frombuffer(b"\\x7f\\x00\\x00\\x3f", np.float32)[0]), "e4m3fn").by_lane
        (1.0, 0.0, 0.0, 0.0)
    """
    number = FORMATS[name]
    raw = np.ascontiguousarray(stale, np.float32).view(np.uint16 if number.bits == 16 else np.uint8).reshape(-1)
    if number.bits == 4:
        raw = np.stack((raw & 15, raw >> 4), axis=1).reshape(-1)
    classes, counts = number.classes(), []
    for lane in range(number.lanes):
        seen = np.bincount(raw[lane :: number.lanes], minlength=2**number.bits)
        counts.append((int(seen[classes == NAN].sum()), int(seen[classes == INF].sum())))
    per_lane = max(len(raw) // number.lanes, 1)
    nan, inf = (sum(column) / max(len(raw), 1) for column in zip(*counts, strict=True))
    return Census(nan, inf, tuple((a + b) / per_lane for a, b in counts))
