"""The outcomes of a run as a file, whole after each task.

In: outcomes as they come. Out: JSON, and the same read back.
"""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import triton

from opinfo.cases import Task
from opinfo.check import FAILED, Outcome
from opinfo.workers import Settings

SCHEMA = 1


class Results:
    """Collects outcomes and keeps the file up to date."""

    def __init__(self, settings: Settings, output: str | None, resumes: bool) -> None:
        self.settings = settings
        self.output = Path(output) if output else None
        self.outcomes: dict[Task, list[Outcome]] = {}
        if resumes and self.output is not None and self.output.exists():
            kept = read(self.output.read_text(encoding="utf-8"))[1]
            self.outcomes = {t: found for t, found in kept.items() if not _has_failed(found)}

    def add(self, task: Task, found: Sequence[Outcome]) -> None:
        self.outcomes[task] = list(found)
        if self.output is not None:
            part = self.output.with_name(self.output.name + ".part")
            part.write_text(json.dumps(self.data()) + "\n", encoding="utf-8")
            os.replace(part, self.output)

    def data(self) -> dict[str, Any]:
        is_gpu = self.settings.device != "cpu"
        return {
            "schema": SCHEMA,
            "torch": torch.__version__,
            "triton": triton.__version__,
            "python": platform.python_version(),
            "device": torch.cuda.get_device_name() if is_gpu else "Triton's interpreter",
            "samples": self.settings.samples,
            "dynamic": bool(self.settings.dynamic),
            "rows": [
                {**asdict(task), "outcomes": [asdict(outcome) for outcome in found]}
                for task, found in sorted(self.outcomes.items())
            ],
        }

    def summary(self) -> str:
        counts = Counter(o.status for found in self.outcomes.values() for o in found)
        text = ", ".join(f"{number} {status}" for status, number in counts.most_common())
        return f"{sum(counts.values())} calls: {text}"


def _has_failed(found: Sequence[Outcome]) -> bool:
    return any(outcome.status == FAILED for outcome in found)


def read(text: str) -> tuple[dict[str, Any], dict[Task, list[Outcome]]]:
    """A file's facts about its run, and its outcomes. Raises ValueError for another file."""
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError("no outcomes of this version are in the file")
    rows = data.pop("rows")
    found = {
        Task(row["operator"], row["dtype"]): [
            replace(Outcome(**item), calls=tuple(item["calls"]), products=tuple(item["products"]))
            for item in row["outcomes"]
        ]
        for row in rows
    }
    return data, found
