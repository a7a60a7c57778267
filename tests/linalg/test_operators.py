"""Operators against the dense matrices they stand for, and metrics against dense linear algebra."""

import math
import re
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
from tests.helpers.cases import random_positive_definite
from tests.helpers.processes import output_of

DAMPING = 0.3


class OperatorCase(NamedTuple):
    name: str
    make: Callable[[Any], sk.linalg.AbstractOperator]


def _dense(key, d):
    return sk.linalg.Dense(random_positive_definite(key, d))


def _diagonal(key, d):
    return sk.linalg.Diagonal(jr.uniform(key, (d,), minval=0.2, maxval=3.0))


def _kronecker(key, a, b, shifted=False, bias=False):
    left, right, shift = jr.split(key, 3)
    own = jr.uniform(shift, minval=0.2, maxval=3.0) if shifted else None
    return sk.linalg.Kronecker(_dense(left, a), _dense(right, b), own, bias)


def _blocks(key):
    return sk.linalg.Blocks((_dense(key, 2), _diagonal(key, 3)))


def _uneven(key):
    first, second = jr.split(key)
    return sk.linalg.Blocks((_dense(first, 2), _dense(second, 1)))


def _nested(key):
    first, second = jr.split(key)
    return sk.linalg.Blocks(
        (_kronecker(first, 2, 3, True, True), sk.linalg.Blocks((_blocks(second), _dense(first, 3))))
    )


def _stack(key, interleaved=False):
    parts = [_dense(own, 2) for own in jr.split(key, 3)]
    return sk.linalg.Stack(sk.linalg.Dense(jnp.stack([part.matrix for part in parts])), 3, interleaved)


def _groups(key):
    """Three Kronecker products with shifts as one batch."""
    parts = [_kronecker(own, 2, 3, shifted=True) for own in jr.split(key, 3)]
    return sk.linalg.Stack(jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts), 3)


def _kronecker_of(key, left, right, bias=False):
    """A shifted Kronecker product of any operators."""
    first, second = jr.split(key)
    return sk.linalg.Kronecker(left(first), right(second), jr.uniform(key, minval=0.2, maxval=3.0), bias)


LINEAR = [
    OperatorCase("dense", lambda key: _dense(key, 3)),
    OperatorCase("diagonal", lambda key: _diagonal(key, 3)),
    OperatorCase("blocks", _blocks),
    OperatorCase("stack", _stack),
    OperatorCase("interleaved stack", lambda key: _stack(key, interleaved=True)),
]
OPERATORS = [
    *LINEAR,
    OperatorCase("kronecker", lambda key: _kronecker(key, 2, 3)),
    OperatorCase("kronecker with a shift", lambda key: _kronecker(key, 2, 3, shifted=True)),
    OperatorCase("kronecker with a bias", lambda key: _kronecker(key, 2, 3, bias=True)),
    OperatorCase("kronecker with a shift and a bias", lambda key: _kronecker(key, 3, 2, shifted=True, bias=True)),
    OperatorCase("kronecker of a bias alone", lambda key: _kronecker(key, 2, 1, shifted=True, bias=True)),
    OperatorCase("nested blocks with a kronecker", _nested),
    OperatorCase("stack of kroneckers", _groups),
    OperatorCase(
        "kronecker with a diagonal", lambda key: _kronecker_of(key, lambda k: _diagonal(k, 3), lambda k: _dense(k, 2))
    ),
    OperatorCase("kronecker of blocks and a stack", lambda key: _kronecker_of(key, _uneven, _stack, bias=True)),
]
operator_cases = pytest.mark.parametrize("case", OPERATORS, ids=lambda case: case.name)
linear_cases = pytest.mark.parametrize("case", LINEAR, ids=lambda case: case.name)


def dense_matrix(operator, damping: float = 0.0) -> np.ndarray:
    """The damped matrix that the docstrings state, in NumPy."""
    if isinstance(operator, sk.linalg.Blocks):
        return scipy.linalg.block_diag(*[dense_matrix(part, damping) for part in operator.parts])
    if isinstance(operator, sk.linalg.Kronecker):
        return _dense_kronecker(operator, damping)
    if isinstance(operator, sk.linalg.Stack):
        each = [
            dense_matrix(jax.tree.map(lambda leaf, i=i: leaf[i], operator.parts), damping)
            for i in range(operator.count)
        ]
        whole, size = scipy.linalg.block_diag(*each), len(each[0])
        if not operator.interleaved:
            return whole
        places = [block * size + own for own in range(size) for block in range(operator.count)]
        return whole[np.ix_(places, places)]
    matrix = np.diag(operator.entries) if isinstance(operator, sk.linalg.Diagonal) else np.asarray(operator.matrix)
    return matrix + damping * np.trace(matrix) / len(matrix) * np.eye(len(matrix))


def _dense_kronecker(operator: sk.linalg.Kronecker, damping: float) -> np.ndarray:
    """With damping that of the factors, in proportion to their scales, in place of the shift."""
    left, right = dense_matrix(operator.left), dense_matrix(operator.right)
    a, b = np.trace(left) / len(left), np.trace(right) / len(right)
    shift = 0.0 if operator.shift is None else float(operator.shift)
    if damping:
        added = shift + damping * (a * b + shift)
        left = left + math.sqrt(added * a / b) * np.eye(len(left))
        right = right + math.sqrt(added * b / a) * np.eye(len(right))
        shift = 0.0
    places = [(i, j) for i in range(len(left)) for j in range(len(right))]
    if operator.bias:
        places.sort(key=lambda place: place[1] == len(right) - 1)  # stable: the weights, then the last column
    product = np.array([[left[i, k] * right[j, l] for k, l in places] for i, j in places])
    return product + shift * np.eye(len(places))


class Measured(NamedTuple):
    """A metric as dense linear algebra: every linear map by its values at the columns of the identity."""

    maps: dict[str, jax.Array]
    quadratic: jax.Array
    logdet: jax.Array


@eqx.filter_jit
def measure(operator, vector, symmetric: bool) -> Measured:
    metric = operator.factorize(DAMPING, symmetric=symmetric)
    names = ("whiten", "unwhiten", "pull_score", "push_score", "solve", "multiply")
    maps = {name: jax.vmap(getattr(metric, name), 1, 1)(jnp.eye(metric.size)) for name in names}
    form = metric.bilinear(jnp.eye(metric.size))
    maps["form"], maps["product"] = form.left @ form.right.T, form.product
    maps["arranged"] = metric.restore(metric.for_arranged().multiply(metric.arrange(jnp.eye(metric.size))))
    return Measured(maps, metric.quadratic(vector), metric.logdet())


def stacked(make, key):
    """Three operators as one batch."""
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *[make(k) for k in jr.split(key, 3)])


def unstacked(batch) -> list:
    return [jax.tree.map(lambda leaf, i=i: leaf[i], batch) for i in range(3)]


def largest_array(function, *arguments) -> int:
    """The number of entries of the largest array that a trace of `function` mentions."""
    shapes = re.findall(r"[a-z]+\d+\[([\d,]+)\]", str(jax.make_jaxpr(function)(*arguments)))
    return max(math.prod(map(int, shape.split(","))) for shape in shapes)


@pytest.mark.every(2)
@operator_cases
def test_operator_is_the_matrix_it_states(case, key):
    operator = case.make(key)
    matrix = dense_matrix(operator)
    assert operator.size == len(matrix)
    np.testing.assert_allclose(operator.as_matrix(), matrix, rtol=1e-14)
    np.testing.assert_allclose(operator.scale(), np.trace(matrix) / len(matrix), rtol=1e-13)


@pytest.mark.every(4)
@operator_cases
@pytest.mark.parametrize("symmetric", [False, True], ids=["cholesky", "symmetric root"])
def test_metric_is_a_root_of_the_damped_matrix(case, symmetric, key):
    operator_key, vector_key = jr.split(key)
    operator = case.make(operator_key)
    vector = jr.normal(vector_key, (operator.size,))
    actual = measure(operator, vector, symmetric)
    matrix = dense_matrix(operator, DAMPING)
    root = np.asarray(actual.maps["whiten"])
    expected = {
        "whiten": scipy.linalg.sqrtm(matrix) if symmetric else root,
        "unwhiten": np.linalg.inv(root),
        "pull_score": np.linalg.inv(root).T,
        "push_score": root.T,
        "solve": np.linalg.inv(matrix),
        "multiply": matrix,
        "form": matrix,
        "product": matrix,
        "arranged": matrix,
    }
    np.testing.assert_allclose(root.T @ root, matrix, rtol=1e-10, atol=1e-12)
    for name, value in expected.items():
        np.testing.assert_allclose(actual.maps[name], value, rtol=1e-10, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(actual.quadratic, vector @ matrix @ vector, rtol=1e-10)
    np.testing.assert_allclose(actual.logdet, np.linalg.slogdet(matrix)[1], rtol=1e-10)


@operator_cases
@pytest.mark.parametrize("damping", [0.0, -1e-3, math.nan, math.inf])
def test_damping_that_is_not_positive_and_finite_is_refused(case, damping, key):
    with pytest.raises(ValueError, match="`damping` must be positive and finite"):
        case.make(key).factorize(damping)


@eqx.filter_jit
def averaged_and_blended(batch) -> tuple[jax.Array, jax.Array]:
    """The mean of a batch, and 0.3 of its first with 0.7 of its second."""
    first, second, *_ = unstacked(batch)
    return batch.average().as_matrix(), first.blend(second, 0.3).as_matrix()


@linear_cases
def test_average_and_blend_are_linear_in_the_matrix(case, key):
    batch = stacked(case.make, key)
    first, second, third = map(dense_matrix, unstacked(batch))
    average, blend = averaged_and_blended(batch)
    np.testing.assert_allclose(average, (first + second + third) / 3, rtol=1e-14)
    np.testing.assert_allclose(blend, 0.3 * first + 0.7 * second, rtol=1e-14)


@pytest.mark.parametrize("shifted", [False, True], ids=["no shift", "shift"])
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_kronecker_averages_and_blends_its_factors_and_its_shift(shifted, bias, key):
    batch = stacked(lambda k: _kronecker(k, 3, 2, shifted, bias), key)
    first, second, third = unstacked(batch)

    def mixed(*shares: float) -> np.ndarray:
        leaves = zip(*map(jax.tree.leaves, (first, second, third)), strict=True)
        mean = [sum(share * leaf for share, leaf in zip(shares, each, strict=True)) for each in leaves]
        return dense_matrix(jax.tree.unflatten(jax.tree.structure(first), mean))

    average, blend = averaged_and_blended(batch)
    np.testing.assert_allclose(average, mixed(1 / 3, 1 / 3, 1 / 3), rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(blend, mixed(0.3, 0.7, 0.0), rtol=1e-13, atol=1e-14)


@pytest.mark.thorough
@pytest.mark.parametrize("shifted", [False, True], ids=["no shift", "shift"])
def test_a_bias_is_the_last_column_of_its_layer_and_the_last_of_its_coordinates(shifted, key):
    operator_key, weight_key, bias_key = jr.split(key, 3)
    operator = _kronecker(operator_key, 3, 4, shifted, bias=True)
    weight, bias = jr.normal(weight_key, (3, 3)), jr.normal(bias_key, (3,))
    block = np.column_stack([weight, bias])
    coordinates = np.concatenate([np.ravel(weight), bias])
    # vec(V)ᵀ (A ⊗ B) vec(V) = tr(Aᵀ V B Vᵀ)
    expected = np.trace(operator.left.matrix.T @ block @ operator.right.matrix @ block.T)
    expected += 0.0 if operator.shift is None else operator.shift * np.sum(block**2)
    np.testing.assert_allclose(coordinates @ operator.as_matrix() @ coordinates, expected, rtol=1e-12)


@pytest.mark.parametrize("shift", [None, 0.7], ids=["no shift", "shift"])
@pytest.mark.parametrize("zero", ["left", "right", "both"])
def test_a_factor_that_is_zero_leaves_the_damping_shared_equally(zero, shift, key):
    left, right = (
        np.zeros((size, size)) if zero in (side, "both") else np.asarray(random_positive_definite(key, size))
        for side, size in (("left", 2), ("right", 3))
    )
    given = None if shift is None else jnp.asarray(shift)
    metric = sk.linalg.Kronecker(
        sk.linalg.Dense(jnp.asarray(left)), sk.linalg.Dense(jnp.asarray(right)), given
    ).factorize(DAMPING)
    # The scale is the shift, or 1 where there is none.
    root = math.sqrt(DAMPING if shift is None else shift + DAMPING * shift)
    expected = np.kron(left + root * np.eye(2), right + root * np.eye(3))
    np.testing.assert_allclose(jax.vmap(metric.multiply, 1, 1)(jnp.eye(6)), expected, rtol=1e-12, atol=1e-14)


MANY_FACTORISATIONS = """
import jax, jax.numpy as jnp, steinkern as sk

def factor(size):
    return sk.linalg.Dense(jnp.broadcast_to(jnp.eye(size) + 0.1, (500, size, size)))

batch = sk.linalg.Blocks(tuple(sk.linalg.Kronecker(factor(a), factor(b)) for a, b in ((10, 14), (10, 11), (2, 11))))

def step(_, scale):
    now = jax.tree.map(lambda leaf: scale * leaf, batch)
    metrics = jax.vmap(lambda own: own.factorize(0.1))(now)
    return 1 + jnp.sum(jax.vmap(lambda metric: metric.logdet())(metrics)) * 1e-9

print(jax.jit(lambda: jax.lax.fori_loop(0, 200, step, jnp.ones(())))())
"""


@pytest.mark.thorough
def test_many_batched_factorisations_come_to_an_end_on_two_cores():
    """Side by side they bring jax 0.10 to a standstill on a CPU of few cores."""
    assert math.isfinite(float(output_of("-c", MANY_FACTORISATIONS, JAX_PLATFORMS="cpu", NPROC="2")))


@pytest.mark.every(2)
@operator_cases
def test_average_and_blend_of_equal_operators_change_nothing(case, key):
    matrix = dense_matrix(case.make(key))
    average, blend = averaged_and_blended(stacked(lambda _: case.make(key), key))
    np.testing.assert_allclose(average, matrix, rtol=1e-13)
    np.testing.assert_allclose(blend, matrix, rtol=1e-13)


@pytest.mark.every(6)
@operator_cases
def test_a_batch_of_metrics_under_vmap_is_every_metric_by_itself(case, key):
    operator_key, vector_key = jr.split(key)
    batch = stacked(case.make, operator_key)
    each = [dense_matrix(operator, DAMPING) for operator in unstacked(batch)]
    vectors = jr.normal(vector_key, (len(each), len(each[0])))

    @jax.jit
    def solve(batch, vectors):
        metrics = jax.vmap(lambda operator: operator.factorize(DAMPING))(batch)
        return jax.vmap(lambda metric, vector: metric.solve(vector))(metrics, vectors)

    expected = [np.linalg.solve(matrix, vector) for matrix, vector in zip(each, vectors, strict=True)]
    np.testing.assert_allclose(solve(batch, vectors), expected, rtol=1e-10, atol=1e-12)


WIDE_DIAGONAL = sk.linalg.Diagonal(jnp.ones(35))
WIDE_FACTORS = sk.linalg.Dense(jnp.ones((5, 5))), sk.linalg.Dense(jnp.ones((7, 7)))
WIDE_KRONECKER = sk.linalg.Kronecker(*WIDE_FACTORS)


@pytest.mark.parametrize(
    ("operator", "largest"),
    [
        pytest.param(WIDE_DIAGONAL, 35, id="diagonal: the vector"),
        pytest.param(WIDE_KRONECKER, 49, id="kronecker: the larger factor"),
        pytest.param(
            sk.linalg.Kronecker(*WIDE_FACTORS, jnp.ones(()), True), 49, id="kronecker with a shift and a bias"
        ),
        pytest.param(sk.linalg.Blocks((WIDE_KRONECKER, WIDE_DIAGONAL)), 70, id="blocks: the vector"),
    ],
)
def test_structure_is_never_made_dense(operator, largest):
    def every_use(operator, vector):
        metric = operator.blend(operator, 0.5).factorize(DAMPING)
        maps = (metric.whiten, metric.unwhiten, metric.pull_score, metric.push_score, metric.solve, metric.multiply)
        return metric, metric.logdet(), metric.quadratic(vector), [each(vector) for each in maps]

    assert largest_array(every_use, operator, jnp.ones(operator.size)) == largest


@operator_cases
def test_float32_operators_give_float32_metrics(case, key):
    def every_use(operator, vector):
        metric = operator.blend(operator, 0.5).factorize(DAMPING)
        return metric, metric.logdet(), metric.solve(vector)

    operator, vector = jax.tree.map(lambda x: x.astype(jnp.float32), (case.make(key), jnp.ones(case.make(key).size)))
    assert {leaf.dtype for leaf in jax.tree.leaves(jax.eval_shape(every_use, operator, vector))} == {
        np.dtype("float32")
    }
