"""The page of a plan in a real browser: it draws, answers clicks and keys, and asks for nothing.

Needs Chromium with its driver and the package selenium; skipped where one of them is missing.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fuser.dump.to_html import to_html
from fuser.ir.kernel import Resources
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Cost, Needs
from fuser.passes.pipeline import plan_graph
from support.plans import Sketch, kernels, small_plan

pytest.importorskip("plotly", reason="needs plotly: pip install 'fuser-compiler[html]'")
webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1440,1000",
)
SECONDS = 30
RESOURCES = {"row_kernel": Resources(40, 0, 64)}
HOSTILE = "</script><img src=x onerror=\"document.title='taken'\">"

Driver = Any


def program(*names: str) -> str:
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"needs a browser: none of {', '.join(names)} is installed")
    return found


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    options = webdriver.ChromeOptions()
    options.binary_location = program("chromium", "chromium-browser", "google-chrome")
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(program("chromedriver"))
    browser = webdriver.Chrome(options=options, service=service)
    try:
        yield browser
    finally:
        browser.quit()


@pytest.fixture
def page(driver: Driver, tmp_path: Path) -> Driver:
    generated = (kernels("region_1", "row_kernel"),)
    return opened(driver, tmp_path, to_html(noted_plan(), generated, RESOURCES))


def noted_plan() -> FusionPlan:
    """The small plan with costs that no change of the cost model moves, and a note."""
    plan = small_plan()
    first, second = plan.regions
    cost = Cost(
        bytes=1_570_000, unfused_bytes=3_670_000, cached_bytes=6_000_000, flops=3_000_000,
        needs=Needs(38, 32, 12, 0.75), time_us=2.9, unfused_us=10.9,
    )  # fmt: skip
    second = dataclasses.replace(second, cost=cost, notes=(f"halved, {HOSTILE}",))
    return dataclasses.replace(plan, regions=(first, second))


def opened(driver: Driver, folder: Path, html: str) -> Driver:
    path = folder / "plan.html"
    path.write_text(html, encoding="utf-8")
    driver.get("about:blank")
    for kind in ("browser", "performance"):
        driver.get_log(kind)
    driver.get(path.as_uri())
    wait(driver, "return document.body.dataset.ready === 'true'")
    return driver


def wait(driver: Driver, script: str, *arguments: object) -> Any:
    return WebDriverWait(driver, SECONDS).until(lambda d: d.execute_script(script, *arguments))


def one(driver: Driver, selector: str) -> Any:
    return driver.find_element(By.CSS_SELECTOR, selector)


def shown(driver: Driver) -> str:
    text: str = one(driver, "#detail article:not([hidden])").text
    return text


def wait_for_scale(driver: Driver, low: float, high: float) -> None:
    script = "const s = +document.getElementById('canvas').dataset.scale;"
    wait(driver, f"{script} return arguments[0] <= s && s <= arguments[1]", low, high)


def scale(driver: Driver) -> float:
    return float(one(driver, "#canvas").get_attribute("data-scale"))


def left_edge(driver: Driver) -> float:
    script = "return document.getElementById('canvas')._fullLayout.xaxis.range[0]"
    return float(driver.execute_script(script))


def in_box(driver: Driver, number: int, down: float = 20) -> tuple[int, int]:
    """A point in a box of the graph, measured from the middle of the canvas."""
    x, y = driver.execute_script(
        """
        const canvas = document.getElementById("canvas"), { xaxis, yaxis } = canvas._fullLayout;
        const [left, top, width] = canvas.layout.meta.boxes[arguments[0]];
        return [xaxis.d2p(left + width / 2) - canvas.clientWidth / 2,
                yaxis.d2p(top + arguments[1]) - canvas.clientHeight / 2];
        """,
        number,
        down,
    )
    return round(x), round(y)


def click_box(driver: Driver, number: int) -> None:
    x, y = in_box(driver, number)
    ActionChains(driver).move_to_element_with_offset(one(driver, "#canvas"), x, y).click().perform()


def test_the_page_loads_without_an_error_or_a_request(page: Driver) -> None:
    assert page.get_log("browser") == []
    sent = [item["message"] for item in page.get_log("performance")]
    requests = [text for text in sent if '"Network.requestWillBeSent"' in text]
    assert requests
    assert [text for text in requests if '"url":"http' in text or '"url":"ws' in text] == []
    assert "sm_90" in page.title
    assert len(page.find_elements(By.CSS_SELECTOR, "#canvas .shapelayer path")) == 3


def test_a_click_on_a_region_shows_its_ops_lines_and_source(page: Driver) -> None:
    assert "Nothing selected" in shown(page)
    click_box(page, 2)
    wait(page, "return !document.getElementById('step-2').hidden")
    text = shown(page)
    for words in ("region_1", "tanh", "y = tanh(x)", "model.py:13", "# source of row_kernel"):
        assert words in text
    for words in ("1.57 MB", "6.00 MB", "38 predicted, 40 compiled, 0 spilled", "75% predicted"):
        assert words in text
    for words in ("32 B predicted, 64 B compiled", "RBLOCK=", f"halved, {HOSTILE}"):
        assert words in text
    for words in ("bound by", "given to the graph", "Not fused with its neighbours"):
        assert words in text
    selected = page.find_elements(By.CSS_SELECTOR, "#steps tr[aria-selected=true]")
    assert [row.get_attribute("data-step") for row in selected] == ["2"]
    click_box(page, 1)
    assert "aten.mm.default" in shown(page)
    assert page.get_log("browser") == []


def test_the_wheel_the_buttons_and_the_keys_zoom(page: Driver) -> None:
    first = scale(page)
    one(page, "[data-view=in]").click()
    wait_for_scale(page, 1.3 * first, 1.5 * first)
    one(page, "[data-view=out]").click()
    wait_for_scale(page, 0.98 * first, 1.02 * first)
    one(page, "#canvas").send_keys("+")
    wait_for_scale(page, 1.3 * first, 1.5 * first)
    one(page, "#canvas").send_keys("0")
    wait_for_scale(page, 0.9 * first, 1.1 * first)
    first = scale(page)
    x, y = in_box(page, 1)
    origin = ScrollOrigin.from_element(one(page, "#canvas"), x, y)
    ActionChains(page).scroll_from_origin(origin, 0, -300).perform()
    wait_for_scale(page, 1.05 * first, 3 * first)
    sizes = page.execute_script(
        "return document.getElementById('canvas').data.filter(t => t.mode === 'text')"
        ".map(t => t.textfont.size)"
    )
    assert sizes[0] == pytest.approx(12 * scale(page), rel=0.02)


def test_dragging_and_the_arrow_keys_move_the_graph_and_select_nothing(page: Driver) -> None:
    first = left_edge(page)
    one(page, "#canvas").send_keys(Keys.ARROW_RIGHT)
    moved = left_edge(page)
    assert moved > first
    x, y = in_box(page, 1)
    chain = ActionChains(page).move_to_element_with_offset(one(page, "#canvas"), x, y)
    chain.click_and_hold().move_by_offset(60, 0).move_by_offset(60, 10).release().perform()
    wait(page, "return canvas._fullLayout.xaxis.range[0] < arguments[0] - 50", moved)
    assert "Nothing selected" in shown(page)


def test_the_table_works_from_the_keyboard(page: Driver) -> None:
    one(page, "#steps tr[data-step='0'] button").send_keys(Keys.ENTER)
    assert "region_0" in shown(page)
    page.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert "aten.mm.default" in shown(page)
    one(page, "#detail article:not([hidden]) button.link").send_keys(Keys.ENTER)
    assert "region_0" in shown(page)


def test_the_table_sorts_and_filters(page: Driver) -> None:
    rows = "return [...document.querySelectorAll('#steps tbody tr')]"
    one(page, "#steps thead th:nth-child(4) button").click()
    assert page.execute_script(rows + ".map(row => row.dataset.step)")[0] == "2"
    one(page, "#find").send_keys("tanh")
    left = page.execute_script(rows + ".filter(row => !row.hidden).map(row => row.dataset.step)")
    assert left == ["2"]


def test_pointing_at_a_refused_edge_says_why(page: Driver) -> None:
    x, y = page.execute_script(
        """
        const { xaxis, yaxis } = canvas._fullLayout;
        const edge = canvas.data.find(trace => trace.name === "call");
        const at = edge.x.indexOf(null) >> 1;
        return [xaxis.d2p(edge.x[at]) - canvas.clientWidth / 2,
                yaxis.d2p(edge.y[at]) - canvas.clientHeight / 2];
        """
    )
    target = one(page, "#canvas")
    chain = ActionChains(page).move_to_element_with_offset(target, round(x) - 3, round(y))
    chain.move_by_offset(3, 0).perform()
    wait(page, "return document.querySelector('#canvas .hoverlayer text') !== null")
    assert "runs as its original call" in one(page, "#canvas .hoverlayer").text.replace("\n", " ")


def test_a_point_of_the_roofline_selects_its_region(page: Driver) -> None:
    drawn = one(page, "#roofline").text
    assert "67 Tflop/s" in drawn
    assert "989 Tflop/s, tensor cores" in drawn
    page.execute_script(
        "document.getElementById('roofline').emit('plotly_click', {points: [{customdata: 2}]})"
    )
    assert "region_1" in shown(page)
    chosen = page.execute_script(
        "return document.getElementById('roofline').data.flatMap(t => t.selectedpoints ?? [])"
    )
    assert len(chosen) == 1


def test_hostile_names_run_nothing(driver: Driver, tmp_path: Path) -> None:
    sketch = Sketch(HOSTILE)
    x = sketch.input(HOSTILE, 8, 8)
    y = sketch.pointwise("exp", x, name=f"y{HOSTILE}")
    item = kernels("region_0", HOSTILE)
    spec = dataclasses.replace(item.kernels[0], source=f"x = 1  # {HOSTILE}\n")
    plan = plan_graph(sketch.graph(y), "sm_90")
    page = opened(driver, tmp_path, to_html(plan, (dataclasses.replace(item, kernels=(spec,)),)))
    click_box(page, 0)
    assert HOSTILE in shown(page)
    assert page.title != "taken"
    assert page.find_elements(By.TAG_NAME, "img") == []
    assert page.get_log("browser") == []
