"""Launches that several regions share, and why a region shares its launch or does not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class LaunchReason(Enum):
    """Why a region has a launch of its own or not. The value is what a person reads."""

    SHARED = "shares a launch with kernels that do not wait for each other"
    LONG = "runs so long that the time of a launch does not matter"
    PRODUCT = "no other product of the same matrix can run in the same launch"
    NO_OTHER = "no other short kernel can run at the same time"
    TOO_MANY_ARGUMENTS = "a shared launch would take more arguments than the limit"
    TOO_MANY_OPS = "a shared kernel would be longer than the limit"
    NO_GAIN = "sharing a launch is not predicted to save time"
    PEAK_MEMORY = "sharing a launch would hold more memory at once than eager does"
    NOT_COMPILED = "the compiler found no shared kernel that does without spilling registers"


@dataclass(frozen=True, slots=True)
class SharedLaunch:
    """Regions that run at once: each kernel of the launch has a part for each of them.

    `regions` are in running order. `saved_us` is the predicted time that sharing saves.
    """

    name: str
    regions: tuple[str, ...]
    saved_us: float = 0.0


@dataclass(frozen=True, slots=True)
class LaunchVerdict:
    """The decision on one region's launch."""

    region: str
    reason: LaunchReason
    detail: str = ""

    @property
    def text(self) -> str:
        return f"{self.reason.value} ({self.detail})" if self.detail else self.reason.value
