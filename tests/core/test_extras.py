"""The command that installs an extra: it works beside a clone, which no package index has."""

import tomllib
from pathlib import Path

import pytest

from steinkern.core import extras

ROOT = Path(__file__).parents[2]
GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", ["arviz", "cli", "numpyro", "plot", "pymc", "studies"])
def test_the_command_names_the_packages_of_an_extra_and_no_other(extra, monkeypatch):
    lines = [f"{line}; extra == '{name}'" for name, group in GROUPS.items() for line in group]
    monkeypatch.setattr(extras, "requires", lambda name: ["jax>=0.10", *lines] if name == "steinkern" else None)
    assert extras.install_command(extra) == f"pip install {' '.join(repr(line) for line in GROUPS[extra])}"


def test_the_metadata_of_the_installed_package_are_read():
    assert extras.install_command("plot").startswith("pip install 'matplotlib")
