"""Reading the datasets: where they are looked for, what they hold, and their splits."""

import numpy as np
import pooch
import pytest

from studies.data.datasets import (
    breast_cancer,
    data_directory,
    diabetes,
    load_regression,
    standard_splits,
    year_split,
)


def test_standard_splits_are_the_published_stream():
    train_rows, test_rows = standard_splits(10, 2)
    assert train_rows.tolist() == [[2, 9, 6, 4, 0, 3, 1, 7, 8], [9, 5, 3, 0, 8, 4, 2, 1, 6]]
    assert test_rows.tolist() == [[5], [7]]


@pytest.mark.parametrize(("rows", "for_training"), [(5, 4), (506, 455), (1030, 927), (45730, 41157)])
def test_each_standard_split_shares_out_all_rows(rows, for_training):
    train_rows, test_rows = standard_splits(rows, 3)
    assert train_rows.shape == (3, for_training)
    both = np.concatenate([train_rows, test_rows], axis=1)
    np.testing.assert_array_equal(np.sort(both, axis=1), np.tile(np.arange(rows), (3, 1)))
    assert not np.array_equal(train_rows[0], train_rows[1])


@pytest.mark.parametrize(("rows", "for_testing"), [(515_345, 51_630), (1000, 100), (20, 2), (2, 1)])
def test_year_is_split_by_position(rows, for_testing):
    train_rows, test_rows = year_split(rows)
    assert train_rows.shape == (1, rows - for_testing)
    np.testing.assert_array_equal(np.concatenate([train_rows, test_rows], axis=1), [np.arange(rows)])


def test_shipped_datasets_need_no_directory():
    regression, classification = diabetes(), breast_cancer()
    assert regression.features.shape == (442, 10)
    assert regression.train_rows.shape == (5, 398)
    assert classification.features.shape == (569, 30)
    assert set(classification.labels.tolist()) == {0, 1}


def test_the_argument_comes_before_the_variable_and_that_before_the_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("STEINKERN_DATA", raising=False)
    assert data_directory(None) == pooch.os_cache("steinkern")
    monkeypatch.setenv("STEINKERN_DATA", str(tmp_path / "variable"))
    assert data_directory(None) == tmp_path / "variable"
    assert data_directory(tmp_path) == tmp_path


def test_an_unknown_dataset_is_refused_by_a_list_of_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="`dataset` must be one of 'boston'"):
        load_regression("bosten", tmp_path)
