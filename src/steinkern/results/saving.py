"""Results in files: `Result.save` and `load`. The format is that of `core.archive`."""

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from ..core.archive import Arrays, DamagedFileError, Json, newest_checkpoint, pack, read, unpack, write
from ..core.types import LogDensityFunction, PyTree
from ..interop._model import as_target_or_model
from ..targets.constrained import constrained
from ..targets.target import AbstractTarget, BoundTarget

if TYPE_CHECKING:
    from .result import Result

_RTOL = 1e-2  # relative to a particle's largest coordinate; other constraints give very different numbers


def save(result: "Result", path: str | os.PathLike[str]) -> Path:
    """See `Result.save`."""
    meta, arrays = pack_result(result)
    try:
        write(Path(path), meta, arrays)
    except OSError as error:
        raise OSError(f"`path` {path} cannot be written to: {error.strerror}. Choose another file.") from error
    return Path(path)


def pack_result(result: "Result") -> tuple[Json, Arrays]:
    """The content of the file of a result: all but its target, its sampler and their functions."""
    arrays: Arrays = {}
    plain = dataclasses.replace(result, target=None, sampler=None, loop=None, settings=result.described_settings())
    return {"result": pack(plain, arrays, "")}, arrays


def load(
    path: str | os.PathLike[str], *, target: AbstractTarget | LogDensityFunction | None = None, like: PyTree = None
) -> "Result":
    """Read a result that `result.save(path)` wrote, or the newest intact checkpoint in the directory of a `fit`.

    ```python
    result.save("banana.npz")
    again = steinkern.load("banana.npz")                          # summary, predict, report, resample
    again = steinkern.load("banana.npz", target=log_density)      # scores, to_arviz, draws of constrained parameters
    so_far = steinkern.load("checkpoints")                        # the run of `fit(..., checkpoint="checkpoints")`
    ```

    The file holds particles, draws, history, warnings with their codes, diagnostics, settings and versions, and no
    functions: `sampler` and, unless it is given here, `target` of the result are `None`. A `fit` from it starts at its
    particles. `settings["versions"]` holds the versions of the libraries that made it.

    Particles that consist of dictionaries, lists, tuples and arrays come back as they were. Those of another class,
    such as an Equinox module or a named tuple, need `like`, because a file does not hold their class.

    Reading executes no code from the file. A file that is truncated or altered is refused.

    Args:
        path: the file, or the directory.
        target: the target of the run, as for `fit`. Shared parameters take the values that they have in the file. The
            target is checked to have the coordinates of the run; that it is the same density is up to you.
        like: one particle, or any pytree of its structure, for particles of other classes.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not a readable result, or `like` or `target` do not fit it.
    """
    try:
        saved = newest_checkpoint(Path(path)) if Path(path).is_dir() else read(Path(path))
        if saved is None:
            raise ValueError(f"`path` {path} holds no checkpoint. Name the directory of `fit(..., checkpoint=...)`.")
        meta, arrays = saved
        fields = meta["result"]["fields"]
        shared, particles = fields.pop("shared"), fields["particles"]
    except (DamagedFileError, KeyError) as error:
        raise ValueError(f"`path` is not a result: {error} Name a file that `result.save(path)` wrote.") from error
    unbound = None if target is None else as_target_or_model(target)
    template = None if unbound is None else unbound.shared
    if (shapes := _shapes_without_structure(particles, arrays)) is not None:
        one, got = [shape[1:] for shape in shapes], [np.shape(leaf) for leaf in jax.tree.leaves(like)]
        if got not in (one, shapes):
            raise ValueError(
                f"`like` must be one particle, any pytree whose arrays have the shapes {one}, got {got}: the particles "
                f"are of the class {particles['class']}, which a file does not hold."
            )
    if (shapes := _shapes_without_structure(shared, arrays)) is not None:
        got = [np.shape(leaf) for leaf in jax.tree.leaves(template) if hasattr(leaf, "dtype")]
        if got != shapes:
            raise ValueError(
                f"`target` must be as the run had it, with `shared=` of the shapes {shapes}, got {got}: what its "
                f"particles share is of the class {shared['class']}, which a file does not hold."
            )
    result = unpack(meta["result"], arrays, like)
    result = dataclasses.replace(result, shared=unpack(shared, arrays, template))
    return result if unbound is None else dataclasses.replace(result, target=_bind(unbound, result))


def _shapes_without_structure(node: Json, arrays: Arrays) -> list[tuple[int, ...]] | None:
    """The shapes of the arrays of a tree that is packed without its structure; `None` for other trees."""
    if not (isinstance(node, dict) and "leaves" in node):
        return None
    return [arrays[leaf["array"]].shape for leaf in node["leaves"] if leaf is not None]


def _bind(target: AbstractTarget, result: "Result") -> BoundTarget:
    """A target bound to the space of a result's particles, with the shared parameters of the result."""
    particle = jax.tree.map(lambda leaf: leaf[0], result.particles)
    bound = target.bind(particle)
    size = bound.space.layout.size
    if size != result.points.shape[1]:
        raise ValueError(
            f"`target` has {size} unconstrained coordinates, the result {result.points.shape[1]}: the constraints of "
            "the run were others. Give the target of the run."
        )
    mapped = jax.tree.map(lambda leaf: leaf[0], constrained(bound, jnp.asarray(result.points[:1])))
    for leaf, other in zip(jax.tree.leaves(particle), jax.tree.leaves(mapped), strict=True):
        before, now = np.asarray(leaf, np.float64), np.asarray(other, np.float64)
        if np.max(np.abs(before - now), initial=0.0) > _RTOL * np.max(np.abs(before), initial=1e-300):
            raise ValueError(
                "`target` maps the result's unconstrained coordinates to other parameters: the constraints of the run "
                "were others. Give the target of the run, with its `support=`."
            )
    return bound.sharing(result.shared)
