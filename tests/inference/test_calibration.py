"""Simulation-based calibration: exact posteriors pass, wrong ones fail, and a loop compiles once."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.results import plot

pytestmark = pytest.mark.thorough

NOISE = 0.5
ROWS = 3
DRAWS = 99


def prior_draw(key):
    return {"mean": jr.normal(key, (2,))}


def simulate(key, parameters):
    return parameters["mean"][None, :] + NOISE * jr.normal(key, (ROWS, 2))


def exact(data):
    """The posterior mean and standard deviation of a normal mean under a standard normal prior."""
    precision = 1 + ROWS / NOISE**2
    return jnp.sum(data, axis=0) / NOISE**2 / precision, precision**-0.5


def inference(width=1.0, shift=0.0):
    def infer(key, data):
        mean, sd = exact(data)
        return {"mean": mean[None, :] + sd * (shift + width * jr.normal(key, (DRAWS, 2)))}

    return infer


def run(seed, infer, **options):
    options = {"num_simulations": 150, **options}
    return sk.sbc(jr.key(seed), prior_draw, simulate, infer, progress=False, **options)


def test_exact_draws_pass_for_most_keys():
    """Each key fails with probability 0.05: more than 3 of 8 do in 4 of 10,000 cases."""
    found = [run(seed, inference()) for seed in range(8)]
    assert sum(not one.passed for one in found) <= 3
    assert all(one.traced for one in found)
    assert found[0].ranks.shape == (150, 2)
    assert found[0].names == ("mean[0]", "mean[1]")
    assert found[0].num_ranks == DRAWS + 1


@pytest.mark.parametrize(
    ("infer", "why"),
    [
        (inference(width=0.5), "too close together"),
        (inference(width=2.0), "too far apart"),
        (inference(shift=0.7), "too large"),
        (inference(shift=-0.7), "too small"),
    ],
    ids=["narrow", "wide", "high", "low"],
)
def test_wrong_posteriors_fail_for_every_key_and_the_line_says_how(infer, why):
    for seed in range(5):
        found = run(seed, infer)
        assert not found.passed
        assert found.sentence().startswith("NOT CALIBRATED: the ranks are not uniform for mean[")
        assert why in found.sentence()


def test_one_wrong_coordinate_is_the_one_that_is_named():
    def infer(key, data):
        draws = inference()(key, data)["mean"]
        return {"mean": draws.at[:, 1].add(1.0)}

    found = run(0, infer)
    assert "for mean[1] (the draws are too large) (" in found.sentence()
    assert found.p_values[1] < 1e-3 < found.p_values[0]


def test_a_loop_and_batches_give_the_same_ranks():
    together, alone = run(3, inference(), num_simulations=20), run(3, inference(), num_simulations=20, batch_size=1)
    assert (together.traced, alone.traced) == (True, False)
    # Draws of the two programs differ by rounding alone, which moves no rank unless two numbers are that close.
    assert np.mean(together.ranks == alone.ranks) > 0.95
    several = run(3, inference(), num_simulations=20, batch_size=7)
    assert np.mean(together.ranks == several.ranks) > 0.95


def test_functions_of_numpy_run_in_a_loop():
    def draw(key):
        return np.random.default_rng(np.asarray(jr.key_data(key))).normal()

    def infer(key, data):
        generator = np.random.default_rng(np.asarray(jr.key_data(key)))
        return 0.5 * float(data) + np.sqrt(0.5) * generator.normal(size=DRAWS)

    found = [sk.sbc(jr.key(seed), draw, lambda key, x: x + draw(key), infer, 60, progress=False) for seed in range(5)]
    assert not any(one.traced for one in found)
    assert sum(one.passed for one in found) >= 3  # each fails with probability 0.05
    assert found[0].names == ("x",)


def test_fewer_ranks_are_of_randomly_chosen_draws():
    found = run(1, inference(), num_ranks=10)
    assert found.num_ranks == 10
    assert found.ranks.max() == 9
    assert found.ranks.min() == 0


def test_ties_are_broken_at_random():
    """Discrete parameters: draws that equal the true value give every rank the same chance."""
    found = sk.sbc(
        jr.key(0), lambda key: jnp.zeros(()), lambda key, x: x, lambda key, y: jnp.zeros(9), 2000, progress=False
    )
    counts = np.bincount(found.ranks[:, 0], minlength=10)
    assert np.all(np.abs(counts - 200) < 5 * np.sqrt(200))
    assert found.num_ranks == 10


class CountedPosterior:
    """A log density with data that counts how often it is traced."""

    def __init__(self):
        self.calls = 0

    def __call__(self, parameters, data):
        self.calls += 1
        mean = parameters["mean"]
        return -0.5 * jnp.sum(mean**2) - 0.5 * jnp.sum((data - mean[None, :]) ** 2) / NOISE**2


@pytest.fixture
def compilations():
    """A growing list, with an entry for each program that is compiled or fetched from a cache on disk."""
    events = []

    def note(name, *_, **__):
        if name.endswith("backend_compile_duration"):
            events.append(name)

    jax.monitoring.register_event_duration_secs_listener(note)
    yield events
    jax.monitoring.unregister_event_duration_listener(note)


def counted(infer, target, compilations):
    """`infer`, and for every call: the traces of the target and the programs compiled until then."""
    seen = []

    def with_count(key, data):
        result = infer(key, data)
        seen.append((target.calls, len(compilations)))
        return result

    return with_count, seen


def test_fit_compiles_for_the_first_simulation_and_never_again(compilations):
    log_density = CountedPosterior()
    target, sampler = sk.LogDensity(log_density), sk.svgd()
    start = {"mean": jr.normal(jr.key(5), (20, 2))}

    def infer(key, data):
        return sk.fit(key, target, sampler, start, data, num_steps=50)

    with_count, seen = counted(infer, log_density, compilations)
    found = run(0, with_count, num_simulations=4)
    assert not found.traced
    assert seen[0][0] > 0
    assert seen[1:] == seen[:1] * 3


def test_sample_compiles_for_the_first_simulation_and_is_calibrated(compilations):
    log_density = CountedPosterior()
    target = sk.LogDensity(log_density)

    def infer(key, data):
        return sk.sample(key, target, start={"mean": jnp.zeros(2)}, data=data, progress=False)

    with_count, seen = counted(infer, log_density, compilations)
    found = run(0, with_count, num_simulations=40)
    # Each call traces the log density anew, to look at its precision and shapes, and runs the programs that are there.
    assert {programs for _, programs in seen} == {seen[0][1]}
    assert found.p_value > 0.001, found.sentence()


def test_the_figure_shows_every_coordinate_and_the_chosen_ones(tmp_path):
    found = run(0, inference(width=0.5))
    assert len(found.plot().axes) == 2
    (axes,) = found.plot(["mean[1]"]).axes
    assert axes.get_title() == "mean[1]"
    assert plot.save(found.plot(), tmp_path / "sbc.png").stat().st_size > 2000
    with pytest.raises(ValueError, match=r"`names` must be of mean\[0\], mean\[1\], got 'scale'"):
        found.plot(["scale"])


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"prior_draw": 3}, "`prior_draw` must be a function of a key"),
        ({"simulate": None}, "`simulate` must be a function of a key and the parameters"),
        ({"infer": "sample"}, "`infer` must be a function of a key and data"),
        ({"num_simulations": 1}, "`num_simulations` must be a whole number of at least 2, got 1"),
        ({"num_ranks": 1}, "`num_ranks` must be a whole number of at least 2, got 1"),
        ({"num_ranks": 200}, "`num_ranks` must be at most one more than the 99 draws of `infer`, got 200"),
        ({"batch_size": 0}, "`batch_size` must be a whole number of at least 1, got 0"),
        ({"level": 95}, "`level` must lie between 0 and 1, got 95"),
        ({"infer": lambda key, data: jnp.zeros((9, 3))}, "`infer` must give the parameters of `prior_draw`"),
        ({"infer": lambda key, data: {"mean": jnp.zeros(2)}}, "with a leading axis of draws, got"),
        (
            {"infer": lambda key, data: {"mean": jnp.full((9, 2), jnp.nan)}},
            "9 of 9 hold NaN or infinity in simulation 0",
        ),
        ({"prior_draw": lambda key: jnp.zeros(0), "simulate": lambda key, x: x}, "must give at least one number"),
        ({"key": 0}, "`key` must be one PRNG key"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_together_is_refused(change, told):
    given = {
        "key": jr.key(0),
        "prior_draw": prior_draw,
        "simulate": simulate,
        "infer": inference(),
        "num_simulations": 5,
    }
    with pytest.raises(ValueError, match=told):
        sk.sbc(**{**given, **change}, progress=False)


def test_an_error_of_the_inference_comes_out_as_it_is():
    def infer(key, data):
        raise KeyError("the user's own")

    with pytest.raises(KeyError, match="the user's own"):
        run(0, infer)
