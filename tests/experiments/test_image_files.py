"""Images in the idx format: reading them, what is missing, what is damaged, and fetching them from a server."""

import gzip
import hashlib
from types import SimpleNamespace

import numpy as np
import pooch.core
import pytest
from typer.testing import CliRunner

from steinkern import cli
from steinkern.cli import datasets as cli_data
from steinkern.experiments.data import images
from steinkern.experiments.data.images import ImageSource, digits, fetch_images, folder_of, parse_idx, read_file
from tests.miniatures import Answer, Server

ARRAY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
FILE = "t10k-images-idx3-ubyte"


def idx(array: np.ndarray) -> bytes:
    """The idx file of an array of bytes, written down a second time."""
    head = bytes([0, 0, 8, array.ndim]) + b"".join(int(size).to_bytes(4, "big") for size in array.shape)
    return head + array.tobytes()


def sources(url: str = "http://nowhere.invalid", **more) -> dict[str, ImageSource]:
    return {"mnist": ImageSource(url, {FILE: hashlib.sha256(idx(ARRAY)).hexdigest()}, **more)}


def put(directory, content: bytes, name: str = FILE):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_bytes(content)


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_is_read_plain_or_gzipped(tmp_path, packed):
    content = gzip.compress(idx(ARRAY)) if packed else idx(ARRAY)
    put(folder_of("mnist", tmp_path), content, FILE + ".gz" * packed)
    np.testing.assert_array_equal(read_file("mnist", FILE, tmp_path, sources=sources()), ARRAY)


def test_a_file_is_found_where_a_package_installs_it(tmp_path):
    put(tmp_path / "installed", gzip.compress(idx(ARRAY)), f"{FILE}.gz")
    known = sources(installed=tmp_path / "installed")
    np.testing.assert_array_equal(read_file("mnist", FILE, tmp_path / "nowhere", sources=known), ARRAY)


def test_what_is_missing_is_named_with_the_ways_to_get_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"Run `steinkern data fetch mnist`, put it there .*`--data`"):
        read_file("mnist", FILE, tmp_path, sources=sources())
    with pytest.raises(FileNotFoundError, match="install Debian's package `dataset-fashion-mnist`"):
        read_file("mnist", FILE, tmp_path, sources=sources(installed=tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="`images` must be one of"):
        read_file("cifar", FILE, tmp_path)


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (idx(ARRAY + 1), FILE, "holds other data"),
        (gzip.compress(idx(ARRAY))[:-9], f"{FILE}.gz", "is damaged"),
        (b"no gzip", f"{FILE}.gz", "is damaged"),
    ],
    ids=["other", "cut", "text"],
)
def test_a_file_with_another_content_is_refused(tmp_path, content, name, message):
    put(folder_of("mnist", tmp_path), content, name)
    with pytest.raises(ValueError, match=message) as raised:
        read_file("mnist", FILE, tmp_path, sources=sources())
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\0\x0d\1", idx(ARRAY)[:-1], idx(ARRAY) + b"\0", idx(ARRAY)[:9]],
    ids=["empty", "floats", "short", "long", "head"],
)
def test_bytes_that_are_no_idx_file_are_refused(tmp_path, content):
    with pytest.raises(ValueError, match="must "):
        parse_idx(content, tmp_path)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(pooch.core, "time", SimpleNamespace(sleep=lambda seconds: None))  # pooch waits between tries
    running = Server()
    yield running
    running.close()


def test_images_are_fetched_once_and_checked(server, tmp_path):
    server.answers[f"/{FILE}.gz"] = [Answer(gzip.compress(idx(ARRAY)))]
    known = sources(server.address)
    (path,) = fetch_images("mnist", tmp_path, sources=known, progress=False)
    assert path == folder_of("mnist", tmp_path) / f"{FILE}.gz"
    np.testing.assert_array_equal(read_file("mnist", FILE, tmp_path, sources=known), ARRAY)
    assert fetch_images("mnist", tmp_path, sources=known, progress=False) == [path]
    assert server.requests == [f"/{FILE}.gz"]


def test_other_images_under_the_address_are_refused(server, tmp_path):
    server.answers[f"/{FILE}.gz"] = [Answer(gzip.compress(idx(ARRAY + 1)))]
    with pytest.raises(ValueError, match="holds other data"):
        fetch_images("mnist", tmp_path, sources=sources(server.address), progress=False)
    assert list(folder_of("mnist", tmp_path).iterdir()) == []


def test_the_command_fetches_images_by_name_alone(tmp_path, monkeypatch):
    fetched = []
    monkeypatch.setattr(cli_data, "fetch_images", lambda name, directory: fetched.append(name) or [])
    monkeypatch.setattr(cli_data, "fetch_sources", lambda names, directory: fetched.append(tuple(names)) or [])
    for names in ([], ["mnist"], ["boston", "fashion_mnist"]):
        result = CliRunner().invoke(cli.app, ["data", "fetch", *names, "--data", str(tmp_path)])
        assert result.exit_code == 0, result.output
    assert fetched == [(), "mnist", ("boston",), "fashion_mnist"]


def test_every_file_of_the_known_sets_has_a_digest():
    assert set(images.SOURCES) == {"fashion_mnist", "mnist"}
    assert [len(source.digests) for source in images.SOURCES.values()] == [4, 1]
    assert all(len(digest) == 64 for source in images.SOURCES.values() for digest in source.digests.values())


def test_digits_come_as_bytes():
    shipped = digits()
    assert shipped.images.shape == (1797, 8, 8)
    assert (shipped.images.min(), shipped.images.max()) == (0, 255)
    assert set(shipped.labels) == set(range(10))
