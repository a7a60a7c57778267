"""`run.json`: what `steinkern sample` was asked for and how it ended, for `--resume` and for `steinkern report`."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .files import write_text
from .result import Result

NAME = "run.json"


def write(directory: Path, options: Mapping[str, Any], result: Result | None = None) -> None:
    """Write the options of a run, before its first step; and once it has ended, its end beside them."""
    end = None
    if result is not None:
        end = {
            "step": result.num_steps,
            "status": result.status.value,
            "message": result.message,
            "warnings": list(result.warnings),
        }
    write_text(directory / NAME, json.dumps({"options": dict(options), "end": end}, indent=1) + "\n")


def read(directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options and the end of the run in a directory; empty where they are not known."""
    try:
        content = json.loads((directory / NAME).read_text(encoding="utf-8"))
        options, end = content["options"], content["end"] or {}
    except (OSError, ValueError, KeyError, TypeError):  # there is none, or it is not what `write` wrote
        return {}, {}
    return (options, end) if isinstance(options, dict) and isinstance(end, dict) else ({}, {})


def check_same(directory: Path, options: Mapping[str, Any]) -> None:
    """Refuse to go on with a run whose options were others, each named with what it was."""
    before, _ = read(directory)
    differing = list(_differences(before, options))
    if differing:
        was = " and ".join(_said(name, before[name]) for name in differing)
        now = " and ".join(_said(name, options[name]) for name in differing)
        raise ValueError(
            f"`--resume` goes on with the run in {directory}, which had {was}; this command has {now}. Give it what "
            "that run had, or --restart to begin anew in its place, or another --out."
        )


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name, value in now.items():
        if name not in before:
            continue
        same = before[name] == value
        if name == "FILE.py:NAME":  # the same file may be named from another directory; its code is compared elsewhere
            same = str(before[name]).rpartition(":")[2] == str(value).rpartition(":")[2]
        if not same:
            yield name


def _said(name: str, value: Any) -> str:
    if not name.startswith("--"):
        return str(value)
    return f"no {name}" if value is None else f"{name} {value}"
