"""Decompression of untrusted files with a limit on the unpacked size.

A compressed file of a megabyte can unpack to gigabytes, and the sizes stated in an archive may be wrong. Streams are
therefore unpacked in chunks, and the first byte beyond the limit is an error.
"""

import gzip
import io
import lzma
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import numpy as np

from ...core.files import open_regular

_PIECE = 2**16
_DICTIONARY = 2**27  # the memory limit of xz in bytes; its strongest preset needs half of it


class TooLargeError(ValueError):
    """A file unpacks to more bytes than the limit."""


class Budget:
    """A limit on the number of unpacked bytes, of one stream or of several together."""

    def __init__(self, most: int):
        self.most = self.left = most

    def spend(self, number: int) -> None:
        """Count `number` bytes; `TooLargeError` where the limit is exceeded."""
        self.left -= number
        if self.left < 0:
            raise TooLargeError(f"it unpacks to more than {self.most:,} bytes")


class _Pieces(io.RawIOBase):
    """A stream of the chunks of an iterator, which are counted."""

    def __init__(self, pieces: Iterator[bytes], budget: Budget):
        self._pieces, self._budget, self._rest = pieces, budget, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._budget.spend(len(piece))
            self._rest = memoryview(piece)
        number = min(len(buffer), len(self._rest))
        buffer[:number] = self._rest[:number]
        self._rest = self._rest[number:]
        return number


def limit_stream(stream: Any, budget: Budget) -> io.BufferedIOBase:
    """The same stream, read in chunks and limited by the budget."""
    return io.BufferedReader(_Pieces(iter(lambda: stream.read(_PIECE), b""), budget), _PIECE)


@contextmanager
def open_plain(path: Path, most: int) -> Iterator[io.BufferedIOBase]:
    """The content of an uncompressed file."""
    with open_regular(path) as file:
        yield limit_stream(file, Budget(most))


@contextmanager
def open_gzip(path: Path, most: int) -> Iterator[io.BufferedIOBase]:
    """The content of a gzip file."""
    with open_regular(path) as file, gzip.GzipFile(fileobj=file) as unpacked:
        yield limit_stream(unpacked, Budget(most))


@contextmanager
def open_xz(path: Path, most: int) -> Iterator[io.BufferedIOBase]:
    """The content of an xz file."""
    with open_regular(path) as file:
        yield io.BufferedReader(_Pieces(_unpacked_xz(file), Budget(most)), _PIECE)


@contextmanager
def open_member(path: Path, name: str, most: int) -> Iterator[io.BufferedIOBase]:
    """The content of the file `name`, in any folder of a zip archive."""
    with open_regular(path) as file, ZipFile(file) as archive:
        found = [entry for entry in archive.infolist() if PurePosixPath(entry.filename).name == name]
        if not found:
            listed = ", ".join(archive.namelist()[:20]) or "none"
            raise ValueError(f"the archive has no file {name}, only {listed}")
        with _open_entry(archive, found[0], Budget(most)) as unpacked:
            yield unpacked


def unpacked_archive(stream: io.BufferedIOBase, most: int) -> io.BufferedIOBase:
    """An uncompressed copy of a zip archive, for readers that have no limit."""
    budget, plain = Budget(most), io.BytesIO()
    with ZipFile(io.BytesIO(stream.read())) as archive, ZipFile(plain, "w", ZIP_STORED) as copy:
        for entry in archive.infolist():
            with _open_entry(archive, entry, budget) as unpacked:
                copy.writestr(entry.filename, unpacked.read())
    plain.seek(0)
    return plain


def read_npz(path: Path, most: int) -> dict[str, np.ndarray]:
    """The arrays of an npz file of at most `most` unpacked bytes; pickled objects are refused."""
    budget, arrays = Budget(most), {}
    with open_regular(path) as file, ZipFile(file) as archive:
        for entry in archive.infolist():
            if entry.filename.endswith(".npy"):
                with _open_entry(archive, entry, budget) as unpacked:
                    arrays[entry.filename.removesuffix(".npy")] = _read_npy(unpacked, most)
    return arrays


@contextmanager
def _open_entry(archive: ZipFile, entry: ZipInfo, budget: Budget) -> Iterator[io.BufferedIOBase]:
    if entry.compress_type not in (ZIP_STORED, ZIP_DEFLATED):  # Python has no limit for other methods
        raise ValueError(f"{entry.filename} is packed by a method other than deflate")
    with archive.open(entry) as stream:
        yield limit_stream(stream, budget)


def _read_npy(stream: io.BufferedIOBase, most: int) -> np.ndarray:
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"an array in version {version} of its format")
    shape, by_columns, kind = readers[version](stream)
    if kind.hasobject or not kind.itemsize or any(axis < 0 for axis in shape):
        raise ValueError(f"an array of {kind} with shape {shape}")
    if kind.itemsize * math.prod(shape) > most:
        raise TooLargeError(f"it unpacks to more than {most:,} bytes")
    array = np.empty(math.prod(shape), kind)
    room: Any = array.view(np.uint8).data if array.size else memoryview(b"")
    done = 0
    while done < len(room):
        number = stream.readinto(room[done : done + 2**20])
        if not number:
            raise EOFError(f"an array ends after {done:,} of {len(room):,} bytes")
        done += number
    return array.reshape(shape, order="F" if by_columns else "C")


def _unpacked_xz(file: Any) -> Iterator[bytes]:
    """The chunks of one or more concatenated xz streams, with padding of zeros between them."""
    packed = file.read(_PIECE)
    while packed:
        decoder = lzma.LZMADecompressor(memlimit=_DICTIONARY)
        while not decoder.eof:
            if decoder.needs_input and not packed:
                raise EOFError("it ends in the middle of a stream")
            piece = decoder.decompress(packed, _PIECE)
            packed = file.read(_PIECE) if decoder.needs_input else b""
            if piece:
                yield piece
        packed = decoder.unused_data + packed
        while not packed.strip(b"\0"):
            packed = file.read(_PIECE)
            if not packed:
                return
        packed = packed.lstrip(b"\0")
