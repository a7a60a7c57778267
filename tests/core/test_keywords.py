"""Keywords in other spellings: accepted where they mean the same, suggested where they are near, named where not."""

import inspect

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.core.keywords import helpful_keywords

PUBLIC = [
    sk.fit, sk.sample, sk.svgd, sk.matrix_svgd, sk.svn, sk.gradient_free_svgd, sk.ensemble, sk.half_bayesian, sk.sgld,
    sk.psgld,
]  # fmt: skip


def plain(x):
    return -0.5 * jnp.sum(x**2)


def test_the_american_spelling_gives_the_same_sampler():
    for build in (sk.svgd, sk.ensemble):
        one, other = build(optimizer=0.15), build(optimiser=0.15)
        assert one.optimiser is other.optimiser
    assert sk.gradient_free_svgd(plain, normalize=False).normalise is False
    assert sk.matrix_svgd("average", sk.Hessian(), optimizer=0.2).optimiser is sk.svgd(optimiser=0.2).optimiser


@pytest.mark.parametrize("function", PUBLIC, ids=lambda function: function.__name__)
def test_signatures_and_names_are_those_of_the_functions(function):
    assert function.__name__ in dir(sk)
    assert function.__doc__
    parameters = inspect.signature(function).parameters
    assert parameters
    assert "kwargs" not in parameters


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sk.svgd(optimise=0.1), r"svgd\(\) has no argument `optimise`. Did you mean `optimiser`\?"),
        (lambda: sk.svgd(lr=0.1), "no argument `lr`. Did you mean `optimiser`"),
        (lambda: sk.svgd(zzz=1), r"no argument `zzz`. It takes kernel, optimiser\."),
        (lambda: sk.svgd(optimiser=0.1, optimizer=0.2), "got `optimiser` twice, once as `optimizer`"),
        (lambda: sk.fit(jr.key(0), plain, sk.svgd(), jnp.zeros((3, 2)), steps=3), "Did you mean `num_steps`"),
        (lambda: sk.fit(jr.key(0), plain, sk.svgd(), jnp.zeros((3, 2)), iterations=3), "Did you mean `num_steps`"),
        (lambda: sk.sample(jr.key(0), plain, init=jnp.zeros(2)), "no argument `init`. Did you mean `start`"),
        (lambda: sk.sample(jr.key(0), plain, jnp.zeros(2), num_samples=5), "Did you mean `num_particles`"),
    ],
)  # fmt: skip
def test_an_unknown_keyword_gets_a_suggestion(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_other_errors_of_a_call_are_pythons_own():
    @helpful_keywords
    def two(first, second):
        return first, second

    assert two(1, second=2) == (1, 2)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'second'"):
        two(1)


# Tables.


pandas = pytest.importorskip("pandas", reason="comes with ArviZ")


def log_likelihood(parameters, row):
    return -0.5 * (row["response"] - parameters * row["dose"]) ** 2


TABLE = pandas.DataFrame({"dose": [0.0, 1.0, 2.0], "response": [1.0, 2.0, 4.0]}, index=[7, 8, 9])
COLUMNS = {"dose": np.array([0.0, 1.0, 2.0]), "response": np.array([1.0, 2.0, 4.0])}


def test_a_table_is_a_dictionary_of_its_columns():
    posterior = sk.Posterior(lambda p: -0.5 * p**2, log_likelihood, 3)
    start = jnp.linspace(-1.0, 1.0, 5)
    results = [sk.fit(jr.key(0), posterior, sk.svgd(), start, data, num_steps=3) for data in (TABLE, COLUMNS)]
    np.testing.assert_array_equal(results[0].points, results[1].points)
    by_table = results[0].predict(lambda p, row: p * row["dose"], TABLE)
    np.testing.assert_array_equal(by_table.values, np.asarray(results[0].particles)[:, None] * COLUMNS["dose"])
    np.testing.assert_array_equal(results[0].scores(TABLE), results[0].scores(COLUMNS))


def test_a_table_may_stand_beside_a_series():
    posterior = sk.Posterior(lambda p: -0.5 * p**2, lambda p, row: -0.5 * (row[1] - p * row[0]["dose"]) ** 2, 3)
    data = (TABLE[["dose"]], TABLE["response"])
    result = sk.fit(jr.key(0), posterior, sk.svgd(), jnp.linspace(-1.0, 1.0, 5), data, num_steps=1)
    assert result.settings["data shapes"] == ["float64[3]", "float64[3]"]


@pytest.mark.thorough
def test_sample_takes_a_table():
    posterior = sk.Posterior(lambda p: -0.5 * p**2, log_likelihood, 3)
    result = sk.sample(jr.key(0), posterior, jnp.zeros(()), 20, TABLE)
    # The posterior is N(10/6, 1/6): precision 1 + Σ dose² = 6, and Σ dose × response = 10.
    assert float(result.particles.mean()) == pytest.approx(10 / 6, abs=0.05)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            TABLE.assign(city=["a", "b", "c"]),
            r"`data\['city'\]` must be an array of numbers, .* Encode texts as numbers",
        ),
        (
            TABLE.assign(when=pandas.to_datetime(["2020"] * 3, format="%Y")),
            r"`data\['when'\]` must be numbers, got times",
        ),
        (pandas.DataFrame(np.ones((3, 2))), r"different texts for names, got 0. Rename .* `table.to_numpy\(\)`"),
        (TABLE.set_axis(["a", "a"], axis=1), "got columns of the same name"),
        (pandas.DataFrame(index=range(3)), "got no columns"),
    ],
)
def test_a_table_that_is_no_table_of_numbers_is_refused(table, message):
    posterior = sk.Posterior(lambda p: -0.5 * p**2, log_likelihood, 3)
    with pytest.raises(ValueError, match=message):
        sk.fit(jr.key(0), posterior, sk.svgd(), jnp.zeros(4), table, num_steps=1)


@pytest.mark.parametrize(
    ("log_density", "message"),
    [
        (lambda p: -jnp.sum((TABLE["response"] - p * TABLE["dose"]) ** 2), "array to pandas, .* `data`"),
        (lambda p: -jnp.sum(jnp.asarray(TABLE[["dose"]] @ p[None]) ** 2), "array to pandas, .* `data`"),
        (lambda p: -np.square(np.asarray(p)), "array to NumPy, .* in `jax.numpy`"),
    ],
    ids=["series", "table", "NumPy"],
)
def test_a_traced_array_in_another_library_is_explained(log_density, message):
    with pytest.raises(ValueError, match=f"`target` must take one particle, .* it gives a traced {message}"):
        sk.fit(jr.key(0), log_density, sk.svgd(), jnp.zeros(4), num_steps=1)
    with pytest.raises(ValueError, match=f"it gives a traced {message}"):
        sk.sample(jr.key(0), log_density, jnp.zeros(()))


def test_a_traced_array_in_polars_is_explained():
    polars = pytest.importorskip("polars", reason="needs polars: pip install polars")
    column = polars.Series([0.0, 1.0, 2.0])
    with pytest.raises(ValueError, match=r"it gives a traced array to polars, .* `data`"):
        sk.fit(jr.key(0), lambda p: -jnp.sum((column * p).to_numpy()), sk.svgd(), jnp.zeros(4), num_steps=1)


def test_a_concrete_value_asked_of_a_traced_array_keeps_the_error_of_jax():
    with pytest.raises(jax.errors.TracerBoolConversionError):
        sk.fit(jr.key(0), lambda p: -p if p > 0 else p, sk.svgd(), jnp.zeros(4), num_steps=1)


@pytest.mark.parametrize(
    ("function", "given", "suggested"),
    [
        (sk.sbc, "num_simulation", "num_simulations"),
        (sk.psis, "log_weight", "log_weights"),
        (sk.gaussian_psis, "draws", "num_draws"),
        (sk.predictive_check, "statistic", "statistics"),
        (sk.load, "targets", "target"),
    ],
)
def test_an_unknown_keyword_of_a_check_gets_a_suggestion(function, given, suggested):
    with pytest.raises(TypeError, match=f"{function.__name__}.. has no argument `{given}`. Did you mean `{suggested}`"):
        function(**{given: 1})


def test_the_library_imports_no_tables():
    import pathlib

    for path in pathlib.Path(sk.__file__).parent.rglob("*.py"):
        assert "import pandas" not in path.read_text(), path
