"""KFAC against the blocks of the exact Fisher matrix where it is exact, and against its definition where it is not."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jaxtyping
import numpy as np
import optax
import pytest
import scipy.linalg
from scipy.special import softmax

import steinkern as sk
from steinkern.metric import DenseMetric

from .test_linear import dense_matrix, largest_array

PRIOR_PRECISION, RATE, NUM_DATA = 0.8, 0.3, 5
jit = eqx.filter_jit
pytestmark = pytest.mark.usefixtures("quickly")


@pytest.fixture
def generator(key):
    return np.random.default_rng(np.asarray(jr.key_data(key)))


def filled(generator, make, *arguments, **options):
    """A module with normal numbers in all its arrays; made by NumPy, because each shape costs JAX a compilation."""
    shapes = eqx.filter_eval_shape(make, *arguments, **options, key=jr.key(0))

    def fill(leaf):
        return jnp.asarray(generator.standard_normal(leaf.shape)) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf

    return jax.tree.map(fill, shapes)


def flat(tree) -> jax.Array:
    """The coordinates of unconstrained parameters: leaf after leaf."""
    return jnp.asarray(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]))


class Example(NamedTuple):
    x: jax.Array
    label: jax.Array


class Case(NamedTuple):
    """A fully connected network as a dictionary of layers and, for unknown noise, the logarithm of its variance."""

    name: str
    likelihood: sk.AbstractLikelihood
    activation: Callable[[Any], Any] | None
    sizes: tuple[int, ...] = (3, 4, 2)
    bias: tuple[bool, ...] = (True, True)

    @property
    def noisy(self) -> bool:
        return isinstance(self.likelihood, sk.GaussianNoise)

    def network(self, generator) -> dict:
        shapes = zip(self.sizes[:-1], self.sizes[1:], self.bias, strict=True)
        layers = [filled(generator, eqx.nn.Linear, a, b, use_bias=bias) for a, b, bias in shapes]
        return {"layers": layers, "log_variance": jnp.asarray(-0.4)} if self.noisy else {"layers": layers}

    def output(self, parameters, example):
        x = example.x
        for layer in parameters["layers"][:-1]:
            x = layer(x) if self.activation is None else self.activation(layer(x))
        x = parameters["layers"][-1](x)
        return jnp.concatenate([x, parameters["log_variance"][None]]) if self.noisy else x

    def log_likelihood(self, parameters, example):
        return self.likelihood.log_prob(self.output(parameters, example), example.label)

    @property
    def target(self) -> sk.Posterior:
        return sk.Posterior(log_prior, self.log_likelihood, NUM_DATA).bind(self.network(np.random.default_rng(0)))

    def data(self, generator, number: int) -> Example:
        outputs = self.sizes[-1]
        labels = {
            sk.Bernoulli: lambda: generator.integers(0, 2, (number, outputs)),
            sk.Categorical: lambda: generator.integers(0, outputs, number),
        }.get(type(self.likelihood), lambda: generator.standard_normal((number, outputs)))
        return Example(*map(jnp.asarray, (generator.standard_normal((number, self.sizes[0])), labels())))

    def draw(self, generator, number: int) -> tuple[jax.Array, Example]:
        """A point, and data that have nothing to do with it."""
        return flat(self.network(generator)), self.data(generator, number)

    @property
    def kfac(self) -> sk.KFAC:
        return sk.KFAC(self.output, self.likelihood)

    @property
    def fisher(self) -> sk.Fisher:
        return sk.Fisher(self.output, self.likelihood)


def log_prior(parameters):
    """Normal weights and, on the noise precision exp(−log_variance), the exponential law of this rate."""
    squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(parameters["layers"]))
    noise = parameters.get("log_variance", jnp.zeros(()))
    return -0.5 * PRIOR_PRECISION * squares - noise - RATE * jnp.exp(-noise)


class Measured(NamedTuple):
    """KFAC, and the exact Fisher matrix that it approximates."""

    kfac: sk.Blocks
    fisher: jax.Array


@jit
def compared(model, likelihood, target, point, batch) -> Measured:
    kfac, fisher = (curvature(model, likelihood)(target, point, batch) for curvature in (sk.KFAC, sk.Fisher))
    return Measured(kfac, fisher.as_matrix())


def compared_in(case: Case, point, data) -> Measured:
    return compared(case.output, case.likelihood, case.target, point, data)


@jit
def measured(model, likelihood, target, point, batch) -> sk.Blocks:
    return sk.KFAC(model, likelihood)(target, point, batch)


def measured_in(case: Case, point, data, target=None) -> sk.Blocks:
    return measured(case.output, case.likelihood, target or case.target, point, data)


def exact_blocks(outcome: Measured) -> np.ndarray:
    """The Fisher matrix with nothing but the blocks of KFAC, and of its diagonal parts the diagonal."""
    parts = [(part.size, isinstance(part, sk.Diagonal)) for part in outcome.kfac.parts]
    kept = [np.eye(size) if diagonal else np.ones((size, size)) for size, diagonal in parts]
    return scipy.linalg.block_diag(*kept) * np.asarray(outcome.fisher)


def assert_exact(outcome: Measured):
    assert_close(dense_matrix(outcome.kfac), exact_blocks(outcome))


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-12, equal_nan=False)


def cases(*listed: Case):
    return pytest.mark.parametrize("case", listed, ids=lambda case: case.name)


LINEAR = [
    Case("a variance an output", sk.Gaussian(jnp.array([0.7, 1.9])), None),
    Case("unknown variance", sk.GaussianNoise(), None),
    Case("three layers, one without bias", sk.Gaussian(0.7), None, (3, 2, 4, 2), (True, False, True)),
    Case("one layer, one output", sk.Gaussian(0.7), None, (3, 1), (True,)),
]
RELU = Case("relu and softmax", sk.Categorical(), jax.nn.relu)
NOISY = Case("relu and unknown noise", sk.GaussianNoise(), jax.nn.relu)
CURVED = [
    RELU,
    NOISY,
    Case("relu and logits", sk.Bernoulli(), jax.nn.relu, bias=(True, False)),
    Case("tanh and known noise", sk.Gaussian(0.7), jnp.tanh, bias=(False, False)),
    Case("tanh and softmax", sk.Categorical(), jnp.tanh, (2, 3, 3, 4), (False, True, True)),
    Case("tanh and unknown noise", sk.GaussianNoise(), jnp.tanh, (3, 4, 1)),
]


# ------------------------------------------------------------------------------------------------ where KFAC is exact


@cases(*LINEAR)
def test_on_a_deep_linear_network_with_gaussian_noise_the_blocks_are_those_of_the_fisher_matrix(case, generator):
    assert_exact(compared_in(case, *case.draw(generator, 4)))


@cases(*CURVED)
def test_for_a_single_example_the_blocks_are_those_of_the_fisher_matrix(case, generator):
    """In the order of the coordinates too: the Fisher matrix is that of the flattened pytree."""
    assert_exact(compared_in(case, *case.draw(generator, 1)))


@cases(LINEAR[1], NOISY)
def test_the_noise_has_half_an_entry_an_output_and_example(case, generator):
    kfac = measured_in(case, *case.draw(generator, 4))
    assert_close(kfac.parts[-1].entries, [NUM_DATA * case.sizes[-1] / 2 + RATE * np.exp(0.4)])


# ------------------------------------------------------------------------------------------ the definition, by a loop

SLOPES = {
    jax.nn.relu: (lambda z: np.maximum(z, 0), lambda z: 1.0 * (z > 0)),
    jnp.tanh: (np.tanh, lambda z: np.cosh(z) ** -2),
}


def run_by_hand(case: Case, layers, x) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """For one example: every layer's input, the Jacobian of the prediction at every layer's output, the prediction."""
    activation, slope = SLOPES[case.activation]
    inputs, outputs = [], []
    for layer in layers:
        inputs.append(np.asarray(x))
        bias = 0.0 if layer.bias is None else np.asarray(layer.bias)
        outputs.append(np.asarray(layer.weight) @ inputs[-1] + bias)
        x = activation(outputs[-1])
    jacobians = [np.eye(len(outputs[-1]))]
    for layer, z in zip(layers[:0:-1], outputs[-2::-1], strict=True):
        jacobians.append(jacobians[-1] @ np.asarray(layer.weight) @ np.diag(slope(z)))
    return inputs, jacobians[::-1], outputs[-1]


def output_information(case: Case, parameters, prediction: np.ndarray) -> np.ndarray:
    if case.noisy:
        return np.exp(-parameters["log_variance"]) * np.eye(len(prediction))
    share = softmax(prediction)
    return np.diag(share) - np.outer(share, share)


def defined(case: Case, parameters, data: Example, which: int) -> np.ndarray:
    """N × (the mean Fisher information at a layer's output) ⊗ (the mean of x̄x̄ᵀ) + the prior, one entry at a time."""
    layer = parameters["layers"][which]
    outer, information = [], []
    for x in data.x:
        inputs, jacobians, prediction = run_by_hand(case, parameters["layers"], x)
        padded = inputs[which] if layer.bias is None else np.append(inputs[which], 1.0)
        weight = output_information(case, parameters, prediction)
        outer.append(np.outer(padded, padded))
        information.append(jacobians[which].T @ weight @ jacobians[which])
    left, right = NUM_DATA * np.mean(information, axis=0), np.mean(outer, axis=0)
    rows, columns = layer.weight.shape
    places = [(i, j) for i in range(rows) for j in range(columns)]
    if layer.bias is not None:
        places += [(i, columns) for i in range(rows)]
    product = [[left[i, k] * right[j, l] for k, l in places] for i, j in places]
    return np.array(product) + PRIOR_PRECISION * np.eye(len(places))


@cases(RELU, NOISY, CURVED[4])
def test_the_blocks_are_the_product_of_the_means_over_examples(case, generator):
    network, data = case.network(generator), case.data(generator, 3)
    outcome = compared_in(case, flat(network), data)
    blocks = [defined(case, network, data, which) for which in range(len(case.bias))]
    size = sum(map(len, blocks))
    matrix = dense_matrix(outcome.kfac)
    assert_close(matrix[:size, :size], scipy.linalg.block_diag(*blocks))
    assert np.max(np.abs(matrix - exact_blocks(outcome))) > 1e-3  # it is an approximation


# ------------------------------------------------------------------------------------------------------------- scaling


def test_a_minibatch_stands_for_all_data(generator):
    point, data = NOISY.draw(generator, 3)
    twice = jax.tree.map(lambda rows: jnp.concatenate([rows, rows]), data)
    fewer = eqx.tree_at(lambda target: target.num_data, NOISY.target, np.asarray(3.0))
    matrix, doubled, scaled = (
        dense_matrix(measured_in(NOISY, point, batch, target))
        for batch, target in ((data, NOISY.target), (twice, NOISY.target), (data, fewer))
    )
    assert_close(doubled, matrix)
    prior = np.diag(np.append(np.full(len(point) - 1, PRIOR_PRECISION), RATE * np.exp(0.4)))
    assert_close(matrix - prior, NUM_DATA / 3 * (scaled - prior))


def test_tempering_multiplies_the_curvature(generator):
    point, data = NOISY.draw(generator, 3)
    tempered = NOISY.target.tempered(np.asarray(0.3))
    expected = 0.3 * dense_matrix(measured_in(NOISY, point, data))
    assert_close(dense_matrix(measured_in(NOISY, point, data, tempered)), expected)


# --------------------------------------------------------------------------------------------------------------- prior


def with_prior(log_prior) -> sk.Posterior:
    return eqx.tree_at(lambda target: target.log_prior, NOISY.target, log_prior)


def coordinates(parameters) -> jax.Array:
    return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(parameters)])


def test_the_prior_is_a_shift_of_its_mean_over_a_layer_and_exact_elsewhere(generator):
    point, data = NOISY.draw(generator, 3)
    precision = generator.uniform(size=len(point))
    flat_prior, curved = (
        measured_in(NOISY, point, data, with_prior(prior))
        for prior in (lambda _: 0.0, lambda parameters: -0.5 * jnp.sum(precision * coordinates(parameters) ** 2))
    )
    start = 0
    for part, without in zip(curved.parts[:-1], flat_prior.parts[:-1], strict=True):
        assert_close(part.shift, np.mean(precision[start : start + part.size]))
        assert without.shift == 0
        assert_close(part.left.matrix, without.left.matrix)
        assert_close(part.right.matrix, without.right.matrix)
        start += part.size
    assert_close(curved.parts[-1].entries, flat_prior.parts[-1].entries + precision[-1:])


def test_the_prior_counts_with_its_row_sums_and_those_below_zero_not_at_all(generator):
    point, data = NOISY.draw(generator, 3)
    slopes = np.arange(float(len(point)))

    def log_prior(parameters):
        x = coordinates(parameters)
        return -0.25 * jnp.sum(x) ** 2 + 0.5 * jnp.sum(slopes * x**2)

    kfac = measured_in(NOISY, point, data, with_prior(log_prior))
    rows = np.maximum(len(point) / 2 - slopes, 0.0)
    first, second = kfac.parts[0].size, kfac.parts[1].size
    assert_close(kfac.parts[0].shift, np.mean(rows[:first]))
    assert_close(kfac.parts[1].shift, np.mean(rows[first : first + second]))
    assert_close(kfac.parts[2].entries, [NUM_DATA * 2 / 2 + rows[-1]])


# ----------------------------------------------------------------------------------------- networks of other structure


def test_a_constrained_parameter_has_its_curvature_in_unconstrained_coordinates(generator):
    """With the noise's standard deviation σ = exp(u): log σ² = 2u, so 4 times the entry of the logarithm."""

    def model(parameters, example):
        (x,) = parameters["layers"]
        return jnp.concatenate([x(example.x), 2 * jnp.log(parameters["deviation"])[None]])

    def log_likelihood(parameters, example):
        return sk.GaussianNoise().log_prob(model(parameters, example), example.label)

    def log_prior(parameters):
        return -0.5 * jnp.sum(coordinates(parameters["layers"]) ** 2) - parameters["deviation"]

    network = {"layers": [filled(generator, eqx.nn.Linear, 3, 2)], "deviation": jnp.asarray(1.7)}
    target = sk.Posterior(log_prior, log_likelihood, NUM_DATA, support={"deviation": sk.positive}).bind(network)
    point = flat({**network, "deviation": np.log(1.7)})
    outcome = compared(model, sk.GaussianNoise(), target, point, NOISY.data(generator, 4))
    # "deviation" comes before "layers"; its own prior −σ has the curvature σ in u.
    assert_close(outcome.kfac.parts[0].entries, [4 * NUM_DATA + 1.7])
    assert_exact(outcome)


class Mixed(eqx.Module):
    """Layers deep in the tree between parameters of other kinds, a scalar output, and a layer of a scalar input."""

    scale: jax.Array
    mlp: eqx.nn.MLP
    norm: eqx.nn.LayerNorm
    time: eqx.nn.Linear

    def __init__(self, *, key):
        self.scale = jnp.ones((1, 3))
        self.mlp = eqx.nn.MLP(3, "scalar", 4, 1, jnp.tanh, key=key)
        self.norm = eqx.nn.LayerNorm(3)
        self.time = eqx.nn.Linear("scalar", 3, key=key)

    def __call__(self, x):
        return self.mlp(self.norm(self.scale[0] * x + self.time(x[0])))


def partitioned(network, trainable=eqx.is_inexact_array) -> tuple[Any, sk.Posterior, Callable[..., jax.Array]]:
    """The parameters of a user's network, their posterior and the model, by `eqx.partition` and `eqx.combine`."""
    parameters, rest = eqx.partition(network, trainable)

    def model(parameters, example):
        return jnp.atleast_1d(eqx.combine(parameters, rest)(example.x))

    def log_likelihood(parameters, example):
        return sk.Bernoulli().log_prob(model(parameters, example), example.label)

    def log_prior(parameters):
        return -0.5 * PRIOR_PRECISION * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(parameters))

    return parameters, sk.Posterior(log_prior, log_likelihood, NUM_DATA).bind(parameters), model


def one_example(generator) -> Example:
    return Example(jnp.asarray(generator.standard_normal((1, 3))), jnp.asarray(np.ones((1, 1))))


@pytest.mark.parametrize(
    ("make", "parts", "wrapped"),
    [
        pytest.param(partial(eqx.nn.MLP, 3, 1, 4, 2), [sk.Kronecker] * 3, lambda model: model, id="an MLP"),
        pytest.param(
            Mixed,
            [sk.Diagonal, *[sk.Kronecker] * 2, *[sk.Diagonal] * 2, sk.Kronecker],
            eqx.filter_jit,
            id="mixed, in a jitted model",
        ),
    ],
)
def test_a_network_of_ones_own_is_partitioned_and_combined_in_the_model(make, parts, wrapped, generator):
    parameters, target, model = partitioned(filled(generator, make))
    outcome = compared(wrapped(model), sk.Bernoulli(), target, flat(parameters), one_example(generator))
    assert [type(part) for part in outcome.kfac.parts] == parts
    assert_exact(outcome)


FROZEN = {
    "a layer": lambda net: net.layers[0],
    "the weights of a layer": lambda net: net.layers[0].weight,
    "the bias of a layer": lambda net: net.layers[1].bias,
}


@pytest.mark.parametrize("where", FROZEN.values(), ids=FROZEN.keys())
def test_what_a_partition_keeps_fixed_has_no_coordinates(where, generator):
    network = filled(generator, partial(eqx.nn.MLP, 3, 1, 4, 1))
    free = jax.tree.map(eqx.is_inexact_array, network)
    free = eqx.tree_at(where, free, replace_fn=lambda node: jax.tree.map(lambda _: False, node))
    parameters, target, model = partitioned(network, free)
    outcome = compared(model, sk.Bernoulli(), target, flat(parameters), one_example(generator))
    assert outcome.kfac.size == len(flat(parameters)) < len(flat(eqx.filter(network, eqx.is_array)))
    assert_exact(outcome)


def test_features_that_are_whole_numbers_are_as_good_as_any(generator):
    point, data = NOISY.draw(generator, 3)
    whole = Example(np.round(3 * data.x), data.label)
    expected = measured_in(NOISY, point, whole)
    with jax.numpy_dtype_promotion("standard"):  # as people run it who mix types
        mixed = whole._replace(x=whole.x.astype(np.int32))
        actual = measured_in(NOISY, point, mixed)
    assert_close(dense_matrix(actual), dense_matrix(expected))


def test_a_layer_whose_output_goes_nowhere_has_the_curvature_of_the_prior(generator):
    def model(first, second, x):
        second(x)
        return first(x)

    point, data = SQUARE.draw(generator, 2)
    kfac = measured(calling(model), sk.Gaussian(), SQUARE.target, point, data)
    assert_close(dense_matrix(kfac.parts[1]), PRIOR_PRECISION * np.eye(12))


# ------------------------------------------------------------------------------------------------------- size and type


def test_nothing_is_larger_than_the_jacobians_at_the_outputs_of_the_layers(generator):
    """Neither a d×d matrix, nor a matrix of outputs by outputs, or gradients in all weights, for every example."""
    examples, width = 30, 40
    case = Case("wide", sk.GaussianNoise(), jax.nn.relu, (8, width, width, 2), (True,) * 3)
    point, data = case.draw(generator, examples)
    target = case.target
    largest = largest_array(lambda point: case.kfac(target, point, data), point)
    jacobians = examples * 3 * width  # two means and the logarithm of the variance
    assert largest == jacobians < min(len(point) ** 2, examples * width**2, examples * 3 * len(point))


def test_float32_networks_have_float32_curvature(generator):
    network, data = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32), (NOISY.network(generator), NOISY.data(generator, 3))
    )
    target = NOISY.target.bind(network)
    shapes = jax.eval_shape(lambda point: NOISY.kfac(target, point, data), flat(network))
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {np.dtype("float32")}


# ------------------------------------------------------------------------------------------------------ what is refused


def calling(call) -> Callable[..., jax.Array]:
    """A model that does `call(first, second, x)` with the two layers of `SQUARE`."""
    return lambda parameters, example: call(*parameters["layers"], example.x)


SQUARE = Case("square", sk.Gaussian(), None, (3, 3, 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(lambda a, b, x: a(a(b(x))), r"called once an example; one .* \(3, 3\) was called 2", id="twice"),
        pytest.param(lambda a, b, x: a(x), r"called once an example; one .* \(3, 3\) was called 0 times", id="never"),
        pytest.param(
            lambda a, b, x: b((a.weight @ jnp.stack([x, x], axis=1))[:, 0]),
            r"call each layer on one example: a vector of 3, got shape \(3, 2\)",
            id="batch",
        ),
    ],
)
def test_layers_that_are_not_called_once_on_a_vector_are_refused(call, message, generator):
    point, data = SQUARE.draw(generator, 2)
    with pytest.raises(ValueError, match=message):
        sk.KFAC(calling(call), sk.Gaussian())(SQUARE.target, point, data)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda a, b, x: a(jnp.sum(jax.vmap(b)(jnp.stack([x, 2 * x])), axis=0)), id="mapped"),
        pytest.param(lambda a, b, x: a(jax.lax.scan(lambda x, _: (b(x), None), x, None, 2)[0]), id="scanned"),
    ],
)
def test_a_layer_that_is_called_once_for_several_inputs_has_no_number_for_curvature(call, generator):
    """What the taps then hold are sums over the inputs, which nobody should mistake for the curvature."""
    point, data = SQUARE.draw(generator, 2)
    first, second = measured(calling(call), sk.Gaussian(), SQUARE.target, point, data).parts
    assert jnp.all(jnp.isfinite(first.left.matrix))
    assert jnp.all(jnp.isnan(second.left.matrix))


def test_parameters_without_a_linear_layer_are_refused():
    target = sk.Posterior(lambda x: 0.0, lambda x, example: jnp.sum(x), NUM_DATA).bind(jnp.zeros(3))
    with pytest.raises(ValueError, match=r"`KFAC` found no `equinox.nn.Linear`.* use `Fisher\(model, likelihood\)`"):
        sk.KFAC(lambda x, example: x, sk.Gaussian())(target, jnp.zeros(3), jnp.ones((2, 1)))


def test_constraints_on_a_layer_are_refused(generator):
    network = jax.tree.map(jnp.abs, NOISY.network(generator))
    target = sk.Posterior(log_prior, NOISY.log_likelihood, NUM_DATA, support={"layers": sk.positive}).bind(network)
    with pytest.raises(ValueError, match=r"`KFAC` needs linear layers without constraints.*layers\.0\.weight"):
        NOISY.kfac(target, flat(network), NOISY.data(generator, 2))


@pytest.mark.parametrize(
    ("target", "data"),
    [
        pytest.param(sk.LogDensity(log_prior, space=NOISY.target.space), jnp.ones((2, 3)), id="plain log density"),
        pytest.param(NOISY.target, None, id="no data"),
    ],
)
def test_a_target_without_single_examples_is_refused(target, data):
    with pytest.raises(ValueError, match="`KFAC` needs single examples: give a `Posterior` and `data` to `fit`"):
        NOISY.kfac(target, jnp.zeros(target.space.layout.size), data)


def test_a_model_or_a_likelihood_that_is_none_is_refused():
    with pytest.raises(ValueError, match="`model` must be a function of the parameters and one example, got 3"):
        sk.KFAC(3, sk.Gaussian())
    with pytest.raises(ValueError, match=r"`likelihood` must be a likelihood such as `Categorical\(\)`, got 'softmax'"):
        sk.KFAC(RELU.output, "softmax")


# ---------------------------------------------------------------------------------------------------------- in samplers

DAMPING, BASE, PARTICLES = 0.1, sk.Isotropic(sk.RBF(0.7)), 4
TINY = Case("one layer and unknown noise", sk.GaussianNoise(), None, (2, 2), (True,))


@pytest.fixture
def cloud(generator) -> tuple[jax.Array, Example]:
    """Particles and data."""
    points = np.stack([flat(TINY.network(generator)) for _ in range(PARTICLES)])
    return jnp.asarray(points), TINY.data(generator, NUM_DATA)


@jit
def at_each(points, data) -> tuple[sk.AbstractOperator, sk.AbstractOperator, jax.Array]:
    """The curvature at every particle, its mean, and the scores."""
    each = TINY.kfac.at(TINY.target, points, data)
    return each, each.average(), TINY.target.scores(points, data)


def particle(batch, which: int):
    return jax.tree.map(lambda leaf: leaf[which], batch)


def test_curvatures_at_many_points_are_those_at_each(cloud):
    points, data = cloud
    each, mean, _ = at_each(points, data)
    alone = [measured_in(TINY, point, data) for point in points]
    for which, own in enumerate(alone):
        for actual, expected in zip(*map(jax.tree.leaves, (particle(each, which), own)), strict=True):
            assert_close(actual, expected)
    for i, leaf in enumerate(jax.tree.leaves(mean)):
        assert_close(leaf, np.mean([jax.tree.leaves(own)[i] for own in alone], axis=0))


def dense_metric(operator, place) -> DenseMetric:
    """The metric of some coordinates, by dense linear algebra."""
    matrix = dense_matrix(operator, DAMPING)[np.ix_(place, place)]
    root = np.linalg.cholesky(matrix).T
    return DenseMetric(*map(jnp.asarray, (root, np.linalg.inv(root), np.linalg.slogdet(matrix)[1])))


@jit
def dense_velocity(metrics: list[DenseMetric], points: list[jax.Array], scores: list[jax.Array], mixed: bool):
    """The velocity of every block of coordinates, each by a kernel of its own; of a batch of metrics for a mixture."""

    def velocity(metric, points, scores):
        kernel = sk.Mixture.of(BASE, metric, points, points) if mixed else sk.Preconditioned(BASE, metric)
        return kernel.velocity(points, sk.Scored.uniform(points, scores))

    return jnp.concatenate([velocity(*each) for each in zip(metrics, points, scores, strict=True)], axis=1)


@pytest.mark.parametrize("kind", ["average", "mixture"])
@pytest.mark.parametrize("per_block", [False, True], ids=["one kernel", "a kernel a block"])
def test_the_velocity_is_that_of_dense_metrics_by_hand(kind, per_block, cloud, key):
    points, data = cloud
    each, mean, scores = at_each(points, data)
    sampler = sk.matrix_svgd(kind, TINY.kfac, BASE, optax.sgd(1.0), damping=DAMPING, per_block=per_block)

    @jit
    def moved(points):
        return sampler.step(key, sampler.init(TINY.target, points, data), TINY.target, data)[0].points

    ends = np.cumsum([part.size for part in mean.parts])
    places = np.split(np.arange(ends[-1]), ends[:-1]) if per_block else [np.arange(ends[-1])]
    if kind == "average":
        metrics = [dense_metric(mean, place) for place in places]
    else:
        own = [[dense_metric(particle(each, i), place) for i in range(PARTICLES)] for place in places]
        metrics = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *batch) for batch in own]
    columns = [[cloud[:, place] for place in places] for cloud in (points, scores)]
    assert_close(moved(points) - points, dense_velocity(metrics, *columns, kind == "mixture"))


@jit
def mean_density(points, data) -> jax.Array:
    return jnp.mean(TINY.target.log_densities(points, data))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param("average", {"per_block": True}, id="average, a kernel a block"),
        pytest.param("mixture", {"temperature": sk.Median()}, id="mixture"),  # the README has one with a kernel a block
    ],
)
def test_a_few_steps_of_fit_on_minibatches_raise_the_density(kind, options, cloud, key):
    points, data = cloud
    steps = {"decay": 0.9, "measure_every": 2, "refresh_every": 4}
    sampler = sk.matrix_svgd(kind, TINY.kfac, optimiser=0.1, damping=DAMPING, **steps, **options)
    start = jit(lambda points: jax.vmap(TINY.target.constrain)(points))(points)
    result = sk.fit(key, TINY.target, sampler, start, data, num_steps=9, batch_size=3)
    assert result.status is sk.Status.FINISHED
    assert mean_density(result.points, data) > mean_density(points, data) + 1


@pytest.mark.parametrize("kind", ["average", "mixture"])
def test_a_kernel_a_block_needs_curvature_in_blocks(kind, cloud, key):
    points, data = cloud
    rule = sk.matrix_svgd(kind, TINY.fisher, per_block=True).rule
    with pytest.raises(ValueError, match="`per_block` needs curvature in blocks, such as `KFAC`, got DenseMetric"):
        jax.eval_shape(
            lambda points: rule.update(rule.init(TINY.target, points, data), TINY.target, points, data), points
        )


@pytest.fixture(autouse=True)
def _untyped_errors(request):
    """Refusals are those of an installation without the type checker, which would speak first."""
    refusing = "refused" in request.node.name
    jaxtyping.config.update("jaxtyping_disable", refusing)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
