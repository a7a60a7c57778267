"""The paper's two-dimensional study: which settings, how they are chosen, the runs, and what the numbers say.

Every method starts from the same 50 particles, 1.5·N(0, I), at a seed. One setting a method and target, chosen at the
reported iteration on seeds that are not reported, is used for the whole curve. All methods search the same step rules
and bandwidths; those that use curvature search the same curvatures; the mixture also the averaging share of its metrics
and the temperature of its weights.

The choices of a setting: `rule`, the step rule: "adagrad" (the paper's), "rmsprop" (decay 0.9, the released code's
elsewhere) or "plain"; `step_size`; `bandwidth`: "median", the median trick in the metric of the kernel, or "dimension",
h = d there, Eq. (13); `curvature`: "absolute", the exact Hessian with |eigenvalues|, or "gauss_newton", JᵀJ, where the
target is a sum of squares; `shrinkage`, s in Q_l ← (1 − s) Q_l + s mean Q, and `temperature` of the weights (1 is
Eq. (17)), both of the mixture.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from steinkern.core.types import check_choice, check_count, check_positive, check_share

from ..driver import check_names
from ..methods import LANGEVIN, TITLES, Setting, fill, grid, numbers_of
from ..study import Cell, Column, Line, Outcome, Scores, Study
from ..tables import Metric, Row, count_names, rounded
from ..training import compile_trials
from .figures import write_figures
from .page import is_below_exact, write_page
from .runs import NUM_DRAWS, NUM_PARTICLES, OPTIMIZERS, Task, first_particles, trajectories, trajectory
from .targets import PAPER, TARGETS, LogMMD, ToyTarget

TUNING_SEEDS = tuple(range(1000, 1064))
RIVALS = ("vanilla", "average", "svn")
"""The methods that the mixture is compared with, seed by seed."""
_QUICK_SEEDS, _QUICK_STEPS = 4, 100
_NUMBERS = ("step_size", "shrinkage", "temperature")


def _log_grid(low: float, high: float, number: int) -> tuple[float, ...]:
    return tuple(float(f"{value:.3g}") for value in np.geomspace(low, high, number))


STEP_SIZES = {
    "adagrad": _log_grid(0.1, 6.0, 15),
    "rmsprop": _log_grid(0.01, 0.6, 15),
    "plain": _log_grid(0.03, 150.0, 24),
}


def search_axes(method: str, target: ToyTarget) -> dict[str, Any]:
    """What a method searches on a target: every combination."""
    langevin, mixture = method in LANGEVIN, method == "mixture"
    sizes = {"plain": _log_grid(1e-5, 1.0, 24)} if langevin else STEP_SIZES
    curvatures = ("absolute",) if target.residual is None else ("absolute", "gauss_newton")
    return {
        "rules": tuple(sizes),
        "step_sizes": sizes,
        "bandwidths": (None,) if langevin else ("median", "dimension"),
        "curvatures": (None,) if langevin or method == "vanilla" else curvatures,
        "shrinkages": (0.5, 0.2, 0.1, 0.0) if mixture else (0.0,),
        "temperatures": (1.0, 2.0, 4.0) if mixture else (1.0,),
    }


class Toy(Study):
    """Figure 1."""

    name = "toy"
    methods = ("vanilla", "svn", "average", "mixture", "sgld", "psgld")
    metrics: ClassVar[Mapping[str, Metric]] = {"log_mmd2": Metric("log MMD²", 1, 2)}
    help = """The two-dimensional study: Figure 1 and the appendix figures.

    Vanilla SVGD, SVN, Matrix-SVGD (average, mixture), SGLD and pSGLD on Sine, Double banana and Star, with recorded
    settings, each found by the search that --tune repeats. About five minutes on two cores."""
    quick_help = "Fewer seeds and iterations: a look in under two minutes."
    page = "index.html"
    selectable = False
    double_precision = True
    bold = False
    settings_from: ClassVar[Mapping[str, str]] = {f"{name}_released": name for name in PAPER}

    def tasks(
        self,
        quick: bool = False,
        *,
        seeds: Annotated[int, "How many seeds to report."] = 20,
        targets: Annotated[
            tuple[str, ...],
            "Comma-separated: sine, double_banana, star; with _released for the released code's density.",
        ] = PAPER,
    ) -> Mapping[str, Task]:
        check_count("--seeds", seeds)
        check_names("--targets", targets, tuple(TARGETS))
        reported = tuple(range(min(seeds, _QUICK_SEEDS) if quick else seeds))
        return {
            name: Task(TARGETS[name], reported, _QUICK_STEPS if quick else TARGETS[name].iterations[-1])
            for name in targets
        }

    def tuning_tasks(self, targets: Sequence[str] = PAPER, **unused: Any) -> Mapping[str, Task]:
        check_names("--targets", targets, tuple(TARGETS))
        return {name: Task(TARGETS[name], TUNING_SEEDS, TARGETS[name].reported_iteration) for name in targets}

    def run(self, method: str, setting: Setting, task: Task) -> dict[str, Any]:
        path = trajectories(method, setting, task)[:, task.iterations]
        levels = np.stack([np.asarray(task.measure.along(jnp.asarray(one))) for one in path])
        return {"log_mmd2": _as_json(levels), "flow": _as_json(path[0])}

    def scores(self, method: str, result: Any, task: Task) -> Scores:
        shown = {t for t in task.target.iterations if t in task.iterations} | set(task.reported)
        values = np.array(result["log_mmd2"], float).T
        return {f"log_mmd2@{t}": task.at(values, t) for t in sorted(shown)}

    def derive_scores(self, scores: Mapping[str, Scores], task: Task) -> Mapping[str, Scores]:
        paired = {
            f"mixture-{rival}": {name: values - scores[rival][name] for name, values in scores["mixture"].items()}
            for rival in RIVALS
        }
        return {**paired, "exact": {"log_mmd2": task.exact_levels()}}

    def check(self, method: str, setting: Any) -> Setting:
        names = {"rule": "plain", "step_size": 0.1, "bandwidth": None, "curvature": None}
        setting = fill(super().check(method, setting), **names, shrinkage=0.0, temperature=1.0)
        check_choice("rule", setting["rule"], tuple(OPTIMIZERS))
        check_choice("bandwidth", setting["bandwidth"], ("median", "dimension", None))
        check_choice("curvature", setting["curvature"], ("absolute", "gauss_newton", None))
        check_positive("step_size", setting["step_size"])
        check_positive("temperature", setting["temperature"])
        check_share("shrinkage", setting["shrinkage"])
        return setting

    def cells(self, method: str, case: str, task: Task) -> list[Cell]:
        axes = search_axes(method, task.target)
        cells = []
        for names in product(axes["rules"], axes["bandwidths"], axes["curvatures"]):
            named = dict(zip(("rule", "bandwidth", "curvature"), names, strict=True))
            sizes = axes["step_sizes"][named["rule"]]
            numbers = grid(step_size=sizes, shrinkage=axes["shrinkages"], temperature=axes["temperatures"])
            key = "/".join([case, method, *map(str, names)])
            cells.append(Cell(key, [{**named, **setting} for setting in numbers], {}))
        return cells

    def evaluate(self, method: str, cell: Cell, task: Task) -> list[list[float | None]]:
        """The numbers of every setting, then mean and standard error over tuning seeds of the last log MMD²."""

        def one(setting: Setting, seed: Array, measure: LogMMD) -> Array:
            key = jr.fold_in(jr.key(2), seed)
            path = trajectory(key, method, setting, task.target, first_particles(seed), task.last)
            return measure(path[-1])

        at_once = 10 if method == "mixture" else None  # the mixture holds l × n × n numbers a run
        run = compile_trials(one, cell.settings[0], _NUMBERS, at_once)
        numbers = numbers_of(cell.settings, _NUMBERS, float)
        levels = np.asarray(run(numbers, jnp.asarray(task.seeds), task.measure))
        rows = [Row.over(values, "", "", "") for values in levels]
        return [
            [*setting, *rounded([row.mean, row.stderr], places=4)]
            for setting, row in zip(numbers.tolist(), rows, strict=True)
        ]

    def values(self, result: Any) -> list[float | None]:
        return [None if mean is None else -mean for *_, mean, _ in result]

    def columns(self, outcome: Outcome) -> list[Column]:
        return [
            Column(f"{task.target.title}, {t}", case, f"@{t}")
            for case, task in outcome.tasks.items()
            for t in task.reported
        ]

    def lines(self, methods: Sequence[str]) -> list[Line]:
        paired = [Line(f"mixture − {TITLES[rival]} (paired)", f"mixture-{rival}") for rival in RIVALS]
        return [*super().lines(methods), *paired, Line(f"{NUM_PARTICLES} exact draws", "exact")]

    def caption(self, outcome: Outcome) -> str:
        return (
            f"Natural log of the biased squared MMD of {NUM_PARTICLES} particles to {NUM_DRAWS} exact draws "
            "(smaller is better); mean ± standard error over seeds."
        )

    def record(self, outcome: Outcome) -> dict[str, Any]:
        grids = {
            case: {method: search_axes(method, task.target) for method in self.methods}
            for case, task in outcome.tasks.items()
        }
        seeds = next(iter(outcome.tasks.values())).seeds
        sizes = {"particles": NUM_PARTICLES, "exact_draws": NUM_DRAWS, "seeds": list(seeds)}
        return {**sizes, "tuning_seeds": list(TUNING_SEEDS), "grids": grids}

    def verdicts(self, outcome: Outcome) -> list[str]:
        """Who wins at the reported iteration and at the last one, and by how much."""
        lines = [
            outcome.describe_comparison("mixture", rival, "log_mmd2", "seeds", errors=2) for rival in self.rivals()
        ]
        below = [case for case, task in outcome.tasks.items() if is_below_exact(outcome, case, task.last)]
        share = count_names(below, of=len(outcome.tasks))
        lines.append(
            f"At the last iteration the mixture's mean is below that of {NUM_PARTICLES} exact draws on {share}."
        )
        return lines

    def rivals(self) -> list[Line]:
        """The lines of the methods that the mixture is compared with."""
        return super().lines(RIVALS)

    def write(self, outcome: Outcome, directory: Path) -> None:
        write_page(directory / "index.html", outcome, self.rivals(), write_figures(outcome, directory))


def _as_json(array: np.ndarray) -> Any:
    """Nested lists with all digits, for JSON; what is not finite, which it has not, becomes null."""
    return np.where(np.isfinite(array), array.astype(object), np.array(None)).tolist()
