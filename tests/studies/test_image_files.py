"""Images in the idx format: reading them, and fetching them."""

import gzip
import hashlib

import numpy as np
import pytest

from studies.data import images
from studies.data.images import digits, read_idx
from tests.studies.miniatures import Originals

ARRAY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
NAME = "mnist/t10k-images-idx3-ubyte"


def zipped(array: np.ndarray) -> bytes:
    """The idx file of an array of bytes, written down a second time, and gzipped."""
    head = bytes([0, 0, 8, array.ndim]) + b"".join(int(size).to_bytes(4, "big") for size in array.shape)
    return gzip.compress(head + array.tobytes(), mtime=0)


def test_images_are_fetched_once_and_others_under_the_address_are_refused(monkeypatch, tmp_path):
    originals = Originals(monkeypatch)
    monkeypatch.setitem(images.HASHES, NAME, f"sha256:{hashlib.sha256(zipped(ARRAY)).hexdigest()}")
    originals["t10k-images-idx3-ubyte.gz"] = zipped(ARRAY + 1)
    with pytest.raises(ValueError, match="hash"):
        read_idx(NAME, tmp_path)
    originals["t10k-images-idx3-ubyte.gz"] = zipped(ARRAY)
    for _ in range(2):
        np.testing.assert_array_equal(read_idx(NAME, tmp_path), ARRAY)
    assert len(originals.asked) == 2


def test_digits_come_as_bytes():
    shipped = digits()
    assert shipped.images.shape == (1797, 8, 8)
    assert (shipped.images.min(), shipped.images.max()) == (0, 255)
    assert set(shipped.labels) == set(range(10))
