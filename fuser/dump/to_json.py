"""A plan as JSON text, for tools and for comparing two plans, and back.

In: a plan, and the kernels of its regions once they are generated; or JSON text. Out: text in a
fixed order, in which nothing varies from run to run except the passes' `ms`; or the record that it
holds. `fuser.dump.record` defines the fields.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fuser.dump.facts import NOT_COMPILED, CompiledKernels
from fuser.dump.record import Peaks, PlanRecord
from fuser.dump.recording import record_of
from fuser.errors import InvalidPlan
from fuser.ir.kernel import RegionKernels
from fuser.ir.plan import FusionPlan


def to_json(
    plan: FusionPlan,
    kernels: Sequence[RegionKernels] = (),
    resources: CompiledKernels = NOT_COMPILED,
    peaks: Peaks | None = None,
) -> str:
    """The plan as JSON text that ends with a newline."""
    return dumps(record_of(plan, kernels, resources, peaks))


def to_dict(
    plan: FusionPlan,
    kernels: Sequence[RegionKernels] = (),
    resources: CompiledKernels = NOT_COMPILED,
    peaks: Peaks | None = None,
) -> dict[str, Any]:
    """The plan as nested plain data; every op is in one region or in `opaque`."""
    return record_of(plan, kernels, resources, peaks).to_dict()


def dumps(record: PlanRecord) -> str:
    """A record as JSON text that ends with a newline."""
    return json.dumps(record.to_dict(), indent=2) + "\n"


def loads(text: str) -> PlanRecord:
    """The record in a JSON text; raises `InvalidPlan`."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise InvalidPlan(reason=f"this is not JSON: {error}.") from error
    return PlanRecord.from_dict(data)


def load(path: str | os.PathLike[str]) -> PlanRecord:
    """The record in a file; raises `InvalidPlan` that names the file."""
    try:
        return loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        reason = f"the plan cannot be read: {error.strerror}."
        raise InvalidPlan(reason=reason, location=str(path)) from error
    except UnicodeDecodeError as error:
        raise InvalidPlan(reason="this is not a text.", location=str(path)) from error
    except InvalidPlan as error:
        reason = f"{error.fields['location']}{error.fields['reason']}"
        raise InvalidPlan(reason=reason, location=str(path)) from error
