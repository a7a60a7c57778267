"""The runs of the toy study and the numbers read off them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Float

from .journal import Journal
from .results import Row
from .toy_study import METHODS, NUM_DRAWS, NUM_PARTICLES, TITLES, Setting, exact_draws, trajectories
from .toy_targets import TARGETS, LogMMD, ToyTarget

RIVALS = ("vanilla", "average", "svn")
"""The methods that the mixture is compared with, seed by seed."""


@dataclass(frozen=True)
class Run:
    """All methods on one target: log MMD² along the way, and the particles of the first seed."""

    target: ToyTarget
    seeds: tuple[int, ...]
    iterations: np.ndarray
    """Where log MMD² was evaluated: the paper's iterations, and enough others for a curve."""
    log_mmd2: Mapping[str, Float[np.ndarray, "s t"]]
    """By method, for every seed and iteration."""
    flow: Mapping[str, Float[np.ndarray, "t n 2"]]
    """By method, the particles of the first seed at those iterations."""
    exact: Float[np.ndarray, " r"]
    """Log MMD² of as many independent exact draws as there are particles, many times over."""

    def at(self, method: str, iteration: int) -> Float[np.ndarray, " s"]:
        """Log MMD² of every seed at one of the paper's iterations."""
        return self.log_mmd2[method][:, int(np.searchsorted(self.iterations, iteration))]


def shown_iterations(target: ToyTarget, last: int) -> np.ndarray:
    """About 70 iterations up to `last`, evenly spaced in log, with the paper's among them."""
    spaced = np.unique(np.geomspace(1, last, 70).round().astype(int))
    return np.union1d(spaced, [t for t in target.iterations if t <= last])


def run_target(
    name: str,
    settings: Mapping[str, Setting],
    seeds: Sequence[int],
    last: int | None = None,
    progress: Callable[[str], None] | None = None,
    journal: Journal | None = None,
) -> Run:
    """Run every method on a target for all seeds at once.

    Args:
        name: of the target.
        settings: the setting of every method.
        seeds: the reported seeds.
        last: how many steps; the paper's last iteration by default.
        progress: told the name of each method when it is done.
        journal: keeps every method that is done, and is asked before one is run.
    """
    target = TARGETS[name]
    last = target.iterations[-1] if last is None else last
    measure = LogMMD.to(exact_draws(target))
    iterations = shown_iterations(target, last)
    log_mmd2: dict[str, np.ndarray] = {}
    flow: dict[str, np.ndarray] = {}
    for method in METHODS:
        made_from = {
            "setting": asdict(settings[method]), "seeds": list(seeds), "iterations": iterations.tolist(),
            "particles": NUM_PARTICLES, "exact_draws": NUM_DRAWS, "precision": jnp.zeros(()).dtype.name,
        }  # fmt: skip
        kept = None if journal is None else journal.get(f"{name}/{method}", made_from)
        if kept is None:
            path = trajectories(method, settings[method], target, tuple(seeds), last)[:, iterations]
            levels = np.stack([np.asarray(measure.along(jnp.asarray(one))) for one in path])
            kept = {"log_mmd2": _listed(levels), "flow": _listed(path[0])}
            if journal is not None:
                kept = journal.put(f"{name}/{method}", made_from, kept)
        log_mmd2[method], flow[method] = (np.array(kept[part], float) for part in ("log_mmd2", "flow"))
        if progress is not None:
            progress(f"{target.title}: {TITLES[method]}")
    return Run(target, tuple(seeds), iterations, log_mmd2, flow, exact_level(target, measure))


def _listed(array: np.ndarray) -> Any:
    """Nested lists with all digits, for JSON; what is not finite, which it has not, becomes null."""
    values = array.astype(object)
    values[~np.isfinite(array)] = None
    return values.tolist()


def exact_level(target: ToyTarget, measure: LogMMD, replications: int = 400) -> Float[np.ndarray, " r"]:
    """Log MMD² of 50 exact draws, independent of those that they are compared with."""
    draws = target.draws(jr.key(7), replications * NUM_PARTICLES).reshape(replications, NUM_PARTICLES, 2)
    return np.asarray(measure.along(draws))


def rows_of(run: Run) -> list[Row]:
    """Every method at the paper's iterations, the exact draws, and the paired differences of the mixture."""
    name = run.target.name
    shown = sorted({t for t in run.target.iterations if t in run.iterations} | set(_reported(run)))
    rows = [Row.over(run.at(method, t), name, method, f"log_mmd2@{t}") for method in METHODS for t in shown]
    for rival in RIVALS:
        for t in shown:
            difference = run.at("mixture", t) - run.at(rival, t)
            rows.append(Row.over(difference, name, f"mixture-{rival}", f"log_mmd2@{t}"))
    return [*rows, Row.over(run.exact, name, "exact", "log_mmd2")]


def verdicts(run: Run) -> list[str]:
    """What the numbers say, in words: who wins at the reported iteration and at the last one, and by how much."""
    lines = []
    for t in _reported(run):
        for rival in RIVALS:
            row = Row.over(run.at("mixture", t) - run.at(rival, t), "", "", "")
            if not np.isfinite(row.stderr):
                word = "which a single seed cannot settle"
            elif abs(row.mean) <= 2 * row.stderr:
                word = "and are level (within two standard errors)"
            else:
                word = "and the mixture wins" if row.mean < 0 else f"and {TITLES[rival]} wins"
            lines.append(
                f"{run.target.title}, iteration {t}: mixture and {TITLES[rival]} differ by "
                f"{row.mean:+.2f} ± {row.stderr:.2f} {word}."
            )
    last = int(run.iterations[-1])
    end, exact = run.at("mixture", last).mean(), run.exact.mean()
    side = "below" if end < exact else "above"
    lines.append(
        f"{run.target.title}, iteration {last}: the mixture's mean, {end:.2f}, is {side} that of {NUM_PARTICLES} exact "
        f"draws, {exact:.2f}."
    )
    return lines


def table(runs: Sequence[Run]) -> str:
    """A Markdown table: methods down, targets and iterations across, mean ± standard error over seeds."""
    columns = [(run, t) for run in runs for t in _reported(run)]
    lines = [
        "| log MMD² | " + " | ".join(f"{run.target.title}, {t}" for run, t in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for method in METHODS:
        numbers = [Row.over(run.at(method, t), "", "", "") for run, t in columns]
        lines.append(f"| {TITLES[method]} | " + " | ".join(_number(row) for row in numbers) + " |")
    for rival in RIVALS:
        numbers = [Row.over(run.at("mixture", t) - run.at(rival, t), "", "", "") for run, t in columns]
        lines.append(
            f"| mixture − {TITLES[rival]} (paired) | " + " | ".join(_number(row, "+") for row in numbers) + " |"
        )
    exact = [f"{run.exact.mean():.2f}" for run, _ in columns]
    lines.append(f"| {NUM_PARTICLES} exact draws | " + " | ".join(exact) + " |")
    return "\n".join(lines)


def _reported(run: Run) -> list[int]:
    """The reported iteration and the last one, where the run reached them."""
    last = int(run.iterations[-1])
    return sorted({min(run.target.reported_iteration, last), last})


def _number(row: Row, sign: str = "") -> str:
    error = f" ± {row.stderr:.2f}" if np.isfinite(row.stderr) else ""
    return f"{row.mean:{sign}.2f}{error}"
