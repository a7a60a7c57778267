"""The figures: what they show, what they refuse, and that they leave matplotlib's global state alone."""

import re
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from steinkern import plot
from steinkern.core.extras import install_command
from tests.helpers.processes import output_of

PNG = b"\x89PNG\r\n\x1a\n"


def log_gaussian(x):
    return -0.5 * jnp.sum(x**2)


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
    output_of("-c", code)


def test_density_figure_counts_the_particles_outside(tmp_path):
    particles = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, -9.0]])
    figure = plot.density(log_gaussian, (-3.0, 3.0, -2.0, 2.0), particles, "A Gaussian")
    (axes,) = figure.axes
    assert axes.get_xlim() == (-3.0, 3.0)
    assert axes.get_ylim() == (-2.0, 2.0)
    assert [text.get_text() for text in axes.texts] == ["2 outside"]
    content = plot.save(figure, tmp_path / "density.png").read_bytes()
    assert content.startswith(PNG)
    assert 2_000 < len(content) < 300_000


def test_the_shades_hold_the_stated_shares_of_the_mass():
    """For a standard Gaussian on the plane the region that holds the share m is above height 1 − m."""
    x, y = np.meshgrid(np.linspace(-6, 6, 400), np.linspace(-6, 6, 400))
    levels = plot.mass_levels(np.exp(-0.5 * (x**2 + y**2)))
    # The mass of one grid point near the edge is about 1e-4, and the levels step by it.
    np.testing.assert_allclose(levels, [0.01, 0.1, 0.3, 0.6], atol=1e-3)


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
