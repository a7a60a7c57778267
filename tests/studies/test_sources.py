"""Datasets from their originals: small files in the true formats."""

from dataclasses import replace

import numpy as np
import pytest
import sklearn.datasets

from studies.data import datasets
from studies.data.datasets import REGRESSIONS, SOURCES, digest_of, load_covtype, load_regression, path_of
from tests.studies.miniatures import MINIATURES, Originals, archive, numbers, text


@pytest.fixture
def originals(monkeypatch):
    """The miniatures under the addresses of the sources, with their digests; year has none."""
    files = Originals(monkeypatch)
    sources = dict(SOURCES)
    for name, (body, arrays) in MINIATURES.items():
        files[SOURCES[name].url.rpartition("/")[2]] = body
        if name != "year":
            sources[name] = replace(SOURCES[name], digest=digest_of(arrays))
    monkeypatch.setattr(datasets, "SOURCES", sources)
    return files


@pytest.mark.parametrize("name", REGRESSIONS)
def test_an_original_in_its_true_format_becomes_the_dataset(name, originals, tmp_path):
    expected = MINIATURES[name][1]
    loaded = load_regression(name, tmp_path)
    np.testing.assert_array_equal(loaded.features, expected["data"][:, expected["index_features"]])
    np.testing.assert_array_equal(loaded.targets, expected["data"][:, expected["index_target"]])
    assert loaded.test_rows.shape == {"year": (1, 2), "protein": (5, 2)}.get(name, (20, 2))
    with np.load(path_of(name, tmp_path)) as file:
        assert sorted(file.files) == sorted(expected)
        for key in expected:
            np.testing.assert_array_equal(file[key], expected[key], err_msg=key)
            assert file[key].dtype == expected[key].dtype, key
    load_regression(name, tmp_path)
    assert originals.asked == [SOURCES[name].url]  # what is there is not downloaded again
    assert [path.name for path in path_of(name, tmp_path).parent.iterdir()] == [f"{name}.npz"]


def test_covertype_is_the_one_of_scikit_learn(monkeypatch, tmp_path):
    table = np.random.default_rng(0).integers(0, 7000, (20, 54))
    shipped = sklearn.utils.Bunch(data=table.astype(float), target=np.arange(20) % 7 + 1)
    monkeypatch.setattr(sklearn.datasets, "fetch_covtype", lambda data_home: shipped)
    loaded = load_covtype(tmp_path)
    np.testing.assert_array_equal(loaded.features, table)
    np.testing.assert_array_equal(loaded.labels, shipped.target)
    assert (loaded.features.dtype, loaded.labels.dtype) == (np.int16, np.uint8)
    monkeypatch.delattr(sklearn.datasets, "fetch_covtype")
    np.testing.assert_array_equal(load_covtype(tmp_path).features, table)


def test_every_regression_but_year_has_a_digest():
    assert {name for name, source in SOURCES.items() if source.digest is None} == {"year"}


def test_the_digest_sees_names_types_shapes_and_values_but_not_memory_order():
    table = np.arange(6, dtype=np.int16).reshape(2, 3)
    same = digest_of({"a": table})
    assert digest_of({"a": np.asfortranarray(table)}) == digest_of({"a": table.astype(">i2")}) == same
    others = [{"b": table}, {"a": table.astype(np.int32)}, {"a": table.reshape(3, 2)}, {"a": table + 1}, {}]
    assert len({same, *map(digest_of, others)}) == 6


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("boston", text(numbers(14) + 1, " "), "must hold the boston of the published results"),
        ("boston", b"<html>\n<h1>Please log in</h1>\n</html>\n", "could not convert"),
        ("yacht", archive(other=b"1 2"), "not enough values"),
    ],
)
def test_another_original_is_refused_and_leaves_nothing(name, body, message, originals, tmp_path):
    originals[SOURCES[name].url.rpartition("/")[2]] = body
    with pytest.raises(ValueError, match=message):
        load_regression(name, tmp_path)
    assert list(tmp_path.iterdir()) == []
