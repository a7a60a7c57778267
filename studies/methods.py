"""The methods that the studies compare: their names, their colors, their samplers and their settings."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Float

from steinkern.core.types import cast_like, check_choice
from steinkern.samplers.ensemble import ensemble
from steinkern.samplers.langevin import psgld, sgld
from steinkern.samplers.sampler import AbstractSampler
from steinkern.samplers.stein import matrix_svgd, svgd, svn

TITLES = {
    "sgld": "SGLD",
    "psgld": "pSGLD",
    "vanilla": "Vanilla SVGD",
    "svn": "SVN",
    "average": "Matrix-SVGD (average)",
    "mixture": "Matrix-SVGD (mixture)",
    "ensemble": "Deep ensemble",
    "point": "Point estimate",
    "last_layer": "Last layer alone (mixture)",
}
"""The methods' names in tables and legends."""
COLORS = {
    TITLES["vanilla"]: "#000000",
    TITLES["svn"]: "#0072B2",
    TITLES["average"]: "#009E73",
    TITLES["mixture"]: "#D55E00",
    TITLES["sgld"]: "#56B4E9",
    TITLES["psgld"]: "#CC79A7",
    TITLES["ensemble"]: "#E69F00",
    TITLES["point"]: "#8C8C8C",
    TITLES["last_layer"]: "#0072B2",
}
"""A color for every method, the same in all figures, from the palette of Okabe and Ito for color-blind readers; no
study has both SVN and a last layer alone."""
LANGEVIN = ("sgld", "psgld")
PRECONDITIONED = ("average", "mixture")

Setting: TypeAlias = dict[str, Any]
"""The choices for one method on one case, as JSON: numbers, names, or a list with one number a fold."""


def build(
    method: str,
    optimizer: Any,
    step_size: Any,
    curvature: Any = None,
    kernel: Any = None,
    *,
    metric: Mapping[str, Any] | None = None,
    mixture: Mapping[str, Any] | None = None,
) -> AbstractSampler:
    """The sampler of a method. All numbers may be traced, so that many settings run at once.

    Args:
        method: one of `TITLES`, but for "last_layer", which is a study's own.
        optimizer: an optax optimizer; Langevin chains have none.
        step_size: of a Langevin chain, a number or a schedule.
        curvature: for SVN and the matrix variants.
        kernel: a scalar kernel; `RBF()` by default.
        metric: more arguments of `matrix_svgd`.
        mixture: those of its mixture alone.
    """
    check_choice("method", method, tuple(name for name in TITLES if name != "last_layer"))
    if method in LANGEVIN:
        return (sgld if method == "sgld" else psgld)(step_size)
    if method in ("ensemble", "point"):
        return ensemble(optimizer)
    if method == "vanilla":
        return svgd(kernel, optimizer)
    if method == "svn":
        return svn(curvature, kernel, optimizer)
    if method == "average":
        return matrix_svgd("average", curvature, kernel, optimizer, **(metric or {}))
    return matrix_svgd("mixture", curvature, kernel, optimizer, **(metric or {}), **(mixture or {}))


def cosine(step_size: Any, num_steps: Any) -> Callable[[Any], Float[Array, ""]]:
    """A step size that falls to zero along a cosine; both numbers may be traced."""

    def schedule(count: Any) -> Array:
        size = jnp.asarray(step_size, jnp.float32)
        return size * (1 + jnp.cos(jnp.pi * jnp.minimum(cast_like(count, size) / cast_like(num_steps, size), 1))) / 2

    return schedule


def grid(**axes: Sequence[Any]) -> list[Setting]:
    """Every combination of the choices, the last one varying fastest."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def fill(setting: Any, **defaults: Any) -> Setting:
    """A setting of a file with its defaults; one that is `...` must be given, and no other name may be."""
    needed = {name for name, default in defaults.items() if default is ...}
    if not isinstance(setting, dict) or not needed <= set(setting) <= set(defaults):
        raise ValueError(f"a setting must have {', '.join(defaults)}, got {setting}")
    return {**defaults, **setting}


def without_none(setting: Setting) -> Setting:
    """A setting without the choices that it does not use."""
    return {name: value for name, value in setting.items() if value is not None}


def numbers_of(settings: Sequence[Setting], names: Sequence[str], dtype: Any) -> Float[Array, "settings names"]:
    """The numbers of settings that run together; NaN stands for one that is not used."""
    values = [[setting.get(name) for name in names] for setting in settings]
    return jnp.asarray([[math.nan if value is None else value for value in row] for row in values], dtype)


def with_numbers(setting: Setting, names: Sequence[str], numbers: Float[Array, " names"]) -> Setting:
    """The setting with other numbers, which may be traced, in place of those that it uses."""
    used = {name: number for name, number in zip(names, numbers, strict=True) if setting.get(name) is not None}
    return {**setting, **used}
