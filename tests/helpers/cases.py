"""Tables that parametrised tests run over: add a line here and the contract is checked."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import pytest

import steinkern as sk
from steinkern.linalg.metrics import DenseMetric


def over(cases, default: set[str] | None = None):
    """Parametrise a test over named cases: all in the default set, or those named; the others are thorough."""
    known = {case.name for case in cases}
    assert default is None or default <= known, default - known
    marked = [
        pytest.param(case, marks=[] if default is None or case.name in default else pytest.mark.thorough)
        for case in cases
    ]
    return pytest.mark.parametrize("case", marked, ids=lambda case: case.name)


def random_scored(key, n: int, d: int) -> sk.kernels.Scored:
    """Points, unrelated scores and weights that are not uniform: nothing can cancel by accident."""
    points_key, scores_key, weights_key = jr.split(key, 3)
    weights = jr.uniform(weights_key, (n,), minval=0.1, maxval=1.0)
    return sk.kernels.Scored(jr.normal(points_key, (n, d)), jr.normal(scores_key, (n, d)), weights / jnp.sum(weights))


def random_positive_definite(key, d: int) -> jax.Array:
    root = jr.normal(key, (d, d))
    return root @ root.T + 0.5 * jnp.eye(d)


class KernelCase(NamedTuple):
    name: str
    dim: int
    make: Callable[[Any], sk.kernels.AbstractMatrixKernel]


def _dense(key, d):
    return DenseMetric.of(random_positive_definite(key, d))


def _symmetric(key, d):
    return DenseMetric.of(random_positive_definite(key, d), symmetric=True)


def _kronecker(key, a, b, shift=None, bias=False):
    left, right = (sk.linalg.Dense(random_positive_definite(k, d)) for k, d in zip(jr.split(key), (a, b), strict=True))
    return sk.linalg.Kronecker(left, right, shift, bias).factorize(1e-3)


def _blocks(key):
    first, second = jr.split(key)
    return sk.linalg.Blocks(
        (sk.linalg.Dense(random_positive_definite(first, 2)), sk.linalg.Diagonal(jr.uniform(second, (3,)) + 0.5))
    ).factorize(1e-3)


def mixture(key, d: int, anchors: int, base=None, **options) -> sk.kernels.Mixture:
    metric_key, anchor_key = jr.split(key)
    matrices = jax.vmap(lambda k: random_positive_definite(k, d))(jr.split(metric_key, anchors))
    metrics = jax.vmap(lambda matrix: DenseMetric.of(matrix, symmetric=True))(matrices)
    places = jr.normal(anchor_key, (anchors, d))
    return sk.kernels.Mixture.of(base or sk.kernels.Isotropic(sk.RBF(2.0)), metrics, places, places, **options)


def kronecker_mixture(key, anchors: int, **options) -> sk.kernels.Mixture:
    """Anchors with metrics such as those of `KFAC`: a layer with a bias, one without, and a diagonal block."""

    def factorised(key) -> Any:
        first, second, third = jr.split(key, 3)
        dense = [
            sk.linalg.Dense(random_positive_definite(k, d)) for k, d in zip(jr.split(first, 3), (2, 3, 2), strict=True)
        ]
        layer = sk.linalg.Kronecker(dense[0], dense[1], jnp.asarray(0.7), bias=True)
        other = sk.linalg.Kronecker(dense[2], sk.linalg.Diagonal(jr.uniform(second, (1,)) + 0.5))
        whole = sk.linalg.Blocks((layer, other, sk.linalg.Diagonal(jr.uniform(third, (2,)) + 0.5)))
        return whole.factorize(1e-3)

    metric_key, anchor_key = jr.split(key)
    places = jr.normal(anchor_key, (anchors, 10))
    metrics = jax.vmap(factorised)(jr.split(metric_key, anchors))
    return sk.kernels.Mixture.of(sk.kernels.Isotropic(sk.RBF(2.0)), metrics, places, places, **options)


def _user(x, y):
    return jnp.exp(-0.3 * jnp.sum((x - y) ** 2)) * jnp.eye(x.shape[0]) + jnp.outer(x, y)


def _bend(x):
    """A smooth one-to-one map of the plane (and of any space): a shear that bends."""
    return x + 0.3 * jnp.concatenate([jnp.zeros(1), jnp.sin(x[:-1])]) + 0.1 * jnp.tanh(x)


KERNEL_CASES = [
    KernelCase("isotropic rbf", 3, lambda key: sk.kernels.Isotropic(sk.RBF(1.3))),
    KernelCase("isotropic imq", 3, lambda key: sk.kernels.Isotropic(sk.IMQ(0.7, exponent=-0.3))),
    KernelCase("isotropic rbf, one dimension", 1, lambda key: sk.kernels.Isotropic(sk.RBF(0.4))),
    KernelCase("linear", 3, lambda key: sk.kernels.Linear(0.8)),
    KernelCase("affine", 3, lambda key: sk.kernels.Affine(jnp.array([0.3, -0.2, 0.5]))),
    KernelCase(
        "sum", 3, lambda key: sk.kernels.Sum((sk.IMQ(0.7), sk.kernels.Affine(jnp.array([0.3, -0.2, 0.5]), 0.4)))
    ),
    KernelCase(
        "preconditioned, dense",
        3,
        lambda key: sk.kernels.Preconditioned(sk.kernels.Isotropic(sk.RBF(1.3)), _dense(key, 3)),
    ),
    KernelCase(
        "preconditioned, imq",
        3,
        lambda key: sk.kernels.Preconditioned(sk.kernels.Isotropic(sk.IMQ(1.3)), _dense(key, 3)),
    ),
    KernelCase(
        "preconditioned, linear", 3, lambda key: sk.kernels.Preconditioned(sk.kernels.Linear(), _symmetric(key, 3))
    ),
    KernelCase(
        "preconditioned, kronecker",
        6,
        lambda key: sk.kernels.Preconditioned(sk.kernels.Isotropic(sk.RBF(3.0)), _kronecker(key, 3, 2)),
    ),
    KernelCase(
        "preconditioned, kronecker with a shift and a bias",
        6,
        lambda key: sk.kernels.Preconditioned(
            sk.kernels.Isotropic(sk.RBF(3.0)), _kronecker(key, 3, 2, jnp.asarray(0.7), bias=True)
        ),
    ),
    KernelCase(
        "preconditioned, blocks",
        5,
        lambda key: sk.kernels.Preconditioned(sk.kernels.Isotropic(sk.RBF(3.0)), _blocks(key)),
    ),
    KernelCase(
        "preconditioned, graphical",
        3,
        lambda key: sk.kernels.Preconditioned(sk.Graphical(sk.RBF(1.1), [[0, 2], [1]], [[], [0]]), _symmetric(key, 3)),
    ),
    KernelCase("mixture", 3, lambda key: mixture(key, 3, 5)),
    KernelCase("mixture, warm", 3, lambda key: mixture(key, 3, 5, temperature=3.0)),
    KernelCase("mixture, no determinant", 3, lambda key: mixture(key, 3, 5, weighting="no_determinant")),
    KernelCase("mixture, euclidean weights", 3, lambda key: mixture(key, 3, 5, weighting="euclidean")),
    KernelCase("mixture, kronecker", 10, lambda key: kronecker_mixture(key, 4, temperature=3.0)),
    KernelCase("mixture, kronecker of two anchors", 10, lambda key: kronecker_mixture(key, 2)),
    KernelCase(
        "mixture, kronecker, euclidean weights", 10, lambda key: kronecker_mixture(key, 4, weighting="euclidean")
    ),
    KernelCase("mixture, imq", 3, lambda key: mixture(key, 3, 5, base=sk.kernels.Isotropic(sk.IMQ(2.0)))),
    KernelCase(
        "mixture, graphical", 3, lambda key: mixture(key, 3, 3, base=sk.Graphical.coordinatewise(sk.RBF(1.5), 3))
    ),
    KernelCase("graphical, coordinatewise", 3, lambda key: sk.Graphical.coordinatewise(sk.RBF(0.9), 3)),
    KernelCase(
        "graphical, neighbourhoods",
        5,
        lambda key: sk.Graphical(sk.IMQ(jnp.array([0.5, 1.0, 2.0])), [[3, 0], [1], [2, 4]], [[1], [0, 3, 2], []]),
    ),
    KernelCase(
        "per block, isotropic, preconditioned and mixture",
        7,
        lambda key: sk.kernels.PerBlock(
            (sk.IMQ(0.7), sk.kernels.Preconditioned(sk.RBF(1.3), _dense(key, 3)), mixture(key, 3, 5)), (1, 3, 3)
        ),
    ),
    KernelCase(
        "tilted",
        3,
        lambda key: sk.kernels.Tilted(sk.kernels.Isotropic(sk.RBF(1.3)), lambda x: 0.3 * jnp.sum(jnp.sin(x))),
    ),
    KernelCase("transformed", 3, lambda key: sk.kernels.Transformed(sk.kernels.Isotropic(sk.RBF(1.3)), _bend)),
    KernelCase("user", 3, lambda key: sk.kernels.UserKernel(_user)),
]

SOME_KERNELS = {
    "isotropic imq", "linear", "preconditioned, kronecker", "mixture", "graphical, neighbourhoods", "tilted", "user",
}  # fmt: skip
"""One of each kind: for tests of what every kernel inherits or has in common."""
