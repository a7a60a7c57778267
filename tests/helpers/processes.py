"""Python in a process of its own, which imports this tree."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def output_of(*arguments: object, **environment: str) -> str:
    """What `python *arguments` prints; AssertionError with its errors where it fails."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONPATH": paths, **environment}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
