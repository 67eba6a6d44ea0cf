"""Loggers: levels from FUSER_LOGS, and warnings that are given once."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from fuser import config, log
from fuser.errors import InvalidArgument


@pytest.fixture(autouse=True)
def _logs_off(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("FUSER_LOGS", raising=False)
    yield
    monkeypatch.delenv("FUSER_LOGS", raising=False)
    log.apply_settings()


def test_signs_choose_the_level() -> None:
    assert log.parse_levels("+passes.partition, codegen,-runtime,,fuser.ir") == {
        "passes.partition": logging.DEBUG,
        "codegen": logging.INFO,
        "runtime": logging.ERROR,
        "ir": logging.INFO,
    }


@pytest.mark.parametrize("text", ["++passes", "+", "a b", "passes;codegen"])
def test_text_that_names_no_module_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="FUSER_LOGS"):
        log.parse_levels(text)


def test_levels_follow_the_setting_and_go_back(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = log.get_logger("passes.example")
    assert not quiet.isEnabledFor(logging.INFO)
    with config.scope(logs="+passes"):
        logger = log.get_logger("passes.example")
        assert logger is quiet
        logger.debug("three regions")
        assert not log.get_logger("codegen").isEnabledFor(logging.INFO)
    assert "DEBUG fuser.passes.example: three regions" in capsys.readouterr().err
    log.apply_settings()
    assert not quiet.isEnabledFor(logging.INFO)
    assert not logging.getLogger("fuser").handlers


def test_all_names_every_module() -> None:
    with config.scope(logs="all"):
        assert log.get_logger("runtime.cache").isEnabledFor(logging.INFO)


def test_a_warning_is_given_once_for_each_key(caplog: pytest.LogCaptureFixture) -> None:
    log.warn_once(("test_log", 1), "first")
    log.warn_once(("test_log", 1), "first again")
    log.warn_once(("test_log", 2), "second")
    assert [record.message for record in caplog.records] == ["first", "second"]
