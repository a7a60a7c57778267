"""Sentences and word vectors: reading them, numbering their words, and sorting sentences by length.

A data directory holds `text/NAME.tsv.xz`, one sentence a line as `label<TAB>words`, and `vectors/NAME.npz`. Nobody
publishes these files for download with their hashes: docs/data.md says what they are made from.
"""

import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Integer

from steinkern.core.types import check_choice

from .datasets import data_directory, read_arrays

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
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there. It holds {name} as xz-compressed text, a sentence a line, `label<TAB>words`: see "
            "docs/data.md for its source, and give the directory with `--data`."
        )
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        lines = [line.partition("\t") for line in file]
    return number_words(name, [text.split() for _, _, text in lines], [int(label) for label, _, _ in lines])


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
    generator = np.random.default_rng(seed)
    parts, counts = [], []
    for path in tables:
        known = read_vectors(path, frozenset(words))
        if not known:
            raise ValueError(f"{path} has none of the {len(words)} words of the sentences. Give another table.")
        vectors = np.stack(list(known.values()))
        part = generator.standard_normal((len(words), vectors.shape[1])).astype(np.float32)
        part *= ENTRY_SCALE / np.sqrt(np.mean(part**2))
        scale = ENTRY_SCALE / np.sqrt(np.mean(vectors**2))
        rows = [row for row, word in enumerate(words) if word in known]
        part[rows] = [scale * known[words[row]] for row in rows]
        parts.append(part)
        counts.append(len(known))
    return np.concatenate(parts, axis=1), counts


def read_vectors(path: Path, words: frozenset[str]) -> dict[str, Float32[np.ndarray, " width"]]:
    """The vectors of some words, from a file in one of three formats.

    Args:
        path: `.npz` with `words` and `vectors` (or `table` and `row`); `.bin`, word2vec's binary format, such as
            GoogleNews-vectors-negative300.bin; or text with a word and its numbers a line, as GloVe's.
        words: those that are wanted; of the latter two formats no more than these are held.
    """
    if not path.is_file():
        raise FileNotFoundError(f"`--vectors` {path} is not there. See docs/data.md for tables that can be had.")
    pairs = {".npz": _read_npz, ".bin": _read_word2vec}.get(path.suffix, _read_text)(path)
    return {word: np.array(vector, np.float32) for word, vector in pairs if word in words}


def _read_npz(path: Path) -> Iterator[tuple[str, Any]]:
    file = read_arrays(path)
    vectors = file["vectors"] if "vectors" in file else file["table"][file["row"]]
    yield from zip(map(str, file["words"]), vectors, strict=True)


def _read_word2vec(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        count, width = map(int, file.readline().split())
        for _ in range(count):
            word = b""
            while (letter := file.read(1)) not in (b" ", b""):
                word += letter
            yield word.decode("utf-8", "replace").lstrip("\n"), np.frombuffer(file.read(4 * width), "<f4")


def _read_text(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            word, *values = line.rstrip().split(" ")
            if len(values) > 1:  # word2vec's text format begins with the numbers of words and of columns
                yield word, values


def cross_validation(number_of_rows: int, folds: int = 10, seed: int = 0) -> Integer[np.ndarray, " rows"]:
    """The fold of every row: 0 … folds − 1, in a random order from NumPy's legacy generator, whose stream is frozen."""
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
        parts = [fold[which[fold] == bucket] for fold in rows]
        most = max(1, *map(len, parts))
        table.append(np.stack([np.pad(part, (0, most - len(part))) for part in parts]).astype(np.int32))
        counts.append(np.array([*map(len, parts)], np.int32))
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
    corpus = number_words("generated", sentences, labels)
    vectors = ENTRY_SCALE * generator.standard_normal((len(corpus.words), 20))
    side = {"noun": 0, "bad": -1, "good": 1}  # as in real tables, words of one meaning lie together
    vectors += 2 * ENTRY_SCALE * np.array([side[word.rstrip("0123456789")] for word in corpus.words])[:, None]
    return corpus, vectors.astype(np.float32)
