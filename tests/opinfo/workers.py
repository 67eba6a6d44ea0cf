"""Tasks in processes of their own, so that a hang or a crash costs one call and not the run.

In: tasks. Out: for each task the outcomes of its calls, in the order in which tasks end. A process
that is silent for longer than the limit is killed; its task goes on after the call that hung.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from opinfo.cases import Task, cases_of
from opinfo.check import FAILED, KNOWN, Outcome, check
from opinfo.known import reason_of

__all__ = ["Settings", "outcomes"]

TASKS_A_PROCESS = 60
"""A process is replaced after so many: what torch and fuser remember of programs grows."""


FOR_SAMPLES = 300.0
"""Seconds for a process to start and for torch to make samples."""


@dataclass(frozen=True)
class Settings:
    """How calls are made."""

    device: str
    samples: int
    limit: float
    """Seconds without a word after which a call counts as hung."""
    dynamic: bool | None = None


def outcomes(
    tasks: Sequence[Task], settings: Settings, processes: int
) -> Iterator[tuple[Task, list[Outcome]]]:
    """Run all tasks in so many processes at once."""
    waiting = [_Job(task) for task in reversed(tasks)]
    workers = [_Worker(settings) for _ in range(min(processes, len(tasks)))]
    try:
        while True:
            for worker in workers:
                if worker.job is None and waiting:
                    worker.start(waiting.pop())
            busy = [worker for worker in workers if worker.job is not None]
            if not busy:
                return
            wait([worker.pipe for worker in busy], timeout=1.0)
            for worker in busy:
                if (job := worker.finished()) is not None:
                    yield job.task, job.found
    finally:
        for worker in workers:
            worker.stop()


@dataclass
class _Job:
    """A task and what is known of its calls so far."""

    task: Task
    found: list[Outcome] = field(default_factory=list)
    running: str = ""


class _Worker:
    """One process and the task that it is at."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.job: _Job | None = None
        self.begin()

    def begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, self.settings), daemon=True)
        self.process.start()
        other.close()
        self.left = TASKS_A_PROCESS

    def start(self, job: _Job) -> None:
        if self.left == 0:
            self.stop()
            self.begin()
        self.left -= 1
        self.job = job
        self.heard = time.monotonic()
        self.pipe.send((job.task, len(job.found)))

    def finished(self) -> _Job | None:
        """The task, once all its calls are made."""
        job = self.job
        assert job is not None
        try:
            while self.pipe.poll():
                self.heard = time.monotonic()
                kind, value = self.pipe.recv()
                if kind == "running":
                    job.running = value
                elif kind == "outcome":
                    job.found.append(value)
                else:
                    self.job = None
                    return job
        except (EOFError, OSError):
            return self.lost(job, f"the process ended with exit code {self.process.exitcode}")
        limit = self.settings.limit if job.running else FOR_SAMPLES
        if time.monotonic() - self.heard > limit:
            return self.lost(job, f"no result after {limit:.0f} s")
        return None

    def lost(self, job: _Job, why: str) -> _Job | None:
        """Note what the process was at, and go on after it in a new one."""
        self.stop()
        was_at_a_call = bool(job.running)
        job.found.append(Outcome(job.running or "samples", FAILED, why))
        job.running = ""
        self.begin()
        self.job = None
        if not was_at_a_call:
            return job
        self.start(job)
        return None

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Connection, settings: Settings) -> None:
    """The process: tasks come in with the number of calls to leave out, outcomes go out."""
    logging.getLogger("fuser").setLevel(logging.CRITICAL)
    torch._logging.set_logs(all=logging.CRITICAL)
    # Without its reader at the other end, nobody is left to work for.
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            task, skipped = pipe.recv()
            for name, outcome in _checked(task, settings, skipped):
                pipe.send(("outcome", outcome) if outcome is not None else ("running", name))
            pipe.send(("done", None))


def _checked(task: Task, settings: Settings, skipped: int) -> Iterator[tuple[str, Any]]:
    """The name of each call before it is made, then its outcome."""
    for position, case in enumerate(cases_of(task, settings.device, settings.samples)):
        if position < skipped:
            continue
        yield case.name, None
        try:
            outcome = check(case, settings.device, settings.dynamic)
            if outcome.status == FAILED and (reason := reason_of(task, case.name)):
                outcome = replace(outcome, status=KNOWN, detail=reason)
            yield case.name, outcome
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            yield case.name, Outcome(case.name, FAILED, f"cannot be compared: {text[:200]}")
