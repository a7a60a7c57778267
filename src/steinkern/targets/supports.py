"""Supports of constrained parameters: smooth bijections T from unconstrained space with their log-Jacobians.

Particles move in unconstrained coordinates u, where the target is p(T(u)) |det ∇T(u)|. Without the determinant it would
be another posterior, so one object has both the map and its log-Jacobian.
"""

import abc
from collections import OrderedDict
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..core.particles import Layout
from ..core.reprs import OneLine
from ..core.types import PyTree, Scalar, Vector, cast_like, is_concrete


class AbstractSupport(OneLine):
    """The support of one leaf of the parameters, with a bijection T onto it from unconstrained space."""

    @abc.abstractmethod
    def constrain(self, free: Float[Array, "..."]) -> Float[Array, "..."]:
        """T(u), the parameter."""

    @abc.abstractmethod
    def unconstrain(self, value: Float[Array, "..."]) -> Float[Array, "..."]:
        """T⁻¹(value)."""

    @abc.abstractmethod
    def log_jacobian(self, free: Float[Array, "..."]) -> Scalar:
        """Log |det ∇T(u)|, over the whole leaf."""

    def contains(self, value: np.ndarray) -> bool:
        """Whether `value` lies in the support; checked for the initial particles before a run.

        By default a support is all numbers strictly between `lower` and `upper`, as far as it has them.
        """
        lower, upper = getattr(self, "lower", -np.inf), getattr(self, "upper", np.inf)
        return bool(np.all((value > np.asarray(lower)) & (value < np.asarray(upper))))


def _bound(name: str, value: Any) -> Any:
    """Check a bound: a finite real number, or an array of them; traced values are not checked."""
    if not is_concrete(value):
        return value
    try:
        numbers = np.asarray(value)
    except (TypeError, ValueError):
        numbers = np.asarray(None)
    real = jnp.issubdtype(numbers.dtype, np.floating) or jnp.issubdtype(numbers.dtype, np.integer)
    if not (real and np.all(np.isfinite(numbers.astype(np.float64)))):
        raise ValueError(
            f"`{name}` must be a finite number, got {value!r}. Without a bound on a side use `greater_than`, "
            "`less_than` or `real`."
        )
    return value if isinstance(value, jax.Array) else numbers.astype(np.float64)


class Real(AbstractSupport):
    """No constraint."""

    def constrain(self, free: Float[Array, "..."]) -> Float[Array, "..."]:
        return free

    def unconstrain(self, value: Float[Array, "..."]) -> Float[Array, "..."]:
        return value

    def log_jacobian(self, free: Float[Array, "..."]) -> Scalar:
        return jnp.zeros((), free.dtype)


class GreaterThan(AbstractSupport):
    """(lower, ∞), by lower + exp(u)."""

    lower: Any = eqx.field(converter=lambda value: _bound("lower", value))

    def constrain(self, free: Float[Array, "..."]) -> Float[Array, "..."]:
        return cast_like(self.lower, free) + jnp.exp(free)

    def unconstrain(self, value: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.log(value - cast_like(self.lower, value))

    def log_jacobian(self, free: Float[Array, "..."]) -> Scalar:
        return jnp.sum(free)


class LessThan(AbstractSupport):
    """(−∞, upper), by upper − exp(u)."""

    upper: Any = eqx.field(converter=lambda value: _bound("upper", value))

    def constrain(self, free: Float[Array, "..."]) -> Float[Array, "..."]:
        return cast_like(self.upper, free) - jnp.exp(free)

    def unconstrain(self, value: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.log(cast_like(self.upper, value) - value)

    def log_jacobian(self, free: Float[Array, "..."]) -> Scalar:
        return jnp.sum(free)


class Interval(AbstractSupport):
    """(lower, upper), by the logistic function."""

    lower: Any = eqx.field(converter=lambda value: _bound("lower", value))
    upper: Any = eqx.field(converter=lambda value: _bound("upper", value))

    def __check_init__(self) -> None:
        if is_concrete(self.lower) and is_concrete(self.upper) and np.any(self.lower >= self.upper):
            raise ValueError(f"`lower` must be below `upper`, got {self.lower} and {self.upper}.")

    def constrain(self, free: Float[Array, "..."]) -> Float[Array, "..."]:
        lower, upper = cast_like(self.lower, free), cast_like(self.upper, free)
        return lower + (upper - lower) * jax.nn.sigmoid(free)

    def unconstrain(self, value: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.log(value - cast_like(self.lower, value)) - jnp.log(cast_like(self.upper, value) - value)

    def log_jacobian(self, free: Float[Array, "..."]) -> Scalar:
        width = cast_like(self.upper, free) - cast_like(self.lower, free)
        return jnp.sum(jnp.log(width) + jax.nn.log_sigmoid(free) + jax.nn.log_sigmoid(-free))


class Simplex(AbstractSupport):
    """Positive numbers that sum to 1 along the last axis, by stick-breaking: K − 1 free coordinates for K parts.

    The fraction broken off at step i is sigmoid(u_i − log(K − i)), so that u = 0 is the centre (the Stan manual's map).
    """

    def constrain(self, free: Float[Array, "... j"]) -> Float[Array, "... k"]:
        logits = self._logits(free)
        left = jnp.cumsum(jax.nn.log_sigmoid(-logits), axis=-1)
        before = jnp.concatenate([jnp.zeros_like(left[..., :1]), left], axis=-1)
        taken = jnp.concatenate([jax.nn.log_sigmoid(logits), jnp.zeros_like(left[..., :1])], axis=-1)
        return jnp.exp(before + taken)

    def unconstrain(self, value: Float[Array, "... k"]) -> Float[Array, "... j"]:
        rest = jnp.cumsum(value[..., ::-1], axis=-1)[..., ::-1][..., 1:]  # length of the stick after each piece
        return jnp.log(value[..., :-1]) - jnp.log(rest) + self._offsets(value[..., :-1])

    def log_jacobian(self, free: Float[Array, "... j"]) -> Scalar:
        logits = self._logits(free)
        left = jnp.cumsum(jax.nn.log_sigmoid(-logits), axis=-1)
        before = jnp.concatenate([jnp.zeros_like(left[..., :1]), left[..., :-1]], axis=-1)
        return jnp.sum(before + jax.nn.log_sigmoid(logits) + jax.nn.log_sigmoid(-logits))

    def contains(self, value: np.ndarray) -> bool:
        tolerance = 1e3 * float(jnp.finfo(value.dtype).eps)
        return bool(
            value.ndim and value.shape[-1] > 1 and np.all(value > 0) and np.all(abs(value.sum(-1) - 1) < tolerance)
        )

    def _offsets(self, free: Float[Array, "... j"]) -> Float[Array, "... j"]:
        return jnp.broadcast_to(jnp.log(jnp.arange(free.shape[-1], 0, -1).astype(free.dtype)), free.shape)

    def _logits(self, free: Float[Array, "... j"]) -> Float[Array, "... j"]:
        return free - self._offsets(free)


class Ordered(AbstractSupport):
    """Increasing numbers along the last axis: the first is u_1, the gaps are exp(u_i)."""

    def constrain(self, free: Float[Array, "... k"]) -> Float[Array, "... k"]:
        return jnp.cumsum(jnp.concatenate([free[..., :1], jnp.exp(free[..., 1:])], axis=-1), axis=-1)

    def unconstrain(self, value: Float[Array, "... k"]) -> Float[Array, "... k"]:
        return jnp.concatenate([value[..., :1], jnp.log(jnp.diff(value, axis=-1))], axis=-1)

    def log_jacobian(self, free: Float[Array, "... k"]) -> Scalar:
        return jnp.sum(free[..., 1:])

    def contains(self, value: np.ndarray) -> bool:
        return bool(value.ndim and np.all(np.diff(value, axis=-1) > 0))


real = Real()
positive = GreaterThan(0.0)
simplex = Simplex()
ordered = Ordered()


def greater_than(lower: float) -> GreaterThan:
    """Parameters above `lower`."""
    return GreaterThan(lower)


def less_than(upper: float) -> LessThan:
    """Parameters below `upper`."""
    return LessThan(upper)


def interval(lower: float, upper: float) -> Interval:
    """Parameters strictly between `lower` and `upper`."""
    return Interval(lower, upper)


class AbstractSpace(eqx.Module):
    """The unconstrained vector space of particles of one shape, with the maps to and from their pytree."""

    layout: eqx.AbstractVar[Layout]

    @abc.abstractmethod
    def unconstrain(self, particle: PyTree) -> Vector:
        """A particle as an unconstrained vector."""

    @abc.abstractmethod
    def constrain(self, vector: Vector) -> PyTree:
        """An unconstrained vector as a particle."""

    @abc.abstractmethod
    def log_jacobian(self, vector: Vector) -> Scalar:
        """Log |det| of the map from vector to particle."""

    @abc.abstractmethod
    def check(self, particles: PyTree, argument: str = "particles") -> None:
        """Raise if a leaf of a batch of particles lies outside its support; the error names `argument`.

        Traced leaves are not checked.
        """


class Space(AbstractSpace):
    """A space with one support for each leaf."""

    layout: Layout
    supports: tuple[AbstractSupport, ...]

    @classmethod
    def of(cls, particle: PyTree, support: PyTree = None) -> "Space":
        """The space of one particle.

        Args:
            particle: one particle's pytree, in constrained coordinates.
            support: a support for every leaf, as a pytree of the same structure. A support in place of a subtree holds
                for all its leaves; `None`, or a missing key of a dictionary, means unconstrained.
        """
        Layout.of(particle)  # raises on an invalid particle before its supports are checked
        supports = tuple(_supports(support, particle, "support"))
        leaves, structure = jax.tree_util.tree_flatten(particle)
        for rule, leaf in zip(supports, leaves, strict=True):
            if isinstance(rule, Simplex | Ordered) and np.ndim(leaf) == 0:
                raise ValueError(f"`support` {rule} needs a parameter with at least one axis, got a scalar.")
        free = [_free_shape(rule, leaf) for rule, leaf in zip(supports, leaves, strict=True)]
        return cls(Layout.of(jax.tree_util.tree_unflatten(structure, free)), supports)

    @property
    def unconstrained(self) -> bool:
        """Whether no leaf has a constraint, so that constrained and unconstrained coordinates are equal."""
        return all(isinstance(rule, Real) for rule in self.supports)

    def unconstrain(self, particle: PyTree) -> Vector:
        leaves = self.layout.structure.flatten_up_to(particle)
        return jnp.concatenate(
            [rule.unconstrain(jnp.asarray(leaf)).reshape(-1) for rule, leaf in zip(self.supports, leaves, strict=True)]
        )

    def constrain(self, vector: Vector) -> PyTree:
        return self.assemble(jax.tree_util.tree_leaves(self.layout.unravel(vector)))

    def assemble(self, free: list[Array]) -> PyTree:
        """A particle from its unconstrained leaves."""
        leaves = [rule.constrain(leaf) for rule, leaf in zip(self.supports, free, strict=True)]
        return jax.tree_util.tree_unflatten(self.layout.structure, leaves)

    def log_jacobian(self, vector: Vector) -> Scalar:
        free = jax.tree_util.tree_leaves(self.layout.unravel(vector))
        total = jnp.zeros((), vector.dtype)
        for rule, leaf in zip(self.supports, free, strict=True):
            total = total + rule.log_jacobian(leaf)
        return total

    def check(self, particles: PyTree, argument: str = "particles") -> None:
        leaves = self.layout.structure.flatten_up_to(particles)
        for name, rule, leaf in zip(self.layout.names, self.supports, leaves, strict=True):
            if is_concrete(leaf) and not isinstance(rule, Real) and not rule.contains(np.asarray(leaf)):
                raise ValueError(
                    f"`{argument}` must lie inside their support; {name or 'the array'} has values outside "
                    f"{rule}. Give them in constrained coordinates."
                )


def _free_shape(rule: AbstractSupport, leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and type of a leaf in unconstrained coordinates; nothing is computed."""
    shape = jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.canonicalize_dtype(leaf.dtype))
    return shape if isinstance(rule, Real) else jax.eval_shape(lambda rule, value: rule.unconstrain(value), rule, shape)


def _supports(support: PyTree, particle: PyTree, path: str) -> list[AbstractSupport]:
    """One support for each leaf, in the order of the pytree's leaves."""
    if support is None or isinstance(support, AbstractSupport):
        leaves = jax.tree_util.tree_leaves(particle)
        if support is not None and not leaves:
            raise ValueError(f"`{path}` is given for shared parameters, which must be unconstrained. Leave it out.")
        return [support or real] * len(leaves)
    if isinstance(support, dict) and isinstance(particle, dict):
        unknown = sorted(set(support) - set(particle))
        if unknown:
            raise ValueError(f"`{path}` names {unknown}, which are not among the parameters {sorted(particle)}.")
        keys = list(particle) if isinstance(particle, OrderedDict) else sorted(particle)
        children = [(f"{path}[{key!r}]", support.get(key), particle[key]) for key in keys]
    else:
        rules, parts = _children(support), _children(particle)
        if not parts or type(support) is not type(particle) or len(rules) != len(parts):
            raise ValueError(
                f"`{path}` must be a support (such as `steinkern.positive`), None, or a container shaped like the "
                f"parameters, got {type(support).__name__} where the parameters have {type(particle).__name__}."
            )
        children = [(f"{path}[{i}]", rule, part) for i, (rule, part) in enumerate(zip(rules, parts, strict=True))]
    return [rule for child_path, child, part in children for rule in _supports(child, part, child_path)]


def _children(tree: PyTree) -> list[Any]:
    """The immediate children of a node, in the order of its leaves; none for a leaf."""
    level = jax.tree_util.default_registry.flatten_one_level(tree)
    return [] if level is None else list(level[0])
