"""Loads a target and its initial particles from `FILE.py:NAME` on the command line."""

import importlib.util
import inspect
import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import checkify

from ..core.extras import install_command
from ..core.types import Batch, Key, PyTree
from ..interop._model import model_of
from ..targets import initial
from ..targets.target import AbstractTarget, BoundTarget, LogDensity

_EXTRAS = ("numpyro", "pymc", "arviz")
_CONVENTION = (
    "Put `START = ...`, one particle's value, into the file (a number, an array or a dictionary of them; or a function "
    "of a key that draws one), or give --dim for a vector that starts at 0."
)


@dataclass(frozen=True)
class Loaded:
    """A target from a file, its data, and the start of its particles."""

    name: str
    target: AbstractTarget
    data: Batch
    start: Any
    """One particle's value, or a function of a key that draws one; `None` for a model, which has a prior."""

    def particles(self, key: Key, number: int) -> PyTree:
        """Initial particles: from the model's prior, by the file's `START` function, or normal around its `START`."""
        model = model_of(self.target)
        if model is not None:
            return model.prior(key, number)
        if callable(self.start):
            return initial.prior(key, self.start, number)
        return initial.gaussian(key, self.start, number, support=self.target.support)

    def particle(self, key: Key) -> PyTree:
        """One particle's value: the file's `START`, or a draw."""
        if self.start is None or callable(self.start):
            return jax.tree.map(lambda leaf: leaf[0], self.particles(key, 1))
        return self.start

    def try_out(self, particles: PyTree) -> None:
        """Check that the log density can be evaluated; its errors are reported in one line."""
        one = jax.tree.map(lambda leaf: leaf[0], particles)
        bound = self.target.bind(one)
        data = jax.tree.map(jnp.asarray, self.data)
        try:
            jax.eval_shape(bound.log_density, bound.space.unconstrain(one), bound.batch(data, None))
        except Exception as error:
            reason = " ".join(str(error).split("\n-----", 1)[0].split())
            raise ValueError(
                f"`FILE.py:NAME` {self.name} raises {type(error).__name__} at parameters of the shapes "
                f"{jax.tree.map(lambda leaf: tuple(leaf.shape), one)}: {reason}"
            ) from error
        if self.start is not None:
            self._check_indices(bound, one, data)

    def _check_indices(self, bound: BoundTarget, one: PyTree, data: Batch) -> None:
        """Raise where the log density indexes the parameters out of bounds.

        JAX returns the last entry for x[4] of a vector of two, so a `--dim` or `START` that is too short would pass. A
        slice beyond the end is shortened, as in NumPy, and cannot be detected.
        """
        checked = jax.jit(checkify.checkify(bound.log_density, errors=checkify.index_checks))
        try:
            message = checked(bound.space.unconstrain(one), bound.batch(data, None))[0].get() or ""
        except Exception:  # a program that checkify does not support; `fit` checks the first particles too
            return
        match = re.search(r"array of shape (\(.*?\)): (index .*? is out of bounds for axis \d+ with size \d+)", message)
        shapes = {str(tuple(leaf.shape)) for leaf in jax.tree_util.tree_leaves(one)}
        if match and match[1] in shapes:
            raise ValueError(
                f"`FILE.py:NAME` {self.name} asks for more parameters than it is given: {match[2]}. Give a larger "
                "--dim, or a longer `START`."
            )


def load(argument: str, dim: int | None = None) -> Loaded:
    """Execute the file and return the target that `FILE.py:NAME` names.

    Args:
        argument: the file, a colon, and the name of a log density, a target or a model in it.
        dim: start a log density of a vector of this length at 0, instead of at the file's `START`.
    """
    file, colon, name = argument.rpartition(":")
    if not colon or not name or not file:
        raise ValueError(
            f"`FILE.py:NAME` must be a file and a name in it, such as {argument or 'model.py'}:log_density."
        )
    module = _execute(Path(file))
    if not hasattr(module, name):
        candidates = [key for key, value in vars(module).items() if key[0] != "_" and _is_candidate(value, module)]
        raise ValueError(
            f"`FILE.py:NAME` names {name!r}, which {file} does not have. It has {', '.join(candidates) or 'nothing'}."
        )
    return _as_loaded(name, getattr(module, name), module, dim)


def _execute(path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"`FILE.py:NAME` names the file {path}, which does not exist. Give the path of a Python file.")
    name = f"file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ValueError(f"`FILE.py:NAME` must name a Python file, one whose name ends in .py, got {path}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module there
    sys.path.insert(0, str(path.resolve().parent))  # as `python FILE` does
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(_describe_error(path, error)) from error
    finally:
        sys.path.pop(0)
    return module


def _describe_error(path: Path, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        command = install_command(package) if package in _EXTRAS else f"pip install {package}"
        return f"{path} needs {package}, which is not installed: {command}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path.resolve()]
    line = getattr(error, "lineno", None) or (frames[-1].lineno if frames else None)
    where = f" in line {line}" if line else ""
    reason = " ".join(str(error).split()).rstrip(".")
    return f"{path} raises {type(error).__name__}{where}: {reason}. Run it with Python to see more."


def _is_candidate(value: Any, module: ModuleType) -> bool:
    """Whether a value in a file may be a target: a target, a model, or a function defined there."""
    function = callable(value) and not isinstance(value, type)
    defined_here = function and getattr(value, "__module__", "") in (module.__name__, None)
    return defined_here or isinstance(value, AbstractTarget) or _is_pymc(value)


def _is_pymc(value: Any) -> bool:
    return type(value).__name__ == "Model" and type(value).__module__.startswith("pymc.")


def _as_loaded(name: str, value: Any, module: ModuleType, dim: int | None) -> Loaded:
    data, start = getattr(module, "DATA", None), getattr(module, "START", None)
    needed = _required_arguments(value) if callable(value) else []
    if _is_pymc(value):
        from ..interop.pymc import from_model as from_pymc

        value = from_pymc(value)
    elif callable(value) and not needed and not isinstance(value, AbstractTarget):
        from ..interop.numpyro import from_model as from_numpyro

        value = from_numpyro(value)
    if isinstance(value, AbstractTarget) and model_of(value) is not None:
        if dim is not None:
            raise ValueError(
                f"`--dim` is for log densities; {name} is a model, and starts from its prior. Leave it out."
            )
        return Loaded(name, value, None, None)
    if isinstance(value, AbstractTarget):
        return Loaded(name, value, data, _start(name, start, dim))
    if not callable(value):
        raise ValueError(
            f"`FILE.py:NAME` names {name!r}, which is a {type(value).__name__}; it must be a log density, a function "
            "of the parameters, or a NumPyro model, a function of nothing."
        )
    if len(needed) > (1 if data is None else 2):
        raise ValueError(
            f"`FILE.py:NAME` names {name!r}, a function of {', '.join(needed)}; it must take the parameters alone (and "
            "`DATA`, where the file has it), or nothing where it is a NumPyro model. Bind the rest: "
            f"functools.partial({name}, {needed[-1]}=...)."
        )
    target = LogDensity(value, support=getattr(module, "SUPPORT", None))
    return Loaded(name, target, data if len(needed) == 2 else None, _start(name, start, dim))


def _required_arguments(function: Any) -> list[str]:
    """The names of a function's required arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some compiled functions have no signature
        return ["parameters"]
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind not in kinds]


def _start(name: str, start: Any, dim: int | None) -> Any:
    if dim is not None:
        if start is not None:
            raise ValueError("`--dim` and the file's `START` exclude each other: leave one out.")
        if dim < 1:
            raise ValueError(f"`--dim` must be a whole number of at least 1, got {dim}.")
        return jnp.zeros(dim)
    if start is None:
        raise ValueError(
            f"`FILE.py:NAME` names {name!r}, a log density, and nothing says where its particles start. {_CONVENTION} "
            "(A NumPyro model takes no arguments here: functools.partial(model, data).)"
        )
    if callable(start):
        return start
    try:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, float), start, is_leaf=lambda leaf: isinstance(leaf, list))
    except (TypeError, ValueError) as error:
        raise ValueError(f"`START` must be a number, an array, or a pytree of them, got {start!r}.") from error
