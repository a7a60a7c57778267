"""Inputs that used to be taken for something else."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.core.arrays import as_data


def gaussian(x):
    return -0.5 * jnp.sum(x**2)


START = np.arange(6.0, dtype=np.float32).reshape(3, 2)
SVGD = sk.svgd()


def fit(target, particles=START, data=None, num_steps=1, sampler=SVGD, **options):
    return sk.fit(jr.key(0), target, sampler, particles, data, num_steps=num_steps, **options)


# Numbers that JAX's own precision cannot hold.

TIMES = 1_700_000_000_000 + 1000 * np.arange(20)
TOO_WIDE = {
    "int64 beyond 32 bits": (TIMES, "wrap around"),
    "uint64": (np.full(4, 2**63, np.uint64), "wrap around"),
    "time stamps": (1.7e9 + np.arange(20.0), "loses its digits"),
    "a column of time stamps": (np.stack([np.arange(20.0), 1.7e9 + np.arange(20.0)], 1), "in column 1"),
    "overflow": (np.array([1.0, 2.0, 1e300]), "beyond the range"),
    "underflow": (1e-60 * np.arange(20.0), "loses its digits"),
}


@pytest.mark.parametrize("name", TOO_WIDE)
def test_data_that_do_not_fit_into_32_bits_are_refused_with_the_way_out(name):
    data, words = TOO_WIDE[name]
    with jax.enable_x64(False), pytest.raises(ValueError, match=f"`data`.*{words}.*jax_enable_x64"):
        fit(lambda x, data: -0.5 * jnp.sum((x - jnp.mean(data.astype(x.dtype))) ** 2), data=data)


def test_particles_that_single_precision_cannot_tell_apart_are_refused():
    near = 1.7e9 + np.arange(6.0).reshape(3, 2)
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"`particles`.*loses its digits"):
        fit(gaussian, near)


@pytest.mark.parametrize("kind", ["closure", "partial", "compiled"])
@pytest.mark.parametrize("entry", ["fit", "sample"])
def test_arrays_that_a_log_density_closes_over_are_checked_as_data_are(kind, entry):
    times = 1.7e9 + np.arange(6.0)

    def log_density(x):
        return gaussian(x) - 0.0 * jnp.sum(times)

    function = {"closure": log_density, "partial": partial(log_density), "compiled": jax.jit(log_density)}[kind]
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"`times` loses its digits.*jax_enable_x64"):
        fit(function) if entry == "fit" else sk.sample(jr.key(0), function, np.zeros(2))


def test_ordinary_data_in_double_precision_are_taken():
    generator = np.random.default_rng(0)
    ordinary = {
        "small": generator.normal(size=(50, 3)),
        "years": generator.uniform(1950, 2020, size=50),
        "constant": np.full(50, 0.1),
        "nearly constant": 1 / 3 + 1e-16 * generator.normal(size=50),
        "months of seconds": 1.7e9 + generator.uniform(0, 1e7, size=50),
        "two rows": np.array([0.123456789012, 0.123456789013]),
        "missing": np.array([1.0, np.nan, 2.0]),
        "counts": np.arange(50),
        "complex": generator.normal(size=50) + 1j,
    }
    with jax.enable_x64(False):
        for name, values in ordinary.items():
            taken = as_data({name: values})[name]
            np.testing.assert_allclose(np.asarray(taken), values, rtol=1e-6, err_msg=name)


# Labels.


def test_labels_that_a_likelihood_does_not_know_have_no_probability_and_no_gradient():
    def values(likelihood, output, label):
        return jax.value_and_grad(likelihood.log_prob)(output, label)

    over_labels = jax.jit(jax.vmap(values, (None, None, 0)), static_argnums=0)
    for likelihood, output, good, bad in (
        (sk.Bernoulli(), jnp.array([0.3]), [0.0, 1.0], [-1.0, 2.0, 0.5, np.nan]),
        (sk.Categorical(), jnp.array([0.3, 1.0, -2.0]), [0.0, 2.0], [-1.0, 3.0, 0.5, np.nan]),
    ):
        value, gradient = over_labels(likelihood, output, jnp.asarray(good))
        assert np.isfinite(value).all()
        assert np.isfinite(gradient).all()
        value, gradient = over_labels(likelihood, output, jnp.asarray(bad))
        assert np.isnan(value).all()
        assert np.isnan(gradient).any(axis=1).all()


def test_classes_of_any_kind_are_the_same_classes():
    logits = jnp.array([0.3, 1.0, -2.0])

    @jax.jit
    def of_all_kinds(logits):
        kinds = (np.int64, np.int8, np.uint8, np.float32, np.float16)
        return [jax.vmap(sk.Categorical().log_prob, (None, 0))(logits, jnp.arange(3).astype(kind)) for kind in kinds]

    for own in of_all_kinds(logits):
        np.testing.assert_allclose(own, jax.nn.log_softmax(logits), rtol=1e-12)


def test_labels_of_minus_one_are_refused_by_fit():
    features = np.linspace(-1, 1, 12)[:, None]
    labels = np.where(np.arange(12) < 6, -1.0, 1.0)

    def log_likelihood(w, row):
        return sk.Bernoulli().log_prob(row[0] @ w[:, None], row[1])

    posterior, start = sk.Posterior(lambda w: -0.5 * jnp.sum(w**2), log_likelihood, 12), np.linspace(-1, 1, 3)[:, None]
    with pytest.raises(ValueError, match=r"NaN or infinite.*labels that the likelihood does not know"):
        fit(posterior, start, (features, labels))
    mostly = np.where(np.arange(12) == 10, -1.0, 1.0)  # a row that the first batch does not hold
    with pytest.raises(ValueError, match=r"`data` must have a finite log-likelihood.*1 of 12 rows.*row 10"):
        fit(posterior, start, (features, mostly), batch_size=2)


LABELS = {
    "Bernoulli": (sk.Bernoulli(), 1, [0, 1, -1], r"0 or 1, got -1 among 3"),
    "Categorical": (sk.Categorical(), 3, [0, 2, 3], r"classes 0 … 2, got 3 among 3"),
    "negative": (sk.Categorical(), 3, [0, 2, -1], r"classes 0 … 2, got -1"),
    "between": (sk.Categorical(), 3, [0, 1, 0.5], r"classes 0 … 2, got 0.5"),
}


@pytest.mark.parametrize("name", LABELS)
def test_a_prediction_refuses_labels_that_the_likelihood_does_not_know(name):
    likelihood, outputs, labels, words = LABELS[name]
    prediction = sk.results.Prediction(jnp.zeros((2, 3, outputs)), 0.9)
    with pytest.raises(ValueError, match=f"`labels` must be {words}"):
        prediction.log_density(likelihood, labels)
    with pytest.raises(ValueError, match="`labels`"):
        likelihood.check(labels, outputs)
    likelihood.check([0, 1, 1], outputs)


@pytest.mark.parametrize("kind", [bool, np.int32])
def test_the_interval_of_whole_numbers_is_that_of_the_same_floats(kind):
    values = np.array([[0, 1, 1], [1, 0, 1], [1, 0, 1], [1, 0, 1], [0, 0, 0]]).astype(kind)
    ours = sk.results.Prediction(jnp.asarray(values), 0.5)
    floats = sk.results.Prediction(jnp.asarray(values.astype(float)), 0.5)
    np.testing.assert_allclose(np.stack(ours.interval), np.stack(floats.interval))
    np.testing.assert_allclose(ours.mean, floats.mean)


# Starts.


def test_particles_that_coincide_are_called_that_and_not_a_flat_density():
    with pytest.warns(sk.SteinWarning) as warned:
        fit(gaussian, jnp.zeros((4, 2)), num_steps=100, progress=False)
    said = [str(warning.message) for warning in warned]
    assert any("all 4 first particles are the same point" in text for text in said)
    assert not any("does not depend" in text for text in said)


def test_chains_may_start_at_one_point():
    assert not fit(gaussian, jnp.zeros((4, 2)), num_steps=2, sampler=sk.sgld(0.1)).warnings


# A log density that is NaN where its gradient is not.


def cut(x):
    return jnp.where(x[0] > -1, -0.5 * jnp.sum(x**2), jnp.nan)


def test_a_score_exists_only_where_the_density_does():
    target, points = sk.LogDensity(cut).bind(jnp.zeros(1)), jnp.array([[0.5], [-2.0]])

    @eqx.filter_jit
    def velocities(target, points):
        samplers = (sk.svgd(sk.RBF(1.0)), sk.sgld(0.1), sk.psgld(0.1))
        steps = [sampler.step(jr.key(0), sampler.init(target, points), target) for sampler in samplers]
        return target.scores(points), [info.velocity_norm for _, info in steps]

    scores, norms = velocities(target, points)
    np.testing.assert_allclose(scores, [[-0.5], [np.nan]])
    assert np.isnan(norms).all()


# Kernels.


@pytest.mark.parametrize("make", [sk.kernels.Tilted, sk.kernels.Transformed], ids=lambda make: make.__name__)
def test_a_scalar_kernel_is_taken_times_the_identity(make, as_installed):
    function = jnp.sum if make is sk.kernels.Tilted else jnp.sinh
    kernel = make(sk.RBF(1.0), function)
    assert eqx.tree_equal(kernel, make(sk.kernels.Isotropic(sk.RBF(1.0)), function))
    assert kernel(jnp.zeros(2), jnp.zeros(2)).shape == (2, 2)


# Keys.

KEYED = {
    "fit": lambda key: fit_with(key).points,
    "gaussian": lambda key: sk.initial.gaussian(key, jnp.zeros(2), 3),
    "prior": lambda key: sk.initial.prior(key, lambda one: jr.normal(one, (2,)), 3),
    "resample": lambda key: fit_with(jr.key(0)).resample(key, 2).points,
    "BlackJAX": lambda key: step_of_blackjax(key),
}


def fit_with(key):
    return sk.fit(key, gaussian, sk.sgld(0.1), jnp.asarray(START, float), num_steps=2)


def step_of_blackjax(key):
    algorithm = sk.as_blackjax(gaussian, sk.sgld(0.1))
    return jax.jit(lambda key, x: algorithm.step(key, algorithm.init(x))[0].position)(key, jnp.asarray(START, float))


@pytest.mark.every(2)
@pytest.mark.parametrize("name", KEYED)
def test_a_legacy_key_draws_what_the_typed_one_draws(name, as_installed):
    np.testing.assert_allclose(KEYED[name](jr.PRNGKey(7)), KEYED[name](jr.key(7)), rtol=1e-12)


@pytest.mark.parametrize("name", ["fit", "gaussian", "resample"])
def test_what_is_no_key_is_refused(name, as_installed):
    for wrong in (
        0,
        None,
        "key",
        jr.split(jr.key(0)),
        np.zeros(2),
        np.zeros(3, np.uint32),
        jnp.zeros((2, 2), np.uint32),
    ):
        with pytest.raises(ValueError, match="`key` must be one PRNG key"):
            KEYED[name](wrong)
