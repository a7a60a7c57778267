"""The UCI study: its scores against SciPy, its splits, its search, and whole runs on miniature data."""

import json
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.special
import scipy.stats
from typer.testing import CliRunner

from steinkern import cli
from steinkern.experiments import uci, uci_study
from steinkern.experiments.data.datasets import Regression, path_of, standard_splits, year_split
from steinkern.experiments.data.sources import write_arrays
from steinkern.experiments.paper import TABLE_1, best_printed
from steinkern.experiments.uci_study import METHODS, Cell, Search, Setting, held_out, prepare, run_trials, scales_of
from steinkern.experiments.uci_table import Finished, table, verdicts

RESULTS = Path(__file__).parents[2] / "results" / "uci"


def miniature(name: str = "boston", rows: int = 30, splits: int = 2) -> Regression:
    generator = np.random.default_rng(3)
    features = generator.normal(50.0, 7.0, (rows, 3)) * np.array([1.0, 100.0, 0.0])  # the last one is constant
    targets = 20.0 + 0.3 * features[:, 0] + generator.normal(0, 0.5, rows)
    return Regression(name, features, targets, *standard_splits(rows, splits))


def directory_with(path: Path, *names: str) -> Path:
    for name in names:
        data = miniature(name)
        arrays = {
            "data": np.concatenate([data.features, data.targets[:, None]], axis=1),
            "index_features": np.arange(3),
            "index_target": np.array(3),
        }
        if name != "year":
            arrays |= {"train_idx": data.train_rows.astype(np.uint16), "test_idx": data.test_rows.astype(np.uint16)}
        write_arrays(path_of(name, path), arrays)
    return path


def settings_file(path: Path, *names: str, step_size: float = 0.01) -> Path:
    own = {method: {"step_size": step_size, "epochs": 2, "damping": 0.1, "noise_rate": 1.0} for method in METHODS}
    path.write_text(json.dumps({"winners": dict.fromkeys(names, own)}))
    return path


def test_scores_are_those_of_a_mixture_of_normals_in_the_target_s_own_units(key):
    mean_key, noise_key, y_key = jr.split(key, 3)
    means, y = jr.normal(mean_key, (4, 6)), jr.normal(y_key, (6,))
    log_variances = jnp.broadcast_to(jr.normal(noise_key, (4, 1)), (4, 6))
    unit = 3.5
    scores = uci_study.predictive_scores(means, log_variances, y, jnp.asarray(unit))
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
    units = [np.asarray(scales_of(task).target_spread)[0] * task.unit for task in (one, other)]
    np.testing.assert_allclose(units[0], data.targets[data.train_rows[0]].std(), rtol=1e-5)  # float32
    np.testing.assert_allclose(units[1], units[0], rtol=1e-4)  # float32, beside outliers a thousand times as large


def test_a_constant_column_does_no_harm():
    task = prepare(miniature())
    assert np.all(np.isfinite(task.features))
    assert np.all(np.asarray(scales_of(task).spread) > 0)


def test_settings_are_chosen_on_training_rows_that_are_held_out():
    task = prepare(miniature())
    search = held_out(task)
    for split in range(2):
        train, tested = set(search.train_rows[split]), set(search.test_rows[split])
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
    setting, hidden = Setting(0.01, 3, None), (4,)
    task = prepare(miniature())
    checkpoints, both = run_trials("ensemble", setting, task, 2, hidden)
    _, first = run_trials("ensemble", setting, task._replace(
        train_rows=task.train_rows[:1], test_rows=task.test_rows[:1]), 2, hidden)  # fmt: skip
    assert checkpoints == [2, 3]
    np.testing.assert_allclose(first.rmse[0], both.rmse[0], rtol=1e-5)  # float32, summed in another order
    assert both.rmse.shape == (2, 2)


@pytest.mark.thorough
@pytest.mark.parametrize(("method", "size"), [("sgld", 0.1), ("vanilla", 0.03), ("mixture", 0.03)])
def test_networks_learn_a_line(method, size):
    # A straight line in one feature: the spread of the targets is the error of knowing nothing.
    data = miniature(rows=60)
    _, scores = run_trials(method, Setting(size, 60, 0.1), prepare(data), 1, (8,))
    assert np.all(scores.rmse < 0.75 * np.std(data.targets))


@pytest.mark.thorough
def test_particles_of_a_matrix_variant_do_not_share_their_noise(monkeypatch):
    def kept(means, log_variances, y, unit):
        return uci_study.Scores(jnp.std(log_variances[:, 0]), jnp.mean(log_variances))

    monkeypatch.setattr(uci_study, "predictive_scores", kept)
    _, scores = run_trials("average", Setting(0.03, 20, 0.1), prepare(miniature()), 1, (4,))
    assert scores.rmse.min() > 1e-3


@pytest.mark.thorough
def test_search_gives_each_setting_the_score_of_its_own_run():
    task = prepare(miniature())
    cell = Cell(2, ((0.001, 0.1, 0.1), (0.03, 0.1, 5.0)))
    search = Search("vanilla", task, (4,))
    found = search.evaluate(cell)
    alone = [search.evaluate(Cell(2, (numbers,)))[0] for numbers in cell.numbers]
    np.testing.assert_allclose(found, alone, rtol=1e-4)  # float32, batched otherwise
    assert found[0] != found[1]


def test_the_best_finite_setting_is_chosen():
    values = {cell.epochs: [-3.0] * len(cell.numbers) for cell in uci_study.cells("sgld", "boston")}
    values[100][:4] = [None, float("nan"), float("inf"), -1.0]
    assert uci_study.choose(values, "sgld", "boston") == uci_study.cells("sgld", "boston")[0].settings()[3]
    with pytest.raises(ValueError, match="no setting of sgld on boston"):
        uci_study.choose({epochs: [None] * len(own) for epochs, own in values.items()}, "sgld", "boston")


def test_the_grid_is_the_same_for_all_methods():
    for name in uci_study.EPOCHS:
        grids = {m: {(s.step_size, s.epochs, s.noise_rate) for c in uci_study.cells(m, name) for s in c.settings()}
                 for m in METHODS}  # fmt: skip
        assert len(set(map(frozenset, grids.values()))) == 1


def finished(rmse: float, log_likelihood: float) -> Finished:
    spread = np.array([[-0.1], [0.1]])
    return Finished([7], rmse + spread, log_likelihood + spread)


def test_table_prints_the_paper_beside_ours_and_the_best_in_bold():
    rows = {("boston", "mixture"): finished(2.0, -2.5), ("boston", "sgld"): finished(3.0, -2.4)}
    lines = table(rows, ("boston", "year"), ("sgld", "mixture"), "rmse").splitlines()
    assert lines[2] == "| boston | 3.000 ± 0.100 | **2.000 ± 0.100** (2.717) |"
    assert lines[3] == "| year | not run: data absent | not run: data absent |"
    assert "**-2.400 ± 0.100**" in table(rows, ("boston",), ("sgld", "mixture"), "log_likelihood")


def test_methods_that_are_level_as_printed_are_all_bold():
    rows = {("boston", "mixture"): finished(2.0001, -2.5), ("boston", "sgld"): finished(2.0, -2.4)}
    (line,) = table(rows, ("boston",), ("sgld", "mixture"), "rmse").splitlines()[2:]
    assert line == "| boston | **2.000 ± 0.100** | **2.000 ± 0.100** (2.717) |"


def test_verdicts_say_where_a_row_falls_short():
    rows = {("boston", "mixture"): finished(2.75, -9.0), ("boston", "sgld"): finished(2.0, -2.4)}
    text = "\n".join(verdicts(rows))
    assert "Test RMSE, mixture beside the paper's best of the row: at or better on none; within one" in text
    assert "within one standard error on 1 (boston)" in text
    assert "within one standard error on none; worse on 1 (boston)" in text
    assert "not so on 1 (boston)" in text


def test_the_paper_s_best_of_a_row():
    assert best_printed("rmse", "boston") == 2.699
    assert best_printed("log_likelihood", "boston") == -2.669
    assert best_printed("rmse", "yacht") is None


@pytest.mark.thorough
def test_run_writes_rows_goes_on_where_it_stopped_and_names_absent_data(tmp_path, monkeypatch):
    data = directory_with(tmp_path / "data", "boston")
    settings = settings_file(tmp_path / "settings.json", "boston", "year")
    out = tmp_path / "out"

    def run(methods=("vanilla", "mixture"), settings=settings):
        return uci.reproduce(
            ("boston", "year"),
            out,
            data=data,
            methods=methods,
            hidden_layers=1,
            settings=settings,
            progress=seen.append,
        )

    seen: list[str] = []
    report = run()
    content = json.loads((out / "results.json").read_text())
    assert {(row["case"], row["method"], row["metric"]) for row in content["rows"]} == {
        ("boston", method, metric) for method in ("vanilla", "mixture") for metric in TABLE_1
    }
    assert content["rows"][0]["paper"] == 2.785
    assert content["settings"]["not_run"] == {"year": "data absent"}
    assert "not run: data absent" in (out / "table.md").read_text()
    assert len(seen) == 2

    monkeypatch.setattr(uci, "run_trials", lambda *arguments: pytest.fail("a finished row ran again"))
    assert run().tables == report.tables
    monkeypatch.undo()
    ran: list[str] = []
    monkeypatch.setattr(
        uci, "run_trials", lambda method, *rest: ran.append(method) or uci_study.run_trials(method, *rest)
    )
    run(settings=settings_file(tmp_path / "other.json", "boston", "year", step_size=0.02), methods=("vanilla",))
    assert ran == ["vanilla"]  # other settings, another row


@pytest.mark.thorough
def test_year_in_its_own_layout_runs(tmp_path):
    data = directory_with(tmp_path / "data", "year")
    settings = settings_file(tmp_path / "settings.json", "protein")
    report = uci.reproduce(
        ("year",), tmp_path / "out", data=data, methods=("ensemble",), hidden_layers=1, settings=settings,
        figures=False, progress=lambda text: None,
    )  # fmt: skip
    assert "| year |" in report.tables["rmse"]
    assert json.loads((tmp_path / "out" / "results.json").read_text())["rows"][0]["trials"] == 5


@pytest.mark.thorough
def test_search_is_resumed_and_writes_settings(tmp_path, monkeypatch):
    monkeypatch.setitem(uci_study.EPOCHS, "boston", (1, 2))
    monkeypatch.setattr(uci_study, "STEP_SIZES", (0.01,))
    data = directory_with(tmp_path / "data", "boston")
    lines: list[str] = []
    uci.search(("boston",), tmp_path, data=data, methods=("ensemble",), progress=lines.append)
    chosen = json.loads((tmp_path / "settings.json").read_text())["winners"]["boston"]["ensemble"]
    assert chosen["step_size"] == 0.01
    assert len(lines) == 2
    monkeypatch.setattr(Search, "evaluate", lambda *arguments: pytest.fail("a finished cell ran again"))
    uci.search(("boston",), tmp_path, data=data, methods=("ensemble",), progress=lines.append)


@pytest.mark.thorough
def test_rows_that_run_at_the_same_time_are_the_same_rows(tmp_path):
    data = directory_with(tmp_path / "data", "boston")
    settings = settings_file(tmp_path / "settings.json", "boston")

    def run(jobs):
        return uci.reproduce(
            ("boston",), tmp_path / str(jobs), data=data, methods=("sgld", "ensemble"), hidden_layers=1,
            settings=settings, jobs=jobs, progress=lambda text: None,
        )  # fmt: skip

    assert run(2) == run(1)


def test_a_metric_needs_a_damping(tmp_path):
    own = {"mixture": {"step_size": 0.1, "epochs": 1}}
    (tmp_path / "settings.json").write_text(json.dumps({"winners": {"boston": own}}))
    data = directory_with(tmp_path / "data", "boston")
    with pytest.raises(ValueError, match="must give a damping for mixture"):
        uci.reproduce(
            ("boston",), tmp_path / "out", data=data, methods=("mixture",), settings=tmp_path / "settings.json"
        )


def test_a_search_in_pieces_keeps_what_it_has_chosen(tmp_path, monkeypatch):
    monkeypatch.setattr(Search, "evaluate", lambda self, cell: [-1.0] * len(cell.numbers))
    data = directory_with(tmp_path / "data", "boston", "concrete")
    for name, method in (("boston", "sgld"), ("concrete", "sgld"), ("boston", "ensemble")):
        uci.search((name,), tmp_path, data=data, methods=(method,), progress=lambda text: None)
    chosen = json.loads((tmp_path / "settings.json").read_text())["winners"]
    assert {name: set(methods) for name, methods in chosen.items()} == {
        "boston": {"sgld", "ensemble"}, "concrete": {"sgld"}
    }  # fmt: skip


def test_another_table_is_another_row_and_scores_that_are_not_finite_are_kept_as_such(tmp_path, monkeypatch):
    values = iter([1.0, float("nan")])

    def instead(method, setting, task, points, hidden):
        return [1], uci_study.Scores(np.full((2, 1), value := next(values)), np.full((2, 1), value))

    monkeypatch.setattr(uci, "run_trials", instead)
    settings = settings_file(tmp_path / "settings.json", "boston")
    for factor in (1, 2):
        data = directory_with(tmp_path / "data", "boston")
        arrays = dict(np.load(path_of("boston", data)))
        write_arrays(path_of("boston", data), arrays | {"data": factor * arrays["data"]})
        uci.reproduce(
            ("boston",), tmp_path, data=data, methods=("sgld",), settings=settings, progress=lambda text: None
        )
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [row["mean"] for row in rows] == [None, None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--datasets", "year", "--data", "nowhere"], "steinkern data fetch year"),
        (["--quick", "--tune"], "exclude each other"),
        (["--jobs", "0"], "`--jobs` must be a whole number"),
        (["--datasets", "bosten"], "`--datasets` must be among boston"),
        (["--datasets", ","], "`--datasets` must name at least one"),
        (["--datasets", "boston,boston"], "each once"),
        (["--methods", "svn"], "`--methods` must be among"),
        (["--datasets", "boston", "--data", "nowhere"], "steinkern data fetch boston"),
        (["--settings", "nowhere.json"], "`--settings` nowhere.json cannot be read"),
        (["--datasets", "bosten", "--tune"], "`--datasets` must be among boston"),
    ],
)
def test_bad_input_is_one_line_and_a_non_zero_exit(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["steinkern", "reproduce", "uci", *options])
    with pytest.raises(SystemExit) as error:
        cli.main()
    assert error.value.code == 2
    printed = capsys.readouterr().err.strip()
    assert message in printed
    assert len(printed.splitlines()) == 1


@pytest.mark.parametrize("text", ["{", "[]", '{"winners": {"boston": {"mixture": {"step": 1}}}}'])
def test_a_settings_file_that_is_none_is_refused(text, tmp_path):
    (tmp_path / "settings.json").write_text(text)
    with pytest.raises(ValueError, match=r"is not a settings\.json from --tune"):
        uci.reproduce(("boston",), tmp_path / "out", settings=tmp_path / "settings.json")


def test_corrupt_data_are_named(tmp_path):
    path = path_of("boston", tmp_path)
    path.parent.mkdir()
    path.write_bytes(b"no archive")
    with pytest.raises(ValueError, match="boston"):
        uci.reproduce(("boston",), tmp_path / "out", data=tmp_path)


@pytest.mark.thorough
def test_quick_mode_needs_no_download(tmp_path):
    result = CliRunner().invoke(
        cli.app, ["reproduce", "uci", "--quick", "--methods", "average,ensemble", "--out", str(tmp_path)]
    )
    assert result.exit_code == 0, result.output
    assert "diabetes" in result.output
    for name in ("results.json", "table.md", "diabetes.png", "rows.json"):
        assert (tmp_path / name).stat().st_size > 300, name


def test_recorded_settings_are_the_winners_of_the_recorded_search_and_of_the_recorded_results():
    recorded = json.loads((Path(uci.__file__).parent / "uci_settings.json").read_text())["winners"]
    search = json.loads((RESULTS / "search.json").read_text())
    reported = json.loads((RESULTS / "results.json").read_text())["settings"]["winners"]
    assert set(recorded) == set(uci.PAPER) - {"year"}
    for name, methods in recorded.items():
        for method in METHODS:
            cells = uci_study.cells(method, name)
            values = {cell.epochs: search[f"{name}/{method}/{cell.epochs}"]["result"] for cell in cells}
            assert methods[method] == uci_study.content(uci_study.choose(values, method, name))
            assert methods[method] == reported[name][method]


def test_runners_import_where_nothing_can_be_installed():
    blocked = ("typer", "rich", "matplotlib", "sklearn", "pooch", "openpyxl")
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked}))\n"
    code += "import steinkern.experiments.uci, steinkern.experiments.covtype, steinkern.experiments.sentences"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
