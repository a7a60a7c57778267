"""Datasets from their originals: small files in the true formats, from a server on this machine."""

from types import SimpleNamespace

import numpy as np
import pooch.core
import pytest
import sklearn.datasets

from studies.data import datasets
from studies.data.datasets import REGRESSIONS, SOURCES, digest_of, load_covtype, load_regression, path_of
from tests.studies.miniatures import MINIATURES, Answer, Server, archive, lines, numbers, offer


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(pooch.core, "time", SimpleNamespace(sleep=lambda seconds: None))  # pooch waits between tries
    running = Server()
    yield running
    running.close()


@pytest.fixture
def moved(server, monkeypatch):
    """Offer a dataset on the server."""

    def move(name: str) -> None:
        monkeypatch.setattr(datasets, "SOURCES", {**SOURCES, name: offer(server, name)})

    return move


@pytest.mark.parametrize("name", REGRESSIONS)
def test_an_original_in_its_true_format_becomes_the_dataset(name, server, moved, tmp_path):
    moved(name)
    _, expected = MINIATURES[name]()
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
    assert server.requests == [f"/{name}"]  # what is there is not downloaded again
    assert [path.name for path in path_of(name, tmp_path).parent.iterdir()] == [f"{name}.npz"]


def test_all_regressions_are_tried_here():
    assert set(MINIATURES) == set(REGRESSIONS)


def test_covertype_is_the_one_of_scikit_learn(monkeypatch, tmp_path):
    table = np.random.default_rng(0).integers(0, 7000, (20, 54))
    shipped = sklearn.utils.Bunch(data=table.astype(float), target=np.arange(20) % 7 + 1)
    monkeypatch.setattr(sklearn.datasets, "fetch_covtype", lambda data_home: shipped)
    loaded = load_covtype(tmp_path)
    np.testing.assert_array_equal(loaded.features, table)
    np.testing.assert_array_equal(loaded.labels, shipped.target)
    assert loaded.features.dtype == np.int16
    monkeypatch.delattr(sklearn.datasets, "fetch_covtype")
    np.testing.assert_array_equal(load_covtype(tmp_path).features, table)


def test_every_regression_but_year_has_a_digest():
    for name, source in SOURCES.items():
        assert source.url.startswith("https://")
        assert (source.digest is None) == (name == "year")
        assert source.digest is None or len(bytes.fromhex(source.digest)) == 32


def test_the_digest_sees_names_types_shapes_and_values_but_not_memory_order():
    table = np.arange(6, dtype=np.int16).reshape(2, 3)
    same = digest_of({"a": table})
    assert digest_of({"a": np.asfortranarray(table)}) == same
    assert digest_of({"a": table.astype(">i2")}) == same
    others = [{"b": table}, {"a": table.astype(np.int32)}, {"a": table.reshape(3, 2)}, {"a": table + 1}, {}]
    assert len({same, *map(digest_of, others)}) == 6


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("boston", lines(numbers(14) + 1, " "), "must hold the boston of the published results"),
        ("boston", b"<html>\n<h1>Please log in</h1>\n</html>\n", "could not convert"),
        ("yacht", archive(other=b"1 2"), "not enough values"),
    ],
)
def test_another_original_is_refused_and_leaves_nothing(name, body, message, server, moved, tmp_path):
    moved(name)
    server.answers[f"/{name}"] = [Answer(body)]
    with pytest.raises(ValueError, match=message):
        load_regression(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_address_without_the_file_is_an_error_that_names_it(server, moved, tmp_path):
    moved("boston")
    server.answers["/boston"] = [Answer(status=404)]
    with pytest.raises(OSError, match=r"404.*/boston"):
        load_regression("boston", tmp_path)
