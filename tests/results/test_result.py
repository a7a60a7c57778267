"""What a fit hands back: a summary that can be read, scores that can be checked, a status that can be compared."""

import dataclasses

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.core.messages import Notice


def log_density(parameters, data):
    return -0.5 * jnp.sum((parameters["weights"] - data) ** 2) - parameters["scale"]


SUPPORT = {"scale": sk.positive}


@pytest.fixture(scope="module")
def result():
    particles = {"weights": jnp.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]), "scale": jnp.array([1.0, 2.0, 3.0])}
    target = sk.LogDensity(log_density, support=SUPPORT)
    return sk.fit(jr.key(0), target, sk.svgd(), particles, jnp.ones(2), num_steps=2)


def test_summary_has_a_line_of_moments_and_quantiles_for_every_coordinate(result):
    header, *lines, end, check, few = result.summary().splitlines()
    assert header.split() == ["parameter", "mean", "sd", "5%", "50%", "95%"]
    columns = {
        "scale": result.particles["scale"],
        "weights[0]": result.particles["weights"][:, 0],
        "weights[1]": result.particles["weights"][:, 1],
    }
    assert [line.split()[0] for line in lines] == list(columns)
    for line, column in zip(lines, columns.values(), strict=True):
        expected = [np.mean(column), np.std(column), *np.quantile(column, [0.05, 0.5, 0.95])]
        # The table prints four digits.
        np.testing.assert_allclose([float(word) for word in line.split()[1:]], expected, rtol=5e-4)
    assert end.startswith("3 particles, 2 steps, finished: ")
    assert end.endswith(result.message.text)
    assert [check, few] == result.diagnostics.sentences()
    assert few == "Not checked: small spreads, which 3 particles in 3 dimensions always have."


def test_the_summary_lists_the_warnings_before_the_end_of_the_run(result):
    told = dataclasses.replace(result, warnings=(Notice("slow-chains", "chains move slowly in 'a': take more."),))
    plain, lines = result.summary().splitlines(), told.summary().splitlines()
    assert lines[-4] == "Warning: chains move slowly in 'a'"
    assert lines[:-4] + lines[-3:] == plain


def test_a_long_summary_is_cut_and_says_how_to_see_the_rest():
    particles = np.random.default_rng(0).normal(size=(5, 30))
    long = sk.fit(jr.key(0), lambda x: -0.5 * jnp.sum(x**2), sk.ensemble(), particles, num_steps=1)
    lines = long.summary().splitlines()
    assert "… and 10 more: summary(max_rows=None) lists all" in lines
    assert sum(line.startswith("x[") for line in lines) == 20
    assert sum(line.startswith("x[") for line in long.summary(max_rows=None).splitlines()) == 30
    with pytest.raises(ValueError, match="`max_rows`"):
        long.summary(max_rows=0)


def test_a_result_is_a_dozen_lines_on_a_console_and_in_a_notebook(result):
    many = dataclasses.replace(result, warnings=tuple(sk.Notice("wrong", f"this is wrong: {i}") for i in range(9)))
    lines = repr(many).splitlines()
    assert len(lines) <= 12
    assert lines[0] == "Result: finished, 3 particles in 3 dimensions, 2 steps"
    assert "Warning: this is wrong" in lines
    assert "… and 6 more warnings" in lines
    assert any(line.startswith("weights[1]") for line in lines)
    page = many._repr_html_()
    assert "weights[1]" in page
    assert page.count("<tr>") == 4
    assert "<script" not in dataclasses.replace(result, warnings=(sk.Notice("wrong", "<script>: no"),))._repr_html_()


def test_scores_are_those_of_the_unconstrained_coordinates(result):
    # In u = log(scale) the log density is −e^u + u.
    scale, weights = np.asarray(result.particles["scale"]), np.asarray(result.particles["weights"])
    expected = np.column_stack([1 - scale, 1 - weights])
    np.testing.assert_allclose(result.scores(jnp.ones(2)), expected, rtol=1e-12)


def test_points_are_the_particles_in_unconstrained_coordinates(result):
    expected = np.column_stack([np.log(result.particles["scale"]), result.particles["weights"]])
    np.testing.assert_allclose(result.points, expected, rtol=1e-12)


def test_results_cannot_be_changed_by_accident(result):
    with pytest.raises(AttributeError):
        result.particles = None


def test_status_has_four_values_that_read_as_words():
    assert {status.name: status.value for status in sk.Status} == {
        "CONVERGED": "converged",
        "FINISHED": "finished",
        "STOPPED": "stopped",
        "DIVERGED": "diverged",
    }
    assert sk.Status("diverged") is sk.Status.DIVERGED


def test_the_error_of_a_diverged_fit_says_what_its_result_says(result):
    error = sk.DivergedError(result)
    assert isinstance(error, RuntimeError)
    assert str(error) == str(result.message)
    assert error.result is result
