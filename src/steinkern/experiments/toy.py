"""`steinkern reproduce toy`: the study from settings to a page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from ..core.files import environment, prepare_directory, read_json, write_text
from ..core.types import check_count
from .journal import Journal
from .results import check_names, write_json, write_results
from .toy_figures import write_figures
from .toy_page import write_page
from .toy_results import rows_of, run_target, table, verdicts
from .toy_study import (
    METHODS,
    NUM_DRAWS,
    NUM_PARTICLES,
    TUNING_SEEDS,
    Setting,
    checked,
    recorded_settings,
    settings_content,
    tune,
)
from .toy_study import search as search_grid
from .toy_targets import TARGETS

_QUICK_SEEDS = 4
_QUICK_STEPS = 100


class Report(NamedTuple):
    """What the command prints when it is done."""

    table: str
    verdicts: list[str]


def number_of_runs(names: Sequence[str]) -> int:
    """How often `reproduce` reports progress."""
    return len(names) * len(METHODS)


def reproduce(
    names: Sequence[str],
    num_seeds: int,
    directory: Path,
    *,
    quick: bool = False,
    settings: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Run the study and write results.json, table.md, the figures and index.html into `directory`.

    Methods that are finished on a target are kept in rows.json there, and not run again.

    Args:
        names: the targets.
        num_seeds: seeds 0, 1, …; at most four in quick mode.
        directory: made where it does not exist.
        quick: a hundred iterations alone, a few seeds.
        settings: a file from `search`; the recorded settings by default.
        progress: told what was finished.
    """
    check_count("--seeds", num_seeds)
    chosen = _settings_for(names, settings)
    prepare_directory(directory)
    seeds = range(min(num_seeds, _QUICK_SEEDS) if quick else num_seeds)
    last = _QUICK_STEPS if quick else None
    journal = Journal(directory / "rows.json")
    runs = [run_target(name, chosen[name], seeds, last, progress, journal) for name in names]
    record = {
        "particles": NUM_PARTICLES,
        "exact_draws": NUM_DRAWS,
        "seeds": list(seeds),
        "tuning_seeds": list(TUNING_SEEDS),
        "quick": quick,
        "winners": {name: {method: asdict(chosen[name][method]) for method in METHODS} for name in names},
        "grids": {name: {method: search_grid(method, TARGETS[name])._asdict() for method in METHODS} for name in names},
        "environment": environment(),
    }
    report = Report(table(runs), [line for run in runs for line in verdicts(run)])
    write_results(directory / "results.json", "toy", record, [row for run in runs for row in rows_of(run)])
    write_text(directory / "table.md", _page_of_text(report))
    figures = write_figures(runs, directory)
    write_page(directory / "index.html", runs, chosen, figures, record)
    return report


def search(names: Sequence[str], directory: Path, progress: Callable[[str], None] = print) -> None:
    """Search all methods' settings on the targets, into search.json (resumed where it exists) and settings.json."""
    check_names("--targets", names, tuple(TARGETS))
    prepare_directory(directory)
    winners = {name: tune(name, directory / "search.json", progress) for name in names}
    write_json(directory / "settings.json", settings_content(winners))


def _settings_for(names: Sequence[str], path: Path | None) -> Mapping[str, Mapping[str, Setting]]:
    """The settings of every target; a released code's variant runs with those of the paper's target."""
    check_names("--targets", names, tuple(TARGETS))
    known: Mapping[str, Mapping[str, Setting]] = recorded_settings() if path is None else _read_settings(path)
    chosen: dict[str, Mapping[str, Setting]] = {}
    for name in names:
        origin = name if name in known else name.removesuffix("_released")
        if origin not in known:
            raise ValueError(f"`--settings` {path} holds no settings for {name}, only for {', '.join(known)}.")
        chosen[name] = known[origin]
    return chosen


def _read_settings(path: Path) -> dict[str, dict[str, Setting]]:
    try:
        content: dict[str, Any] = read_json(path)
        return {
            name: {method: checked(Setting(**methods[method])) for method in METHODS}
            for name, methods in content["winners"].items()
        }
    except OSError as error:
        raise OSError(f"`--settings` {path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"`--settings` {path} is not a settings.json from --tune: {error!r}.") from error


def _page_of_text(report: Report) -> str:
    caption = (
        f"Natural log of the biased squared MMD of {NUM_PARTICLES} particles to {NUM_DRAWS} exact draws "
        "(smaller is better); mean ± standard error over seeds.\n\n"
    )
    return caption + report.table + "\n\n" + "\n".join(f"- {line}" for line in report.verdicts) + "\n"
