"""Every run says whether its particles can be draws of the target: in its status, its summary, a warning and a page."""

import signal
import warnings

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import steinkern as sk
from steinkern.inference.end_check import data_passes

pytestmark = pytest.mark.thorough

STILL, SLOW, NOTHING = optax.sgd(1e-3), optax.sgd(1e-6), optax.sgd(0.0)  # one object, one program


def draws(n: int, d: int):
    return np.random.default_rng(0).normal(size=(n, d))


def gaussian(x):
    return -0.5 * jnp.sum(x**2)


def listened(*arguments, **options) -> tuple[sk.Result, list[str]]:
    """The result of a fit, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = sk.fit(jr.key(0), *arguments, **options)
    assert result.failed_checks == ()
    return result, [str(entry.message) for entry in caught if isinstance(entry.message, sk.SteinWarning)]


POSTERIOR = sk.Posterior(gaussian, lambda x, row: gaussian(x - row), num_data=103)
ROWS = np.random.default_rng(1).normal(size=(103, 2))


def on_rows(n: int = 30, **options) -> tuple[sk.Result, list[str]]:
    """A posterior N(mean, I/104) with minibatches of 10, from a cloud as wide as it; three of them do not fill one."""
    start = ROWS.sum(axis=0) / 104 + draws(n, 2) / 104**0.5 + options.pop("shift", 0.0)
    return listened(POSTERIOR, sk.svgd(optimiser=SLOW), start, ROWS, batch_size=10, **options)


def test_particles_at_rest_that_fail_are_not_converged():
    """Two steep coordinates and a flat one: the velocity falls to nothing while the flat one has hardly begun."""
    scales = jnp.array([1.0, 1.0, 1e4])
    start = draws(40, 3) + np.array([50.0, 50.0, 0.0])
    result, said = listened(
        lambda x: gaussian(x / scales), sk.svgd(sk.RBF(1e4), optax.sgd(0.5)), start, num_steps=60, tolerance=1e-2
    )
    assert result.history.velocity_norm[-1] < 0.01 * result.history.velocity_norm.max()
    assert result.num_steps < 60
    assert result.status is sk.Status.FINISHED
    assert "fail the check" in result.message
    assert said
    assert result.verdict.passed is False


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (draws(100, 2) + np.array([1.5, 0.0]), ["beside the target: in x[0]"]),
        (draws(100, 2) * np.array([3.0, 0.2]), ["too close together", "too far apart"]),
        (draws(100, 2), []),
    ],
    ids=["shifted", "wide and narrow", "draws"],
)
def test_a_single_step_is_judged(start, words, tmp_path):
    result, said = listened(gaussian, sk.svgd(optimiser=STILL), start, num_steps=1)
    assert len(said) == len(words)
    assert all(any(part in text for text in said) for part in words)
    assert result.verdict.passed is not bool(words)
    line = result.summary().splitlines()[-1]
    assert line.startswith("FAILS the Stein check" if words else "Passes the Stein check")
    page = result.report(tmp_path).read_text()
    assert ("FAILS the Stein check" if words else "Passes the Stein check") in page


def test_a_shift_that_one_particle_decides_is_not_passed():
    """One of forty particles stands at a cliff, from which these steps do not move it."""

    def cliff(x):
        return gaussian(x) + jnp.sum(jnp.where(jnp.abs(x) < 1e-3, 400.0 * x, 0.0))

    start = draws(40, 1)
    start = np.where(np.abs(start) < 2e-3, 0.5, start)
    start[0] = 0.0
    result, said = listened(cliff, sk.svgd(optimiser=SLOW), start, num_steps=5)
    assert result.verdict.unclear, result.verdict.sentence()
    assert result.status is sk.Status.FINISHED
    assert any("is unclear" in text for text in said)


def test_a_sign_slip_is_asked_about():
    result, said = listened(lambda x: -gaussian(x), sk.svgd(), draws(30, 2), num_steps=30)
    assert len(said) == 1
    assert "Did you pass −log p" in said[0]
    assert "not moving downhill" in result.message
    assert result.verdict.outward


@pytest.mark.parametrize(
    "sampler", [sk.svgd(optimiser=optax.sgd(0.0)), sk.svgd(optimiser=1e-30), sk.sgld(1e-35)], ids=["0", "1e-30", "sgld"]
)
def test_particles_that_have_not_moved_are_told(sampler):
    _, said = listened(gaussian, sampler, draws(30, 2), num_steps=20)
    assert len(said) == 1
    assert "have not moved" in said[0]
    assert "raise the learning rate" in said[0]


@pytest.mark.parametrize(
    "step_size", [1j, np.complex64(1), lambda count: jnp.asarray(1j)], ids=["1j", "array", "schedule"]
)
def test_a_step_size_that_is_not_real_is_refused(step_size):
    with pytest.raises(ValueError, match="`step_size` must be"):
        sk.fit(jr.key(0), gaussian, sk.sgld(step_size), draws(3, 2), num_steps=1)


def test_minibatches_are_judged_on_all_rows_where_a_tenth_of_the_run_buys_them():
    result, said = on_rows(num_steps=130)
    assert said == []
    scores = np.asarray(result.scores(ROWS))
    points = np.asarray(result.points)
    np.testing.assert_allclose(result.verdict.shift.value, points.std(axis=0, ddof=1) * scores.mean(axis=0), rtol=1e-8)
    spread = -np.sum((points - points.mean(axis=0)) * scores, axis=0) / (len(points) - 1)
    np.testing.assert_allclose(result.verdict.spread.value, spread, rtol=1e-8)
    assert result.verdict.note == ""


def test_a_shorter_run_is_judged_on_some_rows_and_says_so():
    result, said = on_rows(num_steps=3, shift=1.0)
    assert "On 50 of 103 rows" in result.summary()
    assert any("beside the target" in text for text in said)
    assert on_rows(num_steps=3)[1] == []


def test_minibatches_compile_nothing_for_the_check():
    calls = []

    def log_likelihood(x, row):
        calls.append(row)
        return gaussian(x - row)

    target = sk.Posterior(gaussian, log_likelihood, num_data=103)

    def run(num_steps: int) -> int:
        sk.fit(jr.key(0), target, sk.svgd(optimiser=SLOW), draws(3, 2), ROWS, num_steps=num_steps, batch_size=10)
        return len(calls)

    first = run(1)
    assert run(1) == first
    assert run(130) == first


def test_ctrl_c_is_judged_by_what_there_is(heard):
    def interrupt(step, state, info):
        if step == 30:
            signal.raise_signal(signal.SIGINT)

    result, said = listened(gaussian, sk.svgd(optimiser=STILL), draws(100, 2) + 3.0, num_steps=1000, callback=interrupt)
    assert result.status is sk.Status.STOPPED
    assert any("beside the target" in text for text in said)
    assert [notice.code for notice in result.warnings] == ["shifted"]
    assert result.warnings[0].endswith("The run was ended early: go on with it.")
    result, said = on_rows(num_steps=1000, callback=interrupt)
    assert result.status is sk.Status.STOPPED
    assert "means and single spreads were not checked" in result.summary()
    assert said == []


def test_a_callback_that_ends_a_run_does_not_end_the_check():
    result, said = listened(
        gaussian, sk.svgd(optimiser=STILL), draws(100, 2) + 3.0, num_steps=50, callback=lambda *_: True
    )
    assert result.num_steps == 1
    assert result.verdict.shifted
    assert said


@pytest.mark.parametrize(
    ("sampler", "why"),
    [
        (sk.ensemble(), "looks for modes"),
        (sk.gradient_free_svgd(gaussian), "gradient"),
    ],
    ids=["ensemble", "gradient-free"],
)
def test_what_is_not_checked_says_why(sampler, why):
    result, said = listened(gaussian, sampler, draws(20, 2), num_steps=2)
    assert result.verdict.passed is None
    assert why in result.summary().splitlines()[-1]
    assert said == []


def test_one_particle_and_particles_of_several_runs_are_not_judged():
    result, _ = listened(gaussian, sk.svgd(optimiser=STILL), draws(1, 2), num_steps=1)
    assert "one particle" in result.verdict.note
    assert sk.combine([result, result]).verdict.passed is None
    assert result.resample(jr.key(0), 1).verdict.passed is None


def test_a_tempered_run_is_judged_at_the_power_at_which_it_ended():
    half = {"tempering": lambda step: jnp.asarray(0.25)}
    wide = 2.0 * draws(100, 2)  # draws of p to the power 1/4
    result, said = listened(gaussian, sk.svgd(optimiser=STILL), wide, num_steps=2, **half)
    assert said == []
    assert "to the power 0.25" in result.summary()
    assert listened(gaussian, sk.svgd(optimiser=STILL), wide, num_steps=2)[0].verdict.wide


# Advice.

NETWORK_LIKE = sk.matrix_svgd(
    "mixture", sk.Hessian(diagonal=True), sk.IMQ(), temperature=sk.Median(), weighting="no_determinant", optimiser=STILL
)


@pytest.mark.parametrize(
    ("sampler", "named", "left_out"),
    [
        (sk.svgd(optimiser=STILL), ["IMQ()", "matrix_svgd", "Graphical"], ["Median()"]),
        (sk.svgd(sk.IMQ(), STILL), ["matrix_svgd"], ["IMQ()"]),
        (NETWORK_LIKE, ["particles span at most 7 of the 20", "held-out"], ["IMQ()", "matrix_svgd", "Median()"]),
    ],
    ids=["plain", "imq", "network"],
)
def test_advice_leaves_out_what_a_run_has_already(sampler, named, left_out):
    _, said = listened(gaussian, sampler, 0.1 * draws(8, 20), num_steps=1)
    (text,) = [text for text in said if "too close together" in text]
    assert all(name in text for name in named), text
    assert not any(name in text for name in left_out), text


def test_particles_that_run_away_are_told_to_go_slower():
    _, said = listened(gaussian, sk.svgd(sk.RBF(1e6), optax.sgd(2.5)), 3 + draws(30, 2), num_steps=20)
    assert any("lower the learning rate" in text and "raise the learning rate" not in text for text in said)


# Checks that fail themselves.


@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")
@pytest.mark.parametrize(
    "run",
    [
        lambda: sk.fit(jr.key(0), gaussian, sk.svgd(sk.RBF(1.0)), draws(20, 2).astype("float32"), num_steps=100),
        pytest.param(
            lambda: sk.fit(jr.key(0), POSTERIOR, NETWORK_LIKE, draws(8, 2), ROWS, num_steps=100, batch_size=10),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            lambda: sk.fit(jr.key(0), POSTERIOR, sk.psgld(1e-3), draws(8, 2), ROWS, num_steps=100),
            marks=pytest.mark.thorough,
        ),
        lambda: sk.fit(jr.key(0), gaussian, sk.svgd(), draws(2, 3), num_steps=100, tolerance=1e-9),
    ],
    ids=["float32", "mixture on batches", "psgld", "two particles"],
)
def test_no_check_of_an_ordinary_run_fails_itself(run):
    assert run().failed_checks == ()


def test_scores_that_are_not_finite_at_the_end_are_divergence():
    def edged(x):  # below 1 the gradient is NaN and the value is not
        return jnp.sum(-0.5 * x**2 + jnp.where(x > 1, -0.1 * jnp.sqrt(x - 1), 0.0))

    start = 2 + 0.3 * draws(30, 1)
    result = sk.fit(jr.key(0), edged, sk.svgd(sk.RBF(10.0), optax.sgd(0.7)), start, num_steps=1, throw=False)
    assert result.status is sk.Status.DIVERGED
    assert "moved back along their last step" in result.message
    assert np.isfinite(result.scores()).all()


def test_a_run_that_goes_on_from_a_result_and_does_not_move_is_told():
    first, said = listened(gaussian, sk.svgd(optimiser=NOTHING), draws(20, 2), num_steps=110)
    assert any("have not moved" in text for text in said)
    _, said = listened(gaussian, sk.svgd(optimiser=NOTHING), first, num_steps=110)
    assert any("have not moved" in text for text in said)


def test_two_plates_are_judged_with_errors_by_the_choice_of_rows():
    passes, share = data_passes({"a": (100, 60), "b": (1000, 10)}, 50)
    assert len(passes) >= 5
    assert len({tuple(rows["a"]) for rows, _ in passes}) == len(passes)
    assert share <= 0.01
    assert sum(weight for _, weight in passes) == pytest.approx(1)
