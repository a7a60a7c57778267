"""The journal of an experiment: what is done stays done, while it was made from the same settings."""

import json

from studies.journal import Journal


def test_a_piece_is_done_only_for_the_settings_it_was_made_from(tmp_path):
    journal = Journal(tmp_path / "journal.json")
    assert journal.get("piece", {"size": (1, 2)}) is None
    assert journal.put("piece", {"size": (1, 2)}, [0.5]) == [0.5]
    again = Journal(tmp_path / "journal.json")
    assert again.get("piece", {"size": (1, 2)}) == [0.5]
    assert again.get("piece", {"size": (1, 3)}) is None
    assert again.get("other", {"size": (1, 2)}) is None


def test_journals_of_one_file_keep_what_the_others_wrote(tmp_path):
    first, second = (Journal(tmp_path / "journal.json") for _ in range(2))
    first.put("one", 1, 1)
    second.put("two", 2, 2)
    first.put("three", 3, 3)
    assert set(json.loads((tmp_path / "journal.json").read_text())) == {"one", "two", "three"}
    assert first.get("two", 2) == 2
