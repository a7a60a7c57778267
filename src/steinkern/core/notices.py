"""Messages about a run: a text, a code for programs, and advice that the command line words differently."""

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class Phrase(enum.Enum):
    """A piece of advice in a notice. The value is its wording for callers of the Python functions."""

    LOWER_RATE = "lower the learning rate"
    LOWER_OR_ADAPT_RATE = "lower the learning rate, or use an adaptive step rule"
    LOWER_GROWN_RATE = "lower the learning rate, because the velocity has grown since the first step"
    RAISE_RATE = "raise the learning rate"
    DECAY_RATE = "let the step size fall (`optimiser=optax.rmsprop(optax.cosine_decay_schedule(0.1, num_steps))`)"
    OTHER_RATE = "try another learning rate, or a step rule that decays"
    MORE_STEPS = "raise `num_steps`"
    LARGER_BATCH = "raise `batch_size`"
    LARGER_SUBSAMPLE = "raise `subsample_size`"
    MORE_PARTICLES = "take more particles"
    ASK_FOR_MORE = "ask for more with `num_particles=`"
    METRIC = "use a kernel with a metric (`matrix_svgd`)"
    HEAVIER_TAILS = "use a kernel with heavier tails (`IMQ()`)"
    GRAPHICAL = "use a `Graphical` kernel where the target factorises"
    MORE_DAMPING = "raise `damping`, or use a repaired Hessian"
    GRADIENT_FREE = "use `gradient_free_svgd`"
    SAMPLE = "call `sample`, which needs no tuning"
    SAMPLE_EACH = "run `sample` from a start in each part"
    WHOLE_DATA = "leave `subsample_size` out of the model's plates, or use `fit`"
    DOUBLE = (
        "enable double precision (`jax.config.update('jax_enable_x64', True)`) and give particles and data in float64"
    )
    SUPPORT = "`support=`"
    TOLERANCE = "`tolerance`"
    DIRECTORY = "`directory`"
    TARGET = "`target`"
    GO_ON = "give this result to `fit` to go on from it"
    SAME_CALL = "the same call goes on from its checkpoint"


Fragment = str | Phrase
Words = Mapping[Phrase, Fragment]


class Notice(str):
    """A message for people, with a code for programs.

    ```python
    for notice in result.warnings:
        if notice.code == "not-moved":
            ...
    ```
    """

    code: str
    """The finding in one or two hyphenated words; `docs/troubleshooting.md` and `docs/default.md` list the codes."""
    fragments: tuple[Fragment, ...]

    def __new__(cls, code: str, *fragments: Fragment) -> "Notice":
        notice = super().__new__(cls, "".join(part.value if isinstance(part, Phrase) else part for part in fragments))
        notice.code = code
        notice.fragments = fragments
        return notice

    def reword(self, words: Words) -> "Notice":
        """A copy with `words` in place of its phrases; a phrase that they do not have stays."""
        parts = (words.get(part, part) if isinstance(part, Phrase) else part for part in self.fragments)
        return Notice(self.code, *parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return Notice, (self.code, *self.fragments)


class RefusalError(ValueError):
    """The request cannot be carried out. `notice` is the message with its code."""

    def __init__(self, notice: Notice):
        super().__init__(str(notice))
        self.notice = notice


def quantity(number: int, noun: str) -> str:
    """A number with its noun: "1 step", "2 steps"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def some_of(items: Sequence[Any], most: int = 10) -> str:
    """At most so many items, separated by commas, and … in place of further ones."""
    return ", ".join(map(str, items[:most])) + (", …" if len(items) > most else "")


def ways_out(ways: Iterable[Fragment]) -> list[Fragment]:
    """The fragments of the sentence "Ways out: a, b or c.", without repetitions."""
    ways = list(dict.fromkeys(ways))
    fragments: list[Fragment] = ["Ways out: "]
    for place, way in enumerate(ways):
        after = "." if place == len(ways) - 1 else " or " if place == len(ways) - 2 else ", "
        fragments += [way, after]
    return fragments
