"""Zero freshly allocated KV-cache blocks, and prove byte by byte that nothing else was touched.

Example:
    >>> from kvzero import geometries, plan_segments
    >>> plan = plan_segments(geometries.load("dsv4_c4_mla_only__BLHNC"))
    >>> plan.bytes_per_block == plan.needed_bytes_per_block
    True
"""

from kvzero import errors
from kvzero.audit.arena import Arena
from kvzero.audit.audit import audit_bytes, audit_plan
from kvzero.audit.live import audit_live
from kvzero.audit.result import Audit
from kvzero.errors import KvzeroError
from kvzero.layout import geometries
from kvzero.layout.capture import capture, capture_vllm
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.records import LayerView, Segment, Storage
from kvzero.plan.planner import Plan, plan_segments
from kvzero.plan.resize import with_num_blocks
from kvzero.zero.tiles import launch_for
from kvzero.zero.zeroer import BlockZeroer

__version__ = "0.1.0"

__all__ = [
    "Arena",
    "Audit",
    "BlockZeroer",
    "CacheGeometry",
    "KvzeroError",
    "LayerView",
    "Plan",
    "Segment",
    "Storage",
    "audit_bytes",
    "audit_live",
    "audit_plan",
    "capture",
    "capture_vllm",
    "errors",
    "geometries",
    "launch_for",
    "plan_segments",
    "with_num_blocks",
]
