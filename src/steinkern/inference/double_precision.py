"""Whether single precision is too coarse for a target: its scores at a few last particles, in double precision too."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..core.multihost import on_host
from ..core.notices import Notice, Phrase, ways_out
from ..core.programs import compiled_quickly
from ..core.types import Batch, Points, PyTree
from ..targets.target import AbstractTarget
from .end_check import EndCheck
from .run import Run

_FEW = 4  # particles whose scores are compared


def check_double_precision(run: Run, batch: Batch, end: EndCheck) -> Iterator[Notice]:
    """A notice where the scores in single precision are wrong by a tenth of their size."""
    if not _is_single(run):
        return
    whole = on_host(run.loop.state.points)
    single = on_host(end.scores)[:_FEW].astype(np.float64)
    double = _double_scores(run.target_now, end.particles, whole[:_FEW], batch)
    if double is None:
        return
    spread = float(np.sqrt(np.mean(np.var(whole.astype(np.float64), axis=0)))) or 1.0
    error, size = (float(np.sqrt(np.mean(array**2))) for array in (single - double, double))
    if error > 0.1 * (size + 1 / spread):
        yield Notice(
            "float32",
            f"float32 is too coarse for this target: its scores differ from those in float64 by {error:.2g}, where "
            f"their size is {size:.2g}. ",
            *ways_out([Phrase.DOUBLE, "write the log density so that large terms do not cancel"]),
        )


def begin_compiling(run: Run, particles: PyTree, batch: Batch) -> None:
    """Compile the program of the check in a thread.

    Args:
        run: the run before its first step.
        particles: its first particles, in the parameters' own coordinates.
        batch: a batch of the run's size.
    """
    if _is_single(run):
        few = on_host(run.loop.state.points)[:_FEW]
        with contextlib.suppress(Exception):  # the log density does not support double precision
            begun = _in_double(scores_of.begin, run.target_now, particles, few, batch, only_shapes=True)
            if begun is not None:
                begun.compile()


@compiled_quickly
def scores_of(target: AbstractTarget, points: Points, batch: Batch) -> Points:
    """The scores, compiled once for all fits of the same functions and shapes."""
    return target.scores(points, batch)


def _is_single(run: Run) -> bool:
    return run.loop.state.points.dtype.itemsize == 4 and run.sampler.differentiates


def _double_scores(target: AbstractTarget, particles: PyTree, points: np.ndarray, batch: Batch) -> np.ndarray | None:
    """The scores in double precision; `None` where the log density cannot be evaluated in it."""
    try:
        scores = np.asarray(_in_double(scores_of, target, particles, points, batch))
    except Exception:
        return None
    return scores if scores.dtype == np.float64 and np.isfinite(scores).all() else None


def _in_double(
    call: Callable[..., Any],
    target: AbstractTarget,
    particles: PyTree,
    points: Any,
    batch: Batch,
    only_shapes: bool = False,
) -> Any:
    """`call(target, points, batch)` in double precision; with shapes in place of points and batch if so asked."""

    def double(tree: Any, shapes: bool = False) -> Any:
        def cast(leaf: Any) -> Any:
            if not eqx.is_array_like(leaf):  # a function among shared leaves
                return leaf
            if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
                return leaf
            whole = jax.ShapeDtypeStruct(np.shape(leaf), np.float64)
            return whole if shapes else jax.device_put(np.asarray(leaf, np.float64))

        return jax.tree.map(cast, tree)

    particle = jax.tree.map(lambda leaf: on_host(leaf)[0], particles)
    # JAX caches NumPy constants by identity in single precision, so the target gets copies.
    fresh = jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, target)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        wide = fresh.bind(double(particle)).sharing(double(target.shared))
        return call(wide, double(points, only_shapes), double(batch, only_shapes))
