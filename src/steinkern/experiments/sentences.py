"""`steinkern reproduce sentences`: Table 2, from settings to tables and figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..core.files import prepare_directory, write_text
from ..results import plot
from .data.datasets import data_directory
from .data.text import TABLES, TEXTS, generated, load_sentences, word_vectors
from .jobs import AbstractPiece, former_winners, number_of_jobs, read_winners, run_pieces
from .journal import Journal
from .results import check_names, rounded, write_json, write_results
from .sentence_study import (
    DAMPINGS,
    EPOCHS,
    FOLDS,
    METHODS,
    PRECONDITIONED,
    READOUTS,
    STEP_SIZES,
    Method,
    Setting,
    Task,
    checked,
    grid,
    prepare,
    run_folds,
    stopped,
)
from .sentence_table import Finished, Rows, caption, rows_of, tables, verdicts

QUICK = "generated"
_QUICK_EPOCHS, _QUICK_FOLDS, _QUICK_STEP, _QUICK_DAMPING = 10, 2, 3e-3, 0.1


class Report(NamedTuple):
    """What the command prints when it is done."""

    tables: dict[str, str]
    verdicts: list[str]


def reproduce(
    names: Sequence[str],
    directory: Path,
    *,
    data: Path | None = None,
    vectors: Sequence[Path] | None = None,
    methods: Sequence[str] = METHODS,
    folds: int = FOLDS,
    quick: bool = False,
    settings: Path | None = None,
    jobs: int | None = None,
    figures: bool = True,
    progress: Callable[[str], None] = print,
) -> Report:
    """Run the table and write results.json, table.md, folds.json and the figure into `directory`.

    A row that a former run into the same directory has finished with the same settings is not run again.

    Args:
        names: the datasets.
        directory: made where it does not exist.
        data: the data directory; see `data_directory`.
        vectors: files of word vectors, side by side; `TABLES` of the data directory by default.
        methods: the rows.
        folds: how many of the ten folds to run.
        quick: a small generated corpus in place of the datasets, two folds and a few epochs: no download.
        settings: a settings.json from `search`; the recorded settings by default.
        jobs: rows compiled and run at the same time; by default 6 on an accelerator, 1 on a CPU.
        figures: draw them; needs matplotlib.
        progress: told what was finished.
    """
    if figures:
        plot.check_available()  # before any long work
    runs = _methods(methods)
    _check_folds(folds)
    chosen = _read_settings(settings)
    names, folds = ((QUICK,), min(folds, _QUICK_FOLDS)) if quick else (names, folds)
    tasks, found = _quick_task(folds) if quick else _tasks(names, data, vectors, folds)
    own = {method: _quick_setting(method, folds) for method in runs}
    winners = {QUICK: own} if quick else {n: {m: _setting(chosen, n, m, folds) for m in runs} for n in names}
    pieces = [
        _Piece(name, method, tasks[name], (winners[name][method],), _QUICK_EPOCHS if quick else EPOCHS)
        for name in names
        for method in runs
    ]
    prepare_directory(directory)
    journal = Journal(directory / "rows.json")

    def say(piece: _Piece, done: Any) -> None:
        progress(f"{piece.key}: {Finished.of(done).summary(piece.method)}")

    results = run_pieces(pieces, journal, number_of_jobs(jobs), say)
    finished: Rows = {(piece.name, piece.method): Finished.of(results[piece.key]) for piece in pieces}
    record = {
        "protocol": {name: task.protocol() for name, task in tasks.items()},
        "quick": quick,
        "words_found": found,
        "vectors": _vector_names(vectors, quick),
        "step_sizes": STEP_SIZES,
        "dampings": DAMPINGS,
        "winners": {name: {method: _as_json(own) for method, own in rows.items()} for name, rows in winners.items()},
        "environment": journal.environments(),
    }
    write_results(directory / "results.json", "sentences", record, rows_of(finished))
    write_json(directory / "folds.json", {name: _digits(task) for name, task in tasks.items()})
    report = Report(tables(finished, names, runs), verdicts(finished))
    lines = "\n".join(f"- {line}" for line in report.verdicts)
    words = caption(folds, None if quick else _vector_names(vectors, quick))
    write_text(directory / "table.md", "\n\n".join([words, *report.tables.values(), lines]) + "\n")
    if figures:
        from .sentence_figures import write_dots  # matplotlib may be missing where the runs are made

        write_dots(directory / "scores.png", finished)
    return report


def search(
    names: Sequence[str],
    directory: Path,
    *,
    data: Path | None = None,
    vectors: Sequence[Path] | None = None,
    methods: Sequence[str] = METHODS,
    jobs: int | None = None,
    progress: Callable[[str], None] = print,
) -> None:
    """Search step sizes and dampings, into search.json (resumed where it exists) and settings.json."""
    runs = _methods(methods)
    tasks, _ = _tasks(names, data, vectors, FOLDS)
    pieces = {
        (name, method): [_Search(name, method, tasks[name], settings, EPOCHS) for settings in grid(method)]
        for name in names
        for method in runs
    }
    prepare_directory(directory)
    journal = Journal(directory / "search.json")

    winners: dict[str, dict[str, Any]] = {}
    for name, methods_of in former_winners(directory / "settings.json").items():
        winners[name] = {method: _as_json(_from_json(values, method)) for method, values in methods_of.items()}

    def say(piece: _Piece, done: Any) -> None:
        best = np.max([[-np.inf if value is None else value for value in run] for run in done], axis=0)
        progress(f"{piece.key}: validation log-likelihood {np.mean(best):.4f} at every fold's best step size")

    results = run_pieces([piece for own in pieces.values() for piece in own], journal, number_of_jobs(jobs), say)
    for (name, method), own in pieces.items():
        settings = [setting for piece in own for setting in piece.settings]
        validation = [run for piece in own for run in results[piece.key]]
        try:
            winners.setdefault(name, {})[method] = _as_json(choose(settings, validation))
        except ValueError as error:
            raise ValueError(f"{name}/{method}: {error} Give smaller step sizes to `STEP_SIZES`.") from error
    write_json(directory / "settings.json", {"winners": winners})


def choose(settings: Sequence[Setting], validation: Sequence[Sequence[float | None]]) -> Setting:
    """For every fold the values of the setting with its highest validation log-likelihood.

    Args:
        settings: those that ran.
        validation: (settings, folds); None where a run had no finite one.
    """
    values = np.array([[-np.inf if value is None else value for value in run] for run in validation], float)
    hopeless = np.flatnonzero(np.all(np.isinf(values), axis=0))
    if len(hopeless):
        raise ValueError(f"no setting ended with a finite log-likelihood on fold {hopeless[0]}.")
    best = list(enumerate(np.argmax(values, axis=0)))
    sizes = [settings[which].step_size[fold] for fold, which in best]
    dampings = [own[fold] for fold, which in best if (own := settings[which].damping) is not None]
    return Setting(sizes, dampings or None)


@dataclass(frozen=True)
class _Piece(AbstractPiece):
    """One dataset and method: runs with a setting for every fold, one for the table and several for a search."""

    name: str
    method: Method
    task: Task
    settings: Sequence[Setting]
    epochs: int

    @property
    def key(self) -> str:
        folds = len(self.task.folds)
        return f"{self.name}/{self.method}" + ("" if folds == FOLDS else f"/{folds} folds")

    @property
    def made_from(self) -> dict[str, Any]:
        return {
            "settings": [_as_json(setting) for setting in self.settings],
            "epochs": self.epochs,
            **self.task.protocol(),
        }

    def run(self) -> Any:
        """The checks, and the test scores of both readouts where early stopping stopped them."""
        checks, measured = run_folds(self.method, self.settings, self.task, self.epochs)
        done: dict[str, Any] = {"checks": checks, "validation": rounded(stopped(self.method, measured).validation)}
        for readout in READOUTS:
            kept = stopped(self.method, measured, readout)
            scores = {metric: rounded(values[0]) for metric, values in kept.test._asdict().items()}
            done[readout] = {"check": kept.check[0].tolist(), **scores}
        return done


class _Search(_Piece):
    """The same for a search, which has no business with test scores."""

    @property
    def key(self) -> str:
        damping = self.settings[0].damping
        return super().key + ("" if damping is None else f"/damping {damping[0]:g}")

    def run(self) -> Any:
        """The validation log-likelihoods, (settings, folds)."""
        _, measured = run_folds(self.method, self.settings, self.task, self.epochs)
        return rounded(stopped(self.method, measured).validation)


def _tasks(
    names: Sequence[str], data: Path | None, vectors: Sequence[Path] | None, folds: int
) -> tuple[dict[str, Task], dict[str, list[int]]]:
    """The tasks, and how many of each one's words every table of vectors has."""
    check_names("--datasets", names, TEXTS)
    where = data_directory(data)
    paths = [where / "vectors" / f"{table}.npz" for table in TABLES] if vectors is None else list(vectors)
    tasks, found = {}, {}
    for name in names:
        sentences = load_sentences(name, where)
        own, found[name] = word_vectors(sentences.words, paths)
        tasks[name] = prepare(sentences, own, range(folds))
    return tasks, found


def _quick_task(folds: int) -> tuple[dict[str, Task], dict[str, list[int]]]:
    sentences, own = generated()
    return {QUICK: prepare(sentences, own, range(folds))}, {QUICK: [len(own)]}


def _vector_names(vectors: Sequence[Path] | None, quick: bool) -> list[str]:
    """Which tables the word vectors are from."""
    return [QUICK] if quick else list(TABLES) if vectors is None else [path.name for path in vectors]


def _digits(task: Task) -> str:
    """The fold of every sentence, a digit each."""
    return "".join(map(str, task.fold_of))


def _check_folds(folds: int) -> None:
    if isinstance(folds, bool) or not isinstance(folds, int) or not 1 <= folds <= FOLDS:
        raise ValueError(f"`--folds` must be a whole number from 1 to {FOLDS}, got {folds!r}.")


def _methods(names: Sequence[str]) -> list[Method]:
    check_names("--methods", names, METHODS)
    return [method for method in METHODS if method in names]


def _as_json(setting: Setting) -> dict[str, list[float]]:
    return {name: list(values) for name, values in asdict(setting).items() if values is not None}


def _quick_setting(method: str, folds: int) -> Setting:
    return Setting([_QUICK_STEP] * folds, [_QUICK_DAMPING] * folds if method in PRECONDITIONED else None)


def _setting(chosen: Mapping[str, Any], name: str, method: str, folds: int) -> Setting:
    if method not in chosen.get(name, {}):
        raise ValueError(f"`--settings` holds none for {method} on {name}. Run `--tune` for them.")
    return Setting(**{key: values[:folds] for key, values in _as_json(chosen[name][method]).items()})


def _from_json(values: Any, method: str) -> Setting:
    if not isinstance(values, dict) or not {"step_size"} <= set(values) <= {"step_size", "damping"}:
        raise ValueError(f"{method} must have step_size, and damping where it has a metric, got {values}")
    return checked(Setting(**values), method)


def _read_settings(path: Path | None) -> dict[str, dict[str, Setting]]:
    """By dataset and method; those that come with the package where no file is given."""

    def check(winners: Mapping[str, Any]) -> dict[str, dict[str, Setting]]:
        return {
            name: {method: _from_json(values, method) for method, values in methods.items()}
            for name, methods in winners.items()
        }

    return read_winners(path, "sentence_settings.json", check)
