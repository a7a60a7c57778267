"""The benchmark of minibatches and the processes that it runs in: what is told of a run. Nothing long is run."""

import sys

import numpy as np
import pytest
from benchmarks.jobs import cores, in_processes
from benchmarks.minibatch import methods, posteriors, references, run
from benchmarks.minibatch.methods import Outcome

from steinkern.experiments.journal import Journal
from steinkern.experiments.tables import read_results

REFERENCE = {"mean": [1.0, 2.0], "sd": [0.5, 10.0]}


def outcome(*errors: tuple[float, float], warned: bool = False) -> Outcome:
    """A run with these errors of means, in standard deviations, and of standard deviations, an epoch after another."""
    means = np.array([[1.0 + 0.5 * mean, 2.0] for mean, _ in errors])
    sds = np.array([[0.5, 10.0 * (1 + sd)] for _, sd in errors])
    return Outcome(1.0 + np.arange(len(errors)), means, sds, warned)


def test_epochs_to_reach_are_the_first_at_which_both_errors_are_small():
    number = run.numbers_of(outcome((1, 0), (0.1, 0.5), (0.1, -0.1), (0.3, 0)), REFERENCE)
    assert number["epochs_to_reach"] == 3
    assert (number["good"], number["silent_failure"], number["epochs"]) == (0, 1, 4)
    assert number["max_mean_error"] == pytest.approx(0.3)


def test_a_run_that_is_not_finite_is_never_good():
    number = run.numbers_of(outcome((np.nan, 0), warned=True), REFERENCE)
    assert np.isnan(number["epochs_to_reach"])
    assert (number["good"], number["silent_failure"], number["max_mean_error"]) == (0, 0, np.inf)


def test_a_rival_has_its_best_step_size():
    sizes = {"0.1": outcome((0.5, 0)), "0.3": outcome((0.1, 0.1)), "1": outcome((np.nan, 0))}
    rows = {row.metric: row.mean for row in run.rows_of("a,batch=32", "sgld", sizes, REFERENCE)}
    assert rows["step_size"] == 0.3
    assert rows["good"] == 1


def test_chains_are_averaged_over_the_second_half_of_their_records_and_particles_are_not():
    recorded = np.arange(4.0)[:, None, None] + np.array([[-1.0], [1.0]])  # (records, particles, 1)
    means, sds = methods._moments(recorded, averaged=True)
    np.testing.assert_allclose(means[:, 0], [0, 1, 1.5, 2.5])
    np.testing.assert_allclose(sds[2, 0], np.sqrt(1 + 0.25))
    means, sds = methods._moments(recorded, averaged=False)
    np.testing.assert_allclose(means[:, 0], [0, 1, 2, 3])
    np.testing.assert_allclose(sds, 1)


def test_references_pool_chains_and_state_their_errors():
    chain = {"mean": [0.0], "variance": [1.0], "ess": 200.0, "ess_of_squares": 100.0, "draws": 300}
    pooled = references.combine([chain, {**chain, "mean": [2.0]}])
    assert pooled["mean"] == [1.0]
    assert pooled["sd"][0] == pytest.approx(np.sqrt(2), rel=1e-5)  # six digits are kept; the means are 2 apart
    assert pooled["mean_error"] == pytest.approx(1 / 20)
    assert pooled["sd_error"] == pytest.approx(1 / 20)
    assert pooled["r_hat"] > 1.5


def test_rows_are_written_for_what_is_complete(tmp_path):
    journal = Journal(tmp_path / "journal.json")
    journal.put("logistic-10k,importance,0", None, {"how": "by hand", **REFERENCE})
    piece = {"epochs": "[1.0]", "means": "[[1.0, 2.0]]", "sds": "[[0.5, 10.0]]", "warned": False, "machine": "one"}
    for seed in range(run.SEEDS):
        journal.put(f"logistic-10k,batch=32,stein,{seed}", None, piece)
    journal.put("logistic-10k,batch=32,sgld,0.1", None, piece)  # one of four step sizes
    run.write(tmp_path / "minibatch.json", journal)
    _, settings, rows = read_results(tmp_path / "minibatch.json")
    assert {(row.case, row.method, row.trials) for row in rows} == {("logistic-10k,batch=32", "stein", run.SEEDS)}
    assert next(row.mean for row in rows if row.metric == "good") == 1
    assert settings["machines"] == ["one"]


def test_rows_of_runs_that_the_journal_does_not_have_are_kept(tmp_path):
    piece = {"epochs": "[1.0]", "means": "[[1.0, 2.0]]", "sds": "[[0.5, 10.0]]", "warned": False, "machine": "one"}
    reference = {"how": "by hand", **REFERENCE}
    first = Journal(tmp_path / "first.json")
    first.put("logistic-10k,importance,0", None, reference)
    first.put("logistic-10k,batch=32,stein,0", None, piece)
    run.write(tmp_path / "minibatch.json", first)
    second = Journal(tmp_path / "second.json")
    for size in methods.STEP_SIZES["sgld"]:
        second.put(f"logistic-10k,batch=32,sgld,{size:g}", None, {**piece, "machine": "two"})
    run.write(tmp_path / "minibatch.json", second)
    _, settings, rows = read_results(tmp_path / "minibatch.json")
    assert {(row.method, row.trials) for row in rows} == {("stein", 1), ("sgld", 1)}
    assert settings["references"]["logistic-10k"] == reference
    assert settings["machines"] == ["one", "two"]


@pytest.mark.thorough
def test_importance_sampling_agrees_with_a_grid(monkeypatch):
    small = posteriors.logistic(200, 2)
    monkeypatch.setitem(references.BUILD, "logistic-small", lambda: small)
    found = references.by_importance("logistic-small")
    x, y = (np.asarray(small.data[key], np.float64) for key in ("x", "y"))
    axis = np.linspace(-2.0, 2.0, 401)
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    linear = points @ x.T
    logs = linear @ y - np.logaddexp(0, linear).sum(axis=1) - np.sum(points**2, axis=1) / 8
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean = weights @ points
    sd = np.sqrt(weights @ (points - mean) ** 2)
    # 1000 draws whose weights vary by a fifth: a standard error near 0.006 of means and 0.005 of standard deviations.
    np.testing.assert_allclose((np.array(found["mean"]) - mean) / sd, 0, atol=0.05)
    np.testing.assert_allclose(np.array(found["sd"]) / sd, 1, atol=0.04)


def test_every_run_is_a_job_once_and_stein_comes_first():
    jobs = run.jobs_of(["logistic-10k", "hierarchical-20k"], [32, 256], list(methods.METHODS))
    assert len(jobs) == 2 * (2 * run.SEEDS + 2 * 4 * 4) + 1 + references.CHAINS  # and the references of both
    assert [job["method"] for job in jobs.values()][: 4 * run.SEEDS] == 4 * run.SEEDS * ["stein"]


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="cores are pinned on Linux alone")
def test_jobs_that_fail_are_told_and_the_others_finish(tmp_path):
    assert cores()
    done: list[str] = []
    commands = {"good": ["this"], "bad": ["no_such_module"], "late": ["this"]}
    failed = in_processes(commands, 2, done.append, 100.0, {"late": 1000.0})
    assert done == ["good"]
    assert "no_such_module" in failed["bad"]
    assert failed["late"] == "not begun, for want of time"
