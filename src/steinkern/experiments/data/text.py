"""Sentences and word vectors: reading them, numbering their words, and sorting sentences by length.

A data directory holds `text/NAME.tsv.xz`, one sentence a line as `label<TAB>words`, and `vectors/NAME.npz`.
"""

import io
import lzma
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Float32, Integer

from ...core.files import open_regular
from ...core.types import check_choice, check_count
from .datasets import data_directory
from .unpack import TooLargeError, open_xz, read_npz

_LARGEST_TEXT = 2**28  # bytes, unpacked
_LARGEST_TABLE = 2**32
_LONGEST_LINE = 2**20
_FEWEST = 20  # sentences from which ten folds can be made
TEXTS = ("mr", "cr", "subj", "mpqa")
TABLES = ("w2v_gnews_300d", "glove6b_100d", "glove6b_50d")
"""The default tables of word vectors, which are concatenated."""
ENTRY_SCALE = 0.2
"""The root mean square of the entries of a word vector, to which each table is scaled."""


@dataclass(frozen=True)
class Sentences:
    """Sentences as numbers: row i of `tokens` holds the first `lengths[i]` indices into `words`, then zeros."""

    name: str
    words: tuple[str, ...]
    tokens: Integer[np.ndarray, "rows longest"]
    lengths: Integer[np.ndarray, " rows"]
    labels: Integer[np.ndarray, " rows"]


def number_words(name: str, sentences: Sequence[Sequence[str]], labels: Sequence[int]) -> Sentences:
    """Sentences of words as `Sentences`; an empty sentence is one of length 0."""
    words = tuple(sorted({word for sentence in sentences for word in sentence}))
    index = {word: number for number, word in enumerate(words)}
    lengths = np.array([len(sentence) for sentence in sentences], np.int32)
    tokens = np.zeros((len(sentences), max(1, int(lengths.max(initial=0)))), np.int32)
    for row, sentence in enumerate(sentences):
        tokens[row, : len(sentence)] = [index[word] for word in sentence]
    return Sentences(name, words, tokens, lengths, np.array(labels, np.int32))


def load_sentences(name: str, directory: Path | None = None) -> Sentences:
    """One of `TEXTS` from the data directory.

    Args:
        name: "mr" (movie reviews), "cr" (customer reviews), "subj" (subjectivity) or "mpqa" (opinion polarity).
        directory: see `data_directory`.
    """
    check_choice("dataset", name, TEXTS)
    path = data_directory(directory) / "text" / f"{name}.tsv.xz"
    labels, sentences = [], []
    for number, line in enumerate(_lines(path, name), 1):
        label, tab, text = line.rstrip("\n").partition("\t")
        if not tab or label not in ("0", "1"):
            raise ValueError(
                f"{path}, line {number}: a line must be a label, 0 or 1, a tab, and a sentence; got {line[:60]!r}."
            )
        labels.append(int(label))
        sentences.append(text.split())
    if len(set(labels)) < 2 or len(labels) < _FEWEST:
        raise ValueError(f"{path} must hold at least {_FEWEST} sentences, of both labels, 0 and 1, got {len(labels)}.")
    return number_words(name, sentences, labels)


def _lines(path: Path, name: str) -> list[str]:
    try:
        with open_xz(path, _LARGEST_TEXT) as file:
            return list(io.TextIOWrapper(cast(BinaryIO, file), encoding="utf-8", newline="\n"))
    except IsADirectoryError:
        raise ValueError(f"{path} is a directory where a file should be.") from None
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} is not there. It holds {name} as xz-compressed text, a sentence a line, `label<TAB>words`: see "
            "docs/data.md for its source, and give the directory with `--data`."
        ) from None
    except (lzma.LZMAError, EOFError, UnicodeDecodeError, TooLargeError) as error:
        raise ValueError(f"{path} is damaged: {error}. Write it anew.") from error


def word_vectors(
    words: Sequence[str], tables: Sequence[Path], seed: int = 0
) -> tuple[Float32[np.ndarray, "words width"], list[int]]:
    """The concatenated vectors of `words` from all tables, and the number of the words in each table.

    Every table is scaled so that the entries it gives have root mean square `ENTRY_SCALE`; the vectors of words that a
    table lacks are drawn from a normal distribution of that scale.

    Args:
        words: the vocabulary.
        tables: files as `read_vectors` reads them.
        seed: of the vectors drawn at random.
    """
    if not tables:
        raise ValueError("`--vectors` must name at least one table of word vectors, got none.")
    generator = np.random.default_rng(seed)
    parts, found = [], []
    for path in tables:
        known = read_vectors(path, frozenset(words))
        width = len(next(iter(known.values()))) if known else 0
        if not width:
            raise ValueError(f"{path} has none of the {len(words)} words of the sentences. Give another table.")
        part = generator.standard_normal((len(words), width)).astype(np.float32)
        part *= ENTRY_SCALE / np.sqrt(np.mean(part**2))
        size = np.sqrt(np.mean(np.stack(list(known.values())) ** 2))
        if not (np.isfinite(size) and size > 0):
            raise ValueError(f"`--vectors` {path} holds nothing but zeros, or numbers too large. Give another table.")
        scale = ENTRY_SCALE / size
        for row, word in enumerate(words):
            if word in known:
                part[row] = scale * known[word]
        parts.append(part)
        found.append(len(known))
    return np.concatenate(parts, axis=1), found


def read_vectors(path: Path, words: frozenset[str]) -> dict[str, Float32[np.ndarray, " width"]]:
    """The vectors of some words, from a file in one of three formats.

    Args:
        path: `.npz` with `words` and `vectors` (or `table` and `row`); `.bin`, word2vec's binary format, such as
            GoogleNews-vectors-negative300.bin; or text with a word and its numbers a line, as GloVe's.
        words: those that are wanted; of the latter two formats no more than these are held.
    """
    try:
        if path.suffix == ".npz":
            pairs: Iterator[tuple[str, Any]] = _read_npz(path)
        elif path.suffix == ".bin":
            pairs = _read_word2vec(path)
        else:
            pairs = _read_text(path)
        found: dict[str, np.ndarray] = {}
        width = None
        for word, vector in pairs:
            if word in words:
                numbers = np.array([float(value) for value in vector], np.float32)
                width = numbers.size if width is None else width
                if not np.all(np.isfinite(numbers)):
                    raise ValueError(f"`{word}` has numbers that are not finite")
                if numbers.size != width:
                    raise ValueError(f"`{word}` has {numbers.size} numbers where others have {width}")
                found[word] = numbers
        return found
    except IsADirectoryError:
        raise ValueError(f"`--vectors` {path} is a directory where a file should be.") from None
    except FileNotFoundError:
        raise FileNotFoundError(
            f"`--vectors` {path} is not there. See docs/data.md for tables that can be had."
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"`--vectors` {path} is neither .npz, .bin nor text. Unpack it if it is packed.") from error
    except (ValueError, KeyError, EOFError, BadZipFile, IndexError, TypeError, zlib.error) as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"`--vectors` {path} is not a table of word vectors: {reason}.") from error


def _read_npz(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    file = read_npz(path, _LARGEST_TABLE)
    words = file["words"]
    vectors = file["vectors"] if "vectors" in file else file["table"][file["row"]]
    if words.ndim != 1 or vectors.ndim != 2 or len(words) != len(vectors):
        raise ValueError(f"words of shape {words.shape}, but vectors of shape {vectors.shape}")
    yield from zip(map(str, words), vectors, strict=True)


def _read_word2vec(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    with open_regular(path) as file:
        count, width = map(int, file.readline(100).split())
        if not (0 < count < 10**9 and 0 < width < 10**5):
            raise ValueError(f"a header of {count} words and {width} numbers")
        for _ in range(count):
            word = bytearray()
            while (letter := file.read(1)) != b" ":
                if not letter or len(word) > 10_000:
                    raise EOFError("it ends in the middle of a word")
                word += letter if letter != b"\n" else b""
            values = file.read(4 * width)
            if len(values) < 4 * width:
                raise EOFError("it ends in the middle of a vector")
            yield word.decode("utf-8", "replace"), np.frombuffer(values, "<f4")


def _read_text(path: Path) -> Iterator[tuple[str, list[str]]]:
    with open_regular(path) as binary, io.TextIOWrapper(binary, encoding="utf-8") as file:
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), "")):
            if len(line) == _LONGEST_LINE:
                raise ValueError(f"line {number + 1} is longer than {_LONGEST_LINE:,} letters")
            word, *values = line.rstrip().split(" ")
            if number == 0 and len(values) == 1:
                continue  # word2vec's text format begins with the numbers of words and of columns
            yield word, values


def cross_validation(number_of_rows: int, folds: int = 10, seed: int = 0) -> Integer[np.ndarray, " rows"]:
    """The fold of every row: 0 … folds − 1, in a random order from NumPy's legacy generator, whose stream is frozen."""
    check_count("number_of_rows", number_of_rows, folds)
    return np.random.RandomState(seed).permutation(np.arange(number_of_rows) % folds)


@dataclass(frozen=True)
class Part:
    """Rows of every fold in buckets by length: `rows[b][f, : counts[b][f]]` are those of fold f in bucket b."""

    rows: tuple[Integer[np.ndarray, "folds _"], ...]
    counts: tuple[Integer[np.ndarray, " folds"], ...]


def buckets_for(lengths: Integer[np.ndarray, " rows"], shares: Sequence[float]) -> list[int]:
    """The lengths to which sentences are padded: quantiles of their lengths, so that short ones cost less."""
    return sorted({max(1, int(np.quantile(lengths, share, method="higher"))) for share in shares})


def in_buckets(rows: Sequence[np.ndarray], lengths: Integer[np.ndarray, " rows"], buckets: Sequence[int]) -> Part:
    """The rows of every fold by bucket, padded with row 0 to the same number in all folds."""
    which = np.searchsorted(np.asarray(buckets), lengths)
    table, counts = [], []
    for bucket in range(len(buckets)):
        own = [fold[which[fold] == bucket] for fold in rows]
        most = max(1, *(len(some) for some in own))
        table.append(np.stack([np.pad(some, (0, most - len(some))) for some in own]).astype(np.int32))
        counts.append(np.array([len(some) for some in own], np.int32))
    return Part(tuple(table), tuple(counts))


def generate_corpus(number: int = 400, seed: int = 0) -> tuple[Sentences, Float32[np.ndarray, "words width"]]:
    """A small generated corpus, and vectors for its words; the label of a sentence is that of its one opinion word.

    Every twentieth label is wrong, and one sentence is empty.
    """
    generator = np.random.default_rng(seed)
    nouns, *opinions = ([f"{kind}{i}" for i in range(8)] for kind in ("noun", "bad", "good"))
    sentences: list[list[str]] = [[]]
    labels = [0]
    while len(sentences) < number:
        positive = int(generator.random() < 0.5)
        words = [str(word) for word in generator.choice(nouns, generator.integers(1, 8))]
        words.insert(int(generator.integers(len(words) + 1)), str(generator.choice(opinions[positive])))
        sentences.append(words)
        labels.append(positive if generator.random() < 0.95 else 1 - positive)
    found = number_words("generated", sentences, labels)
    vectors = ENTRY_SCALE * generator.standard_normal((len(found.words), 20))
    side = {"noun": 0, "bad": -1, "good": 1}  # as in real tables, words of one meaning lie together
    vectors += 2 * ENTRY_SCALE * np.array([side[word.rstrip("0123456789")] for word in found.words])[:, None]
    return found, vectors.astype(np.float32)
