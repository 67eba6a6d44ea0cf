"""Load, tune, launch: everything that happens to a kernel after its source is written."""
