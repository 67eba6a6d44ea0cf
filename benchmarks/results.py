"""Result files: where figures come from, one row for each thing measured, and a summary.

In: rows as they are finished. Out: a JSON file that is complete after each of them, so that a run
that is stopped keeps what it had; and such files read back.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.names import SUITES
from fuser.errors import UsageError

SCHEMA = 2
COMMAND = "python -m benchmarks"

Row = dict[str, Any]
Summarise = Callable[[Sequence[Row]], dict[str, Any]]


class Results:
    """Collects the rows of one run and keeps its file up to date."""

    def __init__(
        self, suite: str, header: dict[str, Any], summarise: Summarise, output: str | None = None
    ) -> None:
        self.header = {"schema": SCHEMA, "suite": suite, **header}
        self.summarise = summarise
        self.output = Path(output) if output else None
        self.rows: list[Row] = []
        self.save()

    def add(self, *rows: Row) -> None:
        self.rows += rows
        self.save()

    @property
    def data(self) -> dict[str, Any]:
        return {**self.header, "summary": self.summarise(self.rows), "rows": self.rows}

    def save(self) -> None:
        """Replace the file as a whole: a reader never finds half of one."""
        if self.output is None:
            return
        part = self.output.with_name(self.output.name + ".part")
        try:
            part.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")
            os.replace(part, self.output)
        except OSError as error:
            raise _unusable(f"cannot write {self.output}: {error.strerror}.") from error


def origin(commit: str = "") -> dict[str, Any]:
    """Date, commit and machine of a run that starts now."""
    from fuser.env_report import environment

    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit or _commit(),
        "environment": _without_folders(json.loads(json.dumps(environment(), default=str))),
    }


def _without_folders(facts: dict[str, Any]) -> dict[str, Any]:
    """Without the folder of caches: each run has one of its own, which is empty and then gone."""
    return {**facts, "knobs": [knob for knob in facts["knobs"] if knob["name"] != "cache_dir"]}


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty=+changes"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return found.stdout.strip() or "unknown"


def read(path: str) -> dict[str, Any]:
    """A result file; a usage error says why it cannot be used."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _unusable(f"{path}: there is no such file.") from None
    except OSError as error:
        raise _unusable(f"{path}: {error.strerror}.") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise _unusable(f"{path}: this is not JSON.") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or data["suite"] not in SUITES:
        raise _unusable(
            f"{path}: not a result of this version's {', '.join(SUITES)}; measure again."
        )
    return data


def source_line(data: dict[str, Any]) -> str:
    """Where the figures of a result come from, for tables and charts."""
    environment = data["environment"]
    versions = environment["versions"]
    gpus = environment["gpus"]
    parts = (
        gpus[0]["name"] if gpus else "no GPU",
        f"torch {versions['torch']}",
        f"Triton {versions['triton']}",
        f"commit {data['commit']}",
        data["date"],
    )
    return ", ".join(parts)


def error_text(error: BaseException) -> str:
    """An exception for a row: its kind and the first lines of its text."""
    lines = [line for line in str(error).splitlines() if line.strip()][:6]
    return f"{type(error).__name__}: {' | '.join(lines)}"[:600]


def _unusable(message: str) -> UsageError:
    return UsageError(message=message, command=COMMAND)
