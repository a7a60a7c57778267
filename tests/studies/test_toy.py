"""The search and the runs of the two-dimensional study."""

import json
from dataclasses import replace

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from studies import driver
from studies.study import Outcome
from studies.toy import runs
from studies.toy import study as toy
from studies.toy.runs import Task, first_particles, sampler, trajectory
from studies.toy.study import RIVALS, TUNING_SEEDS
from studies.toy.targets import PAPER, TARGETS

pytestmark = pytest.mark.thorough

STUDY = toy.Toy()
RECORDED = driver.read_settings(STUDY, None)


def test_tuning_seeds_are_not_reported_seeds():
    for quick in (False, True):
        for task in STUDY.tasks(quick).values():
            assert not set(TUNING_SEEDS) & set(task.seeds)
    assert len(TUNING_SEEDS) >= 10


@pytest.mark.parametrize("name", PAPER)
def test_recorded_settings_lie_on_the_grid_that_was_searched(name):
    task = STUDY.tuning_tasks((name,))[name]
    for method, setting in RECORDED[name].items():
        assert any(setting in cell.settings for cell in STUDY.cells(method, name, task)), method


@pytest.mark.parametrize("name", PAPER)
def test_recorded_step_sizes_are_not_at_the_edge_of_their_grid(name):
    for method, setting in RECORDED[name].items():
        sizes = toy.search_axes(method, TARGETS[name])["step_sizes"][setting["rule"]]
        assert min(sizes) < setting["step_size"] < max(sizes), method


@pytest.mark.parametrize("method", STUDY.methods)
def test_trajectory_is_what_fit_computes(method):
    target = TARGETS["double_banana"]
    setting = RECORDED["double_banana"][method]
    points = first_particles(3)[:7]
    moves = sampler(method, setting, target)
    path = trajectory(jr.key(5), method, setting, target, points, 4)
    bound = sk.LogDensity(target.log_density).bind(points[0])
    state = moves.init(bound, points)
    for index, key in enumerate(jr.split(jr.key(5), 4)):
        state, _ = moves.step(key, state, bound)
        np.testing.assert_allclose(path[index + 1], state.points, rtol=1e-9, atol=1e-10)


def test_methods_start_from_the_same_particles_at_a_seed_and_others_at_another():
    np.testing.assert_allclose(first_particles(4), first_particles(jnp.asarray(4)), rtol=1e-12)
    assert not np.allclose(first_particles(4), first_particles(5))


@pytest.fixture
def small_search(monkeypatch):
    """Two step sizes, one rule, two seeds, few iterations."""
    monkeypatch.setattr(toy, "TUNING_SEEDS", (1000, 1001))
    monkeypatch.setattr(toy.Toy, "methods", ("vanilla", "sgld"))
    monkeypatch.setattr(toy, "STEP_SIZES", {"adagrad": (0.1, 0.5)})
    monkeypatch.setitem(TARGETS, "star", replace(TARGETS["star"], reported_iteration=3))


@pytest.mark.usefixtures("small_search")
def test_search_goes_on_where_it_stopped_and_the_winner_is_the_best_of_its_log(tmp_path, monkeypatch):
    def search():
        driver.search(STUDY, tmp_path, targets=("star",), progress=lambda text: None)
        return [json.loads((tmp_path / name).read_text()) for name in ("search.json", "settings.json")]

    first, settings = search()
    winners = settings["winners"]["star"]
    assert set(winners) == {"vanilla", "sgld"}
    values = [entry for name, piece in first.items() if "/vanilla/" in name for entry in piece["result"]]
    best = min(values, key=lambda entry: entry[3])
    assert winners["vanilla"]["step_size"] == best[0]
    monkeypatch.setattr(toy.Toy, "evaluate", lambda *arguments: pytest.fail("a finished cell was run again"))
    assert search() == [first, settings]


@pytest.mark.usefixtures("small_search")
def test_evaluated_setting_is_the_mean_over_tuning_seeds():
    task = Task(TARGETS["star"], (1000, 1001), 3)
    setting = STUDY.check("vanilla", {"rule": "adagrad", "step_size": 0.5, "bandwidth": "median"})
    ((*numbers, mean, _),) = STUDY.evaluate("vanilla", toy.Cell("", [setting], {}), task)
    assert numbers == [0.5, 0.0, 1.0]
    paths = [trajectory(jr.key(0), "vanilla", setting, task.target, first_particles(seed), 3) for seed in task.seeds]
    assert mean == pytest.approx(np.mean([task.measure(path[-1]) for path in paths]), abs=1e-4)  # four places are kept


@pytest.fixture(scope="module")
def short_run() -> Outcome:
    task = Task(TARGETS["star"], (0, 1, 2), 30)
    results = {("star", method): STUDY.run(method, RECORDED["star"][method], task) for method in STUDY.methods}
    scores = {method: STUDY.scores(method, result, task) for (_, method), result in results.items()}
    scores |= STUDY.derive_scores(scores, task)
    return Outcome(STUDY, STUDY.methods, {"star": task}, RECORDED, results, {"star": scores}, quick=False)


def test_methods_that_are_finished_are_not_run_again(monkeypatch, tmp_path):
    ran: list[str] = []

    def fake(method, setting, task):
        ran.append(method)
        if ran == ["vanilla", "svn"]:
            raise KeyboardInterrupt
        paths = np.random.default_rng(len(method)).normal(size=(len(task.seeds), task.last + 1, 50, 2))
        return np.where(paths > 2, np.nan, paths) if method == "mixture" else paths

    def study(position):
        driver.reproduce(
            STUDY,
            tmp_path / position,
            seeds=2,
            targets=("star",),
            quick=True,
            figures=False,
            progress=lambda text: None,
        )
        return json.loads((tmp_path / position / "rows.json").read_text())

    monkeypatch.setattr(toy, "trajectories", fake)
    monkeypatch.setattr(runs, "NUM_DRAWS", 50)
    with pytest.raises(KeyboardInterrupt):
        study("one")
    resumed = study("one")
    assert ran == ["vanilla", "svn", *STUDY.methods[1:]]
    whole = study("other")
    for method in STUDY.methods:
        assert resumed[f"star/{method}"]["result"] == whole[f"star/{method}"]["result"]
    assert None in np.array(resumed["star/mixture"]["result"]["flow"], object)


def test_rows_hold_every_method_and_the_paired_differences(short_run):
    rows = {(row.method, row.metric): row for row in short_run.rows()}
    assert {method for method, _ in rows} == {*STUDY.methods, *(f"mixture-{rival}" for rival in RIVALS), "exact"}
    for rival in RIVALS:
        paired = rows[f"mixture-{rival}", "log_mmd2@30"]
        means = [rows[method, "log_mmd2@30"].mean for method in ("mixture", rival)]
        assert paired.mean == pytest.approx(means[0] - means[1])
        values = [np.array(short_run.results["star", method]["log_mmd2"])[:, -1] for method in ("mixture", rival)]
        assert paired.stderr == pytest.approx(np.std(values[0] - values[1], ddof=1) / np.sqrt(3))


def test_table_and_verdicts_agree_with_the_rows(short_run):
    rows = {(row.method, row.metric): row for row in short_run.rows()}
    mixture = rows["mixture", "log_mmd2@30"]
    table = short_run.tables()["log_mmd2"]
    assert f"{mixture.mean:.2f} ± {mixture.stderr:.2f}" in table
    assert f"| 50 exact draws | {rows['exact', 'log_mmd2'].mean:.2f} ± " in table
    lines = STUDY.verdicts(short_run)
    assert len(lines) == len(RIVALS) + 1
    paired = rows["mixture-vanilla", "log_mmd2@30"]
    assert f"star at 30 {paired.mean:+.2f} ± {paired.stderr:.2f}" in lines[0]
    assert ("(better)" in lines[0]) == (paired.mean < -2 * paired.stderr)
    below = mixture.mean < rows["exact", "log_mmd2"].mean
    assert lines[-1].endswith("on 1 of 1 (star)." if below else "on none.")


def test_verdict_says_so_where_a_rival_wins(short_run):
    scores = short_run.scores["star"]
    better = {name: values - 3 - 0.01 * np.arange(3) for name, values in scores["mixture"].items()}
    lines = STUDY.verdicts(replace(short_run, scores={"star": {**scores, "svn": better}}))
    assert "mixture − SVN" in lines[2]
    assert "(worse)" in lines[2]


def test_shown_iterations_hold_the_paper_s():
    target = TARGETS["sine"]
    assert set(target.iterations) <= set(Task(target, (0,), 500).iterations.tolist())
    assert Task(target, (0,), 10).iterations.max() == 10


def test_row_of_exact_draws_is_near_the_value_that_theory_gives(short_run):
    # E MMD² of n exact draws against the law is (1 − E k(x, x'))/n; Jensen puts the mean log below its log.
    assert -6.5 < short_run.row("star", "exact", "log_mmd2").mean < np.log(1 / 50)


def test_released_variants_run_with_the_settings_of_the_paper_s_target():
    assert STUDY.setting(RECORDED, "star_released", "svn", None) == RECORDED["star"]["svn"]


@pytest.mark.parametrize(
    "change", [{"rule": "foo"}, {"bandwidth": "wide"}, {"curvature": "junk"}, {"step_size": -1.0}, {"step_size": "abc"}]
)
def test_setting_with_a_choice_that_is_not_known_is_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        STUDY.check("vanilla", {"rule": "plain", "step_size": 0.1, "bandwidth": "median", **change})
