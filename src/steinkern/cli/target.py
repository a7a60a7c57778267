"""Loads a target and its initial particles from `FILE.py:NAME` on the command line."""

import inspect
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import checkify

from .. import interop
from ..core.arrays import as_array
from ..core.errors import shapes
from ..core.types import Batch, Key, PyTree
from ..interop._model import model_of
from ..targets import initial
from ..targets.target import AbstractTarget, LogDensity


@dataclass(frozen=True)
class Loaded:
    """A target from a file, its data, and the start of its particles."""

    file: Path
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

    def try_out(self, key: Key) -> None:
        """Raise where the log density cannot be evaluated, or indexes the parameters out of bounds.

        JAX returns the last entry for x[4] of a vector of two, so a `--dim` or `START` that is too short would pass. A
        slice beyond the end is shortened, as in NumPy, and cannot be detected.
        """
        particle = self.particle(key)
        bound = self.target.bind(particle)
        point = bound.space.unconstrain(particle)
        batch = bound.batch(jax.tree.map(jnp.asarray, self.data), None)
        with _errors_in(self.file, f" at parameters of {shapes(particle, 0)}"):
            jax.eval_shape(bound.log_density, point, batch)
        if self.start is None:  # the shapes of a model's sites are its own
            return
        checked = jax.jit(checkify.checkify(bound.log_density, errors=checkify.index_checks))
        try:
            message = checked(point, batch)[0].get() or ""
        except (NotImplementedError, ValueError):  # checkify does not support every program
            return
        match = re.search(r"array of shape (\(.*?\)): (index .*? is out of bounds for axis \d+ with size \d+)", message)
        if match and match[1] in {str(tuple(leaf.shape)) for leaf in jax.tree.leaves(particle)}:
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
    file, _, name = argument.rpartition(":")
    if not name or not file:
        raise ValueError(
            f"`FILE.py:NAME` must be a file and a name in it, such as {argument or 'model.py'}:log_density."
        )
    module = _execute(Path(file))
    if not hasattr(module, name):
        names = [key for key, value in vars(module).items() if key[0] != "_" and not inspect.ismodule(value)]
        raise ValueError(
            f"`FILE.py:NAME` names {name!r}, which {file} does not have. It has {', '.join(names) or 'nothing'}."
        )
    target, data = _as_target(name, getattr(module, name), module)
    return Loaded(Path(file), name, target, data, _start(name, target, getattr(module, "START", None), dim))


def _execute(path: Path) -> ModuleType:
    """The module of a file, executed as `python FILE` does."""
    if not path.is_file():
        raise ValueError(f"`FILE.py:NAME` names the file {path}, which does not exist. Give the path of a Python file.")
    module = ModuleType(f"file_{path.stem}")
    module.__file__ = str(path.resolve())
    sys.modules[module.__name__] = module  # dataclasses look up their module there
    sys.path.insert(0, str(path.resolve().parent))
    with _errors_in(path):
        exec(compile(path.read_bytes(), module.__file__, "exec"), vars(module))
    return module


@contextmanager
def _errors_in(path: Path, where: str = "") -> Iterator[None]:
    """Report errors of the code in a file by their line in it.

    Args:
        path: the file.
        where: more on where the error occurs.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name:
            package = error.name.partition(".")[0]
            raise ValueError(f"{path} needs {package}, which is not installed: pip install {package}") from error
        frames = [
            frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path.resolve()
        ]
        line = getattr(error, "lineno", None) or (frames[-1].lineno if frames else None)
        reason = " ".join(str(error).split("\n-----", 1)[0].split()).rstrip(".")
        raise ValueError(
            f"{path} raises {type(error).__name__}{f' in line {line}' if line else ''}{where}: {reason}. Run it in "
            "Python to see more."
        ) from error


def _as_target(name: str, value: Any, module: ModuleType) -> tuple[AbstractTarget, Batch]:
    """A value of the file as a target, and the data of the file if it takes any."""
    data = getattr(module, "DATA", None)
    if isinstance(value, AbstractTarget):
        return value, data if model_of(value) is None else None
    if type(value).__module__.startswith("pymc."):
        return interop.pymc.from_model(value), None
    if not callable(value):
        raise ValueError(
            f"`FILE.py:NAME` names {name!r}, which is a {type(value).__name__}; it must be a log density, a function "
            "of the parameters, or a NumPyro model, a function of nothing."
        )
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(value).parameters.values()
    required = [each.name for each in parameters if each.default is each.empty and each.kind not in variadic]
    if not required:
        return interop.numpyro.from_model(value), None
    if len(required) > (1 if data is None else 2):
        raise ValueError(
            f"`FILE.py:NAME` names {name!r}, a function of {', '.join(required)}; it must take the parameters alone "
            "(and `DATA`, where the file has it), or nothing where it is a NumPyro model. Bind the rest: "
            f"functools.partial({name}, {required[-1]}=...)."
        )
    return LogDensity(value, support=getattr(module, "SUPPORT", None)), data if len(required) == 2 else None


def _start(name: str, target: AbstractTarget, start: Any, dim: int | None) -> Any:
    """One particle's value, or a function of a key that draws one; `None` for a model."""
    if model_of(target) is not None:
        if dim is not None:
            raise ValueError(
                f"`--dim` is for log densities; {name} is a model, and starts from its prior. Leave it out."
            )
        return None
    if start is None and dim is None:
        raise ValueError(
            f"`FILE.py:NAME` names {name!r}, a log density, and nothing says where its particles start. Put `START = "
            "...`, one particle's value, into the file (a number, an array or a dictionary of them; or a function of a "
            "key that draws one), or give --dim for a vector that starts at 0. (A NumPyro model takes no arguments "
            "here: functools.partial(model, data).)"
        )
    if dim is not None:
        if start is not None:
            raise ValueError("`--dim` and the file's `START` exclude each other: leave one out.")
        return jnp.zeros(dim)
    if callable(start):
        return start
    return jax.tree.map(
        lambda leaf: as_array("START", leaf).astype(float), start, is_leaf=lambda leaf: isinstance(leaf, list)
    )
