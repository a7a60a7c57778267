"""The journal of a study: a JSON file of finished results, from which an interrupted study continues."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from steinkern.core.identity import environment

from .tables import read_json, write_json


class Journal:
    """Finished results by name, each with its inputs and with the versions of the libraries.

    A result is used again only for equal inputs. Every `put` is on disk before it returns. Several processes may write
    to one file: each keeps what the others have written.
    """

    def __init__(self, path: Path):
        self.path = path
        self._pieces = self._read()

    def get(self, name: str, made_from: Any) -> Any | None:
        """The finished result of this name; `None` where there is none, or where it has other inputs."""
        piece = self._pieces.get(name)
        return piece["result"] if piece and piece["made_from"] == json.loads(json.dumps(made_from)) else None

    def put(self, name: str, made_from: Any, result: Any) -> Any:
        """Write a result; returns it as a later `get` does."""
        piece = json.loads(json.dumps({"made_from": made_from, "environment": environment(), "result": result}))
        with FileLock(f"{self.path}.lock"):
            self._pieces = {**self._pieces, **self._read(), name: piece}
            write_json(self.path, self._pieces)
        return piece["result"]

    def keep(self, name: str, made_from: Any, compute: Callable[[], Any]) -> Any:
        """The finished result of this name; where there is none, that of `compute`, which is written."""
        result = self.get(name, made_from)
        return self.put(name, made_from, compute()) if result is None else result

    def environments(self) -> list[dict[str, str]]:
        """The different versions and dates of the results."""
        return list({str(piece["environment"]): piece["environment"] for piece in self._pieces.values()}.values())

    def _read(self) -> dict[str, Any]:
        return read_json(self.path) if self.path.exists() else {}
