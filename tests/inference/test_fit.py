"""The loop: what comes back, what is recorded, where it stops, how it goes on, and whether the answer is right."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import steinkern as sk
from tests.helpers.cases import over
from tests.samplers.test_sampler_contract import SAMPLERS, SamplerCase, assert_same_tree

SEED = 7


def banana(x):
    return -0.5 * jnp.sum(x**2) - 0.5 * jnp.sum((x[1:] - x[:-1] ** 2) ** 2)


def points_of(n: int, d: int):
    return np.random.default_rng(SEED).normal(size=(n, d))


def fit_banana(sampler, num_steps: int, particles=None, **options):
    particles = points_of(5, 2) if particles is None else particles
    return sk.fit(jr.key(SEED), banana, sampler, particles, num_steps=num_steps, **options)


class Regression(NamedTuple):
    """Linear regression with a standard normal prior and noise of variance 25: the posterior is a known Gaussian."""

    data: dict
    target: sk.Posterior
    precision: np.ndarray
    mean: np.ndarray


def log_prior(weights):
    return -0.5 * jnp.sum(weights**2)


def log_likelihood(weights, example):
    return -0.02 * (example["response"] - jnp.vdot(example["inputs"], weights)) ** 2


def regression(num_data: int = 60) -> Regression:
    draws = np.random.default_rng(SEED).normal(size=(num_data, 3))
    inputs = draws[:, :2] @ np.array([[1.0, 0.3], [0.0, 0.6]])
    response = inputs @ np.array([2.0, -1.0]) + 5 * draws[:, 2]
    precision = inputs.T @ inputs / 25 + np.eye(2)
    mean = np.linalg.solve(precision, inputs.T @ response / 25)
    target = sk.Posterior(log_prior, log_likelihood, num_data)
    return Regression({"inputs": inputs, "response": response}, target, precision, mean)


# What comes back.


class Parameters(NamedTuple):
    weights: jax.Array
    rest: dict


def nested_log_likelihood(parameters, example):
    return log_likelihood(parameters.weights, example) - 0.5 * sum(
        jnp.sum(leaf**2) for leaf in jax.tree.leaves(parameters.rest)
    )


@pytest.fixture(scope="module")
def nested():
    """A fit of nested parameters in float32, with all that could bring float64 in."""
    single = np.float32
    start = {"scale": np.arange(3, dtype=single), "cuts": [np.zeros((3, 2, 1), single), np.ones(3, single)]}
    particles = Parameters(np.ones((3, 2), single), start)
    target = sk.Posterior(lambda parameters: 0.0, nested_log_likelihood, 20)
    with pytest.warns(sk.SteinWarning, match="has not converged"):
        result = sk.fit(
            jr.key(0), target, sk.svgd(), particles, jax.tree.map(single, regression(20).data),
            num_steps=3, batch_size=5, tolerance=1e-9, tempering=lambda step: 0.5 + 0.1 * step.astype(float),
        )  # fmt: skip
    return particles, result


def test_particles_come_back_in_the_structure_they_were_given(nested):
    given, result = nested
    assert jax.tree.structure(result.particles) == jax.tree.structure(given)
    assert jax.tree.map(np.shape, result.particles) == jax.tree.map(np.shape, given)
    rows = [np.reshape(leaf, (3, -1)) for leaf in jax.tree.leaves(result.particles)]
    np.testing.assert_array_equal(np.concatenate(rows, axis=1), result.points)


def test_float32_particles_and_everything_beside_them_stay_float32(nested):
    _, result = nested
    numbers = [leaf for leaf in jax.tree.leaves((result.particles, result.loop)) if leaf.dtype.kind == "f"]
    assert {leaf.dtype for leaf in numbers} == {jnp.dtype("float32")}
    assert result.history.velocity_norm.dtype == np.float32


# What is recorded.


@pytest.mark.parametrize(
    ("num_steps", "record_every", "expected"),
    [
        (300, 1, range(1, 301)),  # more records than one compiled call returns
        (300, 2, range(2, 301, 2)),
        (20, 7, [7, 14, 20]),
        (5, 7, [5]),
    ],
)
def test_history_has_a_line_every_so_many_steps_and_one_at_the_end(num_steps, record_every, expected):
    result = fit_banana(sk.svgd(), num_steps, record_every=record_every)
    np.testing.assert_array_equal(result.history.step, list(expected))
    assert result.num_steps == num_steps
    assert result.status is sk.Status.FINISHED
    for column in (result.history.velocity_norm, result.history.step_size, result.history.stein_ratio):
        assert column.shape == (len(expected),)


@pytest.mark.parametrize("sampler", [sk.svgd(), sk.sgld(0.01)], ids=["svgd", "sgld"])
def test_recorded_particles_are_those_after_the_step(sampler):
    result = fit_banana(sampler, 300, record_particles=True)
    assert result.history.particles.shape == (300, 5, 2)
    np.testing.assert_array_equal(result.history.particles[-1], result.particles)
    shorter = fit_banana(sampler, 150)  # another program, that keeps no particles, and may sum in another order
    np.testing.assert_allclose(result.history.particles[149], shorter.particles, rtol=1e-9, atol=1e-9)
    assert shorter.history.particles is None


def test_callback_sees_every_record_and_ends_the_run_when_it_says_so():
    seen = []

    def watch(step, state, info):
        seen.append((step, np.asarray(state.points), float(info.velocity_norm)))
        return step >= 10

    result = fit_banana(sk.svgd(), 300, record_every=5, callback=watch)
    assert [step for step, _, _ in seen] == [5, 10]
    assert result.num_steps == 10
    np.testing.assert_array_equal(seen[0][1], fit_banana(sk.svgd(), 5).points)
    np.testing.assert_array_equal([norm for *_, norm in seen], result.history.velocity_norm)
    assert result.status is sk.Status.FINISHED
    assert "all steps" not in result.message.text


# Going on.


# One of every sampler, and of every kind of state that a kernel rule keeps.
RESUMED = [
    "svgd, rbf",
    "average, diagonal, decayed, refreshed",
    "mixture, anchors by number, refreshed",
    "mixture, anchors given, diagonal, decayed",
    "svn",
    "gradient-free",
    "sgld",
    "psgld",
]


@pytest.mark.every(3)
@over(
    [case for case in SAMPLERS if case.name in RESUMED],
    {"svgd, rbf", "mixture, anchors given, diagonal, decayed", "psgld"},
)
def test_two_fits_in_a_row_are_one_long_fit(case: SamplerCase):
    problem = regression(20)

    def fit(particles, num_steps):
        return sk.fit(
            jr.key(SEED), problem.target, case.make(4, 2), particles, problem.data, num_steps=num_steps, batch_size=5
        )

    whole, rest = fit(points_of(4, 2), 5), fit(fit(points_of(4, 2), 2), 3)
    np.testing.assert_array_equal(rest.particles, whole.particles)
    np.testing.assert_array_equal(rest.history.step, [3, 4, 5])
    assert_same_tree(rest.loop, whole.loop)


def test_another_sampler_starts_from_the_particles_of_a_result():
    first = fit_banana(sk.sgld(0.01), 20)
    result = fit_banana(sk.svgd(), 3, first)
    np.testing.assert_array_equal(result.particles, fit_banana(sk.svgd(), 3, first.particles).particles)
    assert result.num_steps == 23


# Stopping.


def test_tolerance_stops_at_the_same_step_in_any_units():
    def log_density(x, unit):
        return banana(x / unit)

    # With a metric the velocity has the units of the particles, and the step size none.
    sampler = sk.matrix_svgd("average", sk.Hessian(), optimizer=optax.sgd(0.5))

    def fit(unit):
        unit = jnp.asarray(unit)
        return sk.fit(jr.key(0), log_density, sampler, unit * points_of(5, 2), unit, num_steps=500, tolerance=1e-3)

    small, large = fit(1.0), fit(1024.0)  # a power of two, so that rounding is the same
    assert small.status is large.status is sk.Status.CONVERGED
    assert small.num_steps == large.num_steps == small.history.step[-1] < 500
    assert small.message.code == "converged"
    np.testing.assert_allclose(large.particles, 1024 * small.particles, rtol=1e-10)
    fractions = small.history.velocity_norm / small.history.velocity_norm.max()
    assert fractions[-1] <= 1e-3 < fractions[:-1].min()


def quartic(x):
    return -jnp.sum(x**4)


def rooted(x):
    """Its gradient is NaN below zero."""
    return jnp.sum(jnp.sqrt(x) - 10.0 * x)


_LARGE_STEPS = sk.svgd(sk.RBF(1.0), optax.sgd(2.0))


def fit_with_large_steps(log_density, num_steps: int, **options):
    particles = jnp.linspace(0.1, 2.0, 4)[:, None]
    return sk.fit(jr.key(0), log_density, _LARGE_STEPS, particles, num_steps=num_steps, **options)


@pytest.mark.parametrize("log_density", [quartic, rooted])
def test_a_run_that_diverges_says_so_and_keeps_its_last_finite_particles(log_density):
    with pytest.raises(sk.DivergedError, match="not finite") as raised:
        fit_with_large_steps(log_density, 100)
    result = raised.value.result
    assert result.status is sk.Status.DIVERGED
    assert np.all(np.isfinite(result.particles))
    assert 0 < result.num_steps < 100
    np.testing.assert_array_equal(result.history.step, np.arange(result.num_steps) + 1)
    for cause in ("learning rate", "support=", "damping", "overflow"):
        assert cause in result.message.text == str(raised.value)
    returned = fit_with_large_steps(log_density, 100, throw=False)
    assert returned.status is sk.Status.DIVERGED
    np.testing.assert_array_equal(returned.particles, result.particles)


def test_history_of_a_run_that_diverges_holds_the_steps_that_were_taken():
    result = fit_with_large_steps(quartic, 100, record_every=100, throw=False)
    np.testing.assert_array_equal(result.history.step, [result.num_steps])
    assert np.all(np.isfinite(result.history.velocity_norm))


def test_particles_outside_the_support_are_not_a_finished_run():
    # The derivative of the logarithm is finite below zero, where the log density itself is NaN.
    result = fit_with_large_steps(lambda x: jnp.sum(jnp.log(x) - 10.0 * x), 10, throw=False)
    assert result.status is sk.Status.DIVERGED
    assert "4 of them moved back to where the target is finite" in result.message.text
    assert np.all(result.particles > 0)
    last = fit_with_large_steps(lambda x: jnp.sum(jnp.log(x) - 10.0 * x), 1, throw=False)
    assert last.status is sk.Status.DIVERGED
    assert "is NaN or infinite at 4 particles after 1 step, 4 of them moved back" in last.message.text
    assert np.all(last.particles > 0)


# Tempering.


def constant_power(power):
    return jax.tree_util.Partial(_constant, jnp.asarray(power))


def _constant(power, step):
    return power


def _ramped(ramp, step):
    return jnp.clip((step + 1).astype(float) / ramp, 0.0, 1.0) ** 4


@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")  # too few steps to be anywhere
def test_power_zero_leaves_the_repulsion_alone():
    frozen = fit_banana(sk.svgd(), 20, tempering=constant_power(0.0))
    flat = sk.fit(jr.key(SEED), lambda x: 0.0 * jnp.sum(x), sk.svgd(), points_of(5, 2), num_steps=20)
    np.testing.assert_allclose(frozen.particles, flat.particles, rtol=1e-10)
    assert np.var(frozen.particles, axis=0).min() > np.var(points_of(5, 2), axis=0).max()


def test_power_one_is_the_plain_run():
    tempered = fit_banana(sk.svgd(), 20, tempering=constant_power(1.0))
    np.testing.assert_allclose(tempered.particles, fit_banana(sk.svgd(), 20).particles, rtol=1e-10)


@pytest.mark.thorough
def test_tempering_finds_a_mode_that_a_plain_run_does_not():
    def two_modes(x):
        return jax.nn.logsumexp(-2.0 * jnp.stack([jnp.sum((x - 3.0) ** 2), jnp.sum((x + 3.0) ** 2)]))

    def fit(ramp):
        """The particles after a run whose power grows from 0 to 1 over `ramp` steps."""
        schedule = jax.tree_util.Partial(_ramped, jnp.asarray(ramp))
        start = 3.0 + 0.5 * points_of(40, 1)
        return sk.fit(jr.key(0), two_modes, sk.svgd(), start, num_steps=600, tempering=schedule).particles

    # The modes are twelve standard deviations apart. Particles that start in one never see the other, unless the target
    # is first so flat that their repulsion carries some of them across.
    assert np.all(fit(1.0) > 0)
    assert 0.2 < np.mean(fit(400.0) < 0) < 0.8


# The answer.


def test_linear_kernel_reaches_the_exact_moments_of_a_gaussian_posterior():
    problem = regression()
    sampler = sk.svgd(sk.kernels.Linear(), optax.sgd(0.1))
    result = sk.fit(jr.key(0), problem.target, sampler, points_of(4, 2), problem.data, num_steps=5000, tolerance=1e-12)
    assert result.status is sk.Status.CONVERGED
    np.testing.assert_allclose(np.mean(result.particles, axis=0), problem.mean, rtol=1e-8)
    np.testing.assert_allclose(np.cov(result.particles.T, bias=True), np.linalg.inv(problem.precision), rtol=1e-6)


def test_minibatches_reach_the_posterior_mean_of_all_data():
    problem = regression()
    sampler = sk.svgd(sk.kernels.Linear(10.0), optax.sgd(lambda step: 0.5 / (25.0 + step.astype(float))))
    result = sk.fit(
        jr.key(0), problem.target, sampler, points_of(4, 2), problem.data,
        num_steps=20_000, batch_size=15, record_every=1000,
    )  # fmt: skip
    error = np.linalg.cholesky(problem.precision).T @ (np.mean(result.particles, axis=0) - problem.mean)
    # In posterior standard deviations: steps of 1/t average the noise of the minibatches down to 0.01 to 0.07 over
    # seeds; leaving out the factor N/b would move the mean by 1.6.
    assert np.linalg.norm(error) < 0.15


def gamma(x, shape):
    return (shape - 1) * jnp.log(x) - x


@pytest.mark.every(2)
@pytest.mark.parametrize("sampler", [sk.svgd(), sk.matrix_svgd("mixture", sk.Hessian())], ids=["svgd", "mixture"])
def test_positive_parameters_have_the_mean_of_their_density(sampler):
    start = jnp.exp(0.5 * points_of(30, 1)[:, 0])
    for shape in (3.0, 1.0):  # a Gamma and an Exponential: data, so one program serves both
        target = sk.LogDensity(gamma, support=sk.positive)
        result = sk.fit(jr.key(0), target, sampler, start, jnp.asarray(shape), num_steps=500)
        # 30 particles cut the tails off: the mean of a Gamma is its shape to within 1 percent.
        np.testing.assert_allclose(np.mean(result.particles), shape, rtol=0.015)


def test_a_schedule_is_a_learning_rate_too():
    start = jr.normal(jr.key(0), (5, 2))
    schedule = optax.cosine_decay_schedule(0.3, 10)
    named = sk.svgd(optimizer=optax.adagrad(schedule, initial_accumulator_value=0.0))
    one, other = (
        sk.fit(jr.key(0), lambda x: -jnp.sum(x**2), sampler, start, num_steps=5).points
        for sampler in (sk.svgd(optimizer=schedule), named)
    )
    np.testing.assert_allclose(one, other, rtol=1e-12)
