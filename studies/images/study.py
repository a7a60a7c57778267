"""Classification of images: which settings, how they are chosen, and what the tables say.

Fashion-MNIST, 50,000 images to train on, 10,000 to choose settings on, 10,000 to test on; the test images of MNIST are
images of another kind. Ten particles, batches of 128 drawn with replacement, Adam with a cosine schedule for every
method; Langevin chains, which take plain steps, have step size / N on the same schedule. The matrix variants use KFAC
with a running average, one kernel a layer; the mixture's weights use Euclidean distances over the median bandwidth.

Every method has five settings, a cross around the middle of step sizes and prior scales, and is run with the one of the
highest log-likelihood of the validation rows. All methods run for as many epochs, or, in the cases "mlp_time" and
"lenet_time", for as long as the mixture takes for them, with at most four times the epochs.

The quick look trains on scikit-learn's digits 0 to 7; its images of another kind are the digits 8 and 9.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from steinkern.core.types import check_count, check_positive

from ..data.images import Images, digits, load_fashion_mnist, load_mnist_test
from ..driver import check_names
from ..journal import Journal
from ..methods import Setting, fill
from ..study import Cell, Column, Data, Outcome, Scores, Study, Winners
from ..tables import Metric, read_json, rounded, write_json
from .figures import write_figures
from .networks import NETWORKS
from .runs import EPOCHS, SEEDS, Task, run_group, runs_at_once
from .scores import negative_log_likelihood, score

TIMED = tuple(f"{network}_time" for network in NETWORKS)
CASES = (*NETWORKS, *TIMED)
MOST_EPOCHS = 4 * EPOCHS
"""Of a case of equal time."""
QUICK = "digits"
STEP_SIZES = {"sgld": 0.3, "psgld": 3e-4}
"""The middle of the step sizes that are searched; 0.001 for methods that follow Adam."""
PRIOR_SCALES = (0.1, 0.3, 1.0)
"""The prior standard deviations of weights that are searched."""
TUNING_SEED = 1000


class ImageStudy(Study):
    """Images of Fashion-MNIST."""

    name = "images"
    methods = ("point", "ensemble", "sgld", "psgld", "vanilla", "average", "mixture", "last_layer")
    metrics: ClassVar[Mapping[str, Metric]] = {
        "accuracy": Metric("Test accuracy, %", -1, 2),
        "nll": Metric("Test negative log-likelihood", 1, 4),
        "ece": Metric("Expected calibration error, %", 1, 2),
        "brier": Metric("Brier score", 1, 4),
        "auroc_entropy": Metric("AUROC of entropy, other images", -1, 3),
        "auroc_information": Metric("AUROC of mutual information, other images", -1, 3),
        "seconds": Metric("Seconds a run", 1, 1),
    }
    help = "Images of Fashion-MNIST by a fully connected and a convolutional network, with KFAC."
    quick_help = "Small images that scikit-learn ships, two seeds: a look in two minutes, offline."
    settings_from: ClassVar[Mapping[str, str]] = dict(zip(TIMED, NETWORKS, strict=True))

    def tasks(
        self,
        quick: bool = False,
        *,
        data: Data = None,
        cases: Annotated[tuple[str, ...], f"Comma-separated, of {', '.join(CASES)}."] = tuple(NETWORKS),
        seeds: Annotated[int, "How many seeds to report."] = SEEDS,
        times: Annotated[
            Path | None,
            "A times.json of a former run, for equal times; the recorded one by default.",
        ] = None,
        shared: Annotated[bool, "Runs shared their device with others: their seconds are left out."] = False,
    ) -> Mapping[str, Task]:
        check_count("--seeds", seeds)
        check_names("--cases", cases, CASES)
        if seeds > TUNING_SEED:
            raise ValueError(f"`--seeds` must be at most {TUNING_SEED}, on which settings are chosen, got {seeds}.")
        if quick:
            return {QUICK: quick_task(min(seeds, 2))}
        same = dict.fromkeys(self.methods, EPOCHS)
        epochs = {case: same if case in NETWORKS else self.epochs_of_equal_time(case, times) for case in cases}
        unknown = dict.fromkeys(self.methods, float("nan")) if shared else None
        seconds = {case: unknown if times is None else self.times_of(case, times) for case in cases}
        train, test = load_fashion_mnist(data)
        outside = load_mnist_test(data)
        validation = Images(train.images[-10_000:], train.labels[-10_000:])
        train = Images(train.images[:-10_000], train.labels[:-10_000])
        numbers = tuple(range(seeds))
        return {
            case: Task(
                network_of(case),
                train,
                validation,
                test,
                outside,
                10,
                numbers,
                epochs=epochs[case],
                seconds=seconds[case],
            )
            for case in cases
        }

    def times_of(self, case: str, times: Path | None = None) -> dict[str, float]:
        """By method the seconds of all runs of `EPOCHS` epochs with the network of a case; NaN where not timed."""
        path, network = times or self.path("times.json"), network_of(case)
        seconds = read_json(path).get(network, {}) if path.is_file() else {}
        if "mixture" not in seconds:
            raise ValueError(
                f"`--times` must hold the seconds of the mixture and of every method to run on {network}, for {case}. "
                f"Run them with `--cases {network}` first and give the times.json of that run."
            )
        return {method: seconds.get(method, float("nan")) for method in self.methods}

    def epochs_of_equal_time(self, case: str, times: Path | None = None) -> dict[str, int]:
        """By method how many epochs take the time of the mixture's `EPOCHS`, at least one and at most `MOST_EPOCHS`."""
        seconds = self.times_of(case, times)
        ratios = {method: seconds["mixture"] / value for method, value in seconds.items() if value > 0}  # no NaN
        return {method: int(np.clip(EPOCHS * ratio, 1, MOST_EPOCHS)) for method, ratio in ratios.items()}

    def key(self, case: str, method: str, task: Task) -> str:
        return f"{_name(case, method, task)}/seeds {task.seeds[0]} to {task.seeds[-1]}"

    def made_from(self, method: str, setting: Setting, task: Task) -> dict[str, Any]:
        return {"setting": setting, "epochs": task.epochs_of(method), "seeds": list(task.seeds), **task.protocol()}

    def finish(self, journal: Journal, case: str, method: str, setting: Setting, task: Task) -> Any:
        """The result of all seeds; those that run together are a piece of the journal."""
        at_once = runs_at_once(method, task.network)
        groups = [task.seeds[start : start + at_once] for start in range(0, len(task.seeds), at_once)]
        pieces = [
            super(ImageStudy, self).finish(journal, case, method, setting, replace(task, seeds=group))
            for group in groups
        ]
        return {name: [value for piece in pieces for value in piece[name]] for name in pieces[0]}

    def run(self, method: str, setting: Setting, task: Task) -> dict[str, Any]:
        runs, seconds = run_group(method, [setting] * len(task.seeds), task.seeds, task)
        scores = [score(one.test, task.test.labels, one.outside) for one in runs]
        validation = [rounded(negative_log_likelihood(one.validation, task.validation.labels)) for one in runs]
        done = {name: [one[name] for one in scores] for name in scores[0]}
        return {"seconds": [rounded(seconds / len(runs))] * len(runs), "validation_nll": validation, **done}

    def check(self, method: str, setting: Any) -> Setting:
        filled = fill(super().check(method, setting), step_size=..., prior_scale=...)
        for name, value in filled.items():
            check_positive(name, value)
        return filled

    def setting(self, chosen: Winners, case: str, method: str, task: Task) -> Setting:
        if case == QUICK:
            return {"step_size": 0.1 if method == "sgld" else 3e-3, "prior_scale": 0.3}
        return super().setting(chosen, case, method, task)

    def cells(self, method: str, case: str, task: Task) -> list[Cell]:
        """The settings in groups that run together, all with one seed that is not reported."""
        settings, at_once = settings_of(method), runs_at_once(method, task.network)
        cells = []
        for start in range(0, len(settings), at_once):
            group = settings[start : start + at_once]
            key = _name(case, method, task) + ("" if at_once >= len(settings) else f"/{start}")
            made_from = {"settings": group, "epochs": task.epochs_of(method), "seed": TUNING_SEED, **task.protocol()}
            cells.append(Cell(key, group, made_from))
        return cells

    def evaluate(self, method: str, cell: Cell, task: Task) -> dict[str, Any]:
        """The log-likelihoods of the validation rows: a search does not use test scores.

        A smaller group is filled up with its last setting, so that all groups of a method share a program.
        """
        count, at_once = len(cell.settings), runs_at_once(method, task.network)
        settings = [*cell.settings, *cell.settings[-1:] * (at_once - count)]
        runs, seconds = run_group(method, settings, [TUNING_SEED] * at_once, task)
        values = [-negative_log_likelihood(one.validation, task.validation.labels) for one in runs[:count]]
        return {"values": rounded(values), "seconds": rounded(seconds)}

    def values(self, result: Any) -> Sequence[Any]:
        return result["values"]

    def scores(self, method: str, result: Any, task: Task) -> Scores:
        scores = {metric: np.array(result[metric], float) for metric in self.metrics}
        if task.seconds is not None:  # those of the run may be disturbed by others on the same device
            each = task.seconds[method] * task.epochs_of(method) / EPOCHS / SEEDS
            scores["seconds"] = np.full(len(scores["seconds"]), each)
        return scores

    def columns(self, outcome: Outcome) -> list[Column]:
        suffixes = {case: ", equal time" if case in TIMED else "" for case in outcome.tasks}
        return [Column(NETWORKS.get(network_of(case), case) + suffix, case) for case, suffix in suffixes.items()]

    def record(self, outcome: Outcome) -> dict[str, Any]:
        epochs = {
            case: {method: task.epochs_of(method) for method in outcome.methods} for case, task in outcome.tasks.items()
        }
        seeds = len(next(iter(outcome.tasks.values())).seeds)
        grids = {"grids": {method: settings_of(method) for method in outcome.methods}}
        return super().record(outcome) | grids | {"epochs": epochs, "seeds": seeds}

    def caption(self, outcome: Outcome) -> str:
        task = next(iter(outcome.tasks.values()))
        data = "Fashion-MNIST by a network 784-400-400-10 (MLP) and by a convolutional one of LeNet's size."
        pairs = [pair for settings in outcome.settings.values() for pair in settings.items()]
        middle = all(setting == settings_of(method)[0] for method, setting in pairs)
        how = "were chosen on 10,000 of the training rows, among five settings for every method"
        choices = (
            f"Step size and prior scale {'are the middle of the five settings of every method' if middle else how}. In "
            f'the columns "equal time" all methods have the time of the mixture, at most {MOST_EPOCHS} epochs; '
            f"{EPOCHS} elsewhere."
        )
        if outcome.quick:
            data = "A quick look at scikit-learn's digits 0 to 7; the images of another kind are its digits 8 and 9."
            choices = "Settings are fixed."
        return self.text("caption.txt").format(
            seeds=len(task.seeds), data=data, batch_size=task.batch_size, choices=choices
        )

    def verdicts(self, outcome: Outcome) -> list[str]:
        """Where the mixture stands beside the other methods: differences beyond two standard errors count."""
        if "mixture" not in outcome.methods:
            return []
        others = [line for line in self.lines(outcome.methods) if line.method in ("ensemble", "vanilla", "average")]
        seeds = f"{len(next(iter(outcome.tasks.values())).seeds)} seeds"
        names = [name for name in self.metrics if name != "seconds"]
        return [
            outcome.describe_comparison("mixture", line, name, seeds, errors=2.0) for line in others for name in names
        ]

    def write(self, outcome: Outcome, directory: Path) -> None:
        """The seconds of all seeds of every method, for runs of equal time, and the figures."""
        times = {
            case: {
                method: round(float(np.sum(outcome.values(case, method, "seconds"))), 3) for method in outcome.methods
            }
            for case in outcome.tasks
            if case in NETWORKS
        }
        if times and np.all(np.isfinite([value for seconds in times.values() for value in seconds.values()])):
            write_json(directory / "times.json", times)
        write_figures(directory, outcome)


def settings_of(method: str) -> list[Setting]:
    """The settings that are searched: a cross around the middle step size and the middle prior scale."""
    step, (low, middle, high) = STEP_SIZES.get(method, 1e-3), PRIOR_SCALES
    pairs = [(step, middle), (step / 3, middle), (3 * step, middle), (step, low), (step, high)]
    return [{"step_size": rounded(size), "prior_scale": scale} for size, scale in pairs]


def _name(case: str, method: str, task: Task) -> str:
    """Of a method's runs: in a case of equal time those of as many epochs are the runs of equal epochs."""
    return f"{network_of(case) if case in TIMED and task.epochs_of(method) == EPOCHS else case}/{method}"


def network_of(case: str) -> str:
    """The network of a case."""
    return case.removesuffix("_time")


def quick_task(seeds: int) -> Task:
    """Digits 0 to 7 of scikit-learn, 1,000 to train on; the others are images of another kind."""
    shipped = digits()
    known = shipped.labels < 8
    order = np.random.default_rng(0).permutation(np.flatnonzero(known))
    train, validation, test = (
        Images(shipped.images[rows], shipped.labels[rows]) for rows in np.split(order, [1000, 1200])
    )
    return Task(
        "mlp", train, validation, test, shipped.images[~known], 8, tuple(range(seeds)), hidden=(32,), batch_size=64,
        epochs=dict.fromkeys(ImageStudy.methods, 20),
    )  # fmt: skip
