"""The figures of the studies: what they show."""

import io

import jax.numpy as jnp
import matplotlib.image
import numpy as np

from steinkern import plot
from studies.methods import COLORS, TITLES
from studies.plots import Panels, curves, particle_grid, reliability, save_backdrop


def log_gaussian(x):
    return -0.5 * jnp.sum(x**2)


def test_panels_of_a_grid_have_the_limits_of_their_windows(tmp_path):
    clouds = [np.zeros((3, 2)), np.full((3, 2), 50.0)]
    windows = {"wide": (-3, 3, -2, 2), "square": (-2, 2, -2, 2)}
    rows = [Panels(log_gaussian, window, name, clouds) for name, window in windows.items()]
    figure = particle_grid(rows, ["one", "two"], "all")
    assert [axes.get_xlim() for axes in figure.axes] == [(-3, 3)] * 2 + [(-2, 2)] * 2
    assert [len(axes.texts) for axes in figure.axes] == [0, 1, 0, 1]  # a note counts those outside
    assert plot.save(figure, tmp_path / "rows.png").stat().st_size > 2000


def test_the_backdrop_fills_its_picture_and_shows_the_density_alone():
    picture = io.BytesIO()
    save_backdrop(log_gaussian, (-4.0, 4.0, -2.0, 2.0), picture, width=200)
    picture.seek(0)
    pixels = matplotlib.image.imread(picture)
    assert pixels.shape[:2] == (100, 200)
    assert np.all(pixels[50, 100, :3] == pixels[52, 98, :3])
    assert pixels[50, 100, 0] < 0.6  # the darkest shade at the mode
    np.testing.assert_array_equal(pixels[2, 2, :3], 1.0)  # and white, no frame, in the corner


def test_curves_are_means_over_trials_in_the_color_of_their_method():
    x = np.arange(20)
    one, two = TITLES["vanilla"], TITLES["mixture"]
    figure = curves(
        {"left": {one: (x, np.stack([x, x + 2])), two: (x, x[None])}, "right": {two: (x, x[None])}},
        levels={"left": 3.0},
        level_label="level",
        marks={"left": 5.0, "right": 5.0},
    )
    left, right = figure.axes
    assert left.lines[1].get_color() == right.lines[0].get_color() == COLORS[two]
    np.testing.assert_array_equal(left.lines[0].get_xdata(), x[1:])  # x = 0 has no place on a logarithmic axis
    np.testing.assert_array_equal(left.lines[0].get_ydata(), x[1:] + 1)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [one, two, "level"]


def test_a_reliability_diagram_names_the_calibration_error():
    counts = np.array([[10, 0, 30], [4.0, 0.0, 27.0], [5.0, 0.0, 24.0]])
    figure = reliability({TITLES["point"]: counts})
    (label,) = (text.get_text() for text in figure.legends[0].get_texts())
    assert label == "Point estimate: calibration error 0.100"  # (1 + 3) / 40
    np.testing.assert_allclose(figure.axes[0].collections[1].get_offsets(), [[0.4, 0.5], [0.9, 0.8]])
