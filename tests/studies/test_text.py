"""Reading sentences and word vectors: formats, what is missing, what is damaged."""

import lzma

import numpy as np
import pytest

from studies.data.text import (
    ENTRY_SCALE,
    buckets_for,
    cross_validation,
    generate_corpus,
    in_buckets,
    load_sentences,
    read_vectors,
    word_vectors,
)


def write(path, text):
    path.parent.mkdir(exist_ok=True)
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.write(text)


def test_sentences_are_numbered_and_empty_ones_kept(tmp_path):
    write(tmp_path / "text" / "cr.tsv.xz", "0\tbad phone\n1\t\n1\tgood good café\n" + "0\tbad\n" * 20)
    result = load_sentences("cr", tmp_path)
    assert result.words == ("bad", "café", "good", "phone")
    np.testing.assert_array_equal(result.lengths[:3], [2, 0, 3])
    np.testing.assert_array_equal(result.labels[:3], [0, 1, 1])
    assert [result.words[i] for i in result.tokens[2, :3]] == ["good", "good", "café"]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("mr", FileNotFoundError, r"docs/data.md .* `--data`"),
        ("imdb", ValueError, "`dataset` must be one of 'mr'"),
    ],
)
def test_missing_and_unknown_texts(name, error, message, tmp_path):
    with pytest.raises(error, match=message):
        load_sentences(name, tmp_path)


def tables(directory):
    """The same two words in the three formats."""
    vectors = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    np.savez(directory / "a.npz", words=np.array(["good", "bad"]), vectors=vectors.astype(np.float16))
    np.savez(directory / "rows.npz", words=np.array(["good", "bad"]), table=vectors[::-1], row=np.array([1, 0]))
    body = b"".join(word + b" " + row.tobytes() + b"\n" for word, row in zip((b"good", b"bad"), vectors, strict=True))
    (directory / "b.bin").write_bytes(b"2 3\n" + body)
    (directory / "c.txt").write_text("good 1 2 3\nbad 4 5 6\n")
    (directory / "d.txt").write_text("2 3\n. . . 7 8 9\ngood 1 2 3\nbad 4 5 6\n")  # a word may have spaces
    return [directory / name for name in ("a.npz", "rows.npz", "b.bin", "c.txt", "d.txt")]


def test_all_formats_hold_the_same(tmp_path):
    for path in tables(tmp_path):
        result = read_vectors(path, frozenset(["bad", "unheard"]))
        assert list(result) == ["bad"], path
        np.testing.assert_array_equal(result["bad"], [4, 5, 6])


def test_tables_stand_side_by_side_at_one_scale_and_missing_words_are_drawn(tmp_path):
    first, _, second, *_ = tables(tmp_path)
    words = [*(f"unheard{i}" for i in range(400)), "bad", "good"]
    result, known = word_vectors(words, [first, second])
    assert result.shape == (402, 6)
    assert known == [2, 2]
    scale = ENTRY_SCALE / np.sqrt(np.mean(np.arange(1, 7) ** 2))
    np.testing.assert_allclose(result[400], scale * np.array([4, 5, 6, 4, 5, 6]), rtol=1e-6)
    assert np.sqrt(np.mean(result[:400] ** 2)) == pytest.approx(ENTRY_SCALE, rel=0.05)  # 2400 draws: 1.4 %
    np.testing.assert_array_equal(result, word_vectors(words, [first, second])[0])


def test_tables_that_do_not_fit_are_refused(tmp_path):
    (tmp_path / "x.txt").write_text("other 1 2\n")
    with pytest.raises(ValueError, match="has none of the 2 words"):
        word_vectors(["bad", "good"], [tmp_path / "x.txt"])
    np.savez(tmp_path / "x.npz", words=np.array(["good"]), vectors=np.ones((2, 3)))
    with pytest.raises(ValueError, match="longer than"):
        word_vectors(["good"], [tmp_path / "x.npz"])
    with pytest.raises(FileNotFoundError, match=r"`--vectors` .* is not there"):
        word_vectors(["good"], [tmp_path / "nowhere.npz"])


def test_folds_share_out_the_rows_and_never_change():
    folds = cross_validation(25, 10)
    assert sorted(np.bincount(folds)) == [2] * 5 + [3] * 5
    assert "".join(map(str, folds)) == "5296127434103868497030152"


def test_buckets_hold_every_row_of_a_fold_once():
    lengths = np.array([0, 3, 3, 9, 4, 1, 12, 2])
    buckets = buckets_for(lengths, (0.5, 1.0))
    assert buckets == [3, 12]
    rows = [np.array([0, 1, 3, 4]), np.array([2, 5, 6])]
    part = in_buckets(rows, lengths, buckets)
    for fold, of_fold in enumerate(rows):
        listed = [part.rows[b][fold, : part.counts[b][fold]] for b in range(2)]
        assert sorted(np.concatenate(listed)) == sorted(of_fold)
        assert lengths[listed[0]].max(initial=0) <= 3


def test_the_generated_corpus_can_be_learnt_and_is_always_the_same():
    result, vectors = generate_corpus()
    assert result.lengths.min() == 0
    assert vectors.shape == (len(result.words), 20)
    again, _ = generate_corpus()
    np.testing.assert_array_equal(result.tokens, again.tokens)
    opinions = [{result.words[i][:3] for i in row[:n]} for row, n in zip(result.tokens, result.lengths, strict=True)]
    right = np.mean([("goo" in words) == bool(label) for words, label in zip(opinions, result.labels, strict=True)])
    assert 0.9 < right < 1
