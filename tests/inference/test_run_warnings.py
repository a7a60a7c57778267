"""Runs that are silently wrong are warned of, with the advice; healthy runs are not. (Warnings are errors in tests.)"""

import warnings

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import steinkern as sk
from steinkern.inference import run_warnings

pytestmark = pytest.mark.thorough


def draws(n: int, d: int, dtype=float):
    return np.random.default_rng(0).normal(size=(n, d)).astype(dtype)


def gaussian(x):
    return -0.5 * jnp.sum(x**2)


def fit(target=gaussian, sampler=None, particles=None, num_steps: int = 100, **options) -> sk.Result:
    particles = draws(20, 2) if particles is None else particles
    return sk.fit(jr.key(0), target, sampler or sk.svgd(), particles, num_steps=num_steps, **options)


def warned(*words: str):
    return pytest.warns(sk.SteinWarning, match=".*".join(words))


# Variance collapse.


def test_variance_collapse_is_warned_of():
    # Ten particles in a hundred dimensions: vanilla SVGD is known to lose their variance (Ba et al., 2022).
    with warned("too close together", "Stein ratio is 0", "matrix_svgd"):
        fit(sampler=sk.svgd(optimiser=1.0), particles=draws(10, 100), num_steps=600)


def test_particles_that_are_still_too_far_apart_are_warned_of():
    # The velocity along the steep axis is gone long before the particles have come closer along the flat one.
    start = np.array([[1e3, 1e4]]) * draws(20, 2)
    with warned("too far apart", "flat direction"):
        fit(lambda x: -0.5 * (x[0] ** 2 + 1e-4 * x[1] ** 2), sk.svgd(sk.RBF(1e8), optax.sgd(0.5)), start)


@pytest.mark.parametrize(
    "sampler",
    [sk.svgd(), sk.matrix_svgd("average", sk.Hessian()), sk.ensemble(), sk.sgld(0.1)],
    ids=["svgd", "average", "ensemble", "sgld"],
)
def test_healthy_runs_are_quiet(sampler):
    # An ensemble collapses by design, and Langevin chains never rest.
    assert fit(sampler=sampler, num_steps=300).status is sk.Status.FINISHED


# Particles that do not interact.


@pytest.mark.parametrize(
    "sampler",
    [
        sk.svgd(sk.RBF(1e-4), optax.sgd(1.0)),
        pytest.param(sk.svgd(sk.IMQ(1e-6, exponent=-2.0), optax.sgd(1.0)), marks=pytest.mark.thorough),
        pytest.param(sk.matrix_svgd("average", sk.Hessian(), sk.RBF(1e-4)), marks=pytest.mark.thorough),
    ],
    ids=["rbf", "imq", "average"],
)
def test_a_bandwidth_that_decouples_the_particles_is_warned_of(sampler):
    with warned("hardly interact", "Median"):
        fit(sampler=sampler, particles=3 * draws(20, 10))


def corners(x):
    """A mode in every corner of a cube, so that particles stay apart."""
    return -10.0 * jnp.sum((x**2 - 1.0) ** 2)


def test_weights_that_decouple_the_particles_are_warned_of_and_a_temperature_cures_it():
    def run(**options):
        sampler = sk.matrix_svgd("mixture", sk.Hessian(diagonal=True), **options)
        return fit(corners, sampler, draws(8, 60))

    with warned("hardly interact", "temperature"):
        run()
    with warnings.catch_warnings(record=True) as seen:
        run(temperature=sk.Median(), weighting="no_determinant")
    assert not [one for one in seen if "hardly interact" in str(one.message)]


@pytest.mark.parametrize("sampler", [sk.svgd(sk.RBF(1.0)), sk.svgd(sk.Linear())], ids=["rbf", "linear"])
def test_a_bandwidth_that_couples_is_quiet(sampler):
    fit(sampler=sampler)


# Runs that have not converged.


def test_a_tolerance_that_was_not_reached_is_warned_of():
    with warned("has not converged", "num_steps"):
        result = fit(num_steps=150, tolerance=1e-12)
    assert "of its largest" in result.message


def test_a_tolerance_that_was_reached_is_quiet():
    assert fit(num_steps=2000, tolerance=0.05).status is sk.Status.CONVERGED


def with_minibatches(optimiser):
    rows = np.random.default_rng(1).normal(size=(500, 2))
    target = sk.Posterior(gaussian, lambda x, row: gaussian(x - row), num_data=500)
    return fit(target, sk.svgd(optimiser=optimiser), data=rows, num_steps=200, batch_size=100)


def test_particles_that_minibatches_still_throw_about_are_warned_of():
    with warned("not at rest", "of their spread", "cosine_decay_schedule", "batch_size"):
        with_minibatches(optax.sgd(3e-3))


def test_minibatches_with_a_step_size_that_falls_are_quiet():
    # Its velocity stays far above a tenth of the largest: that of the last batch does not rest.
    result = with_minibatches(optax.sgd(optax.cosine_decay_schedule(3e-3, 200)))
    assert result.history.velocity_norm[-1] > 0.1 * result.history.velocity_norm[20:].max()


# Gradients that are none.


def rounded(x):
    return -0.5 * jnp.sum(jnp.round(x) ** 2)


def cut(x):
    return -0.5 * jnp.sum(x * jax.lax.stop_gradient(x))


def cut_in_part(x):
    return gaussian(x) - 10.0 * jnp.sum(jax.lax.stop_gradient(x) ** 4)


GRADIENTS = [(rounded, "exactly zero"), (cut_in_part, "not its slope"), (cut, "not its slope")]


@pytest.mark.parametrize(("target", "words"), GRADIENTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_gradient_that_is_none_is_warned_of_before_the_run(target, words, dtype):
    with warned(words, "gradient_free_svgd"):
        fit(target, particles=2 * draws(20, 2, dtype), num_steps=1)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "target",
    [
        gaussian,
        lambda x: 0.0 * jnp.sum(x),
        lambda x: -jnp.sum(jnp.abs(x)),
        lambda x: -jnp.sum(x**4) - 100.0 * jnp.sum(jnp.sin(3 * x)),
        lambda x: 1e6 - 0.5 * jnp.sum(x**2),
        lambda x: -0.5 * jnp.sum((x / jnp.array([1e-3, 1e3], x.dtype)) ** 2),
    ],
    ids=["gaussian", "flat", "kinks", "waves", "large constant", "stiff"],
)
def test_a_gradient_that_is_one_is_quiet(target, dtype):
    for scale in (1e-3, 1.0, 100.0):
        with warnings.catch_warnings(record=True) as seen:  # one step leads nowhere, and that is said at its end
            warnings.simplefilter("always")
            fit(target, particles=scale * draws(20, 2, dtype), num_steps=1)
        assert not [one for one in seen if "gradient_free_svgd" in str(one.message)]


def test_a_sampler_that_needs_no_gradient_is_quiet():
    fit(rounded, sk.gradient_free_svgd(gaussian), num_steps=1)


def test_a_density_that_is_flat_in_a_direction_is_warned_of_with_its_name():
    start = {"used": draws(20, 2), "spare": draws(20, 3)}
    with warned(r"does not depend on spare\[0\], spare\[2\]: ", "prior"):
        fit(lambda p: gaussian(p["used"]) - p["spare"][1] ** 2, particles=start)


def test_a_direction_that_is_flat_at_first_and_not_at_the_end_is_quiet():
    # All start on the plateau of a wall that repulsion makes them climb.
    def walled(x):
        return -0.5 * x[0] ** 2 - 5.0 * jnp.maximum(jnp.abs(x[1]) - 1.0, 0.0) ** 2

    fit(walled, particles=np.array([[1.0, 0.1]]) * draws(20, 2), num_steps=200)


# Single precision.


def cancelling(x):
    """−½‖x‖², by way of numbers so large that float32 has no digits left for x.

    A plain (x + large) − large would be x again: the compiler sees through it.
    """
    large = jnp.asarray(1e8, x.dtype)
    return -0.5 * jnp.sum((jnp.cbrt((x + large) ** 3) - large) ** 2)


def test_a_target_that_needs_double_precision_is_warned_of():
    with warned("float32 is too coarse", "jax_enable_x64"):
        fit(cancelling, particles=draws(20, 2, np.float32))


def test_a_target_that_needs_no_double_precision_is_quiet():
    fit(particles=draws(20, 2, np.float32))
    fit(cancelling)


def test_a_target_that_insists_on_single_precision_is_let_be():
    fit(lambda x: gaussian(x).astype(jnp.float32), particles=draws(20, 2, np.float32))


# Nothing is lost by looking.


def test_a_look_that_fails_loses_no_result(monkeypatch):
    def only_single(x):
        assert x.dtype == jnp.float32
        return gaussian(x)

    particles = draws(20, 2, np.float32)
    assert fit(only_single, particles=particles, data=None).status is sk.Status.FINISHED

    def fails(*arguments, **options):
        raise RuntimeError
        yield

    checks = (
        "_check_moved",
        "_check_tolerance",
        "_check_rest",
        "_check_coupling",
        "beside_target",
        "check_double_precision",
        "_check_flat",
    )
    for check in checks:
        monkeypatch.setattr(run_warnings, check, fails)
    result = fit()
    assert result.status is sk.Status.FINISHED
    assert result.failed_checks == ("RuntimeError: ",) * len(checks)  # and it is not lost that they failed


def test_a_warning_made_an_error_carries_the_result():
    # Warnings are errors in tests.
    with pytest.raises(sk.SteinWarning, match="hardly interact") as raised:
        fit(sampler=sk.svgd(sk.RBF(1e-4), optax.sgd(1.0)))
    assert raised.value.result.num_steps == 100
    assert np.all(np.isfinite(raised.value.result.points))
