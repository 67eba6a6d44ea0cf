"""Settings: where a value comes from, what is refused, and which thread sees an override."""

from __future__ import annotations

import contextvars
import threading
from pathlib import Path

import pytest

from fuser import config
from fuser.errors import InvalidArgument


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for knob in config.KNOBS:
        monkeypatch.delenv(knob.env, raising=False)


def test_defaults_hold_in_an_empty_environment() -> None:
    assert config.cache_dir() == Path.home() / ".cache" / "fuser"
    assert config.check() is False
    assert config.dump_dir() is None
    assert config.logs() == ""
    assert config.triton_interpret() is False
    assert {setting.origin for setting in config.table()} == {"default"}


def test_the_environment_is_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSER_DUMP", "~/dump")
    monkeypatch.setenv("FUSER_LOGS", "+passes")
    assert config.dump_dir() == Path.home() / "dump"
    assert config.logs() == "+passes"
    monkeypatch.setenv("FUSER_DUMP", "")
    assert config.dump_dir() is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("TRUE", True), ("on", True), ("0", False), ("no", False), (" ", False)],
)
def test_a_switch_accepts_the_usual_words(
    monkeypatch: pytest.MonkeyPatch, text: str, value: bool
) -> None:
    monkeypatch.setenv("FUSER_CHECK", text)
    assert config.check() is value


def test_a_switch_with_another_word_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSER_CHECK", "maybe")
    with pytest.raises(InvalidArgument, match="FUSER_CHECK='maybe'"):
        config.check()


def test_a_scope_wins_over_the_environment_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSER_CHECK", "0")
    with config.scope(check=True, cache_dir=Path("outer")):
        with config.scope(cache_dir="inner"):
            assert config.cache_dir() == Path("inner")
            assert config.check() is True
            origins = {setting.knob.name: setting.origin for setting in config.table()}
            assert origins["check"] == origins["cache_dir"] == "scope"
        assert config.cache_dir() == Path("outer")
    assert config.check() is False


def test_a_scope_ends_when_its_body_raises() -> None:
    with pytest.raises(KeyError), config.scope(check=True):
        raise KeyError
    assert config.check() is False


def test_a_scope_can_turn_a_dump_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSER_DUMP", "somewhere")
    with config.scope(dump_dir=None):
        assert config.dump_dir() is None


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ({"chek": True}, "Did you mean 'check'"),
        ({"check": "yes"}, "a value of type bool"),
        ({"cache_dir": None}, "a value of type Path"),
        ({"triton_interpret": True}, "can be overridden"),
    ],
)
def test_a_wrong_override_is_refused(override: dict[str, config.Value], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text), config.scope(**override):
        pass


def test_a_scope_belongs_to_its_thread() -> None:
    seen: dict[str, bool] = {}

    def look(name: str) -> None:
        seen[name] = config.check()

    with config.scope(check=True):
        context = contextvars.copy_context()
        threads = [
            threading.Thread(target=contextvars.Context().run, args=(look, "empty")),
            threading.Thread(target=context.run, args=(look, "copied")),
        ]
        for thread in threads:
            thread.start()
            thread.join()
    assert seen == {"empty": False, "copied": True}


def test_only_keyed_settings_change_the_key_of_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    before = config.keyed_values()
    with config.scope(check=True, logs="all"):
        assert config.keyed_values() == before
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert config.keyed_values() == (("triton_interpret", "True"),)


def test_every_row_is_documented_and_named_once() -> None:
    assert all(knob.doc.endswith(".") for knob in config.KNOBS)
    assert len({knob.name for knob in config.KNOBS}) == len(config.KNOBS)
    assert len({knob.env for knob in config.KNOBS}) == len(config.KNOBS)
    for knob in config.KNOBS:
        assert knob.foreign or knob.env.startswith("FUSER_")
