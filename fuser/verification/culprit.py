"""What a search for a fault finds."""

from __future__ import annotations

from dataclasses import dataclass

from fuser.numerics import Comparison


@dataclass(frozen=True, slots=True)
class Culprit:
    """The first place where a compiled program differs from the unfused one.

    `stage` is the step of the compiler after which it does: `capture`, `import`, the name of a
    pass, `kernel` or `host program`. `comparison` is None where the step raised an error instead.
    """

    stage: str
    graph: str
    op: str
    kind: str
    source: str
    region: str = ""
    comparison: Comparison | None = None
    detail: str = ""

    def __str__(self) -> str:
        lines = [f"stage   {self.stage}"]
        lines += [f"graph   {self.graph}"] if self.graph else []
        lines += [f"region  {self.region}"] if self.region else []
        lines.append(f"op      {self.op} ({self.kind})" if self.op else "op      not known")
        lines += [f"source  {self.source}"] if self.source else []
        found = self.comparison
        if found is not None:
            lines.append(
                f"value   {found.fused_value!r} where eager has {found.eager_value!r} and float64 "
                f"{found.reference_value!r}, at {list(found.index)}: {found.reason}"
            )
        lines += [f"note    {self.detail}"] if self.detail else []
        return "\n".join(lines)
