"""Keyword arguments by other names: American spelling is accepted, and an unknown name gets a suggestion."""

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_SPELLINGS = {"optimizer": "optimiser", "normalize": "normalise"}
_OTHER_NAMES = {  # in other libraries
    "draws": "num_particles",
    "epochs": "num_steps",
    "init": "start",
    "init_params": "start",
    "initial": "start",
    "iterations": "num_steps",
    "learning_rate": "optimiser",
    "lr": "optimiser",
    "num_iterations": "num_steps",
    "num_samples": "num_particles",
    "progress_bar": "progress",
    "rng_key": "key",
    "seed": "key",
    "step_size": "optimiser",
    "verbose": "progress",
}


def helpful_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Let a public function take `optimizer=` for `optimiser=`, and suggest a name for an unknown keyword.

    The signature, the docstring and the types are those of the function.
    """
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if all(name in names for name in kwargs):
            return function(*args, **kwargs)
        known: dict[str, Any] = {}
        for given, value in kwargs.items():
            name = given if given in names else _own_spelling(function.__name__, given, names)
            if name in known or (name != given and name in kwargs):
                raise TypeError(f"{function.__name__}() got `{name}` twice, once as `{given}`.")
            known[name] = value
        return function(*args, **known)

    return call


def _own_spelling(function: str, given: str, names: list[str]) -> str:
    """The name of an argument in another spelling; `TypeError`, with a suggestion, where there is none."""
    own = _SPELLINGS.get(given)
    if own in names:
        return own
    near = difflib.get_close_matches(given, names, 1)
    meant = _OTHER_NAMES.get(given)
    suggestion = meant if meant in names else near[0] if near else None
    way_out = f"Did you mean `{suggestion}`?" if suggestion else f"It takes {', '.join(names)}."
    raise TypeError(f"{function}() has no argument `{given}`. {way_out}")
