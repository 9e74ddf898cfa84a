"""Triage: what every planner, old and new, does to one layout, in plain words. `kvzero triage` prints it."""

from .judging import ENGINE, Fault, Finding, judge_planner, telling_blocks
from .shrink import shrink
from .sweep import Triage, triage
from .upstream import MERGED

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
