"""The driver: a fifth study from data to results, choices, and work that runs side by side."""

import json
from typing import Annotated

import numpy as np
import pytest

from studies import __main__ as command
from studies import driver
from studies.driver import choose, run_jobs
from studies.study import Cell, Study
from studies.tables import Metric, read_results


class Locations(Study):
    """Which estimate of a location is nearer to it: a dozen lines that make a study."""

    name, methods, metrics = "locations", ("mean", "median"), {"error": Metric("Mean squared error", 1, 2)}

    def tasks(self, quick=False, *, draws: Annotated[int, "How many draws."] = 25):
        generator = np.random.default_rng(0)
        return {"normal": generator.normal(size=(40, draws)), "cauchy": generator.standard_cauchy((40, draws))}

    def protocol(self, task):
        return {"draws": task.shape[1]}

    def run(self, method, setting, task):
        return {"error": (getattr(np, method)(task, axis=1) ** 2).tolist()}


FIFTH = Locations()


def test_a_fifth_study_goes_through_the_driver(tmp_path, monkeypatch):
    outcome = driver.reproduce(FIFTH, tmp_path)
    table = outcome.tables()["error"]
    lines = table.splitlines()
    assert lines[0] == "| Mean squared error | normal | cauchy |"
    assert lines[2].startswith("| mean | **0.0")
    assert lines[3].count("**") == 2  # the median is best where the tails are heavy
    experiment, settings, rows = read_results(tmp_path / "results.json")
    assert experiment == "locations"
    assert {(row.case, row.method, row.metric, row.trials) for row in rows} == {
        (case, method, "error", 40) for case in ("normal", "cauchy") for method in ("mean", "median")
    }
    assert {"winners", "quick", "environment"} <= set(settings)
    assert table in (tmp_path / "table.md").read_text()
    other = driver.reproduce(FIFTH, tmp_path / "other", draws=5)
    assert other.rows() != outcome.rows()  # another task is another run
    monkeypatch.setattr(Locations, "run", lambda *arguments: pytest.fail("a finished run ran again"))
    assert driver.reproduce(FIFTH, tmp_path).rows() == outcome.rows()
    with pytest.raises(pytest.fail.Exception):
        driver.reproduce(FIFTH, tmp_path, draws=5)


def test_a_fifth_study_is_a_command_with_its_options(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "STUDIES", (FIFTH,))
    command.main(["locations", "--draws", "5", "--methods", "median", "--out", str(tmp_path)])
    assert "Mean squared error" in capsys.readouterr().out
    assert [row.method for row in read_results(tmp_path / "results.json")[2]] == ["median"] * 2
    with pytest.raises(SystemExit):
        command.main(["locations", "--help"])
    assert "--tune" not in capsys.readouterr().out  # it has nothing to search


def cells(*sizes: object) -> list[Cell]:
    return [Cell(f"cell {size}", [{"step_size": size}], {}) for size in sizes]


def test_the_best_finite_setting_is_chosen():
    values = [None, float("nan"), float("inf"), -1.0, -3.0, -1.0]
    assert choose("sgld on boston", cells(*range(6)), values) == {"step_size": 3}
    with pytest.raises(ValueError, match="no setting of sgld on boston ended with a finite score"):
        choose("sgld on boston", cells(1, 2), [None, float("nan")])


def test_every_fold_gets_the_setting_of_its_own_best_validation():
    settings = [{"step_size": [size] * 3, "damping": [damping] * 3} for size, damping in [(1, 10), (2, 10), (1, 20)]]
    values = [[None, -1.0, -3.0], [-2.0, -2.0, -2.0], [-3.0, -3.0, -1.0]]
    chosen = choose("mixture on mr", [Cell("one", settings[:2], {}), Cell("two", settings[2:], {})], values)
    assert chosen == {"step_size": [2, 1, 1], "damping": [10, 10, 20]}
    with pytest.raises(ValueError, match="no setting of sgld on mr ended with a finite score"):
        choose("sgld on mr", cells([1, 1], [2, 2]), [[None, -1.0], [None, -2.0]])


def test_a_search_is_put_down_cell_by_cell(tmp_path, monkeypatch):
    ran: list[str] = []

    def evaluate(self, method, cell, task):
        ran.append(cell.key)
        if len(ran) == 2:
            raise KeyboardInterrupt
        return [-setting["step_size"] for setting in cell.settings]

    def own_cells(self, method, case, task):
        return [Cell(f"{method}/{size}", [{"step_size": size}, {"step_size": 2 * size}], {}) for size in (1, 3)]

    monkeypatch.setattr(Locations, "cells", own_cells)
    monkeypatch.setattr(Locations, "evaluate", evaluate)
    monkeypatch.setattr(Locations, "tuning_tasks", lambda self: {"cauchy": 1})
    with pytest.raises(KeyboardInterrupt):
        driver.search(FIFTH, tmp_path)
    driver.search(FIFTH, tmp_path, methods=("mean",))
    assert ran == ["mean/1", "mean/3", "mean/3"]
    assert json.loads((tmp_path / "settings.json").read_text()) == {"winners": {"cauchy": {"mean": {"step_size": 1}}}}


@pytest.mark.parametrize("jobs", [1, 2])
def test_where_one_piece_of_work_fails_its_error_is_raised_after_those_under_way(jobs):
    ended: list[str] = []

    def fail():
        raise ValueError("no luck")

    with pytest.raises(ValueError, match="no luck"):
        run_jobs({"good": lambda: ended.append("good"), "bad": fail}, jobs)
    assert ended == ["good"]
    assert run_jobs({"b": lambda: 2, "a": lambda: 1}, jobs) == {"b": 2, "a": 1}
