"""Whatever a file unpacks to, no more than its most comes out: zip, gzip, xz, npz, workbooks and downloads."""

import gc
import gzip
import io
import lzma
import os
import struct
import zipfile
import zlib
from dataclasses import replace

import numpy as np
import pytest

from steinkern.experiments.data import parsers, text
from steinkern.experiments.data.datasets import path_of, read_arrays
from steinkern.experiments.data.sources import fetch
from steinkern.experiments.data.text import load_sentences, read_vectors
from steinkern.experiments.data.unpack import (
    TooLargeError,
    open_gzip,
    open_member,
    open_plain,
    open_xz,
    read_npz,
    unpacked_archive,
)
from tests.miniatures import Answer, Server, offer, workbook

ZEROS = bytes(2**20)
MOST = 2**16


def zipped(content: bytes, method: int = zipfile.ZIP_DEFLATED, name: str = "data.txt") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


def lying(packed: bytes, size: int) -> bytes:
    """A zip archive of one file whose entries state another size."""
    changed = bytearray(packed)
    directory = changed.rindex(b"PK\x01\x02")
    struct.pack_into("<I", changed, 22, size)
    struct.pack_into("<I", changed, directory + 24, size)
    return bytes(changed)


BOMBS = {
    "plain": (ZEROS, open_plain),
    "gzip": (gzip.compress(ZEROS), open_gzip),
    "gzip in parts": (gzip.compress(ZEROS[: 2**15]) * 40, open_gzip),
    "xz": (lzma.compress(ZEROS), open_xz),
    "xz in parts": (lzma.compress(ZEROS[: 2**15]) * 40, open_xz),
    "zip": (zipped(ZEROS), lambda path, most: open_member(path, "data.txt", most)),
    "zip that states too much": (lying(zipped(ZEROS), 2**30), lambda path, most: open_member(path, "data.txt", most)),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_reading_stops_at_the_most(kind, tmp_path):
    content, opened = BOMBS[kind]
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(TooLargeError, match="more than 65,536 bytes"), opened(path, MOST) as stream:
        stream.read()
    if "states" not in kind:
        with opened(path, 2**21) as stream:
            assert not any(stream.read())


def test_a_zip_archive_that_states_too_little_gives_no_more_than_it_states(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(lying(zipped(ZEROS), 100))
    with (
        pytest.raises((zipfile.BadZipFile, TooLargeError)),
        open_member(path, "data.txt", MOST) as stream,
    ):
        stream.read()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_that_python_unpacks_without_a_bound_are_refused(method, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(zipped(ZEROS, method))
    with pytest.raises(ValueError, match="a method other than deflate"), open_member(path, "data.txt", MOST):
        pass
    with pytest.raises(ValueError, match="a method other than deflate"):
        unpacked_archive(io.BytesIO(zipped(ZEROS, method)), MOST)


def test_xz_that_asks_for_gigabytes_of_memory_is_refused(tmp_path):
    path = tmp_path / "text" / "mr.tsv.xz"
    path.parent.mkdir()
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 2**20}]
    packed = bytearray(lzma.compress(b"0\tword\n", filters=filters))
    place = packed.index(b"\x21\x01") + 2  # the filter's properties: the size of its dictionary, in one byte
    packed[place] = 40  # 4 GiB
    head = bytes(packed[12:20])
    packed[20:24] = struct.pack("<I", zlib.crc32(head))
    path.write_bytes(packed)
    with pytest.raises(ValueError, match="is damaged: Memory usage limit"):
        load_sentences("mr", tmp_path)


def test_sentences_and_vectors_beyond_the_most_are_refused(tmp_path, monkeypatch):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "mr.tsv.xz").write_bytes(lzma.compress(b"0\tword\n" * 100_000))
    monkeypatch.setattr(text, "_LARGEST_TEXT", MOST)
    with pytest.raises(ValueError, match=r"mr.tsv.xz is damaged: it unpacks to more than 65,536 bytes"):
        load_sentences("mr", tmp_path)
    np.savez_compressed(tmp_path / "v.npz", words=np.array(["a"]), vectors=np.zeros((1, 2**18)))
    monkeypatch.setattr(text, "_LARGEST_TABLE", MOST)
    with pytest.raises(ValueError, match="is not a table of word vectors: it unpacks to more than"):
        read_vectors(tmp_path / "v.npz", frozenset("a"))
    (tmp_path / "v.txt").write_bytes(b"a" * 2**21)
    with pytest.raises(ValueError, match="line 1 is longer than"):
        read_vectors(tmp_path / "v.txt", frozenset("a"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
def test_a_pipe_is_no_dataset(tmp_path):
    os.mkfifo(tmp_path / "v.txt")
    with pytest.raises(OSError, match="not a regular file"):
        read_vectors(tmp_path / "v.txt", frozenset("a"))


@pytest.mark.parametrize(
    "array",
    [np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.array(["a", "bc"]), np.zeros(()),
     np.zeros((0, 3)), np.array([True, False])],
    ids=["rows", "columns", "words", "scalar", "empty", "bool"],
)  # fmt: skip
def test_arrays_are_as_numpy_reads_them(array, tmp_path):
    np.savez_compressed(tmp_path / "a.npz", own=array)
    found = read_npz(tmp_path / "a.npz", MOST)["own"]
    np.testing.assert_array_equal(found, array)
    assert (found.dtype, found.flags.f_contiguous) == (array.dtype, array.flags.f_contiguous)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}", "more than 65,536 bytes"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}", "an array of float64"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "an array of object"),
        ("{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,)}", "an array of <U0"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (9,)}", "ends after 0 of 72 bytes"),
    ],
    ids=["huge", "negative", "objects", "no size", "short"],
)
def test_a_forged_array_is_refused_before_it_takes_memory(header, message, tmp_path):
    content = np.lib.format.magic(1, 0) + struct.pack("<H", len(header)) + header.encode()
    (tmp_path / "a.npz").write_bytes(zipped(content, name="data.npy"))
    with pytest.raises((ValueError, EOFError), match=message):
        read_npz(tmp_path / "a.npz", MOST)
    path = path_of("boston", tmp_path)
    path.parent.mkdir()
    (tmp_path / "a.npz").rename(path)
    with pytest.raises(ValueError, match=r"boston\.npz is damaged"):
        read_arrays("boston", tmp_path)


def test_a_workbook_whose_parts_unpack_to_too_much_is_refused(monkeypatch):
    monkeypatch.setattr(parsers, "_LARGEST_WORKBOOK", MOST)
    table = parsers.workbook_table(io.BytesIO(workbook(np.ones((3, 2)))), columns=2, decimals=2)
    np.testing.assert_array_equal(table, np.ones((3, 2)))
    bomb = io.BytesIO(workbook(np.ones((3, 2))))
    with zipfile.ZipFile(bomb, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/more.xml", ZEROS)
    bomb.seek(0)
    with pytest.raises(TooLargeError):
        parsers.workbook_table(bomb, columns=2, decimals=2)


@pytest.mark.parametrize("bomb", [lambda body: ZEROS, lambda body: zipped(ZEROS, name="yacht_hydrodynamics.data")])
def test_an_original_that_is_or_unpacks_too_large_is_refused_by_name(bomb, tmp_path):
    server = Server()
    try:
        moved = offer(server, "yacht")
        server.answers["/yacht"] = [Answer(bomb(b""))] * 4
        sources = {"yacht": replace(moved["yacht"], largest=MOST)}
        with pytest.raises((ValueError, OSError), match=r"yacht: .* more than 65,536 bytes"):
            fetch(["yacht"], tmp_path, sources=sources)
    finally:
        server.close()
    gc.collect()  # a connection left open would warn here
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
