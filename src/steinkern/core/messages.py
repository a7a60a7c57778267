"""Messages about a run: a text for people with a code for programs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Notice:
    """A message for people, with a code for programs.

    ```python
    for notice in result.warnings:
        if notice.code == "not-moved":
            print(notice)
    ```
    """

    code: str
    """The finding in one or two hyphenated words; `docs/troubleshooting.md` and `docs/default.md` list the codes."""
    text: str
    """The finding, its likely reason, and advice."""

    def __str__(self) -> str:
        return self.text


class SteinWarning(UserWarning):
    """A run ended with signs that its particles do not represent the target. The text has advice.

    `code` is that of the notice. Where warnings are raised as errors, `result` holds the result of the run, or `None`
    before its first step.
    """

    def __init__(self, notice: Notice | str, result: Any = None):
        super().__init__(str(notice))
        self.code: str | None = getattr(notice, "code", None)
        self.result = result


def quantity(number: int, noun: str) -> str:
    """A number with its noun: "1 step", "2 steps"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def join_truncated(items: Sequence[Any], max_items: int = 10) -> str:
    """Join items with commas, truncated."""
    return ", ".join(map(str, items[:max_items])) + (", …" if len(items) > max_items else "")


def ways_out(ways: Iterable[str]) -> str:
    """The sentence "Ways out: a, b or c.", without repetitions."""
    *others, last = dict.fromkeys(ways)
    return f"Ways out: {', '.join(others)}{' or ' if others else ''}{last}."
