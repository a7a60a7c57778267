"""The search and the runs of the two-dimensional study."""

import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from studies import driver
from studies.study import Outcome
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


def test_values_that_are_not_finite_are_kept_as_null(monkeypatch):
    paths = np.random.default_rng(0).normal(size=(2, 11, 50, 2))
    monkeypatch.setattr(toy, "trajectories", lambda *arguments: np.where(paths > 2, np.nan, paths))
    result = STUDY.run("vanilla", {}, Task(TARGETS["star"], (0, 1), 10))
    assert None in np.array(result["flow"], object)
    assert None in np.array(result["log_mmd2"], object)


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
    paired = rows["mixture-vanilla", "log_mmd2@30"]
    assert f"star at 30 {paired.mean:+.2f} ± {paired.stderr:.2f}" in STUDY.verdicts(short_run)[0]


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
