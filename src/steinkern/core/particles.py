"""Particles: pytrees with a leading particle axis at the public functions, one (n, d) array inside."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, islice, product
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .types import Points, PyTree, Vector, is_concrete


class Scored(eqx.Module):
    """Weighted points with their scores ∇log p, the only way in which the target enters a kernel."""

    points: Float[Array, "n d"]
    scores: Float[Array, "n d"]
    weights: Float[Array, " n"]

    @classmethod
    def uniform(cls, points: Points, scores: Points) -> "Scored":
        """The empirical measure of the particles: every weight 1/n."""
        n = points.shape[0]
        return cls(points, scores, jnp.full((n,), 1 / n, points.dtype))


class Layout(eqx.Module):
    """The map between one particle's pytree and a vector of length d: leaf after leaf, each in row-major order.

    `names` holds every leaf's path ("weights", "layers.0.bias"; "" for a bare array) and `slices` its position, so that
    blocks of coordinates can be named.
    """

    structure: Any = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)

    @classmethod
    def of(cls, particle: PyTree) -> "Layout":
        """The layout of one particle (no leading particle axis)."""
        paths, structure = jax.tree_util.tree_flatten_with_path(particle)
        if not paths:
            raise ValueError("`particles` must hold at least one array, got an empty pytree.")
        names = tuple(jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths)
        dtypes = {name: _dtype(leaf, name) for name, (_, leaf) in zip(names, paths, strict=True)}
        if len(set(dtypes.values())) > 1:
            listed = ", ".join(f"{name or 'the array'}: {dtype}" for name, dtype in dtypes.items())
            raise ValueError(
                f"`particles` must have one dtype throughout, got {listed}. Cast the leaves to one of them."
            )
        shapes = tuple(tuple(np.shape(leaf)) for _, leaf in paths)
        layout = cls(structure, shapes, names, next(iter(dtypes.values())))
        if layout.size == 0:
            raise ValueError(f"`particles` must have at least one coordinate, got leaves of shapes {shapes}.")
        return layout

    @property
    def size(self) -> int:
        """The dimension d."""
        return sum(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of coordinates of every leaf."""
        return tuple(int(np.prod(shape)) for shape in self.shapes)

    @property
    def slices(self) -> dict[str, slice]:
        """The slice of the vector that each named leaf takes."""
        ends = tuple(accumulate(self.sizes))
        return {name: slice(end - size, end) for name, end, size in zip(self.names, ends, self.sizes, strict=True)}

    def coordinate_names(self) -> Iterator[str]:
        """A name for every coordinate, such as "weights[2,0]"."""
        return chain.from_iterable(map(coordinate_names, self.names, self.shapes))

    def coordinate_name(self, index: int) -> str:
        """The name of one coordinate."""
        return next(islice(self.coordinate_names(), index, None))

    def ravel(self, particle: PyTree) -> Vector:
        """One particle as a vector."""
        leaves = self.structure.flatten_up_to(particle)
        return jnp.concatenate([jnp.asarray(leaf).reshape(-1) for leaf in leaves])

    def unravel(self, vector: Vector) -> PyTree:
        """A vector as one particle."""
        pieces = jnp.split(vector, list(accumulate(self.sizes))[:-1])
        leaves = [piece.reshape(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]
        return jax.tree_util.tree_unflatten(self.structure, leaves)


def coordinate_names(name: str, shape: Sequence[int]) -> Iterator[str]:
    """The names of all coordinates of one array, such as "weights[2,0]"; a scalar keeps the name of the array."""
    name = name or "x"
    if not shape:
        return iter((name,))
    axes = ([str(index) for index in range(side)] for side in shape)
    return (f"{name}[{','.join(indices)}]" for indices in product(*axes))


def split(parameters: PyTree, particles: str | Sequence[str]) -> tuple[PyTree, PyTree]:
    """Split a parameter pytree into the leaves that are particles and those that all particles share.

    >>> particles, shared = split({"network": weights, "output": ten_outputs}, "output")

    Args:
        parameters: any pytree, such as a dictionary or an Equinox module. The leaves that become particles carry a
            leading particle axis; the others have the shape that the model expects.
        particles: names of leaves, or of subtrees for all leaves in them, spelled as paths: "output", "layers.2.bias".

    Returns:
        Two pytrees of the structure of `parameters`, each with `None` where the leaf is in the other. The first goes
        to `fit` as its particles, the second to the target as `shared`.
    """
    wanted = (particles,) if isinstance(particles, str) else tuple(particles)
    structure, names = jax.tree_util.tree_structure(parameters), _leaf_names(parameters)
    unknown = [want for want in wanted if not any(_is_in(name, want) for name in names)]
    if unknown or not wanted:
        listed = ", ".join(map(repr, unknown)) or "no name at all"
        raise ValueError(f"`particles` must name leaves among {', '.join(names)}, got {listed}.")
    selected = [any(_is_in(name, want) for want in wanted) for name in names]
    mask = jax.tree_util.tree_unflatten(structure, selected)
    return eqx.partition(parameters, mask)


def merge(particle: PyTree, shared: PyTree) -> PyTree:
    """Undo `split`: the whole parameters from one particle's leaves and the shared ones."""
    if shared is None:
        return particle
    try:
        return eqx.combine(particle, shared)
    except (TypeError, ValueError) as error:
        names = [sorted(_leaf_names(tree)) for tree in (particle, shared)]
        raise ValueError(
            "`shared` must have the structure of the whole parameters, with `None` for the leaves of the particles, "
            f"got {', '.join(names[1])} beside particles of {', '.join(names[0])}. `steinkern.split` makes both."
        ) from error


def _leaf_names(tree: PyTree) -> list[str]:
    """The path of every leaf of a pytree, as in "layers.2.bias"."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]


def _is_in(name: str, subtree: str) -> bool:
    return name == subtree or name.startswith(f"{subtree}.")


def finite_rows(array: Any) -> Any:
    """(n,) whether all entries along the leading axis are finite; an array of a GPU is not moved to the host."""
    isfinite: Any = jnp.isfinite if isinstance(array, jax.Array) and jax.default_backend() != "cpu" else np.isfinite
    return isfinite(array).all(axis=tuple(range(1, np.ndim(array))))


def check_particles(particles: PyTree, argument: str = "particles") -> int:
    """Check the particles and return their number n; the `ValueError` calls them `argument`."""
    paths, _ = jax.tree_util.tree_flatten_with_path(particles)
    if not paths:
        raise ValueError(f"`{argument}` must hold at least one array, got an empty pytree.")
    if not all(is_concrete(leaf) for _, leaf in paths):
        raise ValueError(
            f"`{argument}` must be concrete arrays: `fit` compiles its own loop and cannot run under `jit` or `vmap`. "
            "For many runs at once, `vmap` the steps of `as_blackjax`."
        )
    counts = {}
    for path, leaf in paths:
        name = jax.tree_util.keystr(path, simple=True, separator=".") or "the array"
        _dtype(leaf, name, argument)
        if np.ndim(leaf) == 0:
            raise ValueError(f"`{argument}` must carry a leading particle axis on every leaf; {name} is a scalar.")
        counts[name] = np.shape(leaf)[0]
    for name, finite in zip(counts, jax.device_get([finite_rows(leaf) for _, leaf in paths]), strict=True):
        if not finite.all():
            bad = np.sum(~finite)
            raise ValueError(f"`{argument}` must be finite; {bad} of {counts[name]} hold NaN or infinity in {name}.")
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise ValueError(f"`{argument}` must have the same number along the leading axis of every leaf, got {listed}.")
    n = next(iter(counts.values()))
    if n == 0:
        raise ValueError(f"`{argument}` must hold at least one particle, got n = 0.")
    return n


def _dtype(leaf: Any, name: str, argument: str = "particles") -> Any:
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        raise ValueError(
            f"`{argument}` must be a pytree of arrays; {name or 'it'} is a {type(leaf).__name__}. Make lists of "
            f"numbers an array first: `jnp.asarray({argument})`."
        )
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"`{argument}` must be floating point; {name or 'the array'} has dtype {dtype}.")
    return jax.dtypes.canonicalize_dtype(dtype)
