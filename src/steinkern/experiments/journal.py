"""The journal of an experiment: a JSON file of finished results, from which an interrupted experiment continues.

`python -m steinkern.experiments.journal INTO FROM ...` adds the results of other journals to one.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import jax

from ..core.files import DirectoryLock, environment, read_json
from ..core.types import check_count
from .tables import write_json

Name = TypeVar("Name")
Made = TypeVar("Made")


class Journal:
    """Finished results by name, each with its inputs and with the versions of the libraries.

    A result is used again only for equal inputs. Every `put` is on disk before it returns. Several processes may write
    to one file: each keeps what the others have written.

    Args:
        path: the file.
        bare: the file holds results only; their names identify their inputs.
    """

    def __init__(self, path: Path, bare: bool = False):
        self.path = path
        self._bare = bare
        self._pieces: dict[str, Any] = _read(path, bare) if path.exists() else {}
        self._lock = Lock()

    def get(self, name: str, made_from: Any) -> Any | None:
        """The finished result of this name; `None` where there is none, or where it has other inputs."""
        piece = self._pieces.get(name)
        if piece is None or self._bare:
            return piece
        return piece["result"] if piece["made_from"] == json.loads(json.dumps(made_from)) else None

    def put(self, name: str, made_from: Any, result: Any) -> Any:
        """Write a result; returns it as a later `get` does."""
        whole = {"made_from": made_from, "environment": environment(), "result": result}
        piece = json.loads(json.dumps(result if self._bare else whole))
        self._write({name: piece})
        return piece if self._bare else piece["result"]

    def merge(self, path: Path) -> None:
        """Add the results of another journal, in place of those of the same name."""
        self._write(_read(path, self._bare))

    def _write(self, pieces: Mapping[str, Any]) -> None:
        lock = DirectoryLock(self.path.parent)
        with self._lock, lock:  # `put` may be called by several threads
            while not lock.acquire():
                time.sleep(0.01)
            written = _read(self.path, self._bare) if self.path.exists() else {}
            self._pieces = {**self._pieces, **written, **pieces}
            write_json(self.path, self._pieces)

    def keep(self, name: str, made_from: Any, compute: Callable[[], Any]) -> Any:
        """The finished result of this name; where there is none, that of `compute`, which is written."""
        found = self.get(name, made_from)
        return self.put(name, made_from, compute()) if found is None else found

    def environments(self) -> list[dict[str, str]]:
        """The different versions and dates of the results."""
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
    """The number of jobs that compile and run at the same time: by default 6 on an accelerator, 1 on a CPU."""
    jobs = (1 if jax.default_backend() == "cpu" else 6) if jobs is None else jobs
    check_count("--jobs", jobs)
    return jobs


def run_jobs(work: Mapping[Name, Callable[[], Made]], jobs: int) -> dict[Name, Made]:
    """The return values of all jobs by their names, in the order of `work`.

    Several jobs run at the same time, because much of the time is spent compiling. Where one fails, its error is raised
    after the running jobs have ended. With `jobs=1` they run in the calling thread, which Ctrl-C interrupts at once.
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


def main() -> None:
    """The command that merges journals."""
    parser = argparse.ArgumentParser(description="Add the results of other journals to one.")
    parser.add_argument("into", type=Path, help="the journal that is written, which may be new")
    parser.add_argument("journals", type=Path, nargs="+", help="later ones win")
    options = parser.parse_args()
    journal = Journal(options.into)
    for path in options.journals:
        journal.merge(path)


if __name__ == "__main__":
    main()
