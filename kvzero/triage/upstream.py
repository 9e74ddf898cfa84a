"""The upstream changes that opened the eras, and when they were merged."""

from __future__ import annotations

from .judging import ENGINE

# The change that opened each era; #51749 (which layers are zeroed) came a day before #52058 (the launch).
OPENED_BY = {
    "page-per-segment": {"": "#49704"},
    "stride-and-span": {"": "#50276"},
    "masked-grid": {"": "#52058", "missed": "#51749"},
    ENGINE: {"": "#51718"},
}
MERGED_FIRST = "#35219"
MERGED = {
    "#35219": "2026-03-10", "#49704": "2026-07-24", "#50276": "2026-08-06", "#51749": "2026-08-11",
    "#52058": "2026-08-13", "#51718": "late August 2026",
}  # fmt: skip
