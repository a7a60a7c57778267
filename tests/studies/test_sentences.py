"""The sentence study: its scores, its folds, early stopping, and whole runs on a generated corpus."""

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from studies import driver
from studies.__main__ import main
from studies.data.text import generate_corpus
from studies.sentences import study as sentences
from studies.sentences.runs import Measured, Scores, predictive_scores, prepare, run_folds
from tests.studies.outcomes import outcome

pytestmark = pytest.mark.thorough

STUDY = sentences.Sentences()


def test_scores_are_those_of_their_definitions():
    generator = np.random.default_rng(0)
    probabilities = generator.dirichlet([1.0, 1.0], 40)
    labels = generator.integers(0, 2, 40)
    weights = np.where(np.arange(40) < 30, 1.0, 0.0)
    scores = predictive_scores(jnp.asarray(probabilities), jnp.asarray(labels), jnp.asarray(weights))
    p, y = probabilities[:30], labels[:30]
    right = p.argmax(1) == y
    assert float(scores.error) == pytest.approx(np.mean(~right))
    assert float(scores.log_likelihood) == pytest.approx(np.log(p[np.arange(30), y]).mean())
    confidence, expected = p.max(1), 0.0
    for low in np.arange(15) / 15:
        inside = (confidence >= low) & (confidence < low + 1 / 15)
        if inside.any():
            expected += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    assert float(scores.ece) == pytest.approx(expected)


def test_a_certain_wrong_prediction_is_finite():
    scores = predictive_scores(jnp.array([[1.0, 0.0]]), jnp.array([1]), jnp.ones(1))
    assert np.isfinite(scores.log_likelihood)
    assert scores.ece == 1


def test_every_row_is_tested_once_and_never_trained_on_there():
    corpus, vectors = generate_corpus(60)
    task = prepare(corpus, vectors, range(10))
    tested = []
    for fold in range(10):
        parts = [
            np.concatenate([rows[fold, : counts[fold]] for rows, counts in zip(part.rows, part.counts, strict=True)])
            for part in (task.train, task.validation, task.test)
        ]
        assert sorted(np.concatenate(parts)) == list(range(60))
        tested += list(parts[2])
    assert sorted(tested) == list(range(60))


@pytest.fixture(scope="module")
def poisoned():
    """A run on one fold whose test rows are spoilt: every word of theirs has a vector of NaN."""
    corpus, vectors = generate_corpus(80)
    task = prepare(corpus, vectors, (0,), epochs=1)
    tokens = np.where((task.fold_of == 0)[:, None], len(vectors), corpus.tokens).astype(corpus.tokens.dtype)
    vectors = np.concatenate([vectors, np.full_like(vectors[:1], np.nan)])
    task = replace(task, sentences=replace(task.sentences, tokens=tokens), vectors=vectors)
    return run_folds("point", [{"step_size": [1e-2]}], task)[1]


def test_training_and_validation_never_see_a_test_row(poisoned):
    for part in (poisoned.validation_now, poisoned.validation_averaged):
        assert np.all(np.isfinite(part.log_likelihood))
    assert np.all(np.isnan(poisoned.test_now.log_likelihood))  # the poison works


@pytest.mark.parametrize(("method", "all_weights"), [("mixture", False), ("vanilla", True), ("mixture", True)])
def test_particles_learn_the_generated_corpus(method, all_weights):
    corpus, vectors = generate_corpus()
    task = prepare(corpus, vectors, (0, 1), epochs=6, all_weights=all_weights)
    checks, measured = run_folds(method, [{"step_size": [3e-3] * 2, "damping": [0.1] * 2}], task)
    assert measured.test_now.error.shape == (1, 2, len(checks))
    # A twentieth of the labels is wrong; guessing errs on half.
    assert measured.stop_early("averaged").test.error.mean() < (0.3 if all_weights else 0.25)


def test_runs_with_all_weights_as_particles_are_other_runs():
    corpus, vectors = generate_corpus(60)
    half, whole = (prepare(corpus, vectors, (0,), all_weights=flag) for flag in (False, True))
    assert "all_weights" not in half.protocol()
    assert whole.protocol() == {**half.protocol(), "all_weights": True}
    assert STUDY.key("mr", "sgld", whole) == "mr/sgld/all weights/1 folds"
    assert STUDY.setting({}, "mr", "average", whole) == {"step_sizes": [3e-3, 1e-2, 3e-2], "damping": 0.1}
    assert STUDY.setting({}, "mr", "sgld", whole) == {"step_sizes": [0.1, 0.3, 1.0]}


def test_the_validation_rows_of_each_fold_choose_the_step_size():
    corpus, vectors = generate_corpus(60)
    task = prepare(corpus, vectors, (0, 1), epochs=1, all_weights=True)
    sizes = [1e-5, 1e-2]
    done = STUDY.run("point", {"step_sizes": sizes}, task)
    alone = [STUDY.run("point", {"step_size": [size] * 2}, task) for size in sizes]
    for fold in range(2):
        values = [each["validation"][0][fold] for each in alone]
        best = int(np.argmax(values))
        assert done["step_size"][fold] == sizes[best]
        # Programs of other shapes add up float32 in another order, and an epoch of steps magnifies that.
        ours, theirs = (each["now"]["log_likelihood"][fold] for each in (done, alone[best]))
        assert ours == pytest.approx(theirs, abs=1e-3)


def test_runs_depend_neither_on_other_runs_nor_on_other_folds_and_on_step_size_and_damping():
    corpus, vectors = generate_corpus(60)
    settings = [
        {"step_size": [1e-2] * 2, "damping": [1e-3, 10.0]},
        {"step_size": [1e-2] * 2, "damping": [1e-3] * 2},
        {"step_size": [1e-3] * 2, "damping": [1e-3, 10.0]},
    ]
    both, one = (prepare(corpus, vectors, folds, epochs=1) for folds in ((0, 1), (1,)))
    runs = run_folds("mixture", settings, both)[1].validation_now.log_likelihood
    alone = run_folds("mixture", [{"step_size": [1e-2], "damping": [10.0]}], one)[1]
    # Programs of other shapes add up float32 in another order, and an epoch of steps magnifies that: 1e-4 throughout.
    np.testing.assert_allclose(runs[0, 1], alone.validation_now.log_likelihood[0, 0], rtol=1e-4)
    np.testing.assert_allclose(runs[0, 0], runs[1, 0], rtol=1e-4)
    assert not np.allclose(runs[0, 1], runs[1, 1], rtol=1e-4)
    assert not np.allclose(runs[0], runs[2], rtol=1e-4)


def test_early_stopping_takes_the_best_finite_validation_check():
    values = np.arange(4.0).reshape(1, 1, 4)
    now, averaged, test = (Scores(values, -np.abs(values - best), values) for best in (1, 2, 0))
    measured = Measured(now, test, averaged, test)
    assert measured.stop_early("now").check == 1
    assert measured.stop_early("averaged").check == 2
    assert measured.stop_early("averaged").test.error == 2
    assert measured.stop_early("now").validation == 0
    spoilt = now._replace(log_likelihood=np.array([[[-1.0, np.nan, -0.5, -0.7]]]))
    assert measured._replace(validation_now=spoilt).stop_early("now").check == 2


def test_the_averaged_readout_averages_probabilities(poisoned):
    now, averaged = (part.log_likelihood[0, 0] for part in (poisoned.validation_now, poisoned.validation_averaged))
    np.testing.assert_allclose(now[0], averaged[0], rtol=1e-6)  # float32; the first check has nothing before it
    assert abs(now[-1] - averaged[-1]) > 1e-4


def test_what_folds_share_does_not_depend_on_which_run():
    corpus, vectors = generate_corpus(1200)
    few, all_ = prepare(corpus, vectors, (3,)), prepare(corpus, vectors, range(10))
    assert 2 <= len(few.buckets) <= 3
    assert few.buckets[-1] == corpus.lengths.max()
    np.testing.assert_array_equal(few.shares, all_.shares)
    assert (few.buckets, few.num_train) == (all_.buckets, all_.num_train)
    np.testing.assert_array_equal(
        few.test.rows[0][0, : few.test.counts[0][0]], all_.test.rows[0][3, : all_.test.counts[0][3]]
    )


def finished(*errors: float, averaged: float = -0.02) -> dict[str, object]:
    """A result with an error for every fold, and the averaged readout's beside it."""
    now = np.array(errors)
    return {
        readout: {"error": error, "log_likelihood": -error, "ece": error / 2}
        for readout, error in (("now", now), ("averaged", now + averaged))
    }


def of(**results: dict[str, object]):
    scores = {method: STUDY.scores(method, result, None) for method, result in results.items()}
    return outcome(STUDY, {"mr": scores})


@pytest.mark.usefixtures("as_installed")
def test_verdicts_are_even_handed_and_paired():
    actual = of(vanilla=finished(0.11, 0.30), mixture=finished(0.10, 0.30))
    assert "mixture − Vanilla SVGD, paired over folds: mr -0.50 ± 0.50 (level)." in "\n".join(STUDY.verdicts(actual))
    actual = of(vanilla=finished(0.09, 0.29), mixture=finished(0.10, 0.30))  # behind on every fold
    text = "\n".join(STUDY.verdicts(actual))
    assert "Test error, %, mixture − Vanilla SVGD, paired over folds: mr +1.00 ± 0.00 (worse)." in text
    assert "Test error, %: the mixture is best, or within one standard error (paired over folds) of our best" in text
    assert "of our best method, on none." in text


@pytest.mark.usefixtures("as_installed")
def test_tables_and_verdicts_say_who_is_best():
    actual = of(vanilla=finished(0.20, 0.22), mixture=finished(0.19, 0.21), point=finished(0.24, 0.26))
    table = actual.tables()["error"]
    assert "| Matrix-SVGD (mixture) | **18.00 ± 1.00** (19.09) |" in table
    assert "| Point estimate | 25.00 ± 1.00 |" in table
    assert "| Point estimate, averaged over checks | 23.00 ± 1.00 |" in table
    text = "\n".join(STUDY.verdicts(actual))
    assert "Test error, %, mixture − Point estimate, paired over folds: mr -7.00 ± 0.00 (better)." in text
    assert "Test error, %, mixture − Point estimate, averaged over checks, paired over folds: mr -5.00" in text
    assert "mixture − the paper's mixture, with other word vectors: mr -1.09." in text


@pytest.fixture
def small(monkeypatch):
    corpus, vectors = generate_corpus(60)
    monkeypatch.setattr(sentences, "generate_corpus", lambda: (corpus, vectors))
    monkeypatch.setattr(sentences, "load_sentences", lambda name, where: corpus)
    monkeypatch.setattr(sentences, "word_vectors", lambda words, paths: (vectors, [len(words)] * len(paths)))


@pytest.mark.usefixtures("small")
def test_quick_mode_runs_end_to_end(tmp_path):
    main(["sentences", "--quick", "--methods", "vanilla,point", "--out", str(tmp_path)])
    for name in ("results.json", "table.md", "scores.png", "rows.json", "folds.json"):
        assert (tmp_path / name).stat().st_size > 60, name
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert {"error", "log_likelihood", "ece", "error@now", "error@averaged"} <= {row["metric"] for row in rows}
    main(["sentences", "--quick", "--methods", "average", "--all-weights", "--out", str(tmp_path)])
    assert (tmp_path / "table.md").read_text().startswith("Here the weights of the GRU are particles too")
    assert "generated/average/all weights/2 folds" in json.loads((tmp_path / "rows.json").read_text())


@pytest.mark.usefixtures("small")
def test_search_keeps_validation_alone_and_chooses_for_every_fold(tmp_path, monkeypatch):
    monkeypatch.setattr(sentences, "STEP_SIZES", (1e-3, 1e-2))
    monkeypatch.setattr(sentences, "DAMPINGS", (0.1, 1.0))
    monkeypatch.setattr(sentences, "EPOCHS", 1)
    driver.search(STUDY, tmp_path, datasets=("mr",), methods=("average",))
    log = json.loads((tmp_path / "search.json").read_text())
    runs = np.concatenate([log[f"mr/average/damping {damping}"]["result"] for damping in ("0.1", "1")])
    assert runs.shape == (4, 10)
    best = np.argmax(runs, axis=0)
    winners = json.loads((tmp_path / "settings.json").read_text())["winners"]["mr"]["average"]
    assert winners["step_size"] == [(1e-3, 1e-2, 1e-3, 1e-2)[i] for i in best]
    assert winners["damping"] == [(0.1, 0.1, 1.0, 1.0)[i] for i in best]
