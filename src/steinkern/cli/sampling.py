"""`steinkern sample`: draws particles from a target in a Python file, and writes a page about them."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.random as jr
import typer

from ..core.checkpoint import CheckpointError, OtherRunError, newest, remove_run
from ..core.compilation_cache import switch_on_by_environment
from ..core.files import DirectoryLock, machine_memory, prepare_directory
from ..core.notices import quantity
from ..core.terminal import say
from ..core.types import check_choice, check_count
from ..inference.arguments import as_count
from ..results.result import Result, Status
from ..results.summary import table_lines
from . import run
from .methods import run_automatically, run_sampler, run_untuned, sampler_for
from .outputs import Outputs
from .run import AUTO, STEIN
from .target import Loaded, load
from .words import reword_result

METHODS = (AUTO, STEIN, "average", "mixture", "vanilla", "svn")
_STEPS = 1000
_SHOWN = 20  # rows of the summary on the terminal
_LARGEST_SEED = 2**63 - 2  # the next seed draws predictions


def sample(
    target: Annotated[
        str, typer.Argument(metavar="FILE.py:NAME", help="A Python file, and the name of a log density or model in it.")
    ],
    out: Annotated[
        Path, typer.Option(help="A directory for everything, or the particles alone: a file .npz or .nc (ArviZ).")
    ] = Path("out/sample/particles.npz"),
    particles: Annotated[int, typer.Option(help="How many.")] = 100,
    steps: Annotated[
        int | None, typer.Option(help=f"How many, {_STEPS} by default; auto takes none, stein at most so many.")
    ] = None,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = AUTO,
    seed: Annotated[int, typer.Option(help="The same seed, the same particles.")] = 0,
    dim: Annotated[int | None, typer.Option(help="Start a log density of a vector of this length at 0.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the interrupted run beside --out.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Begin anew in place of a run beside --out.")] = False,
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
    SVGD without a metric; svn, Stein variational Newton. All but auto compare their particles with chains at the end,
    from 100 steps on, and keep checkpoint/ beside --out. After Ctrl-C the same command with --resume continues, with
    the same result as without the interruption.

    Exit codes: 0 the run ended, 1 it diverged (the last particles are written), 2 wrong input, 3 an unexpected error,
    130 it was interrupted.
    """  # noqa: D301 (click keeps the lines of a paragraph that begins with a backspace)
    jax.config.update("jax_enable_x64", True)  # before the file creates arrays
    switch_on_by_environment(default=True)
    check_count("--particles", particles)
    check_count("--seed", seed, least=0)
    if seed > _LARGEST_SEED:
        raise ValueError(f"`--seed` must be at most {_LARGEST_SEED}, got {seed}.")
    if particles == 1:
        raise ValueError("`--particles` must be at least 2, got 1: one particle climbs to a mode and shows no spread.")
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
    if method not in (AUTO, STEIN):
        steps = _STEPS if steps is None else steps
    outputs = Outputs.of(out)
    options = {
        run.TARGET: target, "--dim": dim, "--particles": particles, "--steps": steps, "--method": method,
        "--seed": seed,
    }  # fmt: skip
    loaded = load(target, dim)
    first = loaded.particles(jr.key(seed), 1)
    _check_room(particles, first)
    loaded.try_out(first)  # before anything is replaced
    prepare_directory(outputs.directory)
    with DirectoryLock(outputs.directory) as lock:
        if not lock.acquire():
            raise OSError(
                f"`--out` {out} lies in a directory to which another `steinkern sample` writes at this moment. Wait "
                "for it to end, or give an --out in another directory."
            )
        _sample_into(outputs, loaded, options, resume, restart)


def _sample_into(outputs: Outputs, loaded: Loaded, options: dict[str, Any], resume: bool, restart: bool) -> None:
    """Run, and write the results into the locked directory of the outputs."""
    directory = outputs.directory
    target, particles, steps, method, seed = (
        options[name] for name in (run.TARGET, "--particles", "--steps", "--method", "--seed")
    )
    if restart:
        outputs.check_replaced(True)  # before checkpoints are removed
    checkpoint = _checkpoint(directory, resume, restart, method)
    if not restart:
        outputs.check_replaced(resume)
    if resume:
        run.check_same(directory, options)
    elif method != AUTO:  # runs of auto cannot be resumed
        run.write(directory, options, outputs.files)
    try:
        if method == AUTO:
            result, failed = run_automatically(loaded, particles, seed)
        elif method == STEIN:
            result, failed = run_untuned(loaded, checkpoint, particles, steps, seed)
        else:
            assert steps is not None
            result, failed = run_sampler(loaded, sampler_for(method, steps), checkpoint, particles, steps, seed)
    except KeyboardInterrupt:
        kept = method != AUTO and newest(checkpoint) is not None
        say(f"Interrupted: {_way_on(restart) if kept else 'there was nothing to keep yet'}.")
        raise typer.Exit(130) from None
    except CheckpointError as error:
        reason = getattr(error.__cause__, "strerror", None) or error
        raise OSError(
            f"a checkpoint could not be written to {checkpoint}: {reason}. The last good one is intact: make room, and "
            f"{_way_on(restart)} from it."
        ) from error
    except OtherRunError as error:
        raise ValueError(
            f"`--resume` goes on with the run in {directory}, and {target} is not what it was then, in its code, its "
            f"data or its start ({error.what}). Undo the change, or give --restart to begin anew in its place, or "
            "an --out in another directory."
        ) from error
    result = replace(
        reword_result(result, method), settings={**result.settings, "command": run.in_a_line(options, outputs.given)}
    )
    run.write(directory, options, outputs.files, result)
    predictive = jr.key(seed + 1) if result.target.observed() else None
    outputs.write(result, loaded.data, predictive)
    result.report(directory, loaded.data, title=loaded.name, key=predictive)
    _say(result, outputs)
    if failed:
        raise typer.Exit(1)
    if result.status is Status.STOPPED:
        if method != AUTO:
            taken = quantity(result.num_steps, "step")
            of = "" if steps is None else f" of {steps:,}"
            say(f"Interrupted after {taken}{of}: {_way_on(restart)}.")
        raise typer.Exit(130)


def _way_on(restarted: bool) -> str:
    return f"the same command with --resume{' in place of --restart' if restarted else ''} goes on"


def _check_room(particles: int, first: Any) -> None:
    """Raise where the machine has no memory for this number of particles like `first`."""
    needed = particles * sum(leaf.nbytes for leaf in jax.tree_util.tree_leaves(first))
    if needed > machine_memory():
        raise ValueError(
            f"`--particles` {particles} take {needed:,} bytes, and this machine has {machine_memory():,.0f}. Ask for "
            "fewer."
        )


def _checkpoint(directory: Path, resume: bool, restart: bool, method: str) -> Path:
    """The directory of this run's checkpoints, checked to be empty unless the run resumes.

    `--restart` removes the checkpoints of the run that `run.json` records, and nothing else.
    """
    place = directory / "checkpoint"
    before = run.read(directory)[0].get("--method")
    recorded = before is not None and before != AUTO
    if restart and recorded:
        remove_run(place)
    saved = newest(place)
    beside = "" if saved is None else f"`--out` lies beside a run of {quantity(saved.step, 'step')} in {place}"
    if resume and saved is None:
        raise ValueError(f"`--resume` finds no run in {place}. Leave it out to begin one.")
    if restart and saved is not None and method != AUTO:
        raise ValueError(
            f"{beside}, which this command has not recorded, so that --restart does not remove it. Move it away, or "
            "give an --out in another directory."
        )
    if not resume and not restart and saved is not None:
        raise ValueError(
            f"{beside}: give --method {before or method} --resume to go on with it, --restart to begin anew in its "
            "place, or an --out in another directory."
        )
    return place


def _say(result: Result, outputs: Outputs) -> None:
    lines, left = table_lines(result.particles, _SHOWN)
    say("\n".join([*lines, *([f"… and {left} more, on the page"] if left else []), *result._ending()]))
    for text in result.warnings:
        say(f"Warning: {text}")
    say(f"\n{outputs.in_lines()}")
