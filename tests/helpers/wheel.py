"""Runs the first three blocks of the README with the installed wheel and nothing else (`make dist`)."""

import re
from pathlib import Path

import steinkern


def log_density(x):
    """A density for the command."""
    return -0.5 * (x**2).sum()


if __name__ == "__main__":
    assert "site-packages" in steinkern.__file__, steinkern.__file__
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    for code in re.findall(r"^```python\n(.*?)^```", readme, flags=re.M | re.S)[:3]:
        exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
