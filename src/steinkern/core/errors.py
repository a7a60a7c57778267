"""Error messages for functions that the user supplies: what was expected, and the shapes of the arguments."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax
from jax.errors import JAXIndexError, JAXTypeError, TracerArrayConversionError

from .types import PyTree

_TABLES = (
    "which cannot compute with it. Take arrays out of a table first, as in `dose = table['dose'].to_numpy()`, or pass "
    "the table as `data`."
)
_UNTRACEABLE = {
    "pandas": _TABLES,
    "polars": _TABLES,
    "NumPy": "which cannot compute with it. Use the function of the same name in `jax.numpy`.",
}


@contextmanager
def explain_errors(expected: str, way_out: str) -> Iterator[None]:
    """Replace the error that wrong shapes raise in a user's function by a `ValueError` raised from it.

    Args:
        expected: what the function must take, without a full stop.
        way_out: advice, a whole sentence.
    """
    try:
        yield
    except (TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
        if str(error).startswith("`"):  # an error of this library, which carries its advice
            raise
        library = _untraceable_library(error)
        if library:
            raise ValueError(f"{expected}; it gives a traced array to {library}, {_UNTRACEABLE[library]}") from error
        if isinstance(error, JAXTypeError | JAXIndexError):  # JAX's own message explains traced values best
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ValueError(f"{expected}; it raised {type(error).__name__}: {reason}. {way_out}") from error


def _untraceable_library(error: BaseException) -> str:
    """The library of `_UNTRACEABLE` that was given a traced array; empty where the error has another cause."""
    within, frame = set(), error.__traceback__
    while frame is not None:
        within.add(str(frame.tb_frame.f_globals.get("__name__", "")).partition(".")[0])
        frame = frame.tb_next
    converted = isinstance(error, TracerArrayConversionError)
    if "pandas" in within and converted:
        return "pandas"
    if "polars" in within and "Tracer" in str(error):
        return "polars"
    return "NumPy" if converted else ""


def shapes(tree: PyTree, batch_axes: int = 1) -> str:
    """A text with the shapes of a pytree's arrays, named by their paths, without the first `batch_axes` axes."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    named = [(jax.tree_util.keystr(path, simple=True, separator="."), leaf.shape[batch_axes:]) for path, leaf in leaves]
    return "shape " + ", ".join(f"{name}: {shape}" if name else str(shape) for name, shape in named)
