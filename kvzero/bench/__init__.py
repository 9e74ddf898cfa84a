"""The bench: ratios of one run side by side, with its conditions. `kvzero bench` prints it."""

from .run import run_bench, text

__all__ = ["run_bench", "text"]
