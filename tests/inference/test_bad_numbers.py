"""Numbers that are not finite, metrics that cannot be factorised, moves out of all proportion: dealt with, or said."""

import re

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import steinkern as sk
from steinkern.inference import recovery, run

START = np.random.default_rng(0).normal(size=(12, 2))
PLAIN = sk.svgd(sk.RBF(1.0), optax.sgd(0.1))


def fit(target, sampler=PLAIN, particles=START, num_steps: int = 20, **options) -> sk.Result:
    return sk.fit(jr.key(0), target, sampler, particles, num_steps=num_steps, **options)


def gaussian(x):
    return -0.5 * jnp.sum(x**2)


# Particles at fault.


def walled(x):
    """A Gaussian around 1 that is NaN beyond 2.2."""
    return -0.5 * (x[0] - 1.0) ** 2 - 0.5 * x[1] ** 2 + 0.0 * jnp.sqrt(2.2 - x[0])


INSIDE = np.minimum(START, 1.9)


@pytest.fixture(scope="module")
def pushed():
    """Particles whose neighbours push them over the edge, again and again."""
    with pytest.warns(sk.SteinWarning, match=r"particles 1, 3 of 12 .* `support=`"):
        return fit(walled, particles=INSIDE, num_steps=100)


def test_particles_at_fault_go_back_and_the_others_go_on(pushed):
    assert pushed.status is sk.Status.FINISHED
    assert pushed.diagnostics.faults.moved_back > 10
    assert pushed.diagnostics.faults.stuck == (1, 3)
    assert f"moved back {pushed.diagnostics.faults.moved_back} times" in pushed.message.text
    assert np.all(pushed.points[:, 0] < 2.2)
    # Of a normal law cut off at 1.2 the mean is 1 - 0.22. The velocity knows nothing of the wall: particles that it
    # stops stand there, where the law would have sent them farther in, and move the mean of twelve by 0.12.
    np.testing.assert_allclose(np.mean(pushed.points, axis=0), [0.78, 0.0], atol=0.15)
    np.testing.assert_array_equal(pushed.history.step, np.arange(1, 101))


def crowded(x):
    """A Gaussian around 1.5 that is NaN beyond 2, where a third of it is."""
    return -0.5 * ((x[0] - 1.5) ** 2 + x[1] ** 2) + 0.0 * jnp.sqrt(2.0 - x[0])


@pytest.mark.parametrize("record_particles", [False, True])
def test_the_particles_of_a_run_with_too_many_at_fault_are_where_the_target_is_finite(record_particles):
    particles = np.random.default_rng(1).normal(size=(40, 2)) * 0.3
    with pytest.warns(sk.SteinWarning, match="more than five consecutive steps"):
        result = fit(crowded, particles=particles, num_steps=300, throw=False, record_particles=record_particles)
    assert result.status is sk.Status.DIVERGED
    assert np.all(result.points[:, 0] <= 2)
    (number,) = re.findall(
        r"those before it, (\d+) of them moved back to where the target is finite", result.message.text
    )
    assert int(number) > 0.25 * len(particles) or len(result.diagnostics.faults.stuck) > 0.25 * len(particles)
    if record_particles:
        np.testing.assert_allclose(result.history.particles[-1], result.particles, rtol=1e-6)
    again = fit(crowded, particles=result, num_steps=1, throw=False)  # from the particles that it has
    np.testing.assert_array_equal(again.history.step, [result.num_steps + 1])


def test_a_fit_with_nothing_tuned_that_diverges_names_sample_and_no_settings():
    with pytest.warns(sk.SteinWarning, match="Declare constraints with `support=`, or take smaller steps"):
        result = sk.fit(jr.key(0), crowded, start=jnp.ones(2), throw=False)
    assert result.status is sk.Status.DIVERGED
    assert np.all(result.points[:, 0] <= 2)
    assert "learning rate" not in result.message.text
    assert "`damping`" not in result.message.text
    assert "(a) the step size is too large: call `sample`, which needs no tuning" in result.message.text


def collapsing(x):
    """A Gaussian that is NaN in a ball around its mode, which particles on a circle reach at the same step."""
    return -0.5 * jnp.sum(x**2) + 0.0 * jnp.sqrt(jnp.sum(x**2) - 0.01)


ANGLES = np.linspace(0, 2 * np.pi, 12, endpoint=False)
CIRCLE = 2 * np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)


@pytest.mark.parametrize("record_every", [1, 4])
def test_a_run_that_fails_within_a_chunk_ends_where_its_steps_before_lead(record_every, monkeypatch):
    """The loop does not keep the state before a step that fails: the steps before it are taken again."""
    monkeypatch.setattr(run, "_CHUNK_SECONDS", np.inf)  # chunks grow on a slow machine too
    options = {"particles": CIRCLE, "record_every": record_every, "throw": False}
    failed = fit(collapsing, sk.ensemble(optax.sgd(0.1)), num_steps=300, **options)
    steps = failed.num_steps
    assert failed.status is sk.Status.DIVERGED
    assert 6 < steps < 300  # beyond the first chunk, of one step
    whole = fit(collapsing, sk.ensemble(optax.sgd(0.1)), num_steps=steps, **options)
    np.testing.assert_allclose(failed.points, whole.points, rtol=1e-6)
    np.testing.assert_array_equal(failed.history.step, whole.history.step)
    np.testing.assert_allclose(failed.history.velocity_norm, whole.history.velocity_norm, rtol=1e-6)
    assert np.isfinite(failed.points).all()


def test_a_run_with_particles_at_fault_does_not_depend_on_chunks_or_kills(pushed, tmp_path):
    options = {"particles": INSIDE, "checkpoint": tmp_path, "checkpoint_every": 4, "record_every": 3}
    for num_steps in (7, 33):
        fit(walled, num_steps=num_steps, **options)
    with pytest.warns(sk.SteinWarning):
        parts = fit(walled, num_steps=100, **options)
    np.testing.assert_array_equal(parts.points, pushed.points)
    assert parts.diagnostics.faults == pushed.diagnostics.faults
    np.testing.assert_array_equal(parts.history.velocity_norm, pushed.history.velocity_norm[parts.history.step - 1])


@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")
def test_the_others_move_as_they_would_with_that_particle_where_it_was_put():
    seen = {}

    def watch(step, state, info):
        seen[step] = np.asarray(state.points)

    fit(walled, particles=INSIDE, num_steps=100, callback=watch)
    fault = next(step for step in seen if np.any(seen[step][:, 0] > 2.2))
    put, share = seen[fault], 1.0
    while np.any(put[:, 0] > 2.2):
        share /= 2
        put = np.where(put[:, :1] > 2.2, seen[fault - 1] + share * (seen[fault] - seen[fault - 1]), put)
    assert share < 1
    others = seen[fault + 1][:, 0] < 2.2
    assert np.sum(others) >= 10
    once = fit(walled, particles=put, num_steps=1)
    np.testing.assert_allclose(once.points[others], seen[fault + 1][others], rtol=1e-12)


@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")
def test_the_last_line_holds_the_particles_where_they_were_put():
    outside = []

    def watch(step, state, info):
        outside.extend([step] if np.any(state.points[:, 0] > 2.2) else [])
        return outside

    fit(walled, particles=INSIDE, num_steps=100, callback=watch)
    result = fit(walled, particles=INSIDE, num_steps=outside[0], record_particles=True)
    assert result.diagnostics.faults.moved_back == 1
    assert len(result.history.particles) == outside[0]
    np.testing.assert_array_equal(result.history.particles[-1], result.particles)


def test_a_particle_that_strays_now_and_then_is_counted_and_not_warned_of():
    result = fit(walled, sk.sgld(0.02), INSIDE, num_steps=200)
    assert result.diagnostics.faults.moved_back > 0
    assert result.diagnostics.faults.stuck == ()
    assert np.all(result.points[:, 0] < 2.2)


def cliff(x):
    """A Gaussian below 4; above it a ledge that is finite between 4.9 and 5.1 alone, and slopes to its edge."""
    below = x[0] < 4.0
    inside = jnp.where(below, 5.0, x[0])
    ledge = 1000.0 * inside + 0.0 * jnp.sqrt(0.01 - (inside - 5.0) ** 2)
    return jnp.where(below, gaussian(x), ledge)


def test_a_particle_that_fails_again_and_again_is_named():
    particles = jnp.asarray(START).at[5].set(jnp.array([5.0, 0.0]))
    with pytest.warns(sk.SteinWarning, match="particle 5 "):
        result = fit(cliff, particles=particles, num_steps=40)
    assert result.status is sk.Status.FINISHED
    assert result.diagnostics.faults.stuck == (5,)
    assert 4.9 < result.points[5, 0] < 5.1
    others = np.delete(np.asarray(result.points), 5, axis=0)
    # After 40 steps of 0.1 the first mean, (-0.33, 0.14), is (-0.07, 0.04): the kernel averages over neighbours, so it
    # falls more slowly than the e⁻⁴ of a single particle.
    np.testing.assert_allclose(np.mean(others, axis=0), 0.0, atol=0.1)


def test_more_than_a_quarter_of_the_particles_at_fault_is_divergence():
    particles = jnp.asarray(START).at[:4].set(jnp.array([5.0, 0.0]))
    with pytest.raises(sk.DivergedError, match="not finite"):
        fit(cliff, particles=particles)
    assert recovery.MAX_FAULTY_SHARE == 0.25


@jax.custom_jvp
def _slope(x):
    return 0.0 * x


_slope.defjvp(lambda x, t: (0.0 * x[0], jnp.where(x[0] > 2.2, jnp.nan, 0.0) * t[0]))


@jax.custom_jvp
def rough(x):
    """Zero, with a gradient of zero, and a curvature that is NaN beyond 2.2."""
    return 0.0 * x


rough.defjvp(lambda x, t: (0.0 * x[0], _slope(x[0]) * t[0]))


def test_a_particle_of_infinite_curvature_is_found_as_well():
    def log_density(x):
        return -0.5 * (x[0] - 1.0) ** 2 - 0.5 * x[1] ** 2 + rough(x[0])

    sampler = sk.matrix_svgd("average", sk.Hessian(), sk.RBF(1.0), optax.sgd(0.1))
    with pytest.warns(sk.SteinWarning, match="particles 1"):
        result = fit(log_density, sampler, INSIDE, num_steps=100)
    assert result.status is sk.Status.FINISHED
    assert result.diagnostics.faults.moved_back > 0


def test_curvature_that_is_not_finite_enters_no_running_average():
    def log_density(x):
        return -0.5 * (x[0] + 3.0) ** 2 - 0.5 * x[1] ** 2 + rough(2.25 - jnp.abs(x[0] - 1.77))

    # One particle walks down from 1.9 and comes into a stretch of NaN curvature between 1.82 and 1.72.
    particles = jnp.asarray(np.clip(START, -1.2, 1.2)).at[0, 0].set(1.9)
    sampler = sk.matrix_svgd("average", sk.Hessian(), sk.RBF(1.0), optax.sgd(0.05), decay=0.9, refresh_every=10)
    with pytest.warns(sk.SteinWarning, match="particle 0 "):
        result = fit(log_density, sampler, particles, num_steps=60, throw=False)
    assert result.status is sk.Status.FINISHED
    assert result.diagnostics.faults.moved_back > 0
    assert np.all(np.isfinite(result.loop.state.rule.curvature.as_matrix()))


def test_a_gradient_free_run_is_mended_without_a_gradient():
    def log_density(x):
        return jnp.where(x[0] > 1.5, jnp.nan, gaussian(x))

    sampler = sk.gradient_free_svgd(lambda x: -0.5 * jnp.sum((x - 0.8) ** 2), optimizer=optax.sgd(1.0))
    with pytest.warns(sk.SteinWarning, match="particle 1"):
        result = fit(log_density, sampler, np.minimum(START, 1.2), num_steps=30)
    assert np.all(result.points[:, 0] <= 1.5)
    assert result.diagnostics.faults.moved_back > 0


# Metrics that cannot be factorised.


def saddle(x):
    """The curvature along the second axis is negative near 0 and positive farther out."""
    return -0.5 * x[0] ** 2 + 0.05 * x[1] ** 2 - 0.01 * x[1] ** 4


INDEFINITE = sk.Hessian(repair=None)


@pytest.mark.parametrize(
    "make",
    [
        lambda damping: sk.matrix_svgd("average", INDEFINITE, sk.RBF(1.0), optax.sgd(0.1), damping=damping),
        pytest.param(
            lambda damping: sk.matrix_svgd("mixture", INDEFINITE, sk.RBF(1.0), optax.sgd(0.1), damping=damping),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            lambda damping: sk.svn(INDEFINITE, sk.RBF(1.0), optax.sgd(0.1), damping=damping), marks=pytest.mark.thorough
        ),
    ],
    ids=["average", "mixture", "svn"],
)
@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")  # too few steps to be anywhere
def test_a_metric_that_cannot_be_factorised_is_damped_for_that_step(make):
    start = 0.1 * START
    result = fit(saddle, make(1e-6), start, num_steps=1)
    assert result.diagnostics.faults.damped == 1
    assert f"{result.diagnostics.faults.largest_damping:.0e} times the damping" in result.message.text
    stronger = make(1e-6 * result.diagnostics.faults.largest_damping)
    np.testing.assert_allclose(result.points, fit(saddle, stronger, start, num_steps=1).points, rtol=1e-10)
    weaker = make(1e-8 * result.diagnostics.faults.largest_damping)
    assert fit(saddle, weaker, start, num_steps=1).diagnostics.faults.damped == 1


def test_damping_is_as_it_was_where_the_metric_can_be_factorised_again():
    sampler = sk.matrix_svgd("average", INDEFINITE, sk.RBF(1.0), optax.sgd(0.3))
    result = fit(saddle, sampler, 0.5 * START, num_steps=150)
    assert 0 < result.diagnostics.faults.damped < 150
    assert np.array_equal(result.history.step, np.arange(1, 151))


# Moves out of all proportion.


def spike(x):
    """A Gaussian with a needle of height 1e8 beside the point (3, 3)."""
    return gaussian(x) + 1e8 * jnp.exp(-0.5 * jnp.sum((x - 3.0) ** 2) / 1e-4)


NEEDLED = jnp.asarray(START).at[0].set(jnp.array([3.01, 3.0]))


@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")  # too few steps to be anywhere
def test_an_absurd_move_is_shortened_to_the_limit_and_no_other_is_touched():
    limited, free = (
        fit(spike, sk.svgd(sk.RBF(0.01), optax.sgd(0.1)), NEEDLED, num_steps=1, max_move=limit)
        for limit in (100.0, None)
    )
    spread = np.sqrt(np.mean(np.var(NEEDLED, axis=0)))
    assert (limited.diagnostics.faults.shortened, free.diagnostics.faults.shortened) == (1, 0)
    np.testing.assert_allclose(np.max(np.abs(limited.points[0] - NEEDLED[0])), 100 * spread, rtol=1e-12)
    assert np.max(np.abs(free.points[0])) > 1e6
    move, whole = (np.asarray(result.points[0] - NEEDLED[0]) for result in (limited, free))
    np.testing.assert_allclose(move / np.linalg.norm(move), whole / np.linalg.norm(whole), atol=1e-12)
    np.testing.assert_array_equal(limited.points[1:], free.points[1:])
    assert "Clipped 1 move, far longer than any before" in limited.message.text


@pytest.mark.parametrize("sampler", [sk.svgd(), sk.sgld(0.1), sk.psgld(0.01)], ids=["svgd", "sgld", "psgld"])
def test_ordinary_moves_are_left_alone_to_the_last_bit(sampler):
    limited, free = (fit(gaussian, sampler, max_move=limit) for limit in (100.0, None))
    assert limited.diagnostics.faults == sk.results.Faults()
    np.testing.assert_array_equal(limited.points, free.points)


def test_particles_that_coincide_may_move_as_far_as_they_like():
    with pytest.warns(sk.SteinWarning, match="same point"):
        result = fit(gaussian, sk.svgd(), np.full((4, 2), 1e-3), num_steps=3)
    assert result.diagnostics.faults.shortened == 0


def test_an_explosion_is_divergence_before_it_overflows():
    # Each step turns x into -1e4 x: far from overflow after twenty of them, and far from the target.
    result = fit(lambda x: 1e5 * gaussian(x), sk.svgd(sk.RBF(1.0), optax.sgd(1.0)), num_steps=20, throw=False)
    assert result.status is sk.Status.DIVERGED
    assert "in a row to move particles far beyond" in result.message.text
    assert result.num_steps == 8


# Scales.


def scaled(x, scale):
    return gaussian(x / scale)


@pytest.mark.every(3)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "sampler",
    [sk.svgd(), sk.matrix_svgd("average", sk.Hessian()), sk.matrix_svgd("mixture", sk.Hessian())],
    ids=["svgd", "average", "mixture"],
)
@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")  # too few steps to be anywhere
def test_huge_and_tiny_scales_end_finite_or_say_why(sampler, dtype):
    for scale in (1e-30, 1e-12, 1e12, 1e30):
        particles = (scale * START).astype(dtype)
        result = sk.fit(jr.key(0), scaled, sampler, particles, np.asarray(scale, dtype), num_steps=20, throw=False)
        assert np.all(np.isfinite(result.points))
        if result.status is sk.Status.DIVERGED:
            assert "Likely causes" in result.message.text
        elif scale > 1:  # nothing moves where a step of 0.3 is nothing
            np.testing.assert_allclose(np.asarray(result.points) / np.asarray(scale, dtype), START, rtol=1e-6)
