"""The image study: its scores against scikit-learn, its networks, its search, and whole runs on digits."""

import json
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics

from studies import driver
from studies.__main__ import main
from studies.data.images import Images, digits
from studies.images import runs
from studies.images import study as images
from studies.images.networks import NETWORKS, draw, max_pool
from studies.images.runs import Task, run_group, runs_at_once
from studies.images.scores import Prediction, score

STUDY = images.ImageStudy()
SETTING = {"step_size": 3e-3, "prior_scale": 0.3}


def prediction(rows: int, seed: int, classes: int = 3, particles: int = 4) -> Prediction:
    values = np.random.default_rng(seed).dirichlet([0.5] * classes, (particles, rows))
    return Prediction(values.mean(0), -np.sum(values * np.log(values), axis=-1).mean(0))


def miniature(network: str = "mlp", seeds: int = 2, **more) -> Task:
    shipped = digits()
    parts = [
        Images(shipped.images[rows], shipped.labels[rows]) for rows in (slice(200), slice(200, 260), slice(260, 320))
    ]
    return Task(
        network, *parts, shipped.images[1000:1040], 10, tuple(range(seeds)), (8,), batch_size=20,
        **{"epochs": dict.fromkeys(STUDY.methods, 2)} | more,
    )  # fmt: skip


def test_scores_are_those_of_scikit_learn():
    inside, outside = prediction(60, 0), prediction(50, 1)
    labels = np.random.default_rng(2).integers(0, 3, 60)
    actual = score(inside, labels, outside)
    p = inside.probabilities
    assert actual["accuracy"] == pytest.approx(100 * sklearn.metrics.accuracy_score(labels, p.argmax(1)), rel=1e-5)
    assert actual["nll"] == pytest.approx(sklearn.metrics.log_loss(labels, p), rel=1e-5)
    assert actual["brier"] == pytest.approx(np.mean(np.sum((p - np.eye(3)[labels]) ** 2, axis=1)), rel=1e-5)
    larger = outside.mutual_information[:, None] > inside.mutual_information[None, :]
    assert actual["auroc_information"] == pytest.approx(larger.mean(), rel=1e-5)
    number, confidence, accurate = np.array(actual["calibration"])
    # Sums of the bins are kept with six significant digits, and their differences are small.
    assert actual["ece"] == pytest.approx(100 * np.abs(confidence - accurate).sum() / number.sum(), rel=1e-4)
    assert [sum(counts) for counts in actual["entropies"]] == [60, 50]


def test_a_certain_wrong_prediction_is_finite():
    certain = Prediction(np.array([[1.0, 0.0]]), np.zeros(1))
    actual = score(certain, np.array([1]), certain)
    assert np.isfinite(actual["nll"])
    assert actual["ece"] == 100
    assert actual["auroc_entropy"] == 0.5


@pytest.mark.parametrize(("network", "sizes"), [("mlp", (784, 400, 400, 10)), ("lenet", (400, 120, 84, 10))])
def test_networks_have_their_sizes(network, sizes):
    one = jax.eval_shape(lambda: draw(jax.random.key(0), network, (28, 28), 10))
    layers = (*one.hidden, one.head)
    assert [(layer.in_features, layer.out_features) for layer in layers] == list(pairwise(sizes))
    if network == "lenet":
        assert [layer.weight.shape for layer in one.convolutions] == [(6, 1, 5, 5), (16, 6, 5, 5)]
    result = jax.eval_shape(lambda network, image: network(image), one, jax.ShapeDtypeStruct((28, 28), jnp.float32))
    assert result.shape == (10,)


def test_pooling_takes_the_largest_of_four():
    x = jnp.arange(15.0).reshape(1, 3, 5)
    np.testing.assert_array_equal(max_pool(x), [[[6.0, 8.0]]])


def test_an_image_of_few_pixels_fits_the_convolutions():
    one = jax.eval_shape(lambda: draw(jax.random.key(0), "lenet", (8, 8), 10, (5,)))
    assert one.hidden[0].in_features == 16


def test_every_method_has_as_many_settings():
    task = miniature()
    for method in STUDY.methods:
        cells = STUDY.cells(method, "mlp", task)
        settings = [setting for cell in cells for setting in cell.settings]
        assert len(settings) == 5
        assert len({tuple(setting.values()) for setting in settings}) == 5
        assert settings[0] == {"step_size": images.STEP_SIZES.get(method, 1e-3), "prior_scale": 0.3}
        assert all(len(cell.settings) <= runs_at_once(method, "mlp") for cell in cells)
        assert all(STUDY.check(method, setting) == setting for setting in settings)
    followers = [images.settings_of(method) for method in STUDY.methods if method not in ("sgld", "psgld")]
    assert all(each == followers[0] for each in followers)


def test_equal_time_gives_epochs_in_proportion(tmp_path):
    times = dict.fromkeys(STUDY.methods, 10.0) | {"mixture": 25.0, "average": 50.0, "ensemble": 0.1}
    (tmp_path / "times.json").write_text(json.dumps({"mlp": times}))
    actual = STUDY.epochs_of_equal_time("mlp_time", tmp_path / "times.json")
    assert actual == dict.fromkeys(STUDY.methods, 25) | {"mixture": 10, "average": 5, "ensemble": images.MOST_EPOCHS}
    task = miniature(epochs=actual)
    assert task.steps_of("mixture") == 100
    assert STUDY.made_from("mixture", SETTING, task)["epochs"] == 10
    (tmp_path / "times.json").write_text('{"mlp": {"mixture": 20, "ensemble": 10}}')  # the other methods are not timed
    some = STUDY.epochs_of_equal_time("mlp_time", tmp_path / "times.json")
    assert some == {"mixture": 10, "ensemble": 20}
    with pytest.raises(ValueError, match=r"`--times` must hold the seconds of point"):
        miniature(epochs=some).epochs_of("point")
    with pytest.raises(ValueError, match=r"`--times` must hold the seconds of the mixture and of every method"):
        STUDY.epochs_of_equal_time("lenet_time", tmp_path / "times.json")


def test_runs_of_as_many_epochs_are_those_of_equal_epochs():
    task = miniature(epochs=dict.fromkeys(STUDY.methods, 40) | {"mixture": images.EPOCHS})
    assert STUDY.key("mlp_time", "mixture", task) == "mlp/mixture/seeds 0 to 1"
    assert STUDY.key("mlp_time", "ensemble", task) == "mlp_time/ensemble/seeds 0 to 1"
    assert STUDY.cells("mixture", "mlp_time", task)[0].key == "mlp/mixture/0"


def test_seconds_measured_apart_replace_those_of_the_runs(tmp_path, free_runs, monkeypatch):
    def tasks(self, quick=False, seconds=10.0):
        twice = dict.fromkeys(self.methods, 20)
        return {"mlp": miniature(seconds=dict.fromkeys(self.methods, seconds), epochs=twice)}

    monkeypatch.setattr(STUDY.__class__, "tasks", tasks)

    def reproduced(**options):
        return driver.reproduce(STUDY, tmp_path, methods=("ensemble",), **options).tables()

    assert "4.0 ± 0.0" in reproduced()["seconds"]  # 10 s for five runs of ten epochs
    assert (tmp_path / "times.json").exists()
    (tmp_path / "times.json").unlink()
    assert "seconds" not in reproduced(seconds=float("nan"))
    assert not (tmp_path / "times.json").exists()


@pytest.fixture
def free_runs(monkeypatch):
    """Runs that cost nothing, with the same predictions for a seed whichever others run with it; a list of what ran."""
    ran = []

    def run(method, settings, seeds, task):
        ran.append((method, tuple(seeds)))
        sizes = len(task.validation.labels), len(task.test.labels), len(task.outside)
        parts = [[prediction(n, seed + 100 * i, task.classes) for i, n in enumerate(sizes)] for seed in seeds]
        return [runs.Run(*part) for part in parts], 2.0 * len(seeds)

    monkeypatch.setattr(images, "run_group", run)
    return ran


def test_seeds_that_run_together_are_a_piece_of_the_journal(tmp_path, free_runs, monkeypatch):
    monkeypatch.setattr(STUDY.__class__, "tasks", lambda self, quick=False, seeds=3: {"mlp": miniature(seeds=seeds)})
    methods = ("ensemble", "mixture")
    outcome = driver.reproduce(STUDY, tmp_path, methods=methods)
    assert free_runs == [("ensemble", (0, 1, 2)), *(("mixture", (seed,)) for seed in range(3))]
    pieces = json.loads((tmp_path / "rows.json").read_text())
    assert list(pieces) == ["mlp/ensemble/seeds 0 to 2", *(f"mlp/mixture/seeds {seed} to {seed}" for seed in range(3))]
    text = (tmp_path / "table.md").read_text()
    assert "over 3 seeds" in text
    assert "chosen on 10,000 of the training rows" in text  # the recorded settings are the winners of a search
    assert json.loads((tmp_path / "times.json").read_text()) == {"mlp": {"ensemble": 6.0, "mixture": 6.0}}
    # Predictions depend on the seed alone, so both methods have the same scores.
    assert outcome.row("mlp", "ensemble", "nll").mean == outcome.row("mlp", "mixture", "nll").mean
    for name in ("reliability_mlp.png", "entropies_mlp.png"):
        assert (tmp_path / name).stat().st_size > 3000
    free_runs.clear()
    driver.reproduce(STUDY, tmp_path, methods=methods, seeds=4)
    assert free_runs == [("ensemble", (0, 1, 2, 3)), ("mixture", (3,))]  # the other seeds of the mixture are there


def test_a_search_sees_validation_rows_alone(tmp_path, free_runs, monkeypatch):
    task = miniature()
    monkeypatch.setattr(STUDY.__class__, "tasks", lambda self, quick=False: {"mlp": task})
    driver.search(STUDY, tmp_path, methods=("ensemble", "mixture"))
    assert free_runs == [("ensemble", (1000,) * 5), *[("mixture", (1000,))] * 5]
    actual = json.loads((tmp_path / "search.json").read_text())
    (value, *_) = actual["mlp/mixture/0"]["result"]["values"]
    p = prediction(len(task.validation.labels), 1000, 10).probabilities
    assert value == pytest.approx(-sklearn.metrics.log_loss(task.validation.labels, p, labels=range(10)), rel=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", ["point", "psgld", "average", "mixture", "last_layer"])
def test_runs_under_one_vmap_are_the_runs_alone(network, method):
    task = miniature(network)
    step = 1e-4 if method == "psgld" else 3e-3
    settings = [{"step_size": step, "prior_scale": scale} for scale in (0.1, 1.0)]
    together, seconds = run_group(method, settings, (3, 4), task)
    assert seconds > 0
    (alone,), _ = run_group(method, settings[1:], (4,), task)
    for part in ("validation", "test", "outside"):
        one, other = getattr(alone, part), getattr(together[1], part)
        np.testing.assert_allclose(one.probabilities, other.probabilities, atol=2e-3)  # float32, batched otherwise
        np.testing.assert_allclose(one.probabilities.sum(1), 1, rtol=1e-5)
    assert np.abs(together[0].test.probabilities - together[1].test.probabilities).max() > 1e-3
    assert np.all(together[0].test.mutual_information >= 0)
    if method == "point":
        np.testing.assert_allclose(together[0].test.mutual_information, 0, atol=1e-5)  # float32


@pytest.mark.thorough
def test_the_quick_look_needs_no_download_and_its_samplers_learn(tmp_path):
    main(["images", "--quick", "--out", str(tmp_path)])
    content = json.loads((tmp_path / "results.json").read_text())
    rows = {(row["method"], row["metric"]): row["mean"] for row in content["rows"]}
    assert {method for method, _ in rows} == set(STUDY.methods)
    for method in STUDY.methods:
        assert rows[method, "accuracy"] > 80, method
        assert rows[method, "nll"] < 0.8, method
    for method in ("ensemble", "vanilla", "average", "mixture"):
        assert rows[method, "auroc_entropy"] > 0.7, method
    # One network has no mutual information: its values are rounding, in no order.
    assert rows["point", "auroc_information"] == pytest.approx(0.5, abs=0.2)
    for name in ("reliability_digits.png", "entropies_digits.png", "rows.json"):
        assert (tmp_path / name).stat().st_size > 300
    assert "digits 8 and 9" in (tmp_path / "table.md").read_text()
