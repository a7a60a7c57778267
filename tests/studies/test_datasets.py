"""Reading the datasets: where they are looked for, what they hold, and their splits."""

from pathlib import Path

import numpy as np
import pooch
import pytest

from studies.data import datasets
from studies.data.datasets import (
    breast_cancer,
    data_directory,
    diabetes,
    load_covtype,
    load_regression,
    standard_splits,
    year_split,
)


def write(directory: Path, name: str, **changes) -> Path:
    """A small file of the layout, whole but for `changes`; a change to None leaves the array out."""
    train_rows, test_rows = standard_splits(10, 3)
    arrays = {
        "data": np.arange(40.0).reshape(10, 4),
        "index_features": np.array([0, 1, 2], dtype=np.int16),
        "index_target": np.array(3, dtype=np.int16),
        "train_idx": train_rows.astype(np.uint16),
        "test_idx": test_rows.astype(np.uint16),
    } | changes
    path = datasets.path_of(name, directory)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


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


def test_fewer_standard_splits_are_the_first_of_more():
    np.testing.assert_array_equal(standard_splits(50, 2)[1], standard_splits(50, 5)[1][:2])


@pytest.mark.parametrize(("rows", "for_testing"), [(515_345, 51_630), (1000, 100), (20, 2), (2, 1)])
def test_year_is_split_by_position(rows, for_testing):
    train_rows, test_rows = year_split(rows)
    assert train_rows.shape == (1, rows - for_testing)
    np.testing.assert_array_equal(np.concatenate([train_rows, test_rows], axis=1), [np.arange(rows)])


def test_a_file_becomes_features_targets_and_splits(tmp_path):
    write(tmp_path, "naval", index_features=np.array([0, 2], dtype=np.int16), index_target=np.array(1, dtype=np.int16))
    naval = load_regression("naval", tmp_path)
    assert naval.name == "naval"
    np.testing.assert_array_equal(naval.features, np.arange(40.0).reshape(10, 4)[:, [0, 2]])
    np.testing.assert_array_equal(naval.targets, np.arange(1.0, 40.0, 4.0))
    np.testing.assert_array_equal(naval.train_rows, standard_splits(10, 3)[0])
    assert naval.features[naval.test_rows[0]].shape == (1, 2)


def test_year_needs_no_splits_in_its_file(tmp_path):
    write(tmp_path, "year", data=np.arange(80.0).reshape(20, 4), train_idx=None, test_idx=None)
    assert load_regression("year", tmp_path).test_rows.tolist() == [[18, 19]]


def test_covertype_keeps_its_types(tmp_path):
    features = np.asfortranarray(np.arange(12, dtype=np.int16).reshape(4, 3))
    (tmp_path / "covtype").mkdir()
    np.savez(tmp_path / "covtype" / "covtype.npz", X=features, label=np.array([1, 7, 2, 2], dtype=np.uint8))
    result = load_covtype(tmp_path)
    np.testing.assert_array_equal(result.features, features)
    assert (result.features.dtype, result.labels.dtype) == (np.int16, np.uint8)


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


def test_the_variable_is_where_files_are_read_from(monkeypatch, tmp_path):
    write(tmp_path, "yacht")
    monkeypatch.setenv("STEINKERN_DATA", str(tmp_path))
    assert load_regression("yacht").features.shape == (10, 3)


def test_an_unknown_dataset_is_refused_by_a_list_of_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="`dataset` must be one of 'boston'"):
        load_regression("bosten", tmp_path)
