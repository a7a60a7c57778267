"""A quick run of the toy study by its command: its files and its page."""

import contextlib
import io
import re

import pytest

from studies.__main__ import main
from tests.helpers import browser

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def quick_study(tmp_path_factory):
    directory = tmp_path_factory.mktemp("toy")
    options = ["--quick", "--seeds", "2", "--targets", "star,sine_released", "--out", str(directory)]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        main(["toy", *options])
    return printed.getvalue(), directory


def test_quick_study_prints_a_table_and_writes_every_promised_file(quick_study):
    printed, directory = quick_study
    assert "Matrix-SVGD (mixture)" in printed
    assert "index.html" in printed
    names = ["overview", "log_mmd", "grid_star", "grid_sine_released"]
    for name in ["table.md", "index.html", *(f"{n}.{e}" for n in names for e in ("png", "svg"))]:
        assert (directory / name).stat().st_size > 500, name
    assert max(file.stat().st_size for file in directory.glob("*.png")) < 300_000


def test_page_needs_no_network_and_shows_pictures_first_and_its_verdicts_in_one_table(quick_study):
    _, directory = quick_study
    page = (directory / "index.html").read_text()
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!data:)", page)
    outside = re.sub(r"<script.*?</script>|<pre>.*?</pre>", "", page, flags=re.S)
    assert not re.search(r"\$|{{|{%|}}|%}", outside)
    assert "&#34;particles&#34;: 50" in page  # what was recorded is escaped
    assert page.index("<img") < page.index("<canvas") < page.index("<table")
    body = page[page.index("<h2>Who wins") :]
    table = body[body.index("<tbody>") : body.index("</tbody>")]
    assert table.count("<tr>") == 4  # two targets at two iterations
    assert len(re.findall(r"(better|worse|level)</span>", table)) == 4 * 3


@pytest.mark.browser
def test_the_page_s_slider_moves_the_particles_of_every_method(quick_study, tmp_path):
    _, directory = quick_study
    noted = browser.ask(
        directory / "index.html",
        tmp_path,
        """
        const box = document.querySelector("[data-flow]"), slider = box.querySelector("input");
        const look = () => [...box.querySelectorAll("canvas")].map((canvas) => canvas.toDataURL());
        const before = look();
        slider.value = slider.max; slider.dispatchEvent(new Event("input"));
        const after = look();
        const label = box.querySelector("output").textContent;
        return { moved: after.map((picture, k) => picture !== before[k]), label };
        """,
    )
    assert noted["moved"] == [True] * 4
    assert noted["label"].startswith("iteration ")
