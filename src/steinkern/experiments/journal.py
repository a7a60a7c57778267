"""What a long experiment has finished: a JSON file that an interrupted run reads again, to go on where it stopped."""

import json
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import jax

from ..core.files import environment, read_json
from ..core.types import check_count
from .tables import write_json

Name = TypeVar("Name")
Made = TypeVar("Made")


class Journal:
    """Finished pieces of work by name, each with what it was made from and the versions it was made with.

    A piece counts as done only while it was made from the same settings; every `put` is on disk before it returns.

    Args:
        path: the file.
        bare: pieces are results and nothing else; their names and contents say what they were made from.
    """

    def __init__(self, path: Path, bare: bool = False):
        self.path = path
        self._bare = bare
        self._pieces: dict[str, Any] = _read(path, bare) if path.exists() else {}
        self._lock = Lock()

    def get(self, name: str, made_from: Any) -> Any | None:
        """The result of a finished piece, or `None` where it has not been made from these settings."""
        piece = self._pieces.get(name)
        if piece is None or self._bare:
            return piece
        return piece["result"] if piece["made_from"] == json.loads(json.dumps(made_from)) else None

    def put(self, name: str, made_from: Any, result: Any) -> Any:
        """Keep a result; returns it as a later `get` would."""
        whole = {"made_from": made_from, "environment": environment(), "result": result}
        piece = json.loads(json.dumps(result if self._bare else whole))
        with self._lock:  # pieces may be put by several threads
            self._pieces[name] = piece
            write_json(self.path, self._pieces)
        return piece if self._bare else piece["result"]

    def keep(self, name: str, made_from: Any, compute: Callable[[], Any]) -> Any:
        """The result of a finished piece; where there is none, that of `compute`, which is put down."""
        found = self.get(name, made_from)
        return self.put(name, made_from, compute()) if found is None else found

    def environments(self) -> list[dict[str, str]]:
        """The different versions and dates that the pieces were made with."""
        found: list[dict[str, str]] = []
        for piece in self._pieces.values():
            if piece["environment"] not in found:
                found.append(piece["environment"])
        return found


def _read(path: Path, bare: bool) -> dict[str, Any]:
    try:
        pieces = read_json(path)
        if isinstance(pieces, dict) and all(
            isinstance(piece, list) if bare else {"made_from", "environment", "result"} <= set(piece)
            for piece in pieces.values()
        ):
            return pieces
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not the journal of an experiment: {error}. Move it away to start anew.") from error
    raise ValueError(f"{path} is not the journal of an experiment. Move it away to start anew.")


def number_of_jobs(jobs: int | None) -> int:
    """How many pieces to compile and run at once: by default 6 on an accelerator, 1 on a CPU."""
    jobs = (1 if jax.default_backend() == "cpu" else 6) if jobs is None else jobs
    check_count("--jobs", jobs)
    return jobs


def run_jobs(work: Mapping[Name, Callable[[], Made]], jobs: int) -> dict[Name, Made]:
    """What every piece of work returns, by its name, in the order of `work`.

    Several run at a time, since much of the time is compiling. Where one fails, those that are under way still end
    before its error is raised. A single job runs in the calling thread, which Ctrl-C interrupts at once.
    """
    if jobs == 1:
        return {name: piece() for name, piece in work.items()}
    with ThreadPoolExecutor(jobs) as pool:
        running = {name: pool.submit(piece) for name, piece in work.items()}
        try:
            wait(running.values(), return_when=FIRST_EXCEPTION)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    for future in running.values():
        if not future.cancelled():
            future.result()
    return {name: future.result() for name, future in running.items()}
