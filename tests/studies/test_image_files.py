"""Images in the idx format: reading them, and fetching them from a server."""

import gzip
import hashlib
from types import SimpleNamespace

import numpy as np
import pooch.core
import pytest

from studies.data import images
from studies.data.images import digits, read_idx
from tests.studies.miniatures import Answer, Server

ARRAY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
NAME = "mnist/t10k-images-idx3-ubyte"


def idx(array: np.ndarray) -> bytes:
    """The idx file of an array of bytes, written down a second time."""
    head = bytes([0, 0, 8, array.ndim]) + b"".join(int(size).to_bytes(4, "big") for size in array.shape)
    return head + array.tobytes()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(pooch.core, "time", SimpleNamespace(sleep=lambda seconds: None))  # pooch waits between tries
    running = Server()
    monkeypatch.setitem(images.URLS, "mnist", running.address)
    digest = hashlib.sha256(gzip.compress(idx(ARRAY), mtime=0)).hexdigest()
    monkeypatch.setitem(images.HASHES, NAME, f"sha256:{digest}")
    yield running
    running.close()


def test_a_file_that_is_there_is_read(tmp_path):
    path = tmp_path / "images" / NAME
    path.parent.mkdir(parents=True)
    path.write_bytes(idx(ARRAY))
    np.testing.assert_array_equal(read_idx(NAME, tmp_path), ARRAY)


def test_images_are_fetched_once(server, tmp_path):
    server.answers["/t10k-images-idx3-ubyte.gz"] = [Answer(gzip.compress(idx(ARRAY), mtime=0))]
    for _ in range(2):
        np.testing.assert_array_equal(read_idx(NAME, tmp_path), ARRAY)
    assert server.requests == ["/t10k-images-idx3-ubyte.gz"]


def test_other_images_under_the_address_are_refused(server, tmp_path):
    server.answers["/t10k-images-idx3-ubyte.gz"] = [Answer(gzip.compress(idx(ARRAY + 1), mtime=0))]
    with pytest.raises(ValueError, match="hash"):
        read_idx(NAME, tmp_path)


def test_digits_come_as_bytes():
    shipped = digits()
    assert shipped.images.shape == (1797, 8, 8)
    assert (shipped.images.min(), shipped.images.max()) == (0, 255)
    assert set(shipped.labels) == set(range(10))
