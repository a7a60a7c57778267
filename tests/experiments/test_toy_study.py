"""The search and the runs of the two-dimensional study."""

import json
from dataclasses import replace

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.experiments import toy_results, toy_study
from steinkern.experiments.journal import Journal
from steinkern.experiments.results import Row
from steinkern.experiments.toy_results import RIVALS, Run, rows_of, run_target, shown_iterations, table, verdicts
from steinkern.experiments.toy_study import METHODS, Setting, cells, recorded_settings, trajectory, tune, winner
from steinkern.experiments.toy_targets import PAPER, TARGETS, LogMMD


def test_tuning_seeds_are_not_reported_seeds():
    assert not set(toy_study.TUNING_SEEDS) & set(toy_study.REPORTED_SEEDS)
    assert len(toy_study.TUNING_SEEDS) >= 10


@pytest.mark.parametrize("name", PAPER)
def test_recorded_settings_lie_on_the_grid_that_was_searched(name):
    for method, setting in recorded_settings()[name].items():
        on_grid = [
            replace(named, step_size=size, own_share=share, temperature=temperature)
            for named, numbers in cells(method, TARGETS[name])
            for size, share, temperature in numbers
        ]
        assert setting in on_grid, method


@pytest.mark.parametrize("name", PAPER)
def test_recorded_step_sizes_are_not_at_the_edge_of_their_grid(name):
    for method, setting in recorded_settings()[name].items():
        sizes = toy_study.search(method, TARGETS[name]).step_sizes[setting.rule]
        assert min(sizes) < setting.step_size < max(sizes), method


@pytest.mark.thorough
@pytest.mark.parametrize("method", METHODS)
def test_trajectory_is_what_fit_computes(method):
    target = TARGETS["double_banana"]
    setting = recorded_settings()["double_banana"][method]
    points = toy_study.first_particles(3)[:7]
    sampler = toy_study.build(method, setting, target)
    path = trajectory(jr.key(5), method, setting, target, points, 4)
    state = sampler.init(sk.LogDensity(target.log_density).bind(points[0]), points)
    bound = sk.LogDensity(target.log_density).bind(points[0])
    for index, key in enumerate(jr.split(jr.key(5), 4)):
        state, _ = sampler.step(key, state, bound)
        np.testing.assert_allclose(path[index + 1], state.points, rtol=1e-9, atol=1e-10)


def test_methods_start_from_the_same_particles_at_a_seed_and_others_at_another():
    np.testing.assert_allclose(toy_study.first_particles(4), toy_study.first_particles(jnp.asarray(4)), rtol=1e-12)
    assert not np.allclose(toy_study.first_particles(4), toy_study.first_particles(5))


@pytest.fixture
def small_search(monkeypatch):
    """Two step sizes, one rule, two seeds, few iterations."""
    monkeypatch.setattr(toy_study, "TUNING_SEEDS", (1000, 1001))
    monkeypatch.setattr(toy_study, "METHODS", ("vanilla", "sgld"))
    monkeypatch.setattr(toy_study, "_STEP_SIZES", {"adagrad": (0.1, 0.5)})
    monkeypatch.setitem(TARGETS, "star", replace(TARGETS["star"], reported_iteration=3))


@pytest.mark.thorough
def test_search_goes_on_where_it_stopped_and_the_winner_is_the_best_of_its_log(small_search, tmp_path, monkeypatch):
    log = tmp_path / "search.json"
    told: list[str] = []
    winners = tune("star", log, told.append)
    first = json.loads(log.read_text())
    assert set(winners) == {"vanilla", "sgld"}
    values = [entry for name, entries in first.items() if "/vanilla/" in name for entry in entries]
    best = min(values, key=lambda entry: entry[3])
    assert winners["vanilla"].step_size == best[0]

    def must_not_run(*_):
        raise AssertionError("a finished cell was run again")

    monkeypatch.setattr(toy_study, "evaluate", must_not_run)
    assert tune("star", log, told.append) == winners
    assert json.loads(log.read_text()) == first


@pytest.mark.thorough
def test_evaluated_trial_is_the_mean_over_tuning_seeds(small_search):
    target = TARGETS["star"]
    measure = LogMMD.to(target.draws(jr.key(0), 100))
    named = Setting("adagrad", 0.0, "median", None)
    (trial,) = toy_study.evaluate("vanilla", named, [(0.5, 1.0, 1.0)], target, measure)
    each = []
    for seed in (1000, 1001):
        path = trajectory(jr.key(0), "vanilla", trial.setting, target, toy_study.first_particles(seed), 3)
        each.append(float(measure(path[-1])))
    assert trial.mean == pytest.approx(np.mean(each), rel=1e-8)


def test_winner_of_an_empty_search_is_a_clear_error():
    with pytest.raises(ValueError, match="run `--tune` first"):
        winner({}, "star", "mixture")


@pytest.fixture(scope="module")
def short_run() -> Run:
    return run_target("star", recorded_settings()["star"], seeds=(0, 1, 2), last=30)


def test_methods_that_are_finished_are_not_run_again(monkeypatch, tmp_path):
    ran: list[str] = []

    def fake(method, setting, target, seeds, last):
        ran.append(method)
        if ran == ["vanilla", "svn"]:
            raise KeyboardInterrupt
        paths = np.random.default_rng(len(method)).normal(size=(len(seeds), last + 1, 50, 2))
        return np.where(paths > 2, np.nan, paths) if method == "sgld" else paths

    def study(place) -> Run:
        return run_target("star", recorded_settings()["star"], (0, 1), 2, journal=Journal(place))

    monkeypatch.setattr(toy_results, "trajectories", fake)
    monkeypatch.setattr(toy_results, "METHODS", ("vanilla", "svn", "sgld"))
    monkeypatch.setattr(toy_results, "exact_level", lambda target, measure: np.zeros(1))
    monkeypatch.setattr(toy_results, "exact_draws", lambda target: jr.normal(jr.key(0), (50, 2)))
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "rows.json")
    resumed = study(tmp_path / "rows.json")
    assert ran == ["vanilla", "svn", "svn", "sgld"]
    whole = study(tmp_path / "other.json")
    for method in ("vanilla", "svn", "sgld"):
        np.testing.assert_array_equal(resumed.log_mmd2[method], whole.log_mmd2[method])
        np.testing.assert_array_equal(resumed.flow[method], whole.flow[method])
    assert np.isnan(resumed.flow["sgld"]).any()


@pytest.mark.slow(reason="the fixture is the tiny end-to-end run of the toy study, with every method")
def test_rows_hold_every_method_and_the_paired_differences(short_run):
    rows = {(row.method, row.metric): row for row in rows_of(short_run)}
    assert {method for method, _ in rows} == {*METHODS, *(f"mixture-{rival}" for rival in RIVALS), "exact"}
    for rival in RIVALS:
        paired = rows[f"mixture-{rival}", "log_mmd2@30"]
        means = [rows[method, "log_mmd2@30"].mean for method in ("mixture", rival)]
        assert paired.mean == pytest.approx(means[0] - means[1])
        difference = short_run.at("mixture", 30) - short_run.at(rival, 30)
        assert paired.stderr == pytest.approx(np.std(difference, ddof=1) / np.sqrt(3))


def test_table_and_verdicts_agree_with_the_rows(short_run):
    rows = {(row.method, row.metric): row for row in rows_of(short_run)}
    text = table([short_run])
    assert f"{rows['mixture', 'log_mmd2@30'].mean:.2f} ± {rows['mixture', 'log_mmd2@30'].stderr:.2f}" in text
    lines = verdicts(short_run)
    assert len(lines) == len(RIVALS) + 1
    paired = rows["mixture-vanilla", "log_mmd2@30"]
    wins = paired.mean < -2 * paired.stderr
    assert ("the mixture wins" in lines[0]) == wins


def test_verdict_says_so_where_a_rival_wins(short_run):
    worse = {**short_run.log_mmd2, "svn": short_run.log_mmd2["mixture"] - 3 - 0.01 * np.arange(3)[:, None]}
    lines = verdicts(replace(short_run, log_mmd2=worse))
    assert any("SVN wins" in line for line in lines)


def test_shown_iterations_hold_the_paper_s():
    target = TARGETS["sine"]
    assert set(target.iterations) <= set(shown_iterations(target, 500).tolist())
    assert shown_iterations(target, 10).max() == 10


def test_row_of_exact_draws_is_near_the_value_that_theory_gives(short_run):
    # E MMD² of n exact draws against the law is (1 − E k(x, x'))/n; Jensen puts the mean log below its log.
    row = Row.over(short_run.exact, "star", "exact", "log_mmd2")
    assert -6.5 < row.mean < np.log(1 / 50)


@pytest.mark.parametrize(
    "change", [{"rule": "foo"}, {"bandwidth": "wide"}, {"curvature": "junk"}, {"step_size": -1.0}, {"step_size": "abc"}]
)
def test_setting_with_a_choice_that_is_not_known_is_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        toy_study.checked(Setting(**{"rule": "plain", "step_size": 0.1, "bandwidth": "median", **change}))


def test_broken_log_of_a_search_is_named(tmp_path):
    log = tmp_path / "search.json"
    log.write_text('{"star/vanilla')
    with pytest.raises(ValueError, match="is not the log of a search"):
        tune("star", log, print)
