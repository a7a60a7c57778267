"""Conversion of a caller's arrays to JAX arrays, with errors that name the argument.

JAX silently drops the mask of a masked array, wraps integers that do not fit into 32 bits, and rounds time stamps to
multiples of two minutes. Every public function converts its arrays here instead.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from .types import Batch, Key, PyTree, is_concrete

LARGEST_ROUNDING = 0.01
"""The largest rounding error in float32, relative to a column's standard deviation; data that lose more are refused."""
_CONSTANT_SPREAD = 1e-11
"""The largest relative standard deviation of a column that is constant up to rounding."""
_MIN_ROWS = 3
"""With fewer rows the standard deviation of a column may be small by chance."""
_X64 = "enable double precision (`jax.config.update('jax_enable_x64', True)`)"


def as_key(key: Any, name: str = "key") -> Key:
    """A typed PRNG key. A legacy key (`jax.random.PRNGKey`) is wrapped, and gives the same random numbers."""
    if getattr(key, "dtype", None) == np.uint32 and key.shape == jr.key_data(jr.key(0)).shape:
        key = jr.wrap_key_data(jnp.asarray(key))
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ():
        return key
    raise ValueError(f"`{name}` must be one PRNG key, such as `jax.random.key(0)`, got {key!r}.")


def as_concrete_key(key: Any, hint: str = "") -> Key:
    """A PRNG key that is not traced, for a function that compiles programs itself and cannot run under `jit`."""
    if not (is_concrete(key) and is_concrete(jax.device_put(np.zeros(())))):  # under `jit` a constant is traced as well
        raise ValueError(
            "`key` must not be traced: the call runs compiled programs and branches on their results, so it cannot "
            f"run under `jit` or `vmap`. {hint}".rstrip()
        )
    return as_key(key)


def as_numpy(name: str, value: Any) -> np.ndarray:
    """A NumPy array of numbers in its own precision and native byte order; masks, strings and objects are refused."""
    if np.ma.is_masked(value):
        raise ValueError(
            f"`{name}` must not have masked entries, got {int(np.sum(value.mask))} of {np.size(value)}: their "
            "mask would be ignored. Leave out those rows, or fill them with `.filled(...)`."
        )
    try:
        array = np.asarray(value)
    except jax.errors.TracerArrayConversionError as error:
        raise ValueError(f"`{name}` must be concrete, got arrays that `jit`, `vmap` or `grad` traces.") from error
    except (TypeError, ValueError) as error:
        raise ValueError(_describe_non_numeric(name, value)) from error
    if array.dtype.kind in "mM":
        raise ValueError(
            f"`{name}` must be numbers, got times ({array.dtype}). Subtract one of them and divide by a unit: "
            "`(times - times[0]) / np.timedelta64(1, 's')`."
        )
    if not (jnp.issubdtype(array.dtype, np.number) or array.dtype == np.bool_):
        raise ValueError(_describe_non_numeric(name, value))
    if array.dtype.char in "gG":  # extended precision, which JAX does not have
        array = array.astype(np.float64 if array.dtype.char == "g" else np.complex128)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _describe_non_numeric(name: str, value: Any) -> str:
    text = " ".join(repr(value).split())
    excerpt = text if len(text) <= 100 else f"{text[:100]}…"
    is_column = isinstance(value, np.ndarray) and value.dtype.kind in "OSTU"  # a column of a table, for example
    hint = " Encode texts as numbers, or leave them out." if is_column else ""
    return f"`{name}` must be an array of numbers, got {excerpt} of type {type(value).__name__}.{hint}"


def as_array(name: str, value: Any) -> Array:
    """A JAX array in JAX's precision; `ValueError` where that precision is too low for the numbers.

    Integers must fit. Floating-point numbers must not overflow, and their rounding error must not exceed a hundredth of
    their column's standard deviation, where a column is one entry of every row. Traced arrays are not checked.
    """
    if isinstance(value, list | tuple) and any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value)):
        value = jnp.asarray(value)
    if isinstance(value, jax.Array):
        if not (jnp.issubdtype(value.dtype, np.number) or value.dtype == np.bool_):
            raise ValueError(_describe_non_numeric(name, value))
        return value
    array = as_numpy(name, value)
    check_narrowed(name, array)
    return jax.device_put(np.array(array))  # a copy: on a CPU the array of JAX may share the memory


def check_narrowed(name: str, array: np.ndarray) -> None:
    """Raise where an array of numbers does not fit into the dtype that JAX uses for it, as described in `as_array`."""
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    if array.size == 0 or dtype == array.dtype:
        return
    if array.dtype.kind in "iu":
        limits, least, largest = np.iinfo(dtype), int(array.min()), int(array.max())
        if least < limits.min or largest > limits.max:
            raise ValueError(
                f"`{name}` holds whole numbers from {least} to {largest}, which do not fit into {dtype.name}, JAX's "
                f"type for them here: they would wrap around. Subtract an offset, or {_X64}."
            )
        return
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = array.astype(dtype)
    overflowed = np.isfinite(array) & ~np.isfinite(narrow)
    if overflowed.any():
        raise ValueError(
            f"`{name}` holds {array[overflowed].flat[0]}, which is beyond the range of {dtype.name}. Divide it by a "
            f"scale, or {_X64}."
        )
    if array.dtype.kind == "f":
        _check_rounding(name, array, narrow)


def _check_rounding(name: str, array: np.ndarray, narrow: np.ndarray) -> None:
    """Raise where `narrow`, which is `array` in float32, has too large a rounding error in a column."""
    if array.ndim == 0 or len(array) < _MIN_ROWS:
        return
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.max(np.abs(array - narrow), axis=0)
        spread, size = np.std(array, axis=0), np.max(np.abs(array), axis=0)
        coarse = (error > LARGEST_ROUNDING * spread) & (spread > _CONSTANT_SPREAD * size)
    if coarse.any():
        index = np.unravel_index(int(np.argmax(coarse)), coarse.shape)
        where = f" in column {index[0] if len(index) == 1 else tuple(map(int, index))}" if index else ""
        raise ValueError(
            f"`{name}` loses its digits in float32: numbers near {size[index]:.6g}{where} with a standard deviation of "
            f"{spread[index]:.2g} would be rounded by up to {error[index]:.2g}. Subtract an offset, as in `x - "
            f"x.mean(axis=0)`, or {_X64}."
        )


def as_arrays(name: str, tree: PyTree) -> PyTree:
    """Convert every leaf of a pytree by `as_array`; errors name a leaf by its path, such as `data['time']`."""

    def convert(path: Any, leaf: Any) -> Array:
        return as_array(f"{name}{jax.tree_util.keystr(path)}", leaf)

    return jax.tree_util.tree_map_with_path(convert, tree)


def as_particle(name: str, tree: PyTree) -> PyTree:
    """One particle's parameters with real, finite floating-point leaves; integers are converted."""
    if not sum(np.size(leaf) for leaf in jax.tree.leaves(tree)):
        raise ValueError(f"`{name}` must hold one particle's parameters, at least one number, got {tree!r}.")
    particle = jax.tree.map(functools.partial(_as_floats, name), tree)
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(particle) if is_concrete(leaf)):
        raise ValueError(f"`{name}` must be finite, got NaN or infinity in it.")
    return particle


def _as_floats(name: str, value: Any) -> Array:
    array = as_array(name, value)
    if jnp.iscomplexobj(array):
        raise ValueError(f"`{name}` must be real numbers, got {array.dtype}.")
    if not jnp.issubdtype(array.dtype, jnp.floating):
        dtype = jnp.result_type(float)
        if is_concrete(array) and dtype == np.float32:
            whole = np.asarray(array)
            _check_rounding(name, whole.astype(np.float64), whole.astype(np.float32))
        array = array.astype(dtype)
    return array


def as_labels(labels: Any) -> PyTree:
    """Labels as arrays: a list of numbers becomes one array, other containers keep their structure."""
    plain = all(np.ndim(leaf) == 0 and not hasattr(leaf, "dtype") for leaf in jax.tree.leaves(labels))
    return as_array("labels", labels) if plain and isinstance(labels, list | tuple) else as_arrays("labels", labels)


def as_data(data: Batch) -> Batch:
    """Convert every leaf of `data` to an array; a pandas or polars DataFrame becomes a dictionary of columns."""
    return as_arrays("data", with_columns(data))


def with_columns(data: Batch) -> Batch:
    """`data` with a dictionary {column: array} in place of every table of pandas or polars; neither is imported."""
    return jax.tree.map(lambda leaf: _columns(leaf) if _is_table(leaf) else leaf, data)


def _is_table(leaf: Any) -> bool:
    """Whether a leaf is a table with named columns; arrays, and series, have a dtype."""
    return not hasattr(leaf, "dtype") and all(hasattr(leaf, name) for name in ("columns", "dtypes", "to_numpy"))


def _columns(table: Any) -> dict[str, np.ndarray]:
    names = list(table.columns)
    if not (names and len(set(names)) == len(names) and all(isinstance(name, str) for name in names)):
        raise ValueError(
            f"`data` must be a table whose columns have different texts for names, got {names}. Rename them, or give "
            "the numbers as a matrix: `table.to_numpy()`."
        )
    return {name: table[name].to_numpy() for name in names}


def as_concrete(name: str, tree: PyTree) -> PyTree:
    """Convert as `as_data` does and refuse traced arrays, for functions that compile programs themselves."""
    arrays = as_arrays(name, with_columns(tree))
    if not all(is_concrete(leaf) for leaf in jax.tree.leaves(arrays)):
        raise ValueError(
            f"`{name}` must be concrete arrays, not traced: the call compiles its own loop, so it cannot run "
            "under `jit` or `vmap`."
        )
    return arrays


def as_points(name: str, value: Any) -> Float[Array, "n d"]:
    """A real floating-point array of shape (n, d) with n, d ≥ 1; traced arrays are accepted."""
    array = _as_floats(name, value)
    if array.ndim != 2:
        hint = " Write `x[:, None]` for points of one dimension." if array.ndim == 1 else ""
        raise ValueError(f"`{name}` must have two axes, (n, d), got shape {array.shape}.{hint}")
    if 0 in array.shape:
        raise ValueError(f"`{name}` must hold at least one point of at least one coordinate, got shape {array.shape}.")
    return array


def in_one_precision(*arrays: Array) -> tuple[Array, ...]:
    """Cast floating-point arrays to the widest of their dtypes."""
    widest = max((array.dtype for array in arrays), key=lambda kind: (jnp.finfo(kind).bits, jnp.finfo(kind).nmant))
    return tuple(array.astype(widest) for array in arrays)
