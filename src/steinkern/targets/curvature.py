"""Curvature of −log p at a point, as a positive semidefinite operator at full-data scale."""

import abc
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.reprs import OneLine
from ..core.types import Batch, Matrix, Points, Scalar, Vector, cast_like, check_callable, check_choice
from ..linalg.operators import AbstractOperator, Dense, Diagonal
from .likelihood import AbstractLikelihood
from .target import BoundTarget

Repair: TypeAlias = Literal["absolute", "clip"] | None


class AbstractCurvature(OneLine):
    """An estimate of Q(x) ≈ −∇²log p(x)."""

    @abc.abstractmethod
    def __call__(self, target: BoundTarget, point: Vector, batch: Batch) -> AbstractOperator:
        """The operator at one point. `vmap` it for many."""

    def at(self, target: BoundTarget, points: Points, batch: Batch = None) -> AbstractOperator:
        """The operators at every point, as one batch."""
        return jax.vmap(self, (None, 0, None))(target, points, batch)


class Hessian(AbstractCurvature):
    """H(x) = −∇²log p(x), the exact Hessian of Eq. (15), with negative curvature repaired.

    Args:
        repair: the treatment of eigenvalues λ (of the entries, for the diagonal): "absolute" takes |λ| (particles leave
            a saddle as fast as they enter a bowl of the same curvature), "clip" takes max(λ, 0), `None` keeps λ.
        floor: repaired eigenvalues are at least floor × the mean of |λ|. The default is small because the true
            eigenvalues of a stiff posterior may be; 1e-3 limits long steps near the inflections of a target that is far
            from log-concave.
        diagonal: keep only the diagonal.

    Departs from the paper, which does not treat indefinite Hessians. `repair=None` is its formula.
    """

    repair: Repair = eqx.field(default="absolute", static=True)
    floor: float = eqx.field(default=1e-6, static=True)
    diagonal: bool = eqx.field(default=False, static=True)

    def __check_init__(self) -> None:
        check_choice("repair", self.repair, ("absolute", "clip", None))
        if not 0 <= self.floor < 1:
            raise ValueError(f"`floor` must lie in [0, 1), relative to the curvature's scale, got {self.floor}.")

    def __call__(self, target: BoundTarget, point: Vector, batch: Batch) -> AbstractOperator:
        return _negative_hessian(lambda x: target.log_density(x, batch), point, self.repair, self.floor, self.diagonal)


class GaussNewton(AbstractCurvature):
    """JᵀJ for the Jacobian J of a residual map r with −log p = ½‖r‖² + const; positive semidefinite everywhere.

    Args:
        residual: for a `Posterior`, `residual(parameters, example)` with the log-likelihood −½‖r‖² of one example; the
            positive part of the prior's curvature is added. For a `LogDensity`, `residual(parameters)` of the whole log
            density.
        diagonal: keep only the diagonal.
    """

    residual: Any
    diagonal: bool = eqx.field(default=False, static=True)

    def __check_init__(self) -> None:
        check_callable("residual", self.residual, "a function of the parameters (and one example)")

    def __call__(self, target: BoundTarget, point: Vector, batch: Batch) -> AbstractOperator:
        def unit(output: Float[Array, " k"]) -> Matrix:
            return jnp.eye(output.shape[0], dtype=output.dtype)

        return _generalized_gauss_newton(target, self.residual, unit, point, batch, self.diagonal)


class Fisher(AbstractCurvature):
    """The exact Fisher information of the likelihood, Σ JᵀΛJ, plus the positive part of the prior's curvature.

    J is the Jacobian of the model's output. Λ is the likelihood's Fisher information in that output, an expectation
    over labels, so the observed labels do not enter. For exponential families in their natural parameters (logistic,
    softmax, Gaussian mean) this is also the generalised Gauss-Newton matrix.

    Args:
        model: `model(parameters, example)`, the output (logits, means) for one example.
        likelihood: `Bernoulli()`, `Categorical()` or `Gaussian(variance)`.
        diagonal: keep only the diagonal.
    """

    model: Any
    likelihood: Any
    diagonal: bool = eqx.field(default=False, static=True)

    def __check_init__(self) -> None:
        check_callable("model", self.model, "a function of the parameters and one example")
        if not isinstance(self.likelihood, AbstractLikelihood):
            raise ValueError(f"`likelihood` must be a likelihood such as `Bernoulli()`, got {self.likelihood!r}.")

    def __call__(self, target: BoundTarget, point: Vector, batch: Batch) -> AbstractOperator:
        return _generalized_gauss_newton(target, self.model, self.likelihood.fisher, point, batch, self.diagonal)


class EmpiricalFisher(AbstractCurvature):
    """Σ g gᵀ over the per-example gradients g of the log-likelihood, plus the positive part of the prior's curvature.

    Args:
        centered: subtract the mean gradient, which gives N × the covariance of the gradients, as the released code of
            the paper does for logistic regression. By default it is the uncentred second moment.
        diagonal: keep only the diagonal.
    """

    centered: bool = eqx.field(default=False, static=True)
    diagonal: bool = eqx.field(default=False, static=True)

    def __call__(self, target: BoundTarget, point: Vector, batch: Batch) -> AbstractOperator:
        if not target.exchangeable or batch is None:
            raise ValueError(
                "`EmpiricalFisher` needs the gradients of single examples: give a `Posterior` and `data` to `fit`."
            )
        gradients = target.over_examples(lambda example: jax.grad(target.log_example)(point, example), batch)
        if self.centered:
            gradients = gradients - jnp.mean(gradients, axis=0, keepdims=True)
        scale = likelihood_scale(target, point, batch)
        if self.diagonal:
            return _with_base(target, point, Diagonal(scale * jnp.sum(gradients**2, axis=0)))
        return _with_base(target, point, Dense(scale * jnp.matmul(gradients.T, gradients, precision="highest")))


def _generalized_gauss_newton(
    target: BoundTarget,
    model: Callable[..., Array],
    weight: Callable[[Array], Array],
    point: Vector,
    batch: Batch,
    diagonal: bool,
) -> AbstractOperator:
    def jacobians(example: Any) -> Array:
        """The Jacobian J and ΛJ of one example, stacked."""

        def output(x: Vector) -> Array:
            return jnp.reshape(target.apply(model, x, example), (-1,))

        value = output(point)
        derivative = jax.jacrev if value.shape[0] < point.shape[0] else jax.jacfwd
        jacobian = derivative(output)(point)
        return jnp.stack([jacobian, jnp.matmul(weight(value), jacobian, precision="highest")])

    # One contraction over all examples: a d×d matrix for each example would be the largest array of a step.
    pairs = target.over_examples(jacobians, batch)
    scale = likelihood_scale(target, point, batch)
    if diagonal:
        return _with_base(target, point, Diagonal(scale * jnp.sum(pairs[:, 0] * pairs[:, 1], axis=(0, 1))))
    total = jnp.einsum("bki,bkj->ij", pairs[:, 0], pairs[:, 1], precision="highest")
    return _with_base(target, point, Dense(scale * total))


def likelihood_scale(target: BoundTarget, point: Vector, batch: Batch) -> Scalar:
    """The factor of a sum over a batch of examples: the tempering power × N/b."""
    return cast_like(target.power, point) * target.data_scale(batch, point.dtype)


def _with_base(target: BoundTarget, point: Vector, likelihood: AbstractOperator) -> AbstractOperator:
    """The likelihood's curvature plus the positive part of that of `log_base`, the prior and the Jacobian."""

    def log_base(x: Vector) -> Scalar:
        return cast_like(target.power, x) * target.log_base(x)

    base = _negative_hessian(log_base, point, "clip", 0.0, isinstance(likelihood, Diagonal))
    return jax.tree.map(jnp.add, likelihood, base)


def _negative_hessian(
    function: Callable[[Vector], Scalar], point: Vector, repair: Repair, floor: float, diagonal: bool
) -> AbstractOperator:
    if diagonal:
        entries = -hessian_diagonal(function, point)
        return Diagonal(repaired_values(entries, repair, floor))
    try:
        hessian = -jax.hessian(function)(point)
    except TypeError:  # a function that has a custom derivative in reverse mode only, as `odeint`
        hessian = -jax.jacrev(jax.grad(function))(point)
    return Dense(repaired_matrix((hessian + hessian.T) / 2, repair, floor))


def hessian_diagonal(function: Callable[[Vector], Scalar], point: Vector) -> Vector:
    """The diagonal of ∇²f by d Hessian-vector products, without a d×d array."""

    def entry(index: Array) -> Scalar:
        direction = jax.nn.one_hot(index, point.shape[0], dtype=point.dtype)
        return jax.jvp(jax.grad(function), (point,), (direction,))[1][index]

    return jax.lax.map(entry, jnp.arange(point.shape[0]), batch_size=64)


def repaired_values(values: Vector, repair: Repair, floor: float) -> Vector:
    """Eigenvalues made non-negative by the named rule, and at least floor × their mean absolute value."""
    if repair is None:
        return values
    mean = jnp.mean(jnp.abs(values))
    scale = jnp.where(mean > 0, mean, jnp.ones_like(mean))
    values = jnp.abs(values) if repair == "absolute" else values
    return jnp.maximum(values, floor * scale)


def repaired_matrix(matrix: Matrix, repair: Repair, floor: float) -> Matrix:
    """A symmetric matrix with its eigenvalues repaired (see `repaired_values`)."""
    if repair is None:
        return matrix
    values, vectors = jnp.linalg.eigh(matrix)
    return jnp.matmul(vectors * repaired_values(values, repair, floor)[None, :], vectors.T, precision="highest")
