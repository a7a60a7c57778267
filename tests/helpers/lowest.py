"""Print the lowest versions that `pyproject.toml` allows, as constraints for pip: `python tests/helpers/lowest.py`."""

import re
import tomllib
from pathlib import Path


def lowest(requirements: list[str]) -> list[str]:
    """`name>=version` as `name==version`."""
    found = [re.match(r"([A-Za-z0-9_.-]+)>=([0-9.]+)", requirement) for requirement in requirements]
    return [f"{match[1]}=={match[2]}" for match in found if match]


def main() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]["studies"]
    # What newer ones deprecate, the lowest typer and matplotlib use, and warnings are errors in tests.
    of_its_time = ["click<8.3", "pyparsing<3.3"]
    print("\n".join(sorted({*lowest(project["dependencies"]), *lowest(extras), *of_its_time})))


if __name__ == "__main__":
    main()
