"""Error messages for functions that the user supplies: what was expected, and the shapes of the arguments."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import jax
from jax.errors import JAXIndexError, JAXTypeError, TracerArrayConversionError

from .types import PyTree


@contextmanager
def explain_errors(expected: str, hint: str) -> Iterator[None]:
    """Replace the error that wrong shapes raise in a user's function by a `ValueError` raised from it.

    Args:
        expected: what the function must take, without a full stop.
        hint: advice, a whole sentence.
    """
    try:
        yield
    except TracerArrayConversionError as error:
        raise ValueError(
            f"{expected}; it passes a traced array to NumPy, which cannot compute with it. Use the function of the "
            "same name in `jax.numpy`."
        ) from error
    except (JAXTypeError, JAXIndexError):  # JAX's own message explains traced values best
        raise
    except (AssertionError, TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
        if str(error).startswith("`"):  # an error of this library, which has its advice
            raise
        if isinstance(error, AssertionError) and "numpyro" in traceback.extract_tb(error.__traceback__)[-1].filename:
            hint = "Give a NumPyro model with arguments as `steinkern.interop.numpyro.from_model(model, ...)`."
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ValueError(f"{expected}; it raised {type(error).__name__}: {reason}. {hint}") from error


def shapes(tree: PyTree, batch_axes: int = 1) -> str:
    """A text with the shapes of a pytree's arrays, named by their paths, without the first `batch_axes` axes."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    named = [(jax.tree_util.keystr(path, simple=True, separator="."), leaf.shape[batch_axes:]) for path, leaf in leaves]
    return "shape " + ", ".join(f"{name}: {shape}" if name else str(shape) for name, shape in named)
