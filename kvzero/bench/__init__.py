"""The bench: ratios of one run side by side, with its conditions. `kvzero bench` prints it."""

from .report import text
from .run import run_bench

__all__ = ["run_bench", "text"]
