"""What a function of the user's raises, with the shapes that it was given."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax
from jax.errors import JAXIndexError, JAXTypeError

from .types import PyTree


@contextmanager
def explained(expected: str, way_out: str) -> Iterator[None]:
    """Raise `ValueError` in place of what comes of arguments in the wrong shapes; `from` keeps the original.

    Args:
        expected: what the function must take, without a full stop.
        way_out: what to do.
    """
    try:
        yield
    except (JAXTypeError, JAXIndexError):  # a value asked of what is traced: JAX says it best
        raise
    except (TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
        if str(error).startswith("`"):  # one of ours, which says what to do
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ValueError(f"{expected}; it raised {type(error).__name__}: {reason}. {way_out}") from error


def shapes(tree: PyTree, batch_axes: int = 1) -> str:
    """The shapes of a pytree's arrays in words, by name where they have one, without so many of their first axes."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    named = [(jax.tree_util.keystr(path, simple=True, separator="."), leaf.shape[batch_axes:]) for path, leaf in leaves]
    return "shape " + ", ".join(f"{name}: {shape}" if name else str(shape) for name, shape in named)
