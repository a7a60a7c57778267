"""`fit` without a sampler: the rules by their definitions, the arguments, and whole runs with their comparison."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.inference.default import chains_from, compare
from steinkern.linalg.metrics import DenseMetric
from steinkern.samplers.auto import MAX_STEP, MIN_STEP, AutoSVGD, AutoSVGDState, _next_log_step
from steinkern.samplers.hamiltonian import ChainState
from steinkern.targets.centered import center_posterior
from tests.helpers.judged import judged


def gaussian(x):
    """Scales that differ by 10⁵, and a mean thousands of standard deviations from the start."""
    return -0.5 * ((x[0] - 3) / 1e-3) ** 2 - 0.5 * ((x[1] + 200) / 100) ** 2


def funnel(x):
    return -0.5 * (x[0] / 3) ** 2 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) - 0.5 * (x.size - 1) * x[0]


def state(velocity, log_step=0.0, steps=3):
    velocity = jnp.asarray(velocity)
    return AutoSVGDState(velocity, velocity, jnp.asarray(log_step, velocity.dtype), jnp.asarray(steps))


def test_the_step_grows_where_velocities_agree_and_falls_where_they_turn():
    velocity = jnp.array([[1.0, -2.0], [0.5, 3.0]])
    before = state(velocity)
    assert float(_next_log_step(before, 2 * velocity)) == pytest.approx(0.1)  # 0.2 (1 − 0.5)
    assert float(_next_log_step(before, -velocity)) == pytest.approx(-0.3)  # 0.2 (−1 − 0.5)
    assert float(_next_log_step(before, jnp.zeros_like(velocity))) == pytest.approx(-0.1)
    assert float(_next_log_step(state(velocity, steps=0), -velocity)) == 0  # there is no velocity before the first


def wide(x):
    """Forty coordinates, neighbours correlated."""
    return -0.5 * jnp.sum(x**2) - 2 * jnp.sum((x[1:] - x[:-1]) ** 2)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")
def test_fewer_particles_than_coordinates_are_too_narrow_and_say_so():
    result = sk.fit(jr.key(0), wide, start=np.zeros(40), num_particles=12, progress=False)
    precision = np.asarray(jax.hessian(lambda x: -wide(x))(jnp.zeros(40)))
    exact = np.sqrt(np.diagonal(np.linalg.inv(precision)))
    assert result.points.shape == result.particles.shape == (12, 40)
    assert (np.asarray(result.points).std(axis=0) / exact).min() < 0.8
    assert "differs-from-chains" in [notice.code for notice in result.warnings]
    assert result.status is sk.Status.FINISHED


def test_the_step_stays_within_its_limits():
    velocity = jnp.array([[1.0, -2.0], [0.5, 3.0]])
    largest, least = np.log(MAX_STEP), np.log(MIN_STEP)
    assert float(_next_log_step(state(velocity, largest), velocity)) == pytest.approx(largest)
    assert float(_next_log_step(state(velocity, least), -velocity)) == pytest.approx(least)


def test_an_affine_kernel_rests_where_steins_identity_holds_for_linear_functions():
    x = jr.normal(jr.key(0), (40, 3))
    x = x - x.mean(axis=0, keepdims=True)
    u = x @ jnp.linalg.inv(jnp.linalg.cholesky(x.T @ x / 40)).T  # covariance I
    kernel = sk.kernels.Affine().adapt(u)
    at_rest = kernel.velocity(u, sk.kernels.Scored.uniform(u, -u))
    np.testing.assert_allclose(at_rest, 0, atol=1e-5)
    wide = kernel.velocity(
        u, sk.kernels.Scored.uniform(u, -2 * u)
    )  # a target of variance ½: the particles move inwards
    np.testing.assert_allclose(wide, -u, atol=1e-5)


def logistic_posterior(rows):
    features = np.random.default_rng(0).standard_normal((rows, 2))
    labels = (np.random.default_rng(1).random(rows) < 1 / (1 + np.exp(-features @ [1.0, -0.5]))).astype(float)

    def log_likelihood(x, row):
        return row[1] * (row[0] @ x) - jnp.logaddexp(0, row[0] @ x)

    return sk.Posterior(lambda x: -0.5 * jnp.sum(x**2), log_likelihood, rows), (features, labels)


@pytest.mark.thorough
def test_a_centered_posterior_is_unbiased_and_quiet_near_its_center():
    target, data = logistic_posterior(60)
    center = jnp.array([0.8, -0.4])
    plain = target.bind(center)

    def total(x):
        return jnp.sum(plain.log_examples(x, data))

    centered = center_posterior(target, center, jax.grad(total)(center), jax.hessian(total)(center)).bind(center)
    points = center[None] + jnp.array([[0.0, 0.0], [0.1, -0.1], [0.5, 0.3]])
    batches = [jax.tree.map(lambda leaf, i=i: leaf[i : i + 6], data) for i in range(0, 60, 6)]
    by_batch, noisy = (np.stack([each.scores(points, batch) for batch in batches]) for each in (centered, plain))
    np.testing.assert_allclose(by_batch.mean(axis=0), plain.scores(points, data), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(by_batch[:, 0], by_batch[:1, 0].repeat(10, axis=0), atol=1e-9)  # no noise at the center
    assert (by_batch[:, 1].std(axis=0) < 0.05 * noisy[:, 1].std(axis=0)).all()


def draws_at(points):
    """Draws of chains that were at these points, axes (transition, chain, coordinate), and accepted every move."""
    t, n, _ = points.shape
    ones = np.ones((t, n))
    return ChainState(points, ones, -points, ones, np.ones(t, int), np.zeros(t, int))


def doubts(diagnostics):
    """The warnings of a comparison with reference chains."""
    return judged(diagnostics, 100, 2).warnings


def test_a_comparison_tells_differences_of_moments_in_units_of_the_chains():
    chains = 3 + 2 * np.random.default_rng(0).standard_normal((50, 100, 2))
    reference, draws = draws_at(chains), chains.reshape(-1, 2)
    unit = np.random.default_rng(1).standard_normal((40, 2))
    unit = (unit - unit.mean(axis=0)) / unit.std(axis=0)
    alike = unit * draws.std(axis=0) + draws.mean(axis=0)
    comparison = compare(sk.Diagnostics(), alike, reference)
    np.testing.assert_allclose(comparison.mean_differences, 0, atol=1e-12)
    np.testing.assert_allclose(comparison.sd_ratios, 1, atol=1e-12)
    assert (comparison.mean_errors > 0).all()  # those of the chains alone
    assert (comparison.mean_errors < 0.05).all()
    assert doubts(comparison) == ()
    moved = compare(sk.Diagnostics(), alike + draws.std(axis=0) * [0.0, 0.5], reference)
    np.testing.assert_allclose(moved.mean_differences, [0, 0.5], atol=1e-12)
    (notice,) = doubts(moved)
    assert notice.code == "differs-from-chains"
    assert "'x1'" in notice.text
    assert "call `sample`" in notice.text
    narrow = compare(sk.Diagnostics(), draws.mean(axis=0) + 0.5 * (alike - draws.mean(axis=0)), reference)
    assert [notice.code for notice in doubts(narrow)] == ["differs-from-chains"]
    np.testing.assert_allclose(narrow.sd_ratios, 0.5)


def test_chains_that_do_not_move_cannot_tell():
    starts = np.random.default_rng(0).standard_normal((1, 100, 2))
    chains = starts + 0.1 * np.random.default_rng(1).standard_normal((50, 100, 2))
    codes = [notice.code for notice in doubts(compare(sk.Diagnostics(), starts[0], draws_at(chains)))]
    assert len(codes) == 1
    assert codes[0] in ("slow-chains", "modes-apart")


REFUSED = {
    "both starts": ({"particles": np.zeros((4, 2)), "start": np.zeros(2)}, "`particles` and `start`"),
    "a number of given particles": ({"particles": np.zeros((4, 2)), "num_particles": 4}, "`num_particles`"),
    "no start": ({}, "`start` is missing"),
    "no number of steps": ({"sampler": sk.svgd(), "particles": np.zeros((4, 2))}, "`num_steps` is missing"),
    "a mesh": ({"start": np.zeros(2), "mesh": object()}, "`mesh` needs a `sampler`"),
    "tempering": ({"start": np.zeros(2), "tempering": lambda step: 1.0}, "`tempering` needs a `sampler`"),
    "no particles": ({"start": np.zeros(2), "num_particles": 0}, "`num_particles` must be a whole number"),
    "minibatches of a log density": ({"start": np.zeros(2), "batch_size": 2}, "`batch_size` is 2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_do_not_go_together_are_refused_by_name(name):
    options, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        sk.fit(jr.key(0), gaussian, **options)


@pytest.mark.thorough
def test_particles_of_a_gaussian_have_its_moments_and_say_so():
    result = sk.fit(jr.key(0), gaussian, start=np.zeros(2), num_particles=40, progress=False)
    assert result.status is sk.Status.CONVERGED
    points = np.asarray(result.points)
    # The affine part of the kernel fixes both moments of a Gaussian; the particles rest within 1e-3 of a unit step.
    np.testing.assert_allclose((points.mean(axis=0) - [3, -200]) / [1e-3, 100], 0, atol=0.02)
    np.testing.assert_allclose(points.std(axis=0), [1e-3, 100], rtol=0.02)
    assert result.diagnostics.r_hat.max() < 1.1
    assert "Beside reference chains" in result.summary()
    assert result.diagnostics.cost.gradients > 40 * result.num_steps
    assert not len(result.resample(jr.key(1), 10).diagnostics.r_hat)


@pytest.mark.thorough
def test_a_funnel_is_not_answered_in_silence():
    with pytest.warns(sk.SteinWarning):
        result = sk.fit(jr.key(0), funnel, start=jnp.zeros(5), progress=False)
    assert {notice.code for notice in result.warnings} & {"differs-from-chains", "slow-chains", "uneven-curvature"}
    assert result.status is sk.Status.FINISHED


@pytest.mark.thorough
def test_wrong_particles_differ_from_reference_chains():
    bound = sk.LogDensity(lambda x: -0.5 * jnp.sum(x**2)).bind(np.zeros(2))
    x = np.random.default_rng(0).standard_normal((100, 2))
    particles = (x - x.mean(axis=0)) / x.std(axis=0)
    sampler = AutoSVGD(DenseMetric.of(jnp.eye(2)), 400.0)
    for points, differs in ((particles, False), (0.5 * particles, True), (particles + 1.0, True)):
        chains = chains_from(np.random.default_rng(1), sampler, bound, points, None)
        codes = [notice.code for notice in doubts(compare(sk.Diagnostics(), points, chains.draws))]
        assert ("differs-from-chains" in codes) == differs
        assert chains.draws.points.shape == (50, 100, 2)
        assert chains.cost.gradients > 100 * chains.cost.sequential / 2  # a batch holds all chains or half


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")
def test_a_run_goes_on_from_its_checkpoint_and_from_its_result(tmp_path):
    def correlated(x):
        return -0.5 * x[0] ** 2 - 0.5 * (x[1] - x[0]) ** 2

    options = {"start": np.zeros(2), "num_particles": 20, "num_steps": 30, "progress": False}
    whole = sk.fit(jr.key(0), correlated, **options)
    stop = {"callback": lambda step, state, info: step >= 12, "checkpoint": tmp_path, "checkpoint_every": 5}
    sk.fit(jr.key(0), correlated, **options, **stop)
    resumed = sk.fit(jr.key(0), correlated, **options, checkpoint=tmp_path, checkpoint_every=5)
    np.testing.assert_array_equal(resumed.points, whole.points)
    first = sk.fit(jr.key(0), correlated, **options, callback=lambda step, state, info: step >= 12)
    rest = sk.fit(jr.key(0), correlated, particles=first, num_steps=30 - first.num_steps, progress=False)
    assert first.num_steps == 12
    np.testing.assert_array_equal(rest.points, whole.points)


@pytest.mark.thorough
def test_a_sampler_of_the_callers_starts_from_the_nearest_gaussian():
    result = sk.fit(
        jr.key(0), gaussian, sk.svgd(optimizer=1e-9), start=np.zeros(2), num_particles=30, num_steps=1, progress=False
    )  # fmt: skip
    assert result.points.shape == (30, 2)
    np.testing.assert_allclose(np.asarray(result.points).mean(axis=0), [3, -200], rtol=1e-2)


@pytest.mark.thorough
@pytest.mark.parametrize("batch_size", [32, 512])
def test_minibatches_give_the_moments_of_all_rows(batch_size):
    target, data = logistic_posterior(2000)
    result = sk.fit(jr.key(0), target, data=data, start=jnp.zeros(2), batch_size=batch_size, progress=False)
    exact = sk.sample(jr.key(1), target, jnp.zeros(2), data=data, progress=False)
    assert not result.warnings
    points, reference = np.asarray(result.points), exact.points
    # Narrower than what is promised of minibatches: 0.2 standard deviations, and 15 percent.
    np.testing.assert_allclose((points.mean(axis=0) - reference.mean(axis=0)) / reference.std(axis=0), 0, atol=0.15)
    np.testing.assert_allclose(points.std(axis=0) / reference.std(axis=0), 1, atol=0.1)
