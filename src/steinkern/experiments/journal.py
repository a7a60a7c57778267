"""What a long experiment has finished: a JSON file that an interrupted run reads again, to go on where it stopped."""

import json
from pathlib import Path
from threading import Lock
from typing import Any

from ..core.files import environment, read_json
from .results import write_json


class Journal:
    """Finished pieces of work by name, each with what it was made from and the versions it was made with.

    A piece counts as done only while it was made from the same settings; every `put` is on disk before it returns.
    """

    def __init__(self, path: Path):
        self.path = path
        self._pieces: dict[str, Any] = _read(path) if path.exists() else {}
        self._lock = Lock()

    def get(self, name: str, made_from: Any) -> Any | None:
        """The result of a finished piece, or `None` where it has not been made from these settings."""
        piece = self._pieces.get(name)
        if piece is None or piece["made_from"] != json.loads(json.dumps(made_from)):
            return None
        return piece["result"]

    def put(self, name: str, made_from: Any, result: Any) -> Any:
        """Keep a result; returns it as a later `get` would."""
        piece = json.loads(json.dumps({"made_from": made_from, "environment": environment(), "result": result}))
        with self._lock:  # pieces may be put by several threads
            self._pieces[name] = piece
            write_json(self.path, self._pieces)
        return piece["result"]

    def environments(self) -> list[dict[str, str]]:
        """The different versions and dates that the pieces were made with."""
        found: list[dict[str, str]] = []
        for piece in self._pieces.values():
            if piece["environment"] not in found:
                found.append(piece["environment"])
        return found


def _read(path: Path) -> dict[str, Any]:
    try:
        pieces = read_json(path)
        if isinstance(pieces, dict) and all(
            {"made_from", "environment", "result"} <= set(piece) for piece in pieces.values()
        ):
            return pieces
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not the journal of an experiment: {error}. Move it away to start anew.") from error
    raise ValueError(f"{path} is not the journal of an experiment. Move it away to start anew.")
