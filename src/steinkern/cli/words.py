"""The command's wording of the library's notices: command-line options in place of Python arguments."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from ..core.notices import Phrase, RefusalError
from ..results.result import Result

WORDS: Mapping[Phrase, str] = {
    Phrase.LOWER_RATE: "take `--method vanilla`, whose steps adapt",
    Phrase.LOWER_OR_ADAPT_RATE: "take `--method vanilla`, whose steps adapt, or call `fit` from Python",
    Phrase.LOWER_GROWN_RATE: "take `--method vanilla`, whose steps adapt, because the velocity has grown",
    Phrase.RAISE_RATE: "take another `--method`",
    Phrase.DECAY_RATE: "take more `--steps`, over which the step size falls more slowly",
    Phrase.OTHER_RATE: "take another `--method`",
    Phrase.MORE_STEPS: "raise `--steps`",
    Phrase.LARGER_BATCH: "call `fit` from Python with a larger `batch_size`",
    Phrase.LARGER_SUBSAMPLE: "raise the model's `subsample_size`",
    Phrase.MORE_PARTICLES: "take more `--particles`",
    Phrase.ASK_FOR_MORE: "ask for more with `--particles`",
    Phrase.METRIC: "take `--method mixture`",
    Phrase.HEAVIER_TAILS: "call `fit` from Python with a kernel of heavier tails (`IMQ()`)",
    Phrase.GRAPHICAL: "call `fit` from Python with a `Graphical` kernel where the target factorises",
    Phrase.MORE_DAMPING: "take `--method vanilla`, which needs none",
    Phrase.GRADIENT_FREE: "use `gradient_free_svgd` from Python",
    Phrase.SAMPLE: "take `--method auto`, which needs no tuning",
    Phrase.SAMPLE_EACH: "run the command with a `START` in each part",
    Phrase.WHOLE_DATA: "leave `subsample_size` out of the model's plates, or give `--method average`",
    Phrase.DOUBLE: "give data in float64",
    Phrase.SUPPORT: "`SUPPORT`",
    Phrase.TOLERANCE: "the tolerance",
    Phrase.DIRECTORY: "`DIR`",
    Phrase.TARGET: "`--target`",
    Phrase.GO_ON: "the same command begins anew",
    Phrase.SAME_CALL: "the same command with `--resume` goes on from there",
}

_WITHOUT_ADAPTING: Mapping[Phrase, str] = dict.fromkeys(
    (Phrase.LOWER_RATE, Phrase.LOWER_OR_ADAPT_RATE, Phrase.LOWER_GROWN_RATE),
    "call `fit` from Python with a lower learning rate",
)
"""Replacements for `--method vanilla`, whose steps already adapt."""

SomeResult = TypeVar("SomeResult", bound=Result)


def words_for(method: str) -> Mapping[Phrase, str]:
    """The wording of every phrase for a run by this `--method`."""
    return {**WORDS, **_WITHOUT_ADAPTING} if method == "vanilla" else WORDS


def reword_result(result: SomeResult, method: str) -> SomeResult:
    """A copy of a result whose message and warnings name the command's options."""
    words = words_for(method)
    warnings = tuple(notice.reword(words) for notice in result.warnings)
    return replace(result, message=result.message.reword(words), warnings=warnings)


@contextmanager
def reword_refusals() -> Iterator[None]:
    """Re-raise a `RefusalError` of the library with the wording of the command."""
    try:
        yield
    except RefusalError as refusal:
        raise RefusalError(refusal.notice.reword(WORDS)) from refusal
