"""Radial scalar kernels k(r²), where r is the distance in the caller's metric."""

import abc
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.reprs import OneLine
from ..core.types import Points, Scalar, as_number, cast_like, check_positive
from .bandwidth import AbstractBandwidth, Median


def _bandwidth(value: Any) -> Any:
    if not isinstance(value, AbstractBandwidth):
        value = as_number(value)
        if not hasattr(value, "dtype"):
            raise ValueError(f"`bandwidth` must be a number or a rule such as `Median()`, got {value!r}.")
        check_positive("bandwidth", value)
    return value


ScalarKernel = TypeVar("ScalarKernel", bound="AbstractScalarKernel")


class AbstractScalarKernel(OneLine):
    """A positive definite radial kernel, given by its profile k(r²) and the derivative k'(r²) with respect to r².

    `bandwidth` is a squared length: a number, or a rule such as `Median()`, which `adapt` evaluates at the particles. A
    kernel whose profile cannot be differentiated at r² = 0 by JAX, as one of √r², must define `second_derivative`:
    the kernel Stein discrepancy would be NaN.
    """

    bandwidth: eqx.AbstractVar[Any]

    @abc.abstractmethod
    def profile(self, r2: Float[Array, "*shape"]) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
        """k(r²) and k'(r²), elementwise."""

    def constant_slope(self, dtype: Any) -> Scalar | None:
        """The ratio k'/k where it is the same for all r², as for the RBF, which saves a matrix product; else `None`."""
        return None

    def second_derivative(self, r2: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """k''(r²), elementwise; the kernel Stein discrepancy needs it."""
        return jax.jvp(lambda s: self.profile(s)[1], (r2,), (jnp.ones_like(r2),))[1]

    def adapt(self: ScalarKernel, points: Points) -> ScalarKernel:
        """A copy with the bandwidth rule evaluated at `points`, which are in the metric of the kernel."""
        return self.with_bandwidth(self.bandwidth(points)) if self.adapts else self

    @property
    def adapts(self) -> bool:
        """Whether the bandwidth is a rule."""
        return isinstance(self.bandwidth, AbstractBandwidth)

    def with_bandwidth(self: ScalarKernel, value: Scalar) -> ScalarKernel:
        """A copy with another bandwidth."""
        return eqx.tree_at(lambda kernel: kernel.bandwidth, self, value)

    def _number(self, r2: Array) -> Array:
        if isinstance(self.bandwidth, AbstractBandwidth):
            raise ValueError(
                f"`bandwidth` is the rule {self.bandwidth}: a number is needed to evaluate the kernel. "
                "Call `kernel.adapt(points)` first, or give a number."
            )
        return cast_like(self.bandwidth, r2)


class RBF(AbstractScalarKernel):
    """k(r²) = exp(−r²/2h). Wang et al. (2019), Eq. (13); h is the bandwidth, a squared length."""

    bandwidth: Any = eqx.field(default_factory=Median, converter=_bandwidth)

    def profile(self, r2: Float[Array, "*shape"]) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
        slope = -0.5 / self._number(r2)
        value = jnp.exp(slope * r2)
        return value, slope * value

    def constant_slope(self, dtype: Any) -> Scalar | None:
        return -0.5 / self._number(jnp.zeros((), dtype))


class IMQ(AbstractScalarKernel):
    """k(r²) = (1 + r²/h)^exponent, the inverse multiquadric. Its heavy tails couple particles in many dimensions.

    Args:
        bandwidth: h, a number or a rule. The log factor of `Median()` narrows a Gaussian kernel; heavy tails do not
            need it, hence the default `Median(factor=1.0)`, the plain median.
        exponent: in (−1, 0) for the kernel Stein discrepancy to control convergence (Gorham and Mackey, 2017).
    """

    bandwidth: Any = eqx.field(default_factory=lambda: Median(factor=1.0), converter=_bandwidth)
    exponent: float = eqx.field(default=-0.5, static=True)

    def __check_init__(self) -> None:
        if not self.exponent < 0:
            raise ValueError(f"`exponent` must be negative, got {self.exponent}.")

    def profile(self, r2: Float[Array, "*shape"]) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
        inverse = 1 / self._number(r2)
        base = 1 + r2 * inverse
        if self.exponent == -0.5:  # faster: no power and no division
            value = jax.lax.rsqrt(base)
            return value, -0.5 * inverse * value**3
        value = base**self.exponent
        return value, self.exponent * inverse * value / base
