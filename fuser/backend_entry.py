"""What `torch.compile(model, backend="fuser")` finds: the entry point names this backend.

One instance serves all models; each takes its options from
`torch.compile(..., options={"precision": "eager"})`.
"""

from __future__ import annotations

from fuser.api import new_backend

fuser = new_backend()
