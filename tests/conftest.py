"""What every test gets: fixed seeds, checked invariants, a cache of its own, and golden files.

Settings are environment variables of this process, set for the session and taken back after it.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

GOLDEN = Path(__file__).parent / "golden"
Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the files under tests/golden instead of comparing with them",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def _settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Invariants are checked between passes; the user's own cache is left alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUSER_CHECK", "1")
        patch.setenv("FUSER_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _seeds(request: pytest.FixtureRequest) -> None:
    """Random numbers depend on the test's name and on nothing that ran before it."""
    seed = zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(name, text)`: the text is what `tests/golden/<name>` holds."""
    is_update = bool(request.config.getoption("--update-golden"))

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if is_update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        how = f"pytest {request.node.nodeid} --update-golden"
        if not path.exists():
            pytest.fail(f"tests/golden/{name} does not exist; make it with '{how}' and read it")
        expected = path.read_text()
        assert text == expected, f"tests/golden/{name} differs; if that is meant: {how}"

    return check
