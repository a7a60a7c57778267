"""The logistic regression study: its scores, its partitions, its step rules, and whole runs on miniature data."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from typer.testing import CliRunner

import steinkern as sk
from steinkern import cli
from steinkern.experiments import covtype, covtype_study
from steinkern.experiments.covtype import Curves, verdicts
from steinkern.experiments.covtype_study import (
    METHODS,
    TUNING_PARTITIONS,
    Setting,
    build,
    checked,
    choose,
    content,
    evaluate,
    grid,
    prepare,
    run_trials,
)
from steinkern.experiments.data.datasets import Classification, path_of
from steinkern.experiments.data.sources import write_arrays
from steinkern.targets.models import logistic_posterior

RESULTS = Path(__file__).parents[2] / "results" / "covtype"


def miniature(rows: int = 200) -> Classification:
    generator = np.random.default_rng(5)
    features = generator.integers(-100, 3000, (rows, 54)).astype(np.int16)
    features[:, 7] = 3  # a constant column
    labels = np.where(features[:, 0] > 1400, 2, generator.integers(3, 8, rows)).astype(np.uint8)
    return Classification("covtype", features, labels)


def directory_with(path: Path) -> Path:
    data = miniature()
    write_arrays(path_of("covtype", path), {"X": data.features, "label": data.labels})
    return path


def test_scores_are_those_of_the_averaged_probability(key):
    logits = 3 * jr.normal(key, (50, 4))
    labels = (np.arange(50) % 2).astype(float)
    scores = covtype_study.predictive_scores(logits, jnp.asarray(labels))
    probability = (1 / (1 + np.exp(-np.asarray(logits)))).mean(axis=1)
    np.testing.assert_allclose(scores.accuracy, np.mean((probability > 0.5) == (labels > 0.5)))
    likelihood = np.log(np.where(labels > 0.5, probability, 1 - probability)).mean()
    np.testing.assert_allclose(scores.log_likelihood, likelihood, rtol=1e-10)


def test_scores_of_certain_particles_stay_finite():
    scores = covtype_study.predictive_scores(jnp.full((2, 3), 2000.0), jnp.array([1.0, 0.0]))
    np.testing.assert_allclose(scores.log_likelihood, -1000.0)


def test_features_lie_between_zero_and_one_with_a_column_of_ones():
    task = prepare(miniature(), 2, range(3))
    assert task.features.shape == (200, 55)
    assert task.features.min() == 0
    assert task.features.max() == 1
    np.testing.assert_array_equal(task.features[:, -1], 1)
    np.testing.assert_array_equal(task.labels, miniature().labels == 2)


def test_every_trial_partitions_the_rows_seventy_ten_twenty():
    task = prepare(miniature(), 2, range(3))
    for rows in zip(task.train_rows, task.validation_rows, task.test_rows, strict=True):
        assert [len(part) for part in rows] == [140, 20, 40]
        assert sorted(np.concatenate(rows)) == list(range(200))
    assert not np.array_equal(task.train_rows[0], task.train_rows[1])
    np.testing.assert_array_equal(prepare(miniature(), 2, range(1)).train_rows[0], task.train_rows[0])


@pytest.mark.parametrize(
    ("method", "setting", "factor"),
    [
        pytest.param("vanilla", Setting("plain", 0.5), lambda t: 0.5 / 100, marks=pytest.mark.thorough),
        ("vanilla", Setting("decay", 0.5, horizon=30.0), lambda t: 0.5 / 100 / (1 + t / 30)),
        pytest.param(
            "vanilla", Setting("decay", 0.5, horizon=1.0), lambda t: 0.5 / 100 / (1 + t), marks=pytest.mark.thorough
        ),
        ("average", Setting("plain", 0.5, damping=1e-3), lambda t: 0.5),
    ],
)
def test_plain_steps_multiply_the_velocity_as_stated(method, setting, factor, key):
    point_key, x_key, y_key = jr.split(key, 3)
    points = jr.normal(point_key, (5, 3))
    batch = jr.normal(x_key, (8, 3)), (jr.uniform(y_key, (8,)) < 0.5).astype(float)
    target = logistic_posterior(100).bind(points[0])
    sampler = build(method, setting, 100)
    state = sampler.init(target, points, batch)
    for t in range(3):
        before = state
        state, _ = sampler.step(key, before, target, batch)
        _, kernel = sampler.rule.update(before.rule, target, before.points, batch)
        velocity = kernel.velocity(before.points, sk.Scored.uniform(before.points, target.scores(before.points, batch)))
        np.testing.assert_allclose(state.points - before.points, factor(t) * velocity, rtol=1e-5, atol=1e-8)  # float32


@pytest.mark.parametrize("method", ["sgld", "psgld"])
def test_langevin_chains_have_no_adagrad(method):
    assert "adagrad" not in covtype_study.rules_of(method)
    with pytest.raises(ValueError, match="`rule` must be 'plain' or 'decay'"):
        build(method, Setting("adagrad", 0.1), 100)


@pytest.mark.parametrize("method", ["average", "mixture"])
def test_damping_reaches_the_metric(method):
    assert build(method, Setting("plain", 0.5, damping=0.01), 100).rule.settings.damping == 0.01


@pytest.mark.parametrize(
    ("method", "setting", "message"),
    [
        ("vanilla", Setting("plain", -0.5), "`step_size` must be positive"),
        ("vanilla", Setting("decay", 0.5), "`horizon` must be given for the rule 'decay', got none"),
        ("vanilla", Setting("decay", 0.5, horizon=0.0), "`horizon` must be positive"),
        ("vanilla", Setting("plain", 0.5, horizon=30.0), "`horizon` must not be given for the rule 'plain'"),
        ("vanilla", Setting("plain", 0.5, damping=0.1), "`damping` must not be given for vanilla"),
        ("mixture", Setting("plain", 0.5), "`damping` must be given for mixture, got none"),
        ("average", Setting("plain", 0.5, damping="much"), "`damping` must be a positive number"),
    ],
)
def test_settings_that_a_method_cannot_have_are_refused(method, setting, message):
    for use in (checked, lambda method, setting: build(method, setting, 100)):
        with pytest.raises(ValueError, match=message):
            use(method, setting)


def test_a_settings_file_without_a_damping_is_refused(tmp_path):
    (tmp_path / "old.json").write_text(json.dumps({"winners": {"mixture": {"rule": "plain", "step_size": 1.0}}}))
    with pytest.raises(ValueError, match=r"old.json is not a settings.json from --tune.*`damping` must be given"):
        covtype.reproduce(tmp_path / "out", methods=("mixture",), settings=tmp_path / "old.json")


@pytest.mark.parametrize(
    ("method", "rule", "number"),
    [("sgld", "plain", 8), ("vanilla", "decay", 8 * 3), ("average", "adagrad", 8 * 4), ("mixture", "decay", 8 * 3 * 4)],
)
def test_a_grid_holds_every_combination_that_a_method_can_have(method, rule, number):
    settings = grid(method, rule)
    assert len(set(settings)) == len(settings) == number
    assert all(checked(method, setting).rule == rule for setting in settings)
    assert [Setting(**content(setting)) for setting in settings] == settings


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("sgld", [Setting("plain", 0.1), Setting("plain", 1.0)]),
        (
            "average",
            [
                Setting("decay", 0.5, 1.0, 0.1),
                Setting("decay", 0.5, 30.0, 0.1),
                Setting("decay", 0.5, 1.0, 1e-4),
            ],
        ),
    ],
)
def test_search_scores_each_setting_by_its_own_run(method, settings, monkeypatch):
    monkeypatch.setattr(covtype_study, "REPORTED", (3, 5))
    monkeypatch.setattr(covtype_study, "_SETTINGS_AT_ONCE", 2)  # three settings are more than run at once
    task = prepare(miniature(), 2, range(2))
    together = evaluate(method, settings, task)
    alone = [evaluate(method, [setting], task)[0] for setting in settings]
    np.testing.assert_allclose(together, alone, rtol=1e-4)  # float32
    assert len({round(value, 3) for value in together}) == len(settings)


def test_settings_of_different_rules_do_not_run_together():
    settings = [Setting("plain", 0.5), Setting("adagrad", 0.5)]
    with pytest.raises(ValueError, match="must have one rule, got 'plain' and 'adagrad'"):
        evaluate("vanilla", settings, prepare(miniature(), 2, range(1)))


def test_the_best_finite_setting_is_chosen():
    values = {rule: [-1.0] * len(grid("average", rule)) for rule in covtype_study.RULES}
    best = Setting("decay", 0.01, 300.0, 1e-2)
    values["decay"][:2] = [None, float("nan")]
    values["decay"][grid("average", "decay").index(best)] = -0.5
    assert choose(values, "average") == best
    with pytest.raises(ValueError, match="no setting of sgld"):
        choose({rule: [None] * len(grid("sgld", rule)) for rule in covtype_study.rules_of("sgld")}, "sgld")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("psgld", Setting("plain", 0.005)),
        ("vanilla", Setting("plain", 1.0)),
        pytest.param("mixture", Setting("plain", 1.0, damping=1e-3), marks=pytest.mark.thorough),
    ],
)
def test_particles_learn_to_classify(method, setting):
    # pSGLD moves a coordinate without gradients, the constant column, by 1/stabiliser: its steps must be short.
    scores = run_trials(method, setting, prepare(miniature(400), 2, range(2)), (1, 400))
    assert np.all(scores.log_likelihood[:, -1] > scores.log_likelihood[:, 0])
    assert scores.accuracy[:, -1].mean() > 0.7


def curves(accuracy: list[float]) -> Curves:
    values = np.array([accuracy, accuracy])
    return Curves([10, 20, 40], values, values - 1)


def test_iterations_to_a_level_are_interpolated_on_the_mean_curve():
    assert curves([0.6, 0.7, 0.8]).iterations_to(0.75) == pytest.approx(30)
    assert curves([0.8, 0.7, 0.8]).iterations_to(0.75) == 10
    assert curves([0.6, 0.7, 0.7]).iterations_to(0.75) is None


def test_verdicts_give_the_ratios_of_iterations():
    found = {
        "vanilla": curves([0.5, 0.6, 0.8]),
        "psgld": curves([0.5, 0.6, 0.7]),
        "average": curves([0.75, 0.76, 0.76]),
    }
    text = "\n".join(verdicts(found))
    assert "Vanilla SVGD needs 3.5 times the iterations of Matrix-SVGD (average)." in text
    assert "pSGLD needs more than 4 times the iterations of Matrix-SVGD (average)." in text
    assert "pSGLD reaches a test accuracy of 0.75 not within 40 iterations." in text


@pytest.mark.thorough
def test_run_writes_rows_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(covtype, "CHECKPOINTS", (2, 50))
    monkeypatch.setattr(covtype, "LATER", (60,))
    monkeypatch.setattr(covtype, "LEVEL", 1.1)  # never reached: the later checkpoints run too
    data = directory_with(tmp_path / "data")

    def run():
        return covtype.reproduce(
            tmp_path / "out", data=data, methods=("vanilla", "average"), num_trials=2, progress=lambda text: None
        )

    first = run()
    content = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {(row["case"], row["metric"]) for row in content["rows"]} == {
        ("covtype", "accuracy@50"), ("covtype", "log_likelihood@50")
    }  # fmt: skip
    assert content["settings"]["iterations_to_level"] == {"vanilla": None, "average": None}
    pieces = json.loads((tmp_path / "out" / "curves.json").read_text())
    assert pieces["vanilla/2 trials/200 rows"]["result"]["checkpoints"] == [2, 50, 60]
    monkeypatch.setattr(covtype, "run_trials", lambda *arguments: pytest.fail("a finished method ran again"))
    assert run().tables == first.tables


@pytest.mark.thorough
def test_search_is_resumed_and_writes_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(covtype_study, "REPORTED", (2,))
    data = directory_with(tmp_path / "data")
    covtype.search(tmp_path, data=data, methods=("sgld",), progress=lambda text: None)
    cell = json.loads((tmp_path / "search.json").read_text())["sgld/decay"]
    assert [Setting(**own) for own in cell["made_from"]["settings"]] == grid("sgld", "decay")
    assert len(cell["result"]) == len(grid("sgld", "decay"))
    assert json.loads((tmp_path / "settings.json").read_text())["winners"]["sgld"]["rule"] in ("plain", "decay")
    monkeypatch.setattr(covtype, "evaluate", lambda *arguments: pytest.fail("a finished cell ran again"))
    covtype.search(tmp_path, data=data, methods=("sgld",), progress=lambda text: None)


def test_settings_are_chosen_on_partitions_that_are_not_reported(tmp_path, monkeypatch):
    seen = {}

    def score(method, settings, task):
        seen["tuning"] = task
        return [-1.0] * len(settings)

    def report(method, setting, task, checkpoints):
        seen["reported"] = task
        return covtype_study.Scores(*np.full((2, 20, len(checkpoints)), 0.8))

    monkeypatch.setattr(covtype, "evaluate", score)
    monkeypatch.setattr(covtype, "run_trials", report)
    data = directory_with(tmp_path / "data")
    covtype.search(tmp_path, data=data, methods=("sgld",), progress=lambda text: None)
    covtype.reproduce(
        tmp_path, data=data, methods=("sgld",), settings=tmp_path / "settings.json", figures=False,
        progress=lambda text: None,
    )  # fmt: skip
    assert seen["reported"].partitions == tuple(range(20))
    assert not set(seen["tuning"].partitions) & set(seen["reported"].partitions)
    for tuned in seen["tuning"].validation_rows:
        assert not any(set(tuned) == set(rows) for rows in seen["reported"].validation_rows)
    for file, name in (("search.json", "tuning"), ("curves.json", "reported")):
        for piece in json.loads((tmp_path / file).read_text()).values():
            assert piece["made_from"]["partitions"] == list(seen[name].partitions)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--methods", "svn"], "`--methods` must be among"),
        (["--quick", "--tune"], "exclude each other"),
        (["--trials", "0"], "`--trials` must be a whole number"),
        (["--trials", "1001"], "`--trials` must be at most 1000"),
        (["--data", "nowhere"], "steinkern data fetch covtype"),
        (["--settings", "nowhere.json"], "`--settings` nowhere.json cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_a_non_zero_exit(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["steinkern", "reproduce", "covtype", *options])
    with pytest.raises(SystemExit) as error:
        cli.main()
    assert error.value.code == 2
    printed = capsys.readouterr().err.strip()
    assert message in printed
    assert len(printed.splitlines()) == 1


@pytest.mark.thorough
def test_quick_mode_needs_no_download(tmp_path):
    result = CliRunner().invoke(
        cli.app, ["reproduce", "covtype", "--quick", "--methods", "sgld,mixture", "--out", str(tmp_path)]
    )
    assert result.exit_code == 0, result.output
    for name in ("results.json", "table.md", "curves.png", "curves.json"):
        assert (tmp_path / name).stat().st_size > 300, name
    assert {row["case"] for row in json.loads((tmp_path / "results.json").read_text())["rows"]} == {"breast_cancer"}


def test_recorded_settings_are_the_winners_of_the_recorded_search_and_of_the_recorded_results():
    recorded = json.loads((Path(covtype.__file__).parent / "covtype_settings.json").read_text())["winners"]
    search = json.loads((RESULTS / "search.json").read_text())
    reported = json.loads((RESULTS / "results.json").read_text())["settings"]
    assert reported["protocol"]["partitions"] == list(range(20))
    for method in METHODS:
        cells = {rule: search[f"{method}/{rule}"] for rule in covtype_study.rules_of(method)}
        for rule, cell in cells.items():
            assert cell["made_from"]["settings"] == [content(setting) for setting in grid(method, rule)]
            assert cell["made_from"]["partitions"] == list(TUNING_PARTITIONS)
        chosen = choose({rule: cell["result"] for rule, cell in cells.items()}, method)
        assert recorded[method] == reported["winners"][method] == content(chosen)


@pytest.mark.thorough
def test_runs_do_not_depend_on_which_other_trials_run():
    setting = Setting("plain", 0.5)
    both, alone = (
        run_trials("vanilla", setting, prepare(miniature(), 2, partitions), (3,)) for partitions in ((0, 1), (1,))
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1], b[0], rtol=1e-5), both, alone)  # float32
