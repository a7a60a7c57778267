"""Likelihoods against SciPy and their expected Hessians; curvatures against closed forms and explicit loops."""

import itertools
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.stats
from scipy.special import expit, softmax

import steinkern as sk
from steinkern.targets.curvature import hessian_diagonal
from tests.linalg.test_operators import largest_array

# ------------------------------------------------------------------------------------------------------- likelihoods


PAIRS = list(itertools.product([0, 1], repeat=2))


BY_SCIPY = {
    "bernoulli": (sk.Bernoulli(), 2, PAIRS, lambda x, y: scipy.stats.bernoulli.logpmf(y, expit(x))),
    "categorical": (
        sk.Categorical(),
        3,
        range(3),
        lambda x, y: scipy.stats.multinomial.logpmf(np.eye(3)[y], 1, softmax(x)),
    ),
    "gaussian": (sk.Gaussian(0.7), 3, [(0.3, -1.2, 2.5)], lambda x, y: scipy.stats.norm.logpdf(y, x, math.sqrt(0.7))),
}


@pytest.mark.parametrize("name", BY_SCIPY)
def test_likelihood_is_scipys(name, key):
    likelihood, outputs, labels, by_scipy = BY_SCIPY[name]
    output = jr.normal(key, (outputs,))
    for label in labels:
        expected = np.sum(by_scipy(np.asarray(output), label))
        np.testing.assert_allclose(likelihood.log_prob(output, jnp.array(label)), expected, rtol=1e-12)


@pytest.mark.parametrize("likelihood", [sk.Bernoulli(), sk.Gaussian(0.7)], ids=["bernoulli", "gaussian"])
def test_one_output_takes_its_label_as_a_number(likelihood, key):
    output = jr.normal(key, (1,))
    assert likelihood.log_prob(output, jnp.array(1)) == likelihood.log_prob(output, jnp.array([1.0]))


@pytest.mark.parametrize(
    ("likelihood", "labels"),
    [
        pytest.param(sk.Bernoulli(), PAIRS, id="bernoulli"),
        pytest.param(sk.Categorical(), range(3), id="categorical"),
    ],
)
def test_fisher_is_the_expected_negative_hessian_over_labels(likelihood, labels, key):
    output = jr.normal(key, (3 if isinstance(likelihood, sk.Categorical) else 2,))

    def expected_loss(parameter):
        losses = [likelihood.log_prob(parameter, jnp.array(label)) for label in labels]
        probabilities = [jax.lax.stop_gradient(jnp.exp(loss)) for loss in losses]
        return -sum(p * loss for p, loss in zip(probabilities, losses, strict=True))

    np.testing.assert_allclose(
        likelihood.fisher(output), jax.jit(jax.hessian(expected_loss))(output), rtol=1e-12, atol=1e-14
    )


class Correlated(sk.targets.AbstractLikelihood):
    """A likelihood of one's own, with no formula for the root: normal noise of a singular precision matrix."""

    def log_prob(self, output, label):
        return -0.5 * jnp.vdot(output - label, self.fisher(output) @ (output - label))

    def fisher(self, output):
        factor = jnp.asarray(np.array([[1.0, 0.5, 0.2], [0.0, 2.0, -0.3]]))
        return factor.T @ factor


EVERY_LIKELIHOOD = [
    sk.Bernoulli(),
    sk.Categorical(),
    sk.Gaussian(np.array([0.7, 1.2, 2.0])),
    sk.GaussianNoise(),
    Correlated(),
]


@pytest.mark.parametrize("likelihood", EVERY_LIKELIHOOD, ids=lambda likelihood: type(likelihood).__name__)
def test_the_root_of_the_fisher_information_is_a_root(likelihood, key):
    output = jr.normal(key, (3,))
    root = likelihood.fisher_root(output)
    np.testing.assert_allclose(root @ root.T, likelihood.fisher(output), rtol=1e-12, atol=1e-14)


def test_gaussian_fisher_is_the_precision_of_the_noise(key):
    np.testing.assert_allclose(sk.Gaussian(0.7).fisher(jr.normal(key, (3,))), np.eye(3) / 0.7, rtol=1e-14)


def test_extreme_logits_stay_finite():
    output = jnp.array([-1e3, 1e3])
    assert sk.Bernoulli().log_prob(output, jnp.array([1, 0])) == -2e3
    assert sk.Categorical().log_prob(output, jnp.array(0)) == -2e3


# ------------------------------------------------------------------------------------------------ models for curvature

PRIOR_PRECISION, VARIANCE, NUM_DATA, DIM = 0.8, 0.7, 5, 3


class Example(NamedTuple):
    design: jax.Array  # k d: the model's output is design @ parameters
    label: jax.Array


def log_prior(parameters):
    return -0.5 * PRIOR_PRECISION * jnp.sum(parameters["weights"] ** 2)


def output(parameters, example):
    return example.design @ parameters["weights"]


def residual(parameters, example):
    return (output(parameters, example) - example.label) / math.sqrt(VARIANCE)


class Model(NamedTuple):
    """A generalised linear model with a Gaussian prior."""

    name: str
    likelihood: sk.targets.AbstractLikelihood
    outputs: int
    target: sk.Posterior

    @classmethod
    def of(cls, name: str, likelihood: sk.targets.AbstractLikelihood, outputs: int) -> "Model":
        def log_likelihood(parameters, example):
            return likelihood.log_prob(output(parameters, example), example.label)

        target = sk.Posterior(log_prior, log_likelihood, NUM_DATA).bind({"weights": jnp.zeros(DIM)})
        return cls(name, likelihood, outputs, target)

    def draw(self, key) -> tuple[Example, jax.Array]:
        """Data, and a point that has nothing to do with them."""
        design_key, label_key, point_key = jr.split(key, 3)
        labels = {
            sk.Gaussian: lambda: jr.normal(label_key, (NUM_DATA, self.outputs)),
            sk.Bernoulli: lambda: jr.bernoulli(label_key, 0.5, (NUM_DATA, self.outputs)),
            sk.Categorical: lambda: jr.randint(label_key, (NUM_DATA,), 0, self.outputs),
        }[type(self.likelihood)]()
        return Example(jr.normal(design_key, (NUM_DATA, self.outputs, DIM)), labels), jr.normal(point_key, (DIM,))


LINEAR = Model.of("linear regression", sk.Gaussian(VARIANCE), 1)
WIDE = Model.of("linear regression with more outputs than parameters", sk.Gaussian(VARIANCE), 5)
LOGISTIC = Model.of("logistic regression", sk.Bernoulli(), 2)
SOFTMAX = Model.of("softmax regression", sk.Categorical(), 4)

CURVATURES = {
    "hessian": lambda model, **options: sk.Hessian(repair=None, **options),
    "gauss-newton": lambda model, **options: sk.GaussNewton(residual, **options),
    "fisher": lambda model, **options: sk.Fisher(output, model.likelihood, **options),
    "empirical fisher": lambda model, **options: sk.EmpiricalFisher(**options),
}


def models(*cases: Model):
    return pytest.mark.parametrize("model", cases, ids=lambda model: model.name)


class Measured(NamedTuple):
    curvature: jax.Array
    score: jax.Array
    log_density: jax.Array


@eqx.filter_jit
def measure(curvature, target, point, batch=None) -> Measured:
    matrix = curvature(target, point, batch).as_matrix()
    return Measured(matrix, target.score(point, batch), target.log_density(point, batch))


# --------------------------------------------------------------------------------------------------- Hessian and repair

SPECTRUM = np.array([-3.0, -1e-4, 0.0, 0.5, 2.0])
QUADRATIC = sk.LogDensity(lambda x, matrix: -0.5 * x @ matrix @ x).bind(jnp.zeros(5))  # its Hessian is the data


def indefinite(key) -> jax.Array:
    vectors, _ = np.linalg.qr(jr.normal(key, (5, 5)))
    return jnp.asarray(vectors * SPECTRUM @ vectors.T)


def repaired(values: np.ndarray, repair: str | None, floor: float) -> np.ndarray:
    if repair is None:
        return values
    mended = np.abs(values) if repair == "absolute" else np.maximum(values, 0)
    return np.maximum(mended, floor * np.mean(np.abs(values)))


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("repair", "floor"), [("absolute", 0.0), ("absolute", 0.5), ("clip", 0.0), ("clip", 1e-3), (None, 0.5)]
)
def test_hessian_is_repaired_as_its_eigenvalues_by_hand(repair, floor, key):
    matrix = indefinite(key)
    values, vectors = np.linalg.eigh(matrix)
    expected = vectors * repaired(values, repair, floor) @ vectors.T
    actual = measure(sk.Hessian(repair=repair, floor=floor), QUADRATIC, jnp.ones(5), matrix).curvature
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("repair", ["absolute", "clip", None])
def test_diagonal_hessian_is_repaired_as_its_entries_by_hand(repair, key):
    matrix = indefinite(key)
    expected = np.diag(repaired(np.diag(matrix), repair, 0.1))
    curvature = sk.Hessian(repair=repair, floor=0.1, diagonal=True)
    actual = measure(curvature, QUADRATIC, jnp.ones(5), matrix).curvature
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("diagonal", [False, True], ids=["dense", "diagonal"])
def test_where_the_density_is_flat_the_repaired_hessian_is_the_floor(diagonal):
    curvature = sk.Hessian(floor=0.1, diagonal=diagonal)
    actual = measure(curvature, QUADRATIC, jnp.ones(5), jnp.zeros((5, 5))).curvature
    np.testing.assert_allclose(actual, 0.1 * np.eye(5), rtol=1e-14)


def test_diagonal_of_a_hessian_is_exact_beyond_one_batch_of_directions(key):
    scale = jr.uniform(key, (70,))

    def function(x):
        return jnp.sum(jnp.sin(scale * x)) + jnp.sum(x[1:] * x[:-1] ** 2)

    both = jax.jit(lambda x: (hessian_diagonal(function, x), jnp.diagonal(jax.hessian(function)(x))))
    np.testing.assert_allclose(*both(scale - 0.5), rtol=1e-10, atol=1e-12)


def test_diagonal_of_a_hessian_never_forms_a_square_matrix():
    d = 1000
    assert largest_array(lambda x: hessian_diagonal(lambda x: jnp.sum(x**4), x), jnp.ones(d)) < d * d


# --------------------------------------------------------------------------------------------------------- closed forms


@pytest.mark.every(2)
@models(LINEAR, WIDE)
@pytest.mark.parametrize("kind", ["hessian", "gauss-newton", "fisher"])
def test_curvature_of_linear_regression_is_the_posterior_precision(model, kind, key):
    data, point = model.draw(key)
    design = np.asarray(data.design).reshape(-1, DIM)
    precision = design.T @ design / VARIANCE + PRIOR_PRECISION * np.eye(DIM)
    actual = measure(CURVATURES[kind](model), model.target, point, data).curvature
    np.testing.assert_allclose(actual, precision, rtol=1e-10)


@pytest.mark.every(2)
@models(LOGISTIC, SOFTMAX)
def test_fisher_in_natural_parameters_is_the_hessian_and_reads_no_label(model, key):
    data, point = model.draw(key)
    fisher, hessian = (measure(CURVATURES[kind](model), model.target, point, data) for kind in ("fisher", "hessian"))
    np.testing.assert_allclose(fisher.curvature, hessian.curvature, rtol=1e-10, atol=1e-12)
    relabelled = data._replace(label=jnp.zeros_like(data.label))
    again = measure(CURVATURES["fisher"](model), model.target, point, relabelled)
    np.testing.assert_allclose(again.curvature, fisher.curvature, rtol=1e-14)
    assert again.log_density != fisher.log_density


@pytest.mark.every(2)
@models(LOGISTIC, SOFTMAX)
@pytest.mark.parametrize("centered", [False, True], ids=["uncentred", "centred"])
def test_empirical_fisher_is_the_sum_over_examples_of_outer_products(model, centered, key):
    data, point = model.draw(key)
    mean, observe = {
        sk.Bernoulli: (expit, lambda label: label),
        sk.Categorical: (softmax, lambda label: np.eye(model.outputs)[label]),
    }[type(model.likelihood)]
    examples = zip(*map(np.asarray, data), strict=True)
    scores = [design.T @ (observe(label) - mean(design @ np.asarray(point))) for design, label in examples]
    middle = np.mean(scores, axis=0) if centered else np.zeros(DIM)
    expected = PRIOR_PRECISION * np.eye(DIM) + sum(np.outer(score - middle, score - middle) for score in scores)
    actual = measure(sk.EmpiricalFisher(centered=centered), model.target, point, data).curvature
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-12)


def test_gauss_newton_without_data_is_that_of_the_whole_log_density():
    def residual(x):
        return jnp.stack([10 * (x[1] - x[0] ** 2), 1 - x[0], x[0] * x[1]])

    point = jnp.array([0.3, -0.7])
    target = sk.LogDensity(lambda x: -0.5 * jnp.sum(residual(x) ** 2)).bind(point)
    jacobian = np.array([[-20 * 0.3, 10], [-1, 0], [-0.7, 0.3]])
    actual = measure(sk.GaussNewton(residual), target, point)
    np.testing.assert_allclose(actual.curvature, jacobian.T @ jacobian, rtol=1e-12)
    np.testing.assert_allclose(actual.score, -jacobian.T @ residual(point), rtol=1e-12)


def test_a_prior_that_curves_the_wrong_way_counts_with_its_positive_part(key):
    def log_cauchy(parameters):
        return -2.0 * jnp.log1p(jnp.sum(parameters["weights"] ** 2))

    data, _ = LINEAR.draw(key)
    target = sk.Posterior(log_cauchy, LINEAR.target.target.log_likelihood, NUM_DATA).bind({"weights": jnp.zeros(DIM)})
    design = np.asarray(data.design).reshape(-1, DIM)
    # At (3, 0, 0) the curvature of the prior is 4(1 − 9)/10² along the ray and 4/10 across it.
    expected = design.T @ design / VARIANCE + np.diag([0.0, 0.4, 0.4])
    actual = measure(CURVATURES["fisher"](LINEAR), target, jnp.array([3.0, 0.0, 0.0]), data).curvature
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-12)


# ----------------------------------------------------------------------------- contracts that hold for every curvature

curvature_cases = pytest.mark.parametrize(
    ("model", "kind"),
    [
        pytest.param(model, kind, id=f"{kind} of {model.name}")
        for model, kind in [
            (WIDE, "gauss-newton"),
            (WIDE, "fisher"),
            (LOGISTIC, "hessian"),
            (LOGISTIC, "fisher"),
            (LOGISTIC, "empirical fisher"),
        ]
    ],
)


@pytest.mark.every(2)
@curvature_cases
def test_diagonal_curvature_is_the_diagonal_of_the_dense_one(model, kind, key):
    data, point = model.draw(key)
    dense = measure(CURVATURES[kind](model), model.target, point, data).curvature
    diagonal = measure(CURVATURES[kind](model, diagonal=True), model.target, point, data).curvature
    np.testing.assert_allclose(diagonal, np.diag(np.diag(dense)), rtol=1e-10, atol=1e-12)


@pytest.mark.every(2)
@curvature_cases
def test_minibatch_estimates_average_to_those_of_the_full_data(model, kind, key):
    data, point = model.draw(key)
    subsets = itertools.combinations(range(NUM_DATA), 2)
    batches = [jax.tree.map(lambda rows, subset=subset: rows[np.array(subset)], data) for subset in subsets]
    each = [measure(CURVATURES[kind](model), model.target, point, batch) for batch in batches]
    full = measure(CURVATURES[kind](model), model.target, point, data)
    for name in Measured._fields:
        average = np.mean([getattr(estimate, name) for estimate in each], axis=0)
        np.testing.assert_allclose(average, getattr(full, name), rtol=1e-10, atol=1e-12, err_msg=name)


@curvature_cases
def test_tempering_multiplies_density_scores_and_curvature(model, kind, key):
    data, point = model.draw(key)
    plain = measure(CURVATURES[kind](model), model.target, point, data)
    tempered = measure(CURVATURES[kind](model), model.target.tempered(np.asarray(0.3)), point, data)
    for name, actual, expected in zip(Measured._fields, tempered, plain, strict=True):
        np.testing.assert_allclose(actual, 0.3 * expected, rtol=1e-12, atol=1e-14, err_msg=name)


def test_curvatures_at_many_points_are_those_at_each(key):
    data, point = LOGISTIC.draw(key)
    points = jnp.stack([point, 2 * point, -point])
    curvature = CURVATURES["fisher"](LOGISTIC)
    each = [measure(curvature, LOGISTIC.target, point, data).curvature for point in points]
    batch = eqx.filter_jit(curvature.at)(LOGISTIC.target, points, data)
    np.testing.assert_allclose(batch.matrix, each, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("data", [None, jnp.eye(5)], ids=["without data", "with data"])
def test_empirical_fisher_of_a_plain_log_density_is_refused(data):
    """To a plain log density all data are one example, whose outer product says nothing of the curvature."""
    with pytest.raises(ValueError, match="`EmpiricalFisher` needs the gradients of single examples"):
        sk.EmpiricalFisher()(QUADRATIC, jnp.ones(5), data)
