"""Long experiments piece by piece: several at once, every finished one on disk before the next is waited for."""

import abc
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import jax

from ..core.files import read_json
from ..core.types import check_count
from .journal import Journal


class AbstractPiece(abc.ABC):
    """One piece of work."""

    @property
    @abc.abstractmethod
    def key(self) -> str:
        """Its name in the journal."""

    @property
    @abc.abstractmethod
    def made_from(self) -> Any:
        """What its result depends on."""

    @abc.abstractmethod
    def run(self) -> Any:
        """The work itself."""


SomePiece = TypeVar("SomePiece", bound=AbstractPiece)


def number_of_jobs(jobs: int | None) -> int:
    """How many pieces to compile and run at once: by default 6 on an accelerator, 1 on a CPU."""
    jobs = (1 if jax.default_backend() == "cpu" else 6) if jobs is None else jobs
    check_count("--jobs", jobs)
    return jobs


def run_pieces(
    pieces: Sequence[SomePiece], journal: Journal, jobs: int, finished: Callable[[SomePiece, Any], None]
) -> dict[str, Any]:
    """Every piece's result by its key, from the journal or run now and put there.

    Several run at a time, since much of the time is compiling. Where one fails, those that are under way still end and
    are kept before its error is raised.

    Args:
        pieces: the work.
        journal: what has been done.
        jobs: how many at once.
        finished: told of every piece, those from the journal first.
    """
    results: dict[str, Any] = {}
    for piece in pieces:
        done = journal.get(piece.key, piece.made_from)
        if done is not None:
            results[piece.key] = done
            finished(piece, done)
    waiting = [piece for piece in pieces if piece.key not in results]
    with ThreadPoolExecutor(jobs) as pool:

        def work(piece: SomePiece) -> None:
            result = journal.put(piece.key, piece.made_from, piece.run())
            results[piece.key] = result
            finished(piece, result)

        running = [pool.submit(work, piece) for piece in waiting]
        try:
            wait(running, return_when=FIRST_EXCEPTION)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    for future in running:
        if not future.cancelled():
            future.result()
    return results


def read_winners(path: Path | None, packaged: str, check: Callable[[Mapping[str, Any]], Any]) -> Any:
    """What a settings.json from `--tune` holds, as `check` makes it; the file that comes with the package by default.

    Args:
        path: the file.
        packaged: the name of that which comes with the package.
        check: from its "winners" to settings; its `ValueError` says what is wrong.
    """
    try:
        if path is None:
            return check(json.loads(resources.files(__package__).joinpath(packaged).read_text())["winners"])
        return check(read_json(path)["winners"])
    except OSError as error:
        raise OSError(f"`--settings` {path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"`--settings` {path} is not a settings.json from --tune: {_in_words(error)}.") from error


def _in_words(error: Exception) -> str:
    """An error of the reader's as it is; one of Python's own, which speaks of code, as what it means for a file."""
    return str(error) if type(error) is ValueError else "it has another layout"


def former_winners(path: Path) -> dict[str, Any]:
    """What earlier pieces of a search have chosen; none where there is no such file."""
    return dict(read_winners(path, "", dict)) if path.exists() else {}
