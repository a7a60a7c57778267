"""Results written to files and sent to other processes.

A file has the format of a checkpoint (`core.checkpoint_file`): JSON, arrays and a checksum. `loading` reads it.
"""

import dataclasses
import json
import os
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.checkpoint_file import CheckpointContents, write
from ..core.description import describe
from ..core.encoding import encode, encode_tree
from ..core.files import environment
from ..core.importable import caller_takes_closures, local_functions
from ..samplers.sampler import AbstractSampler
from ..targets.target import AbstractTarget
from .placeholders import AbsentSampler, AbsentTarget

if TYPE_CHECKING:
    from .result import Result

_LONGEST_DESCRIPTION = 2**20  # characters; a function may close over a long list
_NOT_ENCODED = ("particles", "points", "target", "sampler", "loop", "settings")  # written by rules of their own


def save(result: "Result", path: str | os.PathLike[str]) -> Path:
    """See `Result.save`."""
    if not isinstance(path, str | os.PathLike) or not Path(path).name:
        raise ValueError(f"`path` must be the name of a file, got {path!r}.")
    arrays: list[np.ndarray] = []
    settings = dict(result.settings)
    versions = settings.pop("versions", None) or environment()
    hints = encoded_fields(type(result))
    notes = {
        "class": type(result).__name__,
        "fields": {name: encode(hint, getattr(result, name), arrays) for name, hint in hints.items()},
        "particles": encode_tree(result.particles, arrays),
        "points": encode_tree(result.points, arrays),
        "shared": encode_tree(result.shared, arrays),
        "power": float(np.asarray(result.target.power)),
        "target": _shorten(description_of(result.target)),
        "sampler": {
            "name": result.sampler_name,
            "description": _shorten(description_of(result.sampler)),
            "needs gradient": result.sampler.differentiates,
        },
        "versions": versions,
    }
    place = Path(path)
    try:
        write(place, CheckpointContents(result.num_steps, settings, notes, arrays), kind="result")
    except OSError as error:
        raise OSError(f"`path` {place} cannot be written to: {error.strerror}. Choose another file.") from error
    return place


def encoded_fields(kind: type["Result"]) -> dict[str, Any]:
    """The types of the fields of a result that are written by their types."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.name not in _NOT_ENCODED}


def description_of(thing: AbstractTarget | AbstractSampler) -> Any:
    """A target or sampler as JSON; that of the run where it is absent."""
    return thing.description if isinstance(thing, AbsentTarget | AbsentSampler) else describe(thing)


def _shorten(description: Any) -> Any:
    text = json.dumps(description)
    return description if len(text) <= _LONGEST_DESCRIPTION else f"{len(text)} characters, not kept"


def state_for_another_process(result: "Result") -> dict[str, Any]:
    """The attributes of a result as other processes get them; `TypeError` for a target that cannot be sent.

    A sampler with functions that cannot be imported, as optax's step rules have, is replaced by its name. Code that
    copies, or writes functions whole, gets all attributes as they are.
    """
    state = dict(vars(result))
    if caller_takes_closures():
        return state
    names = list(local_functions(result.target))
    if names:
        raise TypeError(
            f"the result cannot be sent to another process: its target has the function `{names[0]}`, which another "
            "process cannot import by this name. Define it by `def` at the top level of a module, without `jit`; or "
            "write the result with `result.save(path)` and read it there with `steinkern.load(path, target=...)`."
        )
    if next(local_functions(result.sampler), None) is not None:
        sampler = result.sampler
        state["sampler"] = AbsentSampler(result.sampler_name, description_of(sampler), sampler.differentiates)
        state["loop"] = None
    return state
