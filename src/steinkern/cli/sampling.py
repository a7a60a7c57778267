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
from ..core.types import check_choice, check_count
from ..inference.arguments import as_count
from ..interop._model import model_of
from ..results.result import Result, Status
from ..results.summary import table_lines
from .methods import AUTO, METHODS, STEPS, run
from .outputs import Outputs
from .target import Loaded, load

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
    particles: Annotated[int, typer.Option(help="Number of particles.")] = 100,
    steps: Annotated[
        int | None, typer.Option(help=f"Number of steps (a maximum for stein), {STEPS} by default; auto takes none.")
    ] = None,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = AUTO,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    dim: Annotated[int | None, typer.Option(help="Start a log density of a vector of this length at 0.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the interrupted run beside --out.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Start again and replace the run beside --out.")] = False,
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
    check_count("--particles", particles, least=2)
    check_count("--seed", seed, least=0)
    if seed > _MAX_SEED:
        raise ValueError(f"`--seed` must be at most {_MAX_SEED}, got {seed}.")
    check_choice("--method", method, METHODS)
    if steps is not None:
        steps = as_count("--steps", steps)
    if resume and restart:
        raise ValueError("`--resume` and `--restart` exclude each other: leave one out.")
    if method == AUTO and (resume or steps is not None):
        raise ValueError(
            f"`{'--resume' if resume else '--steps'}` does not go with --method auto, which stops by itself and keeps "
            "no checkpoints. Leave it out, or name another method, such as --method average."
        )
    outputs = Outputs.of(out)
    loaded = load(target, dim)
    loaded.try_out(loaded.particles(jr.key(seed), 1))  # before anything is replaced
    options = {"dim": dim, "particles": particles, "steps": steps, "method": method, "seed": seed, "out": out}
    named = [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]
    lock = lock_directory(outputs.directory, "`--out`")
    try:
        if restart:
            remove_checkpoints(outputs.checkpoint)
        _check_directory(outputs, resume, restart)
        result = _run(loaded, method, particles, steps, seed, outputs.checkpoint)
        result = replace(
            result, settings={**result.settings, "command": shlex.join(["steinkern", "sample", target, *named])}
        )
        model = model_of(result.target.target)
        outputs.write(result, loaded.data, jr.key(seed + 1) if model is not None and model.observed() else None)
        result.report(outputs.directory, loaded.data, title=loaded.name)
    finally:
        lock.release()
    _print(result, outputs)
    if result.status is Status.STOPPED and method != AUTO:
        typer.echo(f"Interrupted after {quantity(result.num_steps, 'step')}: the same command with --resume continues.")
    if result.status in _EXIT_CODES:
        raise typer.Exit(_EXIT_CODES[result.status])


def _check_directory(outputs: Outputs, resume: bool, restart: bool) -> None:
    """Raise where a run would replace files without `--restart`, or has nothing to resume."""
    if not (resume or restart):
        outputs.check_absent()
    checkpoint = newest_checkpoint(outputs.checkpoint)
    if resume and checkpoint is None:
        raise ValueError(f"`--resume` finds no run in {outputs.checkpoint}. Leave it out to start one.")
    if checkpoint is not None and not resume:
        raise ValueError(
            f"`--out` is beside a run in {outputs.checkpoint}: give --resume to continue it, --restart to replace it, "
            "or an --out in another directory."
        )


def _run(loaded: Loaded, method: str, particles: int, steps: int | None, seed: int, checkpoint: Path) -> Result:
    try:
        return run(loaded, method, particles, steps, seed, checkpoint)
    except CheckpointError as error:
        if not error.differences:
            raise
        raise ValueError(
            f"`--resume` continues the run in {checkpoint.parent}, but {loaded.name} has changed in its code, data, "
            f"start or options: {', '.join(error.differences)}. Undo the change, or give --restart to replace the run, "
            "or an --out in another directory."
        ) from error


def _print(result: Result, outputs: Outputs) -> None:
    lines, left = table_lines(result.particles, _MAX_ROWS)
    typer.echo("\n".join([*lines, *([f"… and {left} more, on the page"] if left else []), *result._ending()]))
    for notice in result.warnings:
        typer.echo(f"Warning: {notice}")
    typer.echo()
    for name, path in outputs.files.items():
        typer.echo(f"{name}: {path}")
