"""Triage: what every planner, old and new, does to one layout, in plain words. `kvzero triage` prints it."""

from .judging import ENGINE, MERGED, Fault, Finding, judge_planner, telling_blocks
from .report import Triage, triage
from .shrink import shrink

__all__ = [
    "ENGINE",
    "MERGED",
    "Fault",
    "Finding",
    "Triage",
    "judge_planner",
    "shrink",
    "telling_blocks",
    "triage",
]
