"""What a target is, and the few log densities that the targets are written with."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from ..bench import RESULTS, read

Half = Literal["rules", "held out"]


@dataclass(frozen=True)
class Target:
    """A posterior as a user meets it: unconstrained, unscaled, with a naive start.

    Args:
        name: What it is called in tables and in `references.json`.
        log_density: Of one vector (d,), up to a constant, log-Jacobians included; in the vector's own precision.
        dim: d.
        half: "rules": the sampler's rules may be fixed on it; "held out": they may not.
        note: What it is, and what is hard about it.
        model: Where it is a NumPyro model, the model, which takes no arguments.
        functions: Of one vector (d,): what a user derives from it, a vector whose moments are graded too.
    """

    name: str
    log_density: Callable[[Any], Any]
    dim: int
    half: Half
    note: str
    model: Callable[[], Any] | None = None
    functions: Callable[[Any], Any] | None = None

    @property
    def start(self) -> np.ndarray:
        """Zeros, the start that one takes without thinking; double precision, to be converted for another."""
        return np.zeros(self.dim)


def like(x: Any, *data: Any) -> Any:
    """Data in the precision of x: one array, or a tuple of several."""
    arrays = tuple(jnp.asarray(part, x.dtype) for part in data)
    return arrays if len(arrays) > 1 else arrays[0]


def normal(x: Any, mean: Any = 0.0, sd: Any = 1.0) -> Any:
    """The sum of log N(x | mean, sd²), without the constant."""
    return jnp.sum(-0.5 * ((x - mean) / sd) ** 2 - jnp.log(sd))


def log_normal_density(x: Any, mean: Any, sd: Any) -> Any:
    """Log N(x | mean, sd²) entry by entry, with the constant: for mixtures, where constants must agree."""
    return -0.5 * ((x - mean) / sd) ** 2 - jnp.log(sd) - 0.5 * float(np.log(2 * np.pi))


def half_normal_of_log(log_x: Any, scale: float) -> Any:
    """A half-normal prior on x, as a density of log x: the Jacobian is x."""
    return -0.5 * jnp.sum((jnp.exp(log_x) / scale) ** 2) + jnp.sum(log_x)


@cache
def read_references() -> dict[str, dict[str, Any]]:
    """By name: how, mean, sd and `made_from`; of the everyday posteriors the warm-up; checks where they are of NUTS."""
    notes = read(RESULTS / "references.json")[0]["notes"]
    return {name.split(", ")[0]: made for name, (made,) in notes.items()}
