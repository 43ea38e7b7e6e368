"""Plan appends: claims, take-overs, settlements and removals (pure)."""

from txnqueue.core.planning.claims import REMOVALS_MAX, Selection, claim, grouped, select
from txnqueue.core.planning.plan import Plan, Stamp, lane_conditions, mark
from txnqueue.core.planning.removals import (
    Removal,
    Target,
    leaving_out,
    move,
    origin_of,
    purge_pending,
    remove,
)
from txnqueue.core.planning.settlements import (
    Disposition,
    bind,
    end_claims,
    kept,
    lease_extended,
    release_claims,
    settlement,
)

__all__ = [
    "REMOVALS_MAX",
    "Disposition",
    "Plan",
    "Removal",
    "Selection",
    "Stamp",
    "Target",
    "bind",
    "claim",
    "end_claims",
    "grouped",
    "kept",
    "lane_conditions",
    "lease_extended",
    "leaving_out",
    "mark",
    "move",
    "origin_of",
    "purge_pending",
    "release_claims",
    "remove",
    "select",
    "settlement",
]
