"""Reading the datasets: where they are looked for, what they hold, and what is said when they are not whole."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from steinkern.core.extras import install_command
from steinkern.experiments.data import datasets
from steinkern.experiments.data.datasets import (
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


@pytest.mark.parametrize(("rows", "splits", "named"), [(4, 1, "number_of_rows"), (10, 0, "number_of_splits")])
def test_too_few_rows_or_splits_are_refused(rows, splits, named):
    with pytest.raises(ValueError, match=f"`{named}` must be a whole number"):
        standard_splits(rows, splits)


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
    found = load_covtype(tmp_path)
    np.testing.assert_array_equal(found.features, features)
    assert (found.features.dtype, found.labels.dtype) == (np.int16, np.uint8)


def test_shipped_datasets_need_no_directory():
    regression, classification = diabetes(), breast_cancer()
    assert regression.features.shape == (442, 10)
    assert regression.train_rows.shape == (5, 398)
    assert classification.features.shape == (569, 30)
    assert set(classification.labels.tolist()) == {0, 1}


def test_absence_of_an_optional_module_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=re.escape(f"scikit-learn: {install_command('experiments')}")):
        diabetes()


def test_the_argument_comes_before_the_variable_and_that_before_the_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("STEINKERN_DATA", raising=False)
    assert data_directory(None) == tmp_path / "cache" / "steinkern"
    monkeypatch.setenv("STEINKERN_DATA", str(tmp_path / "variable"))
    assert data_directory(None) == tmp_path / "variable"
    assert data_directory(tmp_path) == tmp_path


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        ("linux", ".cache/steinkern"),
        ("darwin", "Library/Caches/steinkern"),
        ("win32", "AppData/Local/steinkern"),
    ],
)
def test_each_system_has_its_cache_directory(platform, expected, monkeypatch, tmp_path):
    for variable in ("STEINKERN_DATA", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert data_directory(None) == tmp_path / expected


def test_the_variable_is_where_files_are_read_from(monkeypatch, tmp_path):
    write(tmp_path, "yacht")
    monkeypatch.setenv("STEINKERN_DATA", str(tmp_path))
    assert load_regression("yacht").features.shape == (10, 3)


def test_an_unknown_dataset_is_answered_with_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"`dataset` must be one of 'boston'.*got 'bosten'"):
        load_regression("bosten", tmp_path)


@pytest.mark.parametrize("directory", ["", "missing"])
def test_a_missing_file_is_answered_with_the_command(directory, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"Run `steinkern data fetch boston`, or .* `--data`"):
        load_regression("boston", tmp_path / directory)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": None}, "has no array `data`"),
        ({"data": np.zeros(10)}, "`data` must have 2 dimensions, has 1"),
        ({"data": np.full((10, 4), np.nan)}, "must be finite"),
        ({"data": np.zeros((10, 4), dtype=np.float32)}, "double precision"),
        ({"index_target": np.array(4)}, "`index_target` must hold whole numbers from 0 to 3"),
        ({"train_idx": np.zeros((3, 9))}, "`train_idx` must hold whole numbers"),
        ({"train_idx": np.zeros((3, 9), dtype=np.uint16)}, "must share out all rows"),
        ({"train_idx": np.arange(9)[None, :]}, "must share out all rows"),
    ],
    ids=["no data", "vector", "nan", "float32", "no such column", "fractions", "repeated rows", "other count"],
)
def test_a_file_that_is_not_the_layout_is_damaged(change, message, tmp_path):
    write(tmp_path, "boston", **change)
    with pytest.raises(ValueError, match=message) as raised:
        load_regression("boston", tmp_path)
    assert "steinkern data fetch boston" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("damage", ["half", "flipped", "text", "empty", "pickle", "array"])
def test_damaged_bytes_are_one_clear_line(damage, tmp_path):
    path = write(tmp_path, "boston")
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[200] ^= 255
    replaced = {"half": content[: len(content) // 2], "flipped": content, "text": b"<html>sorry</html>", "empty": b""}
    if damage in replaced:
        path.write_bytes(bytes(replaced[damage]))
    elif damage == "pickle":
        np.savez(path, data=np.array([{}], dtype=object))
    else:
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    with pytest.raises(ValueError, match=r"boston\.npz is damaged: .*`steinkern data fetch boston`") as raised:
        load_regression("boston", tmp_path)
    assert "\n" not in str(raised.value)


def test_covertype_with_too_few_labels_is_damaged(tmp_path):
    (tmp_path / "covtype").mkdir()
    np.savez(tmp_path / "covtype" / "covtype.npz", X=np.zeros((4, 3), dtype=np.int16), label=np.ones(3, dtype=np.uint8))
    with pytest.raises(ValueError, match="one whole number for each row"):
        load_covtype(tmp_path)
