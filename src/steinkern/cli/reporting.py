"""`steinkern report`: writes a page about a run from its directory of checkpoints."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import jax.random as jr
import typer

from ..core.compilation_cache import switch_on_by_environment
from ..core.terminal import say
from ..results.report import read_run, write_report
from . import run
from .target import load
from .words import reword_refusals


def report(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="What `fit(..., checkpoint=DIR)` or `sample` wrote.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where to write index.html. By default DIR; there checkpoint.html beside the page of `sample`."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            help="The target, as for `sample`: sites in their own coordinates, and the discrepancy. Executes the file.",
        ),
    ] = None,
    coordinates: Annotated[
        str | None, typer.Option(help="Comma-separated sites or coordinates to draw; the first 24 by default.")
    ] = None,
    dim: Annotated[int | None, typer.Option(help="As for `sample`.")] = None,
) -> None:
    """Write a page about a run on disk from its newest intact checkpoint, even while the run goes on or after a kill.

    Without --target none of the run's code is executed, and the page shows the unconstrained coordinates in which
    samplers work. In a directory of `sample` its page, index.html, is not replaced.
    """
    jax.config.update("jax_enable_x64", True)
    switch_on_by_environment(default=True)
    if not directory.is_dir():
        raise ValueError(f"`DIR` {directory} is not a directory. Name the one that the run was written to.")
    options, end = run.read(directory)
    if options.get("--method") == run.AUTO:
        raise ValueError(
            f"`DIR` {directory} is of a run by --method auto, which keeps no checkpoints: its page is "
            f"{directory / 'index.html'}, written at its end."
        )
    bound, data, title = None, None, str(options[run.TARGET]).rpartition(":")[2] if options else None
    if target is not None:
        loaded = load(target, dim)
        first = loaded.particles(jr.key(0), 1)
        loaded.try_out(first)
        bound = loaded.target.bind(jax.tree.map(lambda leaf: leaf[0], first))
        data = jax.tree.map(jnp.asarray, loaded.data)
        title = loaded.name
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with reword_refusals():
                record = read_run(directory, bound, data, title=title)
        except ValueError as error:
            said = [str(one.message) for one in caught[:1]]
            raise ValueError(" ".join([str(error), *(text[:1].upper() + text[1:] for text in said)])) from error
    for one in caught:
        say(f"Warning: {one.message}", error=True)
    if end.get("step") == record.num_steps:
        record = replace(record, status=end["status"], message=end["message"], advice=tuple(end["warnings"]))
    names = None if coordinates is None else [record.own_name(name) for name in _split(coordinates)]
    name = "checkpoint.html" if out is None and options else "index.html"
    say(f"Page: {write_report(record, directory if out is None else out, coordinates=names, name=name)}")
    if options and target is None and record.coordinates_note:
        given = f" --dim {options['--dim']}" if options.get("--dim") else ""
        say(f"With the sites in their own coordinates: --target {options[run.TARGET]}{given}")


def _split(listed: str) -> list[str]:
    """Split at commas outside brackets: `scale,weights[2,0]` has two names."""
    names, depth = [""], 0
    for character in listed:
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            names.append("")
        else:
            names[-1] += character
    return [name.strip() for name in names if name.strip()]
