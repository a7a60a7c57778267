"""The one format of results."""

import json

import numpy as np
import pytest

from studies.tables import (
    Metric,
    Row,
    aligned,
    cells_of,
    count_names,
    read_results,
    rounded,
    score_table,
    write_json,
    write_results,
)


def test_row_holds_mean_and_standard_error_over_trials():
    row = Row.over([1.0, 2.0, 4.0], "sine", "mixture", "log_mmd2@30", paper=None)
    assert row.mean == pytest.approx(7 / 3)
    assert row.stderr == pytest.approx(np.std([1, 2, 4], ddof=1) / np.sqrt(3))
    assert row.trials == 3


def test_results_come_back_as_they_were_written(tmp_path):
    rows = [Row.over([1.0, 2.0], "sine", "mixture", "log_mmd2@30"), Row.over([3.0], "star", "svn", "log_mmd2@30", 2.5)]
    write_results(tmp_path / "results.json", "toy", {"seeds": [0, 1]}, rows)
    experiment, settings, read = read_results(tmp_path / "results.json")
    assert (experiment, settings) == ("toy", {"seeds": [0, 1]})
    assert read[0] == rows[0]
    assert np.isnan(read[1].stderr)  # a single trial has no standard error: null in the file
    assert read[1].paper == 2.5
    assert set(json.loads((tmp_path / "results.json").read_text())["rows"][0]) == {
        "case", "method", "metric", "mean", "stderr", "trials", "paper"
    }  # fmt: skip


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path):
    path = tmp_path / "results.json"
    write_json(path, {"old": 1})
    with pytest.raises(ValueError, match="Out of range"):
        write_json(path, {"new": float("nan")})
    assert json.loads(path.read_text()) == {"old": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_aligned_table_has_columns_of_one_width():
    text = aligned("| a | long head |\n|---|---|\n| name | 1 |\n| n | **22 ± 1** |")
    assert text.splitlines() == ["a     long head", "name          1", "n       *22 ± 1"]  # a star is bold


def test_a_score_table_has_the_paper_s_numbers():
    metric = Metric("Error", 1, 1, {"fine": 3})
    rows = [Row.over([1.0, 2.0], "coarse", "a", "error", 1.25), Row.over([1.0], "fine", "b", "error")]
    table = score_table(metric, ["a", "b"], {"first": rows}, bold=False)
    assert cells_of(table) == [["Error", "first"], ["a", "1.5 ± 0.5 (1.2)"], ["b", "1.000"]]
    turned = score_table(metric, ["a", "b"], {"first": rows}, bold=False, transposed=True)
    assert cells_of(turned) == [list(line) for line in zip(*cells_of(table), strict=True)]


def test_a_difference_is_level_within_its_error_and_one_trial_settles_nothing():
    smaller, larger = Metric("Error", 1), Metric("Accuracy", -1)
    gap = Row.over([-3.0, -1.0], "", "", "")  # mean -2, standard error 1
    assert (smaller.verdict(gap), larger.verdict(gap)) == ("better", "worse")
    assert smaller.verdict(gap, errors=2) == "level"
    assert smaller.verdict(Row.over([-3.0], "", "", "")) == "one trial cannot settle it"
    assert smaller.verdict(Row.over([0.0], "", "", "")) == "level"


def test_names_are_counted_and_numbers_rounded_for_json():
    assert (count_names(["a", "b"]), count_names(["a"], of=3), count_names([])) == ("2 (a, b)", "1 of 3 (a)", "none")
    assert rounded([1.23456789, float("nan")]) == [1.23457, None]
    assert rounded([[1234.56789]], places=2) == [[1234.57]]
