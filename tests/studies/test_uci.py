"""The UCI study: its scores against SciPy, its splits, its search, and whole runs on miniature data."""

import json
from dataclasses import replace

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.special
import scipy.stats

from studies import driver
from studies.data.datasets import Regression, standard_splits, year_split
from studies.study import Outcome
from studies.uci import runs
from studies.uci import study as uci
from studies.uci.runs import Scores, prepare, run_trials, scales_of
from tests.studies.outcomes import outcome

STUDY = uci.UCI()
DAMPED = ("average", "mixture")


def setting(step_size: float = 0.01, epochs: int = 2, damping: float | None = None, noise_rate: float = 1.0):
    return {"step_size": step_size, "epochs": epochs, "damping": damping, "noise_rate": noise_rate}


def miniature(name: str = "boston", rows: int = 30, splits: int = 2) -> Regression:
    generator = np.random.default_rng(3)
    features = generator.normal(50.0, 7.0, (rows, 3)) * np.array([1.0, 100.0, 0.0])  # the last one is constant
    targets = 20.0 + 0.3 * features[:, 0] + generator.normal(0, 0.5, rows)
    return Regression(name, features, targets, *standard_splits(rows, splits))


def test_scores_are_those_of_a_mixture_of_normals_in_the_target_s_own_units(key):
    mean_key, noise_key, y_key = jr.split(key, 3)
    means, y = jr.normal(mean_key, (4, 6)), jr.normal(y_key, (6,))
    log_variances = jnp.broadcast_to(jr.normal(noise_key, (4, 1)), (4, 6))
    unit = 3.5
    scores = runs.predictive_scores(means, log_variances, y, jnp.asarray(unit))
    spread = unit * np.exp(0.5 * np.asarray(log_variances))
    densities = scipy.stats.norm.logpdf(unit * np.asarray(y), unit * np.asarray(means), spread)
    expected = scipy.special.logsumexp(densities, axis=0, b=1 / 4).mean()
    np.testing.assert_allclose(scores.log_likelihood, expected, rtol=1e-12)
    errors = unit * (np.asarray(means).mean(0) - np.asarray(y))
    np.testing.assert_allclose(scores.rmse, np.sqrt(np.mean(errors**2)), rtol=1e-12)


def test_standardisation_sees_the_training_rows_alone():
    data = miniature()
    changed = data.targets.copy()
    changed[data.test_rows[0]] += 1e3
    one, other = prepare(data), prepare(Regression("boston", data.features, changed, data.train_rows, data.test_rows))
    units = [np.asarray(scales_of(task)[3])[0] * task.unit for task in (one, other)]
    np.testing.assert_allclose(units[0], data.targets[data.train_rows[0]].std(), rtol=1e-5)  # float32
    np.testing.assert_allclose(units[1], units[0], rtol=1e-4)  # float32, beside outliers a thousand times as large
    assert np.all(np.isfinite(one.features))  # a constant column does no harm
    assert np.all(np.asarray(scales_of(one)[1]) > 0)


def test_settings_are_chosen_on_training_rows_that_are_held_out():
    task = prepare(miniature())
    for split in range(2):
        train, tested = set(task.held_out.train_rows[split]), set(task.held_out.test_rows[split])
        assert not train & tested
        assert train | tested == set(task.train_rows[split])
        assert not (train | tested) & set(task.test_rows[split])


def test_year_runs_five_trials_of_its_one_split():
    data = miniature("year", rows=40)
    task = prepare(Regression("year", data.features, data.targets, *year_split(40)))
    assert task.train_rows.shape[0] == 5
    assert np.all(task.test_rows == task.test_rows[:1])
    assert task.batch_size == task.num_train  # a thousand where there are so many


@pytest.mark.thorough
def test_trials_under_one_vmap_are_the_trials_alone():
    task = prepare(miniature(), hidden=(4,))
    checkpoints = task.checkpoints(epochs=3, number=2)
    assert checkpoints == [2, 3]
    both = run_trials("ensemble", [setting()], task, checkpoints, 0)
    one = replace(task, train_rows=task.train_rows[:1], test_rows=task.test_rows[:1])
    first = run_trials("ensemble", [setting()], one, checkpoints, 0)
    np.testing.assert_allclose(first.rmse[0, 0], both.rmse[0, 0], rtol=1e-5)  # float32, summed in another order
    assert both.rmse.shape == (1, 2, 2)


@pytest.mark.thorough
@pytest.mark.parametrize(("method", "size"), [("sgld", 0.1), ("vanilla", 0.03), ("mixture", 0.03)])
def test_networks_learn_a_line(method, size):
    # A straight line in one feature: the spread of the targets is the error of knowing nothing.
    data = miniature(rows=60)
    task = prepare(data, hidden=(8,))
    chosen = setting(size, damping=0.1 if method in DAMPED else None, noise_rate=0.1)
    scores = run_trials(method, [chosen], task, task.checkpoints(60), 0)
    assert np.all(scores.rmse < 0.75 * np.std(data.targets))


@pytest.mark.thorough
def test_search_gives_each_setting_the_score_of_its_own_run():
    task = prepare(miniature(), hidden=(4,))
    settings = [setting(0.001, noise_rate=0.1), setting(0.03, noise_rate=5.0)]

    def evaluate(*chosen):
        return STUDY.evaluate("vanilla", uci.Cell("", list(chosen), {}), task)

    result = evaluate(*settings)
    np.testing.assert_allclose(
        result, [evaluate(each)[0] for each in settings], rtol=1e-3
    )  # float32, batched otherwise
    assert result[0] != result[1]


def test_the_grid_is_the_same_for_all_methods():
    task = prepare(miniature())
    for name in uci.EPOCHS:
        grids = {
            method: {
                (each["step_size"], each["epochs"], each["noise_rate"])
                for cell in STUDY.cells(method, name, task)
                for each in cell.settings
            }
            for method in STUDY.methods
        }
        assert len(set(map(frozenset, grids.values()))) == 1


def finished(rmse: float, log_likelihood: float) -> dict[str, np.ndarray]:
    spread = np.array([-0.1, 0.1])
    return {"rmse": rmse + spread, "log_likelihood": log_likelihood + spread}


def of(sgld: dict[str, np.ndarray], mixture: dict[str, np.ndarray]) -> Outcome:
    return outcome(STUDY, {"boston": {"sgld": sgld, "mixture": mixture}})


@pytest.mark.parametrize(
    ("rmse", "line"),
    [
        (3.0, "| boston | 3.000 ± 0.100 | **2.000 ± 0.100** (2.717) |"),
        (1.9999, "| boston | **2.000 ± 0.100** | **2.000 ± 0.100** (2.717) |"),  # level as printed
    ],
)
def test_table_prints_the_paper_beside_ours_and_the_best_in_bold(rmse, line):
    tables = of(finished(rmse, -2.4), finished(2.0, -2.5)).tables()
    assert tables["rmse"].splitlines()[2] == line
    assert "**-2.400 ± 0.100**" in tables["log_likelihood"]


def test_verdicts_say_where_a_row_falls_short():
    text = "\n".join(STUDY.verdicts(of(finished(2.0, -2.4), finished(2.75, -9.0))))
    assert "Test RMSE, mixture beside the paper's best of the row: at or better on none; within one" in text
    assert "within one standard error on 1 (boston)" in text
    assert "within one standard error on none; worse on 1 (boston)" in text
    assert "not so on 1 (boston)" in text


def test_a_search_in_pieces_keeps_what_it_has_chosen(tmp_path, monkeypatch):
    monkeypatch.setattr(uci.UCI, "evaluate", lambda self, method, cell, task: [-1.0] * len(cell.settings))
    monkeypatch.setattr(uci, "load_regression", lambda name, where: miniature(name))
    for name, method in (("boston", "sgld"), ("concrete", "sgld"), ("boston", "ensemble")):
        driver.search(STUDY, tmp_path, datasets=(name,), methods=(method,))
    chosen = json.loads((tmp_path / "settings.json").read_text())["winners"]
    assert {name: set(methods) for name, methods in chosen.items()} == {
        "boston": {"sgld", "ensemble"}, "concrete": {"sgld"}
    }  # fmt: skip


def test_other_inputs_are_another_row_and_scores_that_are_not_finite_are_kept_as_such(tmp_path, monkeypatch):
    values: list[float] = []

    def instead(method, settings, task, checkpoints, seed):
        values.append([1.0, 2.0, np.nan][len(values)])
        return Scores(*np.full((2, 1, 2, 1), values[-1]))

    monkeypatch.setattr(uci, "run_trials", instead)
    path = tmp_path / "settings.json"
    for factor, step_size in ((1, 0.01), (1, 0.02), (2, 0.02), (2, 0.02)):
        data = replace(miniature(), targets=factor * miniature().targets)
        monkeypatch.setattr(uci, "load_regression", lambda name, where, data=data: data)
        path.write_text(json.dumps({"winners": {"boston": {"sgld": setting(step_size)}}}))
        driver.reproduce(STUDY, tmp_path, datasets=("boston",), methods=("sgld",), settings=path)
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [row["mean"] for row in rows] == [None, None]
    assert len(values) == 3  # the last one was there


@pytest.mark.usefixtures("as_installed")
def test_a_dataset_without_a_search_runs_with_the_settings_of_another_and_its_own_epochs():
    chosen = {"protein": {"sgld": setting(epochs=50)}}
    assert STUDY.setting(chosen, "year", "sgld", None) == setting(epochs=max(uci.EPOCHS["year"]))
    with pytest.raises(ValueError, match="holds none for sgld on boston; it has protein"):
        STUDY.setting(chosen, "boston", "sgld", None)
