"""Where `kvzero triage` still looks for what `kvzero.outputs` holds."""

from kvzero.outputs import check_outputs, writable

__all__ = ["check_outputs", "writable"]
