"""Notices: texts with codes and phrases."""

import pickle

from steinkern.core.notices import Notice, Phrase, RefusalError, quantity, some_of, ways_out
from steinkern.core.types import SteinWarning


def test_a_notice_is_its_text_with_a_code():
    notice = Notice("not-moved", "the particles have not moved: ", Phrase.RAISE_RATE, ".")
    assert notice == "the particles have not moved: raise the learning rate."
    assert notice.code == "not-moved"
    assert notice in {"the particles have not moved: raise the learning rate."}


def test_other_words_change_phrases_alone():
    notice = Notice("narrow", "too close: ", *ways_out([Phrase.MORE_STEPS, "start closer"]))
    reworded = notice.reword({Phrase.MORE_STEPS: "raise `--steps`"})
    assert reworded == "too close: Ways out: raise `--steps` or start closer."
    assert reworded.code == "narrow"


def test_ways_out_are_listed_once_each():
    def text(*ways):
        return str(Notice("", *ways_out(ways)))

    assert text("a") == "Ways out: a."
    assert text("a", "b") == "Ways out: a or b."
    assert text("a", Phrase.MORE_STEPS, "a", "c") == "Ways out: a, raise `num_steps` or c."


def test_a_notice_keeps_its_code_when_pickled():
    notice = Notice("wide", "too far apart: ", Phrase.SAMPLE)
    again = pickle.loads(pickle.dumps(notice))
    assert (again, again.code, again.fragments) == (notice, notice.code, notice.fragments)


def test_warnings_and_refusals_carry_the_code():
    notice = Notice("flat", "the log density is flat.")
    assert SteinWarning(notice).code == "flat"
    assert str(SteinWarning(notice)) == notice
    assert SteinWarning("a text").code is None
    assert RefusalError(notice).notice.code == "flat"


def test_numbers_have_their_noun_and_long_lists_an_end():
    assert [quantity(number, "step") for number in (0, 1, 2, 1000)] == ["0 steps", "1 step", "2 steps", "1,000 steps"]
    assert some_of([3, 1, 2], 3) == "3, 1, 2"
    assert some_of(["a", "b", "c"], 2) == "a, b, …"
