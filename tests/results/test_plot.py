"""The figures: what they show, what they refuse, and that they leave matplotlib's global state alone."""

import io
import re
import subprocess
import sys

import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest

from steinkern import plot
from steinkern.core.extras import install_command
from steinkern.results.plot import plane

PNG = b"\x89PNG\r\n\x1a\n"


def log_gaussian(x):
    return -0.5 * jnp.sum(x**2)


def is_picture(path):
    content = path.read_bytes()
    return content.startswith(PNG) and 2_000 < len(content) < 300_000


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # makes `import matplotlib` fail
    with pytest.raises(ImportError, match=re.escape(install_command("plot"))):
        plot.density(log_gaussian, (-3.0, 3.0, -3.0, 3.0))


@pytest.mark.thorough
def test_plotting_imports_matplotlib_late_and_pyplot_never():
    code = (
        "import sys; from steinkern import plot; import jax.numpy as jnp;"
        "assert not any(name.split('.')[0] == 'matplotlib' for name in sys.modules), 'imported too early';"
        "plot.density(lambda x: -jnp.sum(x**2), (-3.0, 3.0, -3.0, 3.0));"
        "assert 'matplotlib.pyplot' not in sys.modules, 'pyplot'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_density_figure_counts_the_particles_outside(tmp_path):
    particles = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, -9.0]])
    figure = plot.density(log_gaussian, (-3.0, 3.0, -2.0, 2.0), particles, "A Gaussian")
    (axes,) = figure.axes
    assert axes.get_xlim() == (-3.0, 3.0)
    assert axes.get_ylim() == (-2.0, 2.0)
    assert [text.get_text() for text in axes.texts] == ["2 outside"]
    assert is_picture(plot.save(figure, tmp_path / "density.png"))


def test_the_shades_hold_the_stated_shares_of_the_mass():
    """For a standard Gaussian on the plane the region that holds the share m is above height 1 − m."""
    levels = plane._shades(log_gaussian, (-6.0, 6.0, -6.0, 6.0), 400).levels
    # The mass of one grid point near the edge is about 1e-4, and the levels step by it.
    np.testing.assert_allclose(levels, [0.01, 0.1, 0.3, 0.6], atol=1e-3)


def test_panels_of_a_grid_share_their_limits(tmp_path):
    rows = {"first": [np.zeros((3, 2)), np.ones((3, 2))], "second": [np.ones((3, 2)), np.full((3, 2), 50.0)]}
    notes = {"first": ["a", "b"], "second": ["c", "d"]}
    figure = plot.particle_grid(log_gaussian, (-3.0, 3.0, -2.0, 2.0), rows, ["one", "two"], title="all", notes=notes)
    assert len(figure.axes) == 4
    assert {(axes.get_xlim(), axes.get_ylim()) for axes in figure.axes} == {((-3.0, 3.0), (-2.0, 2.0))}
    assert [axes.texts[0].get_text() for axes in figure.axes if len(axes.texts) == 1] == ["a", "b", "c"]
    assert is_picture(plot.save(figure, tmp_path / "grid.png"))


def test_a_grid_with_a_missing_panel_is_refused():
    with pytest.raises(ValueError, match="one entry for each of the 2 columns, got 1 in 'first'"):
        plot.particle_grid(log_gaussian, (-3.0, 3.0, -3.0, 3.0), {"first": [np.zeros((3, 2))]}, ["one", "two"])


def test_rows_of_several_targets_have_their_own_limits(tmp_path):
    rows = [
        plot.Panels(log_gaussian, (-3.0, 3.0, -2.0, 2.0), "wide", [np.zeros((3, 2)), np.ones((3, 2))]),
        plot.Panels(log_gaussian, (-2.0, 2.0, -2.0, 2.0), "square", [np.zeros((3, 2)), np.ones((3, 2))]),
    ]
    figure = plot.target_rows(rows, ["one", "two"])
    assert [axes.get_xlim() for axes in figure.axes] == [(-3.0, 3.0)] * 2 + [(-2.0, 2.0)] * 2
    assert is_picture(plot.save(figure, tmp_path / "rows.png"))


def test_the_backdrop_fills_its_picture_and_shows_the_density_alone():
    picture = io.BytesIO()
    plot.save_backdrop(log_gaussian, (-4.0, 4.0, -2.0, 2.0), picture, width=200)
    picture.seek(0)
    pixels = matplotlib.image.imread(picture)
    assert pixels.shape[:2] == (100, 200)
    assert np.all(pixels[50, 100, :3] == pixels[52, 98, :3])
    assert pixels[50, 100, 0] < 0.6  # the darkest shade at the mode
    np.testing.assert_array_equal(pixels[2, 2, :3], 1.0)  # and white, no frame, in the corner


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_figure_is_saved_with_the_same_bytes_every_time(ending, tmp_path):
    contents = []
    for i in range(2):
        figure = plot.density(log_gaussian, (-3.0, 3.0, -3.0, 3.0), np.zeros((3, 2)), "twice", resolution=40)
        contents.append(plot.save(figure, tmp_path / f"{i}.{ending}").read_bytes())
    assert contents[0] == contents[1]
    assert (b"<svg" in contents[0]) == (ending == "svg")


def test_a_window_inside_out_is_refused():
    with pytest.raises(ValueError, match="`window` must be"):
        plot.density(log_gaussian, (3.0, -3.0, -3.0, 3.0))


def test_a_label_has_one_colour_in_all_panels(tmp_path):
    x = np.arange(20)
    curve, banded = plot.Curve(x, 1.0 * x), plot.Curve(x, 2.0 * x, 1.5 * x, 2.5 * x)
    figure = plot.curves(
        {"left": {"a": curve, "b": banded}, "right": {"b": curve}},
        xlabel="iteration",
        ylabel="measure",
        levels={"left": plot.Level(3.0, 2.0, 4.0)},
        level_label="level",
        marks={"right": 5.0},
        mark_label="mark",
    )
    left, right = figure.axes
    assert left.lines[1].get_color() == right.lines[0].get_color() != left.lines[0].get_color()
    assert left.lines[0].get_xdata()[0] == 1  # x = 0 has no place on a logarithmic axis
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "level", "mark"]
    assert is_picture(plot.save(figure, tmp_path / "curves.png"))


def test_a_label_keeps_the_colour_that_it_is_given_and_others_take_the_rest():
    curve = plot.Curve(np.arange(3), np.arange(3))
    given = {"b": plot.COLOURS[0], "elsewhere": plot.COLOURS[1]}
    figure = plot.curves({"panel": {"a": curve, "b": curve}}, xlabel="x", ylabel="y", colours=given)
    assert [line.get_color() for line in figure.axes[0].lines] == [plot.COLOURS[1], plot.COLOURS[0]]


def test_more_curves_than_colours_are_refused():
    curve = plot.Curve(np.arange(3), np.arange(3))
    with pytest.raises(ValueError, match="at most 7 labels"):
        plot.curves({"panel": {str(i): curve for i in range(8)}}, xlabel="x", ylabel="y")
