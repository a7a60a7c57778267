"""Messages: texts with codes."""

from steinkern.core.messages import Notice, SteinWarning, join_truncated, quantity, ways_out


def test_a_notice_is_a_text_with_a_code():
    notice = Notice("not-moved", "the particles have not moved: raise the learning rate.")
    assert str(notice) == "the particles have not moved: raise the learning rate."
    assert len({notice, Notice(notice.code, notice.text), Notice("flat", notice.text)}) == 2


def test_ways_out_are_listed_once_each():
    assert ways_out(["a"]) == "Ways out: a."
    assert ways_out(["a", "b"]) == "Ways out: a or b."
    assert ways_out(["a", "raise `num_steps`", "a", "c"]) == "Ways out: a, raise `num_steps` or c."


def test_warnings_carry_the_code():
    notice = Notice("flat", "the log density is flat.")
    assert SteinWarning(notice).code == "flat"
    assert str(SteinWarning(notice)) == notice.text
    assert SteinWarning("a text").code is None


def test_numbers_have_their_noun_and_long_lists_an_end():
    assert [quantity(number, "step") for number in (0, 1, 2, 1000)] == ["0 steps", "1 step", "2 steps", "1,000 steps"]
    assert join_truncated([3, 1, 2], 3) == "3, 1, 2"
    assert join_truncated(["a", "b", "c"], 2) == "a, b, …"
