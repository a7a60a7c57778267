"""The sentence study: its scores, its folds, early stopping, and whole runs on a generated corpus."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from steinkern import cli
from steinkern.experiments import sentence_study, sentences
from steinkern.experiments.data.text import generated
from steinkern.experiments.sentence_study import (
    METHODS,
    PRECONDITIONED,
    Measured,
    Scores,
    Setting,
    best_check,
    build,
    predictive_scores,
    prepare,
    run_folds,
    stopped,
)
from steinkern.experiments.sentence_table import Finished, tables, verdicts
from steinkern.samplers.ensemble import Ensemble
from steinkern.samplers.kernel_rule import AnchorMixture, AverageMetric, FixedKernel
from steinkern.samplers.langevin import PSGLD, SGLD
from steinkern.samplers.stein import SVGD

ONES = jnp.ones(2, jnp.float32)
RESULTS = Path(__file__).parents[2] / "results" / "sentences"


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
        own = (confidence >= low) & (confidence < low + 1 / 15)
        if own.any():
            expected += own.mean() * abs(confidence[own].mean() - right[own].mean())
    assert float(scores.ece) == pytest.approx(expected)


def test_a_certain_wrong_prediction_is_finite():
    scores = predictive_scores(jnp.array([[1.0, 0.0]]), jnp.array([1]), jnp.ones(1))
    assert np.isfinite(scores.log_likelihood)
    assert scores.ece == 1


def test_every_row_is_tested_once_and_never_trained_on_there():
    corpus, vectors = generated(60)
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


def test_long_corpora_have_a_handful_of_buckets():
    corpus, vectors = generated(1200)
    task = prepare(corpus, vectors, (0,))
    assert 2 <= len(task.buckets) <= 3
    assert task.buckets[-1] == corpus.lengths.max()


@pytest.mark.parametrize("method", METHODS)
def test_methods_are_made_of_their_samplers(method):
    kinds = {"sgld": SGLD, "psgld": PSGLD, "point": Ensemble}
    sampler = build(method, 0.1, 0.37, num_data=50).sampler
    assert type(sampler) is kinds.get(method, SVGD)
    if method in ("sgld", "psgld"):
        np.testing.assert_allclose(sampler.step_size, 0.1 / 50, rtol=1e-6)  # a float32
        return
    with jax.numpy_dtype_promotion("standard"):  # optax mixes integers and floats
        moved = sampler.optimiser.update(ONES, sampler.optimiser.init(ONES))[0]
    np.testing.assert_allclose(moved, -0.1, rtol=1e-5)  # Adam's first step is its step size, but for its epsilon
    if method != "point":
        rules = {"vanilla": FixedKernel, "average": AverageMetric, "mixture": AnchorMixture}
        assert type(sampler.rule) is rules[method]
    if method in PRECONDITIONED:
        assert sampler.rule.settings.damping == 0.37
        assert (sampler.rule.settings.decay, sampler.rule.settings.refresh_every) == (0.95, 10)


@pytest.fixture(scope="module")
def poisoned():
    """A run on one fold whose test rows are spoilt: every word of theirs has a vector of NaN."""
    corpus, vectors = generated(80)
    task = prepare(corpus, vectors, (0,))
    tokens = np.where((task.fold_of == 0)[:, None], len(vectors), corpus.tokens).astype(corpus.tokens.dtype)
    vectors = np.concatenate([vectors, np.full_like(vectors[:1], np.nan)])
    task = replace(task, sentences=replace(task.sentences, tokens=tokens), vectors=vectors)
    return run_folds("point", [Setting([1e-2])], task, 1)[1]


def test_training_and_validation_never_see_a_test_row(poisoned):
    for part in (poisoned.validation_now, poisoned.validation_averaged):
        assert np.all(np.isfinite(part.log_likelihood))
    assert np.all(np.isnan(poisoned.test_now.log_likelihood))  # the poison works


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["mixture"])
def test_methods_learn_the_generated_corpus(method):
    corpus, vectors = generated()
    task = prepare(corpus, vectors, (0, 1))
    checks, measured = run_folds(method, [Setting([3e-3] * 2, [0.1] * 2)], task, epochs=6)
    assert len(checks) == measured.test_now.error.shape[-1]
    kept = stopped(method, measured)
    assert kept.test.error.shape == (1, 2)
    assert kept.test.error.mean() < 0.25  # a twentieth of the labels is wrong; guessing errs on half


@pytest.mark.thorough
def test_runs_depend_neither_on_other_runs_nor_on_other_folds_and_on_step_size_and_damping():
    corpus, vectors = generated(60)
    settings = [Setting([1e-2] * 2, [1e-3, 10.0]), Setting([1e-2] * 2, [1e-3] * 2), Setting([1e-3] * 2, [1e-3, 10.0])]
    runs = run_folds("mixture", settings, prepare(corpus, vectors, (0, 1)), 1)[1].validation_now.log_likelihood
    alone = run_folds("mixture", [Setting([1e-2], [10.0])], prepare(corpus, vectors, (1,)), 1)[1]
    # Programs of other shapes add up float32 in another order, and an epoch of steps magnifies that: 1e-4 throughout.
    np.testing.assert_allclose(runs[0, 1], alone.validation_now.log_likelihood[0, 0], rtol=1e-4)
    np.testing.assert_allclose(runs[0, 0], runs[1, 0], rtol=1e-4)
    assert not np.allclose(runs[0, 1], runs[1, 1], rtol=1e-4)
    assert not np.allclose(runs[0], runs[2], rtol=1e-4)


def test_early_stopping_takes_the_best_finite_validation_check():
    assert best_check(np.array([[-1.0, np.nan, -0.5, -0.7]]))[0] == 2
    values = np.arange(4.0).reshape(1, 1, 4)
    now, averaged, test = (Scores(values, -np.abs(values - best), values) for best in (1, 2, 0))
    measured = Measured(now, averaged, test, test)
    assert stopped("point", measured).check == 1
    assert stopped("mixture", measured).check == 2
    assert stopped("mixture", measured).test.error == 2
    assert stopped("mixture", measured, "now").validation == 0


def test_the_averaged_readout_averages_probabilities(poisoned):
    now, averaged = (part.log_likelihood[0, 0] for part in (poisoned.validation_now, poisoned.validation_averaged))
    np.testing.assert_allclose(now[0], averaged[0], rtol=1e-6)  # float32; the first check has nothing before it
    assert abs(now[-1] - averaged[-1]) > 1e-4


def test_what_folds_share_does_not_depend_on_which_run():
    corpus, vectors = generated(1200)
    few, all_ = prepare(corpus, vectors, (3,)), prepare(corpus, vectors, range(10))
    np.testing.assert_array_equal(few.shares, all_.shares)
    assert (few.buckets, few.num_train) == (all_.buckets, all_.num_train)
    np.testing.assert_array_equal(
        few.test.rows[0][0, : few.test.counts[0][0]], all_.test.rows[0][3, : all_.test.counts[0][3]]
    )


def test_one_fold_has_no_standard_error_and_no_false_verdict():
    found = {("mr", method): finished(0.2, 0.0) for method in ("mixture", "vanilla", "point")}
    found = {
        key: Finished({r: {m: v[:1] for m, v in own.items()} for r, own in done.values.items()})
        for key, done in found.items()
    }
    assert "nan" not in "".join(tables(found, ["mr"], ["vanilla", "mixture", "point"]).values())
    text = "\n".join(verdicts(found))
    assert "mixture − Vanilla SVGD, paired over folds: mr +0.00 (level)." in text
    assert "of our best method, on 1 of 1 (mr)." in text


def test_verdicts_are_even_handed_and_paired():
    def with_errors(*errors):
        scores = {"error": np.array(errors), "log_likelihood": -np.array(errors), "ece": np.array(errors)}
        return Finished.of({"now": scores, "averaged": scores})

    found = {("mr", "mixture"): with_errors(0.10, 0.30), ("mr", "vanilla"): with_errors(0.11, 0.30)}
    assert "mixture − Vanilla SVGD, paired over folds: mr -0.50 ± 0.50 (level)." in "\n".join(verdicts(found))
    found["mr", "vanilla"] = with_errors(0.09, 0.29)  # far within each one's own error, but behind on every fold
    text = "\n".join(verdicts(found))
    assert "Test error, %, mixture − Vanilla SVGD, paired over folds: mr +1.00 ± 0.00 (worse)." in text
    assert "Test error, %: the mixture is best, or within one standard error (paired over folds) of our best" in text
    assert "of our best method, on none." in text


def test_step_sizes_that_are_none_are_refused():
    with pytest.raises(ValueError, match="`step_size` must be positive"):
        build("vanilla", 0.0, 1.0, 10)


def finished(error: float, spread: float = 0.01) -> Finished:
    own = np.array([error - spread, error + spread])
    scores = {"error": own, "log_likelihood": -own, "ece": own / 2}
    return Finished.of({"now": scores, "averaged": {metric: values - 0.02 for metric, values in scores.items()}})


def test_methods_that_are_level_as_printed_are_all_bold():
    found = {("mr", "mixture"): finished(0.2), ("mr", "vanilla"): finished(0.200001)}
    table = tables(found, ["mr"], ["vanilla", "mixture"])["error"]
    assert table.count("**18.00 ± 1.00**") == 2


def test_tables_and_verdicts_say_who_is_best():
    found = {("mr", "mixture"): finished(0.2), ("mr", "vanilla"): finished(0.21), ("mr", "point"): finished(0.25)}
    table = tables(found, ["mr"], ["vanilla", "mixture", "point"])["error"]
    assert "| Matrix-SVGD (mixture) | **18.00 ± 1.00** (19.09) |" in table
    assert "| Point estimate | 25.00 ± 1.00 |" in table
    assert "| Point estimate, averaged over checks | 23.00 ± 1.00 |" in table
    text = "\n".join(verdicts(found))
    assert "Test error, %, mixture − Point estimate, paired over folds: mr -7.00 ± 0.00 (better)." in text
    assert "mixture − the paper's mixture, with other word vectors: mr -1.09." in text


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(sentences, "generated", lambda: generated(60))


@pytest.mark.thorough
def test_quick_mode_runs_end_to_end_and_goes_on_where_it_stopped(tmp_path, small, monkeypatch):
    options = ["reproduce", "sentences", "--quick", "--methods", "vanilla,point", "--out", str(tmp_path)]
    result = CliRunner().invoke(cli.app, options)
    assert result.exit_code == 0, result.output
    for name in ("results.json", "table.md", "scores.png", "rows.json", "folds.json"):
        assert (tmp_path / name).stat().st_size > 60, name
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert {"error", "log_likelihood", "ece", "error@now", "error@averaged"} <= {row["metric"] for row in rows}
    monkeypatch.setattr(sentences, "run_folds", lambda *arguments: pytest.fail("a finished row ran again"))
    assert CliRunner().invoke(cli.app, options).exit_code == 0


@pytest.mark.thorough
def test_search_keeps_validation_alone_and_chooses_for_every_fold(tmp_path, small, monkeypatch):
    monkeypatch.setattr(sentence_study, "STEP_SIZES", (1e-3, 1e-2))
    monkeypatch.setattr(sentence_study, "DAMPINGS", (0.1, 1.0))
    monkeypatch.setattr(sentences, "EPOCHS", 1)
    corpus, vectors = generated(60)
    monkeypatch.setattr(sentences, "load_sentences", lambda name, where: corpus)
    monkeypatch.setattr(sentences, "word_vectors", lambda words, paths: (vectors, [len(words)]))
    sentences.search(("mr",), tmp_path, methods=("average",), progress=lambda text: None)
    log = json.loads((tmp_path / "search.json").read_text())
    runs = np.concatenate([log[f"mr/average/damping {damping}"]["result"] for damping in ("0.1", "1")])
    assert runs.shape == (4, 10)
    best = np.argmax(runs, axis=0)
    winners = json.loads((tmp_path / "settings.json").read_text())["winners"]["mr"]["average"]
    assert winners["step_size"] == [(1e-3, 1e-2, 1e-3, 1e-2)[i] for i in best]
    assert winners["damping"] == [(0.1, 0.1, 1.0, 1.0)[i] for i in best]


def test_a_damping_that_diverges_does_not_end_the_search(tmp_path, monkeypatch):
    def runs(method, settings, task, epochs):
        scores = np.full((len(settings), 10, 1), np.nan if settings[0].damping[0] == 0.01 else -1.0)
        return [1], Measured(*[Scores(scores, scores, scores)] * 4)

    corpus, vectors = generated(60)
    monkeypatch.setattr(sentences, "load_sentences", lambda name, where: corpus)
    monkeypatch.setattr(sentences, "word_vectors", lambda words, paths: (vectors, [len(words)]))
    monkeypatch.setattr(sentences, "run_folds", runs)
    sentences.search(("mr",), tmp_path, methods=("mixture",), progress=lambda text: None)
    assert json.loads((tmp_path / "settings.json").read_text())["winners"]["mr"]["mixture"]["damping"] == [0.1] * 10


def test_every_fold_gets_the_setting_of_its_own_best_validation():
    settings = [Setting([size] * 3, [damping] * 3) for size, damping in [(0.1, 1.0), (0.2, 1.0), (0.1, 2.0)]]
    chosen = sentences.choose(settings, [[None, -1.0, -3.0], [-2.0, -2.0, -2.0], [-3.0, -3.0, -1.0]])
    assert chosen == Setting([0.2, 0.1, 0.1], [1.0, 1.0, 2.0])
    with pytest.raises(ValueError, match="no setting ended with a finite log-likelihood on fold 0"):
        sentences.choose([Setting([0.1, 0.1])] * 2, [[None, -1.0], [None, -2.0]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--datasets", "imdb"], "`--datasets` must be among mr, cr, subj, mpqa, got imdb"),
        (["--datasets", "generated"], "`--datasets` must be among mr, cr, subj, mpqa, got generated"),
        (["--methods", "svn"], "`--methods` must be among"),
        (["--folds", "11"], "`--folds` must be a whole number from 1 to 10"),
        (["--data", "nowhere"], "docs/data.md"),
        (["--quick", "--tune"], "exclude each other"),
        (["--settings", "nowhere.json"], "`--settings` nowhere.json cannot be read"),
        (["--settings", "few.json"], "there must be 10 of step_size, one a fold"),
        (["--settings", "bare.json"], "mixture has a damping"),
        (["--settings", "null.json"], "is not a settings.json from --tune: "),
        (["--settings", "list.json"], "vanilla must have step_size, and damping where it has a metric, got [0.1]"),
        (["--settings", "other.json"], "is not a settings.json from --tune: it has another layout."),
        (["--quick", "--jobs", "0"], "`--jobs` must be a whole number"),
        (["--quick", "--datasets", "mr"], "`--quick` runs on a generated corpus"),
        (["--tune", "--folds", "2"], "`--tune` searches settings for all folds"),
    ],
)
def test_bad_input_is_one_line_and_a_non_zero_exit(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("few.json").write_text('{"winners": {"mr": {"vanilla": {"step_size": [0.1]}}}}')
    Path("null.json").write_text('{"winners": {"mr": {"vanilla": {"step_size": null}}}}')
    Path("list.json").write_text('{"winners": {"mr": {"vanilla": [0.1]}}}')
    Path("other.json").write_text("[1, 2]")
    Path("bare.json").write_text('{"winners": {"mr": {"mixture": {"step_size": [0.1]}}}}')
    monkeypatch.setattr(sys, "argv", ["steinkern", "reproduce", "sentences", *options])
    with pytest.raises(SystemExit) as error:
        cli.main()
    assert error.value.code == 2
    printed = capsys.readouterr().err.strip()
    assert message in printed
    assert len(printed.splitlines()) == 1


def test_recorded_settings_are_the_winners_of_the_recorded_search_and_of_the_recorded_results():
    recorded = json.loads((Path(sentences.__file__).parent / "sentence_settings.json").read_text())["winners"]
    search = json.loads((RESULTS / "search.json").read_text())
    reported = json.loads((RESULTS / "results.json").read_text())["settings"]["winners"]
    folds = json.loads((RESULTS / "folds.json").read_text())
    for name in sentences.TEXTS:
        assert set(folds[name]) == set("0123456789")
        for method in METHODS:
            pieces = [
                search[f"{name}/{method}" + (f"/damping {own[0].damping[0]:g}" if own[0].damping else "")]
                for own in sentence_study.grid(method)
            ]
            settings = [Setting(**own) for piece in pieces for own in piece["made_from"]["settings"]]
            assert settings == [
                Setting(list(s.step_size), s.damping and list(s.damping))
                for own in sentence_study.grid(method)
                for s in own
            ]
            chosen = sentences.choose(settings, [run for piece in pieces for run in piece["result"]])
            assert recorded[name][method] == reported[name][method] == sentences._as_json(chosen)
