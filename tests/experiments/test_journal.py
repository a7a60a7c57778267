"""The journal of an experiment: what is done stays done, while it was made from the same settings."""

import json

import pytest

from steinkern.experiments.journal import Journal, main


def test_a_piece_is_done_only_for_the_settings_it_was_made_from(tmp_path):
    journal = Journal(tmp_path / "journal.json")
    assert journal.get("piece", {"size": (1, 2)}) is None
    assert journal.put("piece", {"size": (1, 2)}, [0.5]) == [0.5]
    again = Journal(tmp_path / "journal.json")
    assert again.get("piece", {"size": (1, 2)}) == [0.5]
    assert again.get("piece", {"size": (1, 3)}) is None
    assert again.get("other", {"size": (1, 2)}) is None


def test_every_piece_says_what_it_was_made_with(tmp_path):
    journal = Journal(tmp_path / "journal.json")
    journal.put("one", 1, 1)
    journal.put("two", 2, 2)
    (environment,) = journal.environments()
    assert {"jax", "date", "python"} <= set(environment)


@pytest.mark.parametrize("text", ["{", "[1]", '{"piece": 3}', '{"piece": {"result": 1}}'])
def test_another_file_is_refused(text, tmp_path):
    (tmp_path / "journal.json").write_text(text)
    with pytest.raises(ValueError, match="is not the journal of an experiment"):
        Journal(tmp_path / "journal.json")


def test_a_result_that_json_cannot_hold_leaves_the_file_as_it_was(tmp_path):
    journal = Journal(tmp_path / "journal.json")
    journal.put("one", 1, 1)
    with pytest.raises(ValueError, match="JSON"):
        journal.put("two", 2, float("nan"))
    assert set(json.loads((tmp_path / "journal.json").read_text())) == {"one"}


def test_a_bare_journal_holds_results_alone(tmp_path):
    (tmp_path / "search.json").write_text('{"old": [1, 2]}')
    journal = Journal(tmp_path / "search.json", bare=True)
    assert journal.keep("old", {}, lambda: pytest.fail("it is done")) == [1, 2]
    assert journal.keep("new", {}, lambda: [3]) == [3]
    assert json.loads((tmp_path / "search.json").read_text()) == {"old": [1, 2], "new": [3]}
    with pytest.raises(ValueError, match="is not the journal of an experiment"):
        Journal(tmp_path / "search.json")


def test_journals_of_one_file_keep_what_the_others_wrote(tmp_path):
    first, second = (Journal(tmp_path / "journal.json") for _ in range(2))
    first.put("one", 1, 1)
    second.put("two", 2, 2)
    first.put("three", 3, 3)
    assert set(json.loads((tmp_path / "journal.json").read_text())) == {"one", "two", "three"}
    assert first.get("two", 2) == 2


def test_a_command_adds_the_results_of_other_journals(tmp_path, monkeypatch):
    paths = [tmp_path / name for name in ("into.json", "a.json", "b.json")]
    for path, result in zip(paths[1:], (1, 2), strict=True):
        Journal(path).put("piece", 0, result)
    Journal(paths[1]).put("other", 0, 3)
    monkeypatch.setattr("sys.argv", ["journal", *map(str, paths)])
    main()
    merged = Journal(paths[0])
    assert (merged.get("piece", 0), merged.get("other", 0)) == (2, 3)  # the later one wins
