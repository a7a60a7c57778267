"""The methods that the studies compare: their names, their colours, their samplers and their settings."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.types import check_choice, check_positive
from ..results.plot import COLOURS as COLOUR_ORDER
from ..samplers.ensemble import ensemble
from ..samplers.langevin import psgld, sgld
from ..samplers.sampler import AbstractSampler
from ..samplers.stein import matrix_svgd, svgd, svn

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
COLOURS = {
    TITLES[method]: COLOUR_ORDER[place]
    for place, method in enumerate(("vanilla", "svn", "average", "mixture", "sgld", "psgld", "ensemble"))
} | {TITLES["point"]: "#8C8C8C", TITLES["last_layer"]: COLOUR_ORDER[1]}
"""A colour for every method, the same in all figures; no study has both SVN and a last layer alone."""
LANGEVIN = ("sgld", "psgld")
PRECONDITIONED = ("average", "mixture")

Setting: TypeAlias = dict[str, Any]
"""The choices for one method on one case, as JSON: numbers, names, or a list with one number a fold."""


def build(
    method: str,
    optimiser: Any,
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
        optimiser: an optax optimiser; Langevin chains have none.
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
        return ensemble(optimiser)
    if method == "vanilla":
        return svgd(kernel, optimiser)
    if method == "svn":
        return svn(curvature, kernel, optimiser)
    if method == "average":
        return matrix_svgd("average", curvature, kernel, optimiser, **(metric or {}))
    return matrix_svgd("mixture", curvature, kernel, optimiser, **(metric or {}), **(mixture or {}))


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


def check_used(name: str, value: Any, used: bool, user: str) -> None:
    """Raise unless there is a positive number where it is used, and none where it is not."""
    if not used and value is not None:
        raise ValueError(f"`{name}` must not be given for {user}, which has none, got {value!r}.")
    if used and value is None:
        raise ValueError(f"`{name}` must be given for {user}, got none.")
    if used:
        check_positive(name, value)


def numbers_of(settings: Sequence[Setting], names: Sequence[str], dtype: Any) -> Float[Array, "settings names"]:
    """The numbers of settings that run together; NaN stands for one that is not used."""
    values = [[setting.get(name) for name in names] for setting in settings]
    return jnp.asarray([[math.nan if value is None else value for value in row] for row in values], dtype)


def with_numbers(setting: Setting, names: Sequence[str], numbers: Float[Array, " names"]) -> Setting:
    """The setting with other numbers, which may be traced, in place of those that it uses."""
    used = {name: numbers[place] for place, name in enumerate(names) if setting.get(name) is not None}
    return {**setting, **used}
