"""Long products of matrices: in chunks on a GPU, at once elsewhere, with the same result."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.core._xla import (
    _packs_and_chunks,
    long_products,
    long_squares,
    number_of_chunks,
    products_in_chunks,
    squares_in_chunks,
)
from steinkern.kernels.in_metric import distances_in_metric, distances_within_metric, in_metric


def test_chunks_are_equal_and_of_about_a_thousand():
    assert [number_of_chunks(count) for count in (2047, 8209, 12800, 314000, 1003520)] == [1, 1, 16, 314, 980]


@pytest.mark.parametrize("pack", [1, 2, 5])
def test_chunks_add_up_to_the_whole(key, pack):
    rows, others = (jr.normal(own, (12800, 3)) for own in jr.split(key))
    np.testing.assert_allclose(squares_in_chunks(rows, 4, pack), np.asarray(rows.T @ rows), rtol=1e-9, atol=1e-9)
    products = products_in_chunks(rows.T, others.T[:2], 4)
    np.testing.assert_allclose(products, np.asarray(rows.T @ others[:, :2]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("function", "shape"), [(long_squares, (12800, 3)), (lambda rows: long_products(rows, rows), (3, 12800))]
)
def test_only_programs_for_a_gpu_have_chunks(function, shape):
    traced = jax.jit(jax.vmap(function)).trace(jax.ShapeDtypeStruct((2, *shape), jnp.float32))
    cuda, cpu = (traced.lower(lowering_platforms=(name,)).as_text() for name in ("cuda", "cpu"))
    chunks = "2x1x1280x30" if shape[0] > shape[1] else "2x3x16x800"  # ten rows side by side fill a tile
    assert chunks in cuda
    assert chunks not in cpu


@pytest.mark.thorough
def test_distances_in_many_coordinates_have_chunks_on_a_gpu(key):
    metric = sk.linalg.Kronecker(
        sk.linalg.Dense(jnp.eye(4, dtype=jnp.float32)), sk.linalg.Dense(jnp.eye(3200, dtype=jnp.float32))
    )
    metric = metric.factorize(0.1)

    def distances(points):
        seen = in_metric(metric, points)
        return distances_within_metric(seen), distances_in_metric(seen.rows(slice(2)), seen)

    traced = jax.jit(distances).trace(jax.ShapeDtypeStruct((3, 12800), jnp.float32))
    assert traced.lower(lowering_platforms=("cuda",)).as_text().count("3x16x800") > 1


def test_the_squares_of_no_columns_are_an_empty_matrix():
    assert long_squares(jnp.zeros((5, 0))).shape == (0, 0)


def test_rows_go_side_by_side_only_where_chunks_are_left():
    assert _packs_and_chunks(250880, 6) == (5, 49)
    assert _packs_and_chunks(59996, 8) == (2, 53)  # 4 rows side by side would leave 14,999, a prime number of them
