"""`fuserc env`: this machine, for a bug report."""

from __future__ import annotations

import argparse

SUMMARY = "describe this machine, for a bug report"

HELP = """\
Print the versions, the GPUs and the settings in force, with what each setting does. Paste it into a
bug report."""


def add_options(_: argparse.ArgumentParser) -> None:
    """There are none."""


def run(_: argparse.Namespace) -> int:
    from fuser.env_report import report

    print(report())
    return 0
