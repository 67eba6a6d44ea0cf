"""The disk cache: what is served is what was stored, by this user, whole."""

from __future__ import annotations

import errno
import logging
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import triton

from fuser import config, log
from fuser.runtime import cache
from fuser.runtime.cache import CheckedCacheManager, private_folder, store_source, triton_cache

ROOT = Path(__file__).parents[2]
IS_ADMINISTRATOR = os.geteuid() == 0


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(log, "_warned", set())
    with config.scope(cache_dir=tmp_path / "cache"):
        yield tmp_path / "cache"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# **** sources ****


def test_a_source_is_stored_once_and_closed_to_others(root: Path) -> None:
    path = store_source("add", "x = 1\n")
    assert path.read_text() == "x = 1\n"
    assert path.is_relative_to(root)
    assert (mode(path), mode(path.parent), mode(root)) == (0o600, 0o700, 0o700)
    written = path.stat().st_mtime_ns
    assert store_source("add", "x = 1\n") == path
    assert path.stat().st_mtime_ns == written
    assert store_source("add", "x = 2\n") != path


def test_a_damaged_source_is_written_again() -> None:
    path = store_source("add", "x = 1\n")
    path.write_text("x = 1")
    assert store_source("add", "x = 1\n") == path
    assert path.read_text() == "x = 1\n"


def test_a_file_that_others_can_write_is_not_read() -> None:
    path = store_source("add", "x = 1\n")
    path.chmod(0o666)
    assert cache.read_trusted(path) is None
    assert store_source("add", "x = 1\n") == path
    assert mode(path) == 0o600


@pytest.mark.skipif(not IS_ADMINISTRATOR, reason="only the administrator can give files away")
def test_a_file_of_another_user_is_not_read() -> None:
    path = store_source("add", "x = 1\n")
    os.chown(path, 12345, 12345)
    assert cache.read_trusted(path) is None
    store_source("add", "x = 1\n")
    assert path.stat().st_uid == os.geteuid()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    path = store_source("add", "x = 1\n")
    elsewhere = tmp_path / "elsewhere.py"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert cache.read_trusted(path) is None
    store_source("add", "x = 1\n")
    assert not path.is_symlink()


def test_a_folder_that_others_can_write_is_not_used(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root.mkdir()
    root.chmod(0o777)
    with caplog.at_level(logging.WARNING, "fuser"):
        path = store_source("add", "x = 1\n")
        assert store_source("add", "x = 1\n") == path
    assert path.is_relative_to(private_folder("sources"))
    assert mode(path.parent) == 0o700
    (record,) = caplog.records
    assert str(root) in record.message


@pytest.mark.parametrize(
    "above", [0o777, pytest.param(0o1777, id="sticky")], ids=lambda value: oct(value)
)
def test_folders_above_count_too(tmp_path: Path, above: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(above)
    with config.scope(cache_dir=shared / "mine"):
        path = store_source("add", "x = 1\n")
    # In a sticky folder, as /tmp is, others cannot rename what is mine.
    assert path.is_relative_to(shared) == (above == 0o1777)


def test_a_place_that_cannot_be_a_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with config.scope(cache_dir=tmp_path / "file" / "cache"):
        path = store_source("add", "x = 1\n")
    assert path.read_text() == "x = 1\n"
    assert "FUSER_CACHE_DIR" in caplog.text


def test_a_read_only_folder(root: Path) -> None:
    stored = store_source("add", "x = 1\n")
    stored.parent.chmod(0o500)
    if os.access(stored.parent, os.W_OK):
        pytest.skip("this user can write everywhere")
    assert store_source("add", "x = 1\n") == stored
    assert store_source("add", "x = 2\n").is_relative_to(private_folder("sources"))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_takes_nothing(root: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = store_source("add", "x = 1\n")
    refuse_writes_under(root, code, monkeypatch)
    assert store_source("add", "x = 1\n") == stored
    path = store_source("add", "x = 2\n")
    assert path.read_text() == "x = 2\n"
    assert path.is_relative_to(private_folder("sources"))
    assert sorted(p.name for p in stored.parent.iterdir()) == [stored.name]


def refuse_writes_under(root: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def refusing(source: str, target: Path) -> None:
        if Path(target).is_relative_to(root):
            raise OSError(code, os.strerror(code))
        replace(source, target)

    monkeypatch.setattr(os, "replace", refusing)


WRITER = """
import sys
from fuser.runtime.cache import CheckedCacheManager, store_source, triton_cache
sys.stdin.readline()
for number in range(200):
    text = f"x = {number % 20}\\n" * 500
    path = store_source("kernel", text)
    assert path.read_text() == text, path
    with triton_cache():
        manager = CheckedCacheManager("KEY")
        name = f"{number % 20}.bin"
        group = {name: manager.put(text.encode(), name)}
        manager.put_group("all.json", group)
        found = manager.get_file(name)
        assert found is None or open(found).read() == text
print("done")
"""


def test_two_processes_write_the_same_files(root: Path) -> None:
    command = [
        *("env", f"PYTHONPATH={ROOT}", f"FUSER_CACHE_DIR={root}"),
        *(sys.executable, "-c", WRITER),
    ]
    writers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    assert [writer.communicate(timeout=60)[0] for writer in writers] == ["done\n", "done\n"]
    sources = sorted((root / "sources").iterdir())
    assert len(sources) == 20
    with triton_cache():
        manager = CheckedCacheManager("KEY")
        assert all(manager.get_file(f"{number}.bin") for number in range(20))
    assert not [p for p in root.rglob("*") if p.name.startswith(".writing")]


# **** Triton's files ****


@pytest.fixture
def manager() -> Iterator[CheckedCacheManager]:
    with triton_cache():
        yield CheckedCacheManager("KEY")


def test_what_was_put_is_found(manager: CheckedCacheManager, root: Path) -> None:
    path = manager.put(b"\x7fELF", "kernel.cubin")
    manager.put_group("kernel.json", {"kernel.cubin": path})
    assert Path(path).is_relative_to(root / "triton" / "KEY")
    assert mode(Path(path)) == 0o600
    assert manager.get_file("kernel.cubin") == path
    assert manager.get_group("kernel.json") == {"kernel.cubin": path}
    assert manager.get_file("other") is None
    assert manager.get_group("other") is None


@pytest.mark.parametrize("victim", ["kernel.cubin", "kernel.cubin.sha256", "__grp__kernel.json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "remove", "open to others"])
def test_damage_is_a_miss(manager: CheckedCacheManager, victim: str, damage: str) -> None:
    path = Path(manager.put(b"\x7fELF" * 100, "kernel.cubin"))
    manager.put_group("kernel.json", {"kernel.cubin": str(path)})
    file = path.parent / victim
    data = file.read_bytes()
    match damage:
        case "cut":
            file.write_bytes(data[:-1])
        case "flip":
            file.write_bytes(bytes([data[0] ^ 0x80]) + data[1:])
        case "remove":
            file.unlink()
        case _:
            file.chmod(0o666)
    assert manager.get_group("kernel.json") is None
    manager.put(b"\x7fELF" * 100, "kernel.cubin")
    manager.put_group("kernel.json", {"kernel.cubin": str(path)})
    assert manager.get_group("kernel.json") == {"kernel.cubin": str(path)}


def test_a_cache_can_be_moved(manager: CheckedCacheManager, root: Path) -> None:
    path = manager.put(b"data", "kernel.cubin")
    manager.put_group("kernel.json", {"kernel.cubin": path})
    moved = root.with_name("moved")
    root.rename(moved)
    with config.scope(cache_dir=moved):
        manager.cache_dir = str(moved / "triton" / "KEY")
        assert manager.get_group("kernel.json") == {
            "kernel.cubin": str(moved / "triton" / "KEY" / "kernel.cubin")
        }


def test_a_full_disk_does_not_stop_a_compilation(
    manager: CheckedCacheManager, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_writes_under(root, errno.ENOSPC, monkeypatch)
    path = manager.put("text", "kernel.ttir")
    assert Path(path).read_text() == "text"
    assert Path(path).is_relative_to(private_folder("triton"))


def test_dumps_and_overrides_have_no_digests(tmp_path: Path) -> None:
    with triton.knobs.cache.scope():
        triton.knobs.cache.dump_dir = str(tmp_path)
        triton.knobs.cache.override_dir = str(tmp_path)
        CheckedCacheManager("KEY", dump=True).put("text", "kernel.ttir")
        assert [p.name for p in (tmp_path / "KEY").iterdir()] == ["kernel.ttir"]
        assert CheckedCacheManager("KEY", override=True).get_file("kernel.ttir") is not None


def test_only_fusers_compilations_use_it(root: Path) -> None:
    before = (triton.knobs.cache.dir, triton.knobs.cache.manager_class)
    with triton_cache():
        assert triton.knobs.cache.dir == str(root / "triton")
        assert triton.knobs.cache.manager_class is CheckedCacheManager
        with triton_cache():
            pass
        assert triton.knobs.cache.manager_class is CheckedCacheManager
    assert (triton.knobs.cache.dir, triton.knobs.cache.manager_class) == before


def test_overlapping_compilations_of_two_threads(root: Path) -> None:
    before = triton.knobs.cache.dir
    entered, leave = threading.Event(), threading.Event()

    def compile_slowly() -> None:
        with triton_cache():
            entered.set()
            leave.wait(10)

    with triton_cache():
        thread = threading.Thread(target=compile_slowly)
        thread.start()
        entered.wait(10)
    assert triton.knobs.cache.manager_class is CheckedCacheManager
    leave.set()
    thread.join()
    assert triton.knobs.cache.dir == before
    assert triton.knobs.cache.manager_class is not CheckedCacheManager
