"""`steinkern report`: writes a page about a run from its checkpoints."""

import re
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import typer

from ..results.saving import load
from .target import load as load_target


def report(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="What `fit(..., checkpoint=DIR)` or `sample --method=...` wrote.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for index.html; that of the checkpoints by default."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            help="The target, as for `sample`, for derived sites and the discrepancy. Executes the file.",
        ),
    ] = None,
    coordinates: Annotated[
        str | None, typer.Option(help="Comma-separated sites or coordinates to draw; the first 24 by default.")
    ] = None,
    dim: Annotated[int | None, typer.Option(min=1, help="As for `sample`.")] = None,
) -> None:
    """Write a page about a run from its newest intact checkpoint, also while it is running or after it was killed.

    Without --target none of the run's code is executed, and the page has no discrepancy.
    """
    bound = data = title = names = None
    if target is not None:
        loaded = load_target(target, dim)
        bound, data, title = loaded.target, jax.tree.map(jnp.asarray, loaded.data), loaded.name
    if (directory / "checkpoint").is_dir():
        directory = directory / "checkpoint"
    result = load(directory, target=bound)
    if coordinates is not None:  # at commas outside brackets: `scale,weights[2,0]` has two names
        names = [name.strip() for name in re.split(r",(?![^\[]*\])", coordinates) if name.strip()]
    typer.echo(f"Page: {result.report(directory if out is None else out, data, title=title, coordinates=names)}")
