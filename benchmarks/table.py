"""`python -m benchmarks.table FILE`: the figures of one run as a Markdown table.

In: the JSON that `python -m benchmarks` wrote. Out: on standard output, milliseconds and, in
parentheses, the fraction of the time that the bytes take at the run's own copy rate.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def table(result: dict[str, Any]) -> str:
    """The rows of a result, one workload a line, under a line that says where they come from."""
    versions = result["environment"]["versions"]
    gpu = result["environment"]["gpus"][0]["name"]
    rate = result["copy_bytes_per_second"] / 1e12
    labels = [key for key in result["rows"][0] if key.endswith("_ms") and key != "floor_ms"]
    names = [label.removesuffix("_ms").replace("_", " ") for label in labels]
    lines = [
        f"{gpu}, torch {versions['torch']}, Triton {versions['triton']}, commit {result['commit']},"
        f" {result['date']}; a copy moved {rate:.2f} TB/s in the same run.",
        "",
        "| workload | floor | " + " | ".join(names) + " |",
        "|---" * (len(labels) + 2) + "|",
    ]
    for row in result["rows"]:
        floor = row["floor_ms"]
        cells = [f"{row[label]:.3f} ({floor / row[label]:.2f})" for label in labels]
        lines.append(f"| {row['name']} | {floor:.3f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(words: list[str]) -> int:
    if len(words) != 1 or not Path(words[0]).is_file():
        print("usage: python -m benchmarks.table FILE", file=sys.stderr)
        return 2
    print(table(json.loads(Path(words[0]).read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
