"""Checks of the values of a user's functions, and of data."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..core.arrays import check_narrowed
from ..core.types import Batch, Scalar, Vector


def check_closed_over(target: Any) -> None:
    """Raise if a NumPy array that a function of the target closes over does not fit into JAX's precision."""
    for function in filter(callable, jax.tree.leaves(target)):
        function = inspect.unwrap(getattr(function, "func", function))
        if inspect.isfunction(function) or inspect.ismethod(function):
            variables = inspect.getclosurevars(function)
            for name, value in {**variables.globals, **variables.nonlocals}.items():
                if isinstance(value, np.ndarray) and value.dtype.kind in "iuf":
                    check_narrowed(name, value)


def batch_length(batch: Batch, name: str = "data") -> int:
    """The number of rows of a batch: the common length of its leaves' leading axes."""
    shapes = [np.shape(leaf) for leaf in jax.tree_util.tree_leaves(batch)]
    lengths = {shape[0] for shape in shapes if shape}
    if len(lengths) != 1 or () in shapes:
        raise ValueError(f"`{name}` must be arrays with one common leading axis (the examples), got shapes {shapes}.")
    return lengths.pop()


def scalar_result(value: Any, vector: Vector, name: str) -> Scalar:
    """Check that a user's log density returned one number in the particles' precision, and return it as an array."""
    if isinstance(value, int | float):  # a constant, such as a flat prior
        return jnp.full((), value, vector.dtype)
    if not hasattr(value, "dtype"):
        raise ValueError(f"`{name}` must return a scalar, got {type(value).__name__}.")
    shape, dtype = jnp.shape(value), jnp.result_type(value)
    if shape != ():
        raise ValueError(
            f"`{name}` must return a scalar, got an array of shape {shape}. "
            "Sum it if its entries are independent terms."
        )
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"`{name}` must return a real floating-point number, got dtype {dtype}.")
    if dtype != vector.dtype:
        raise ValueError(
            f"`{name}` returns {dtype} for parameters in {vector.dtype}. "
            "Cast the data or the particles so that both agree."
        )
    return jnp.asarray(value)
