"""Networks for the tests of KFAC, and its blocks beside those of the exact Fisher matrix."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.linalg

import steinkern as sk
from steinkern.targets import BoundTarget
from tests.helpers.oracles import assert_close
from tests.linalg.test_operators import dense_matrix

PRIOR_PRECISION, RATE, NUM_DATA = 0.8, 0.3, 5
jit = eqx.filter_jit


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
    likelihood: sk.targets.AbstractLikelihood
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
    def target(self) -> BoundTarget:
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

    kfac: sk.linalg.Blocks
    fisher: jax.Array


@jit
def compared(model, likelihood, target, point, batch, **options) -> Measured:
    """The options are those of `KFAC`."""
    kfac = sk.KFAC(model, likelihood, **options)(target, point, batch)
    return Measured(kfac, sk.Fisher(model, likelihood)(target, point, batch).as_matrix())


def compared_in(case: Case, point, data) -> Measured:
    return compared(case.output, case.likelihood, case.target, point, data)


@jit
def measured(model, likelihood, target, point, batch, **options) -> sk.linalg.Blocks:
    return sk.KFAC(model, likelihood, **options)(target, point, batch)


def measured_in(case: Case, point, data, target=None) -> sk.linalg.Blocks:
    return measured(case.output, case.likelihood, target or case.target, point, data)


def exact_blocks(outcome: Measured) -> np.ndarray:
    """The Fisher matrix with nothing but the blocks of KFAC, and of its diagonal parts the diagonal."""
    return scipy.linalg.block_diag(*[mask(part) for part in outcome.kfac.parts]) * np.asarray(outcome.fisher)


def mask(part: sk.linalg.AbstractOperator) -> np.ndarray:
    """Ones where a block has entries."""
    if isinstance(part, sk.linalg.Diagonal):
        return np.eye(part.size)
    if isinstance(part, sk.linalg.Stack):
        each, count = np.ones((part.size // part.count,) * 2), np.eye(part.count)
        return np.kron(each, count) if part.interleaved else np.kron(count, each)
    return np.ones((part.size, part.size))


def assert_exact(outcome: Measured):
    assert_close(dense_matrix(outcome.kfac), exact_blocks(outcome))


def cases(*listed: Case, default: int = 2):
    """Run a test over the cases: the first few in the default set, the others in the thorough one."""
    marked = [pytest.param(case, marks=[] if i < default else pytest.mark.thorough) for i, case in enumerate(listed)]
    return pytest.mark.parametrize("case", marked, ids=lambda case: case.name)


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
