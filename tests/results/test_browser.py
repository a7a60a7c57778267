"""The pages in a real browser: they open, the slider moves the particles, and no error is seen."""

import numpy as np
import pytest

from tests.helpers import browser
from tests.helpers.pages import result_of

pytestmark = [pytest.mark.browser, pytest.mark.thorough]

MOVE = """
const slider = document.querySelector("input[type=range]"), canvas = document.querySelector("canvas");
const look = () => ({ picture: canvas.toDataURL(), label: document.querySelector("output").textContent,
                      said: canvas.getAttribute("aria-label") });
const move = (value) => { slider.value = value; slider.dispatchEvent(new Event("input")); return look(); };
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Ten particles in three coordinates that come nearer at each of five steps."""
    cloud = np.random.default_rng(0).normal(size=(10, 3))
    moving = np.stack([5.0 / step + cloud for step in range(1, 6)])
    recorded = {"a <b>": moving[..., :2], "scale": moving[..., 2]}
    last = {name: values[-1] for name, values in recorded.items()}
    return result_of(last, recorded).report(tmp_path_factory.mktemp("page"))


def test_the_slider_moves_the_particles_and_the_marker_in_the_traces(page, tmp_path):
    seen = browser.ask(
        page,
        tmp_path,
        MOVE
        + """
        const marker = () => Number(document.querySelector("svg .now").getAttribute("x1"));
        const last = look(), end = marker(), first = move(0), start = marker(), again = move(4);
        return { last, first, again, start, end, focusable: [...document.querySelectorAll("input, button")].every(
          (own) => own.tabIndex >= 0) };""",
    )
    assert (seen["last"]["label"], seen["first"]["label"]) == ("step 5", "step 1")
    assert "after step 1: marginals and pairs of a <b>[0], a <b>[1], scale" in seen["first"]["said"]
    assert seen["first"]["picture"] != seen["last"]["picture"]
    assert seen["again"]["picture"] == seen["last"]["picture"]
    assert seen["start"] < seen["end"]
    assert seen["focusable"]


def test_coordinates_can_be_chosen_and_rows_filtered(tmp_path):
    values = np.random.default_rng(0).normal(size=(3, 7, 40))
    path = result_of({"w": values[-1]}, {"w": values}).report(tmp_path)
    seen = browser.ask(
        path,
        tmp_path,
        MOVE
        + """
        const boxes = [...document.querySelectorAll("#coordinates input")], before = look();
        boxes[7].click(); boxes[8].click();
        const filter = document.getElementById("filter");
        filter.value = "w[12]"; filter.dispatchEvent(new Event("input"));
        return { number: boxes.length, before, after: look(), disabled: boxes.filter((box) => box.disabled).length,
                 rows: [...document.querySelectorAll(".numbers tbody tr")].filter((row) => !row.hidden).length };""",
    )
    assert seen["number"] == 24
    assert seen["after"]["picture"] != seen["before"]["picture"]
    assert seen["after"]["said"].endswith("w[0], w[1], w[2], w[7], w[8]")
    assert seen["disabled"] == 19
    assert seen["rows"] == 1


def test_numbers_that_are_not_finite_and_a_still_page_on_a_telephone_open_without_an_error(tmp_path):
    values = np.array([np.nan, np.inf, 1.0, -1e300])
    path = result_of({"<script>alert(1)</script>" + 80 * "µ": values, "b": np.full(4, np.nan)}).report(tmp_path)
    seen = browser.ask(
        path,
        tmp_path,
        MOVE
        + """
        return { wide: document.documentElement.scrollWidth, room: document.documentElement.clientWidth,
                 slider: slider.offsetParent !== null, label: look().label };""",
        size="500,900",
    )
    assert seen == {"wide": seen["room"], "room": seen["room"], "slider": False, "label": "step 5"}


def test_the_button_plays_to_the_end(page, tmp_path):
    seen = browser.ask(
        page,
        tmp_path,
        MOVE
        + """
        const ticks = [];
        window.setInterval = (tick) => { ticks.push(tick); return 1; };
        window.clearInterval = () => {};
        const button = document.querySelector("button");
        move(3); button.click();
        const playing = button.textContent;
        ticks[0]();
        return { playing, after: button.textContent, label: look().label };""",
    )
    assert seen == {"playing": "pause", "after": "play", "label": "step 5"}
