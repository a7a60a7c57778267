"""The files of a code host: they parse, and their commands are those of the Makefile."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps(workflow: Path) -> list[dict]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_targets_of_the_makefile(workflow):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    commands = [step["run"] for step in steps(workflow) if "run" in step]
    made = [word for command in commands for word in command.split() if command.startswith("make ")]
    named = [word for word in made if re.fullmatch(r"[a-z-]+", word) and word != "make"]
    assert named
    assert set(named) <= targets
    assert all(command.startswith("make ") for command in commands)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_ask_for_little(workflow):
    content = yaml.safe_load(workflow.read_text())
    assert content["permissions"] == {"contents": "read"}
    checkouts = [step for step in steps(workflow) if step.get("uses", "").startswith("actions/checkout")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)
    assert all("timeout-minutes" in job for job in content["jobs"].values())


def test_templates_and_recipe_parse():
    for path in [*(ROOT / ".github").glob("*.yml"), *(ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")]:
        assert yaml.safe_load(path.read_text()), path
    assert yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    recipe = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {line.replace(">=", " >=") for line in project["dependencies"]}
    assert needed <= set(recipe["requirements"]["run"])


def test_the_version_is_that_of_the_changelog_everywhere():
    """`.dev0` until the section of the changelog has its date."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    number, date = re.search(r"^## (\S+)(?: - (\S+))?$", (ROOT / "CHANGELOG.md").read_text(), flags=re.M).groups()
    assert version == (f"{number}.dev0" if date == "unreleased" else number)
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    recipe = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == number


def test_the_owner_of_the_repository_is_named_in_one_place():
    files = [*ROOT.glob("*.md"), *ROOT.glob("*.cff"), ROOT / "mkdocs.yml", *(ROOT / ".github").rglob("*.yml")]
    files += [*(ROOT / "docs").rglob("*.md"), *(ROOT / "packaging").rglob("*.yaml"), *(ROOT / "examples").iterdir()]
    naming = [path.name for path in files if re.search(r"\bOWNER\b", path.read_text())]
    assert naming == ["CONTRIBUTING.md"]
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert all("OWNER" in url for url in urls.values())
