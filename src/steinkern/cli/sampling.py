"""`steinkern sample`: draws particles from a target in a Python file, and writes a page about them."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import jax.random as jr
import typer

from ..core.archive import (
    CheckpointError,
    lock_directory,
    newest_checkpoint,
    remove_checkpoints,
)
from ..core.messages import quantity
from ..core.types import check_choice
from ..results.result import Status
from ..results.summary import table_lines
from .methods import AUTO, METHODS, STEPS, run
from .outputs import output_files, write_files
from .target import load

_EXIT_CODES = {Status.DIVERGED: 1, Status.STOPPED: 130}
_MAX_ROWS = 20
"""The most rows of the summary on the terminal."""
_MAX_SEED = 2**63 - 2  # the next seed draws predictions


def sample(
    target: Annotated[
        str, typer.Argument(metavar="FILE.py:NAME", help="A Python file, and the name of a log density or model in it.")
    ],
    out: Annotated[
        Path, typer.Option(help="A directory for everything, or the particles alone: a file .npz or .nc (ArviZ).")
    ] = Path("out/sample/particles.npz"),
    particles: Annotated[int, typer.Option(min=2, help="Number of particles.")] = 100,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help=f"Number of steps (a maximum for stein), {STEPS} by default; auto takes none."),
    ] = None,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = AUTO,
    seed: Annotated[int, typer.Option(min=0, max=_MAX_SEED, help="Random seed.")] = 0,
    dim: Annotated[int | None, typer.Option(min=1, help="Start a log density of a vector of this length at 0.")] = None,
    resume: Annotated[
        bool | None,
        typer.Option(
            "--resume/--restart", help="Resume the interrupted run beside --out, or start again and replace it."
        ),
    ] = None,
) -> None:
    """Draw particles from a posterior in a Python file, and write a page about them.

    The file holds one of

    \b
      def log_density(x): ...      log p up to a constant, of an array or a
      START = {"mean": [0, 0],     dictionary of arrays like START, the value
               "scale": 1.0}       around which particles start (or a function
                                   of a key that draws one; or give --dim)
      SUPPORT = {"scale": steinkern.positive}      where there are constraints

    \b
      def model(): ...             a NumPyro model of no arguments; particles
      model = functools.partial(   start from its prior. The extra:
          regression, x, y)        pip install numpyro

    or a steinkern target such as Posterior (with DATA and START), or a PyMC model.

    \b
      steinkern sample banana.py:log_density --dim 2
      steinkern sample schools.py:model --particles 200 --out out/schools

    An --out that is a directory gets particles.npz, sample.result (read it with steinkern.load), posterior.nc where
    ArviZ is installed, and index.html, the page. An --out that is a file gets the particles, and the page beside it.
    Ctrl-C ends a run with what it has.

    Methods: auto needs no tuning, stops by itself and reports its quality: it fits a Gaussian, runs chains from it,
    and computes particles from their draws. stein needs no tuning either: it moves particles of that Gaussian by
    Matrix-SVGD until they rest. The others move particles for --steps steps with the IMQ kernel and a step size that
    falls to 0: average, Matrix-SVGD with the mean Hessian as metric; mixture, with one around every particle; vanilla,
    SVGD without a metric; svn, Stein variational Newton. All but auto keep checkpoint/
    beside --out. After Ctrl-C the same command with --resume continues, with the same result as without the
    interruption.

    Exit codes: 0 the run ended, 1 it diverged (the last particles are written), 2 wrong input, 3 an unexpected error,
    130 it was interrupted.
    """  # noqa: D301 (click keeps the lines of a paragraph that begins with a backspace)
    check_choice("--method", method, METHODS)
    if method == AUTO and (resume or steps is not None):
        raise ValueError(
            f"`{'--resume' if resume else '--steps'}` does not go with --method auto, which stops by itself and keeps "
            "no checkpoints. Leave it out, or name another method, such as --method average."
        )
    files = output_files(out)
    directory = files["Page"].parent
    loaded = load(target, dim)
    loaded.try_out(jr.key(seed))  # before anything is replaced
    options = {"dim": dim, "particles": particles, "steps": steps, "method": method, "seed": seed, "out": out}
    words = [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]
    lock = lock_directory(directory, "`--out`")
    try:
        _prepare(files, directory / "checkpoint", resume)
        result = run(loaded, method, particles, steps, seed, directory / "checkpoint")
        command = shlex.join(["steinkern", "sample", target, *words])
        result = replace(result, settings={**result.settings, "command": command})
        write_files(files, result, loaded.data, jr.key(seed + 1), loaded.name)
    except CheckpointError as error:
        if not error.differences:
            raise
        raise ValueError(
            f"`--resume` continues the run in {directory}, but {loaded.name} has changed in its code, data, start or "
            f"options: {', '.join(error.differences)}. Undo the change, or give --restart to replace the run, or an "
            "--out in another directory."
        ) from error
    finally:
        lock.release()
    lines, left_out = table_lines(result._sites(), _MAX_ROWS)
    more = [f"… and {left_out} more, on the page"] if left_out else []
    warnings = [f"Warning: {notice}" for notice in result.warnings]
    written = [f"{name}: {path}" for name, path in files.items()]
    typer.echo("\n".join([*lines, *more, *result._ending(), *warnings, "", *written]))
    if result.status is Status.STOPPED and method != AUTO:
        typer.echo(f"Interrupted after {quantity(result.num_steps, 'step')}: the same command with --resume continues.")
    raise typer.Exit(_EXIT_CODES.get(result.status, 0))


def _prepare(files: dict[str, Path], checkpoint: Path, resume: bool | None) -> None:
    """Raise where a run would replace files, or has nothing to resume; with `--restart`, remove the checkpoints."""
    if resume is False:
        remove_checkpoints(checkpoint)
        return
    intact = newest_checkpoint(checkpoint) is not None
    if resume and not intact:
        raise ValueError(f"`--resume` finds no run in {checkpoint}. Leave it out to start one.")
    existing = [path for path in files.values() if path.exists()] + ([checkpoint] if intact else [])
    if existing and not resume:
        way = "--resume to continue it, " if intact else ""
        raise ValueError(
            f"`--out` would replace {existing[0]}: give {way}--restart to start again and replace it, or an --out in "
            "another directory."
        )
