"""The layout: what the wheel ships, the linked folders, and rules that hold for every file.

`passes/`, `codegen/` and `templates/` stand at the top of the repository and are imported as
`fuser.passes` and so on: through links in a checkout, through a mapping in a wheel. The two must
agree, and no module may exist under two names.
"""

from __future__ import annotations

import ast
import fnmatch
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINKED = ("passes", "codegen", "templates")
SHIPPED = ("fuser", *LINKED)
LONGEST_FILE = 400


def read_project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def files_under(folders: tuple[str, ...], *suffixes: str) -> list[Path]:
    """Files of the given folders, each once: the links inside `fuser/` are not followed."""
    found = []
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            inside_link = any((ROOT / "fuser" / name) in path.parents for name in LINKED)
            if path.is_file() and path.suffix in suffixes and not inside_link:
                found.append(path)
    return found


def packages_on_disk() -> set[str]:
    packages = set()
    for path in files_under(SHIPPED, ".py"):
        if path.name == "__init__.py":
            parts = path.parent.relative_to(ROOT).parts
            packages.add(".".join(parts if parts[0] == "fuser" else ("fuser", *parts)))
    return packages


def environment_reads(source: str) -> list[int]:
    """Lines of a module that reach for the process environment."""
    names = {"environ", "environb", "getenv", "putenv", "unsetenv"}
    lines = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in names:
                lines.append(node.lineno)
            case ast.ImportFrom(module="os", names=aliases) if names & {a.name for a in aliases}:
                lines.append(node.lineno)
    return lines


def test_the_packages_listed_are_the_packages_on_disk() -> None:
    listed = read_project()["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(packages_on_disk())
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("name", LINKED)
def test_a_linked_folder_is_reached_by_a_relative_link_and_by_the_mapping(name: str) -> None:
    link = ROOT / "fuser" / name
    assert link.is_symlink()
    assert link.readlink().as_posix() == f"../{name}"
    assert (ROOT / name / "__init__.py").is_file()
    assert not (ROOT / name).is_symlink()
    assert read_project()["tool"]["setuptools"]["package-dir"][f"fuser.{name}"] == name


def test_every_folder_with_modules_is_a_package() -> None:
    # A folder without __init__.py can be imported from a checkout and is missing from the wheel.
    folders = {path.parent for path in files_under(SHIPPED, ".py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_every_template_is_package_data() -> None:
    patterns = read_project()["tool"]["setuptools"]["package-data"]["fuser.templates"]
    folder = ROOT / "templates"
    forgotten = [
        path.relative_to(folder).as_posix()
        for path in files_under(("templates",), ".jinja")
        if not any(
            fnmatch.fnmatch(path.relative_to(folder).as_posix(), pattern)
            and path.relative_to(folder).as_posix().count("/") == pattern.count("/")
            for pattern in patterns
        )
    ]
    assert forgotten == []


def test_no_module_exists_under_a_second_name(tmp_path: Path) -> None:
    program = (
        "import sys, fuser, fuser.passes, fuser.codegen, fuser.templates\n"
        f"top = sorted(set(sys.modules) & set({LINKED!r}))\n"
        "files = [m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'fuser']\n"
        "real = [__import__('os').path.realpath(f) for f in files if f]\n"
        "twice = sorted(f for f in set(real) if real.count(f) > 1)\n"
        "sys.exit(f'top-level: {top}, loaded twice: {twice}' if top or twice else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_only_config_reads_the_environment() -> None:
    readers = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in files_under(SHIPPED, ".py")
        if path != ROOT / "fuser" / "config.py"
        for line in environment_reads(path.read_text(encoding="utf-8"))
    }
    assert readers == set()


@pytest.mark.parametrize(
    "source",
    ["import os\nos.environ['A']", "import os\nos.getenv('A')", "\nfrom os import environ"],
)
def test_a_read_of_the_environment_is_noticed(source: str) -> None:
    assert environment_reads(source) == [2]


def test_no_file_is_too_long() -> None:
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in files_under((*SHIPPED, "tests"), ".py", ".jinja")
    }
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        path.relative_to(ROOT).as_posix()
        for path in files_under(SHIPPED, ".py")
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []
