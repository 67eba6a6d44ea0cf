"""Which regions share a launch and why others do not, in words.

In: a plan. Out: lines of text.
"""

from __future__ import annotations

from collections.abc import Iterator

from fuser.dump.words import count_text, time_text
from fuser.ir.launch import LaunchReason
from fuser.ir.plan import FusionPlan

SHOWN_OTHERS = 4
"""Regions that are named among those which share a launch."""


def launches_title(plan: FusionPlan) -> str:
    """How many launches are shared, and what that is predicted to save."""
    if not plan.launches:
        return "no launch is shared"
    counts = count_text(len(plan.launches), "shared launch", "shared launches")
    saved = time_text(sum(launch.saved_us for launch in plan.launches))
    return f"{counts}, {saved} of predicted time saved"


def launch_lines(plan: FusionPlan) -> Iterator[str]:
    """A line for each shared launch."""
    for launch in plan.launches:
        saved = time_text(launch.saved_us)
        yield f"{launch.name}: {len(launch.regions)} regions, {saved} saved"


def alone(plan: FusionPlan) -> Iterator[tuple[LaunchReason, list[str]]]:
    """The regions with launches of their own, for each reason."""
    for reason in LaunchReason:
        found = [verdict.region for verdict in plan.launch_verdicts if verdict.reason is reason]
        if found and reason is not LaunchReason.SHARED:
            yield reason, found


def shares_text(plan: FusionPlan, region: str) -> str:
    """With whom a region shares its launch; nothing for one that has its own."""
    shared = plan.launch_of.get(region)
    if shared is None:
        return ""
    others = [name for name in shared.regions if name != region]
    more = len(others) - SHOWN_OTHERS
    named = ", ".join(others[:SHOWN_OTHERS])
    return f"shares {shared.name} with {named}{f' and {more} more' if more > 0 else ''}"
