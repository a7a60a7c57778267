"""The logistic regression study: its scores, its partitions, its step rules, and whole runs on miniature data."""

import json

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from studies import driver
from studies.covtype import runs
from studies.covtype import study as covtype
from studies.covtype.runs import prepare, run_trials, sampler
from studies.covtype.study import iterations_to
from studies.data.datasets import Classification, path_of, save_arrays
from studies.models import logistic_posterior
from tests.studies.outcomes import outcome

STUDY = covtype.Covtype()


def setting(rule: str, step_size: object, **more: object) -> dict[str, object]:
    return {"rule": rule, "step_size": step_size, **more}


def ready(rows: int = 200, partitions=range(3), checkpoints=(3,)) -> runs.Task:
    return prepare(miniature(rows), 2, partitions, checkpoints)


def miniature(rows: int = 200) -> Classification:
    generator = np.random.default_rng(5)
    features = generator.integers(-100, 3000, (rows, 54)).astype(np.int16)
    features[:, 7] = 3  # a constant column
    labels = np.where(features[:, 0] > 1400, 2, generator.integers(3, 8, rows)).astype(np.uint8)
    return Classification(features, labels)


def test_scores_are_those_of_the_averaged_probability(key):
    logits = 3 * jr.normal(key, (50, 4))
    labels = (np.arange(50) % 2).astype(float)
    scores = runs.predictive_scores(logits, jnp.asarray(labels))
    probability = (1 / (1 + np.exp(-np.asarray(logits)))).mean(axis=1)
    np.testing.assert_allclose(scores.accuracy, np.mean((probability > 0.5) == (labels > 0.5)))
    likelihood = np.log(np.where(labels > 0.5, probability, 1 - probability)).mean()
    np.testing.assert_allclose(scores.log_likelihood, likelihood, rtol=1e-10)


def test_scores_of_certain_particles_stay_finite():
    scores = runs.predictive_scores(jnp.full((2, 3), 2000.0), jnp.array([1.0, 0.0]))
    np.testing.assert_allclose(scores.log_likelihood, -1000.0)


def test_features_lie_between_zero_and_one_with_a_column_of_ones():
    task = ready()
    assert task.features.shape == (200, 55)
    assert (task.features.min(), task.features.max()) == (0, 1)
    np.testing.assert_array_equal(task.features[:, -1], 1)
    np.testing.assert_array_equal(task.labels, miniature().labels == 2)


def test_every_trial_partitions_the_rows_seventy_ten_twenty():
    task = ready()
    for rows in zip(task.train_rows, task.validation_rows, task.test_rows, strict=True):
        assert [len(part) for part in rows] == [140, 20, 40]
        assert sorted(np.concatenate(rows)) == list(range(200))
    assert not np.array_equal(task.train_rows[0], task.train_rows[1])
    np.testing.assert_array_equal(ready(partitions=range(1)).train_rows[0], task.train_rows[0])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "choices", "factor"),
    [
        ("vanilla", setting("plain", 0.5), lambda t: 0.5 / 100),
        ("vanilla", setting("decay", 0.5, horizon=30.0), lambda t: 0.5 / 100 / (1 + t / 30)),
        ("vanilla", setting("decay", 0.5, horizon=1.0), lambda t: 0.5 / 100 / (1 + t)),
        ("average", setting("plain", 0.5, damping=1e-3), lambda t: 0.5),
    ],
)
def test_plain_steps_multiply_the_velocity_as_stated(method, choices, factor, key):
    point_key, x_key, y_key = jr.split(key, 3)
    points = jr.normal(point_key, (5, 3))
    batch = jr.normal(x_key, (8, 3)), (jr.uniform(y_key, (8,)) < 0.5).astype(float)
    target = logistic_posterior(100).bind(points[0])
    moves = sampler(method, choices, 100)
    state = moves.init(target, points, batch)
    for t in range(3):
        before = state
        state, _ = moves.step(key, before, target, batch)
        _, kernel = moves.rule.update(before.rule, target, before.points, batch)
        velocity = kernel.velocity(
            before.points, sk.kernels.Scored.uniform(before.points, target.scores(before.points, batch))
        )
        np.testing.assert_allclose(state.points - before.points, factor(t) * velocity, rtol=1e-5, atol=1e-8)  # float32


@pytest.mark.parametrize("rule", ["adagrad", "fast"])
def test_a_step_rule_that_a_method_cannot_have_is_refused(rule):
    with pytest.raises(ValueError, match="`rule` must be one of 'plain', 'decay'"):
        STUDY.check("sgld", setting(rule, 0.1))


@pytest.mark.parametrize(
    ("method", "rule", "number"),
    [("sgld", "plain", 8), ("vanilla", "decay", 8 * 3), ("average", "adagrad", 8 * 4), ("mixture", "decay", 8 * 3 * 4)],
)
def test_a_grid_holds_every_combination_that_a_method_can_have(method, rule, number):
    (cell,) = (cell for cell in STUDY.cells(method, "covtype", ready()) if cell.key == f"{method}/{rule}")
    assert len({json.dumps(each) for each in cell.settings}) == len(cell.settings) == number
    assert [STUDY.check(method, each) for each in cell.settings] == cell.settings


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("sgld", [setting("plain", 0.1), setting("plain", 1.0)]),
        (
            "average",
            [
                setting("decay", 0.5, horizon=1.0, damping=0.1),
                setting("decay", 0.5, horizon=30.0, damping=0.1),
                setting("decay", 0.5, horizon=1.0, damping=1e-4),
            ],
        ),
    ],
)
def test_search_scores_each_setting_by_its_own_run(method, settings, monkeypatch):
    monkeypatch.setattr(runs, "_SETTINGS_AT_ONCE", 2)  # three settings are more than run at once
    task = ready(partitions=range(2), checkpoints=(3, 5))

    def evaluate(*chosen):
        return STUDY.evaluate(method, covtype.Cell("", list(chosen), {}), task)

    together = evaluate(*settings)
    np.testing.assert_allclose(together, [evaluate(each)[0] for each in settings], rtol=1e-4)  # float32
    assert len({round(value, 3) for value in together}) == len(settings)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "choices"),
    [
        ("psgld", setting("plain", 0.005)),
        ("vanilla", setting("plain", 1.0)),
        ("mixture", setting("plain", 1.0, damping=1e-3)),
    ],
)
def test_particles_learn_to_classify(method, choices):
    # pSGLD moves a coordinate without gradients, the constant column, by 1/epsilon: its steps must be short.
    task = ready(400, range(2))
    scores = run_trials(method, [choices], task, task.test_rows, (1, 400), 0)
    assert np.all(scores.log_likelihood[..., -1] > scores.log_likelihood[..., 0])
    assert scores.accuracy[..., -1].mean() > 0.7


def curves(accuracy: list[float]) -> dict[str, object]:
    return {"checkpoints": [10, 20, 40], "accuracy": [accuracy, accuracy]}


def test_iterations_to_a_level_are_interpolated_on_the_mean_curve():
    assert iterations_to(0.75, curves([0.6, 0.7, 0.8])) == pytest.approx(30)
    assert iterations_to(0.75, curves([0.8, 0.7, 0.8])) == 10
    assert iterations_to(0.75, curves([0.6, 0.7, 0.7])) is None


def test_verdicts_give_the_ratios_of_iterations():
    actual = {"vanilla": [0.5, 0.6, 0.8], "psgld": [0.5, 0.6, 0.7], "average": [0.75, 0.76, 0.76]}
    results = {("covtype", method): curves(accuracy) for method, accuracy in actual.items()}
    text = "\n".join(STUDY.verdicts(outcome(STUDY, {"covtype": {method: {} for method in actual}}, results)))
    assert "Vanilla SVGD needs 3.5 times the iterations of Matrix-SVGD (average)." in text
    assert "pSGLD needs more than 4 times the iterations of Matrix-SVGD (average)." in text
    assert "pSGLD reaches a test accuracy of 0.75 not within 40 iterations." in text


def test_settings_are_chosen_on_partitions_that_are_not_reported(tmp_path, monkeypatch):
    recorded = {}

    def instead(method, settings, task, scored_rows, checkpoints, seed):
        recorded["tuning" if scored_rows is task.validation_rows else "reported"] = task
        return runs.Scores(*np.full((2, len(settings), len(task.partitions), len(checkpoints)), 0.6))

    monkeypatch.setattr(covtype, "run_trials", instead)
    save_arrays(path_of("covtype", tmp_path), {"X": miniature().features, "label": miniature().labels})
    options = {"data": tmp_path, "methods": ("sgld",)}
    driver.search(STUDY, tmp_path, **options)
    outcome = driver.reproduce(STUDY, tmp_path, settings=tmp_path / "settings.json", **options)
    tuned, reported = recorded["tuning"], recorded["reported"]
    assert reported.partitions == tuple(range(20))
    assert not set(tuned.partitions) & set(reported.partitions)
    for rows in tuned.validation_rows:
        assert not any(set(rows) == set(others) for others in reported.validation_rows)
    for file, task in (("search.json", tuned), ("rows.json", reported)):
        for piece in json.loads((tmp_path / file).read_text()).values():
            assert piece["made_from"]["partitions"] == list(task.partitions)
    # It has not reached the level by the last of the checkpoints, and so runs on.
    assert outcome.results["covtype", "sgld"]["checkpoints"] == [*covtype.CHECKPOINTS, *covtype.LATER]
    assert STUDY.record(outcome)["iterations_to_level"] == {"sgld": None}


@pytest.mark.thorough
def test_runs_do_not_depend_on_which_other_trials_run():
    both, alone = (
        run_trials("vanilla", [setting("plain", 0.5)], task, task.test_rows, (3,), 0)
        for task in (ready(partitions=partitions) for partitions in ((0, 1), (1,)))
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[0, 1], b[0, 0], rtol=1e-5), both, alone)  # float32
