"""Several reductions in one pass against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steinkern.core._xla import reduce_apart, reduce_together

KINDS = ("sum", "max", "min")
REDUCTIONS = {"sum": np.sum, "max": np.max, "min": np.min}
SHAPES = [(1,), (50,), (3, 1), (50, 2), (70, 60), (1500, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("reduce", [reduce_together, reduce_apart])
def test_every_array_is_reduced_by_its_kind(reduce, shape, generator):
    arrays = [generator.normal(size=shape), generator.normal(size=shape), generator.integers(-9, 9, shape)]
    arrays = [array.astype(kind) for array, kind in zip(arrays, (np.float32, np.float64, np.int32), strict=True)]
    for kinds in (KINDS, KINDS[1:] + KINDS[:1], KINDS[2:] + KINDS[:2]):
        found = jax.jit(lambda *arrays, kinds=kinds: reduce(kinds, arrays))(*arrays)
        for kind, array, value in zip(kinds, arrays, found, strict=True):
            assert (value.shape, value.dtype) == ((), array.dtype)
            np.testing.assert_allclose(value, REDUCTIONS[kind](array), rtol=1e-5, atol=1e-4)  # sums of 3,000 roundings


def test_arrays_are_reduced_in_a_batch(generator):
    arrays = generator.normal(size=(2, 5, 70, 60))
    total, largest = jax.jit(jax.vmap(lambda a, b: reduce_together(("sum", "max"), (a, b))))(*arrays)
    np.testing.assert_allclose(total, arrays[0].sum(axis=(1, 2)), rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(largest, arrays[1].max(axis=(1, 2)))


@pytest.mark.parametrize("shape", [(50, 2), (70, 60), (1500, 2)], ids=str)
def test_nan_stays_nan(shape):
    array = jnp.ones(shape).at[3, 1].set(jnp.nan)
    assert np.isnan(jax.jit(lambda array: reduce_together(KINDS, 3 * (array,)))(array)).all()
