"""The notebooks of `examples`: they run, print what is stored, are small, and become pages."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs._build import notebooks
from tests.test_docs import assert_printed

ROOT = Path(__file__).parent.parent
each_notebook = pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(path: Path) -> list[dict]:
    return [cell for cell in notebooks.read(path)["cells"] if cell["cell_type"] == "code"]


def printed(path: Path) -> list[str]:
    """What every cell prints; messages of libraries on their first use go elsewhere."""
    return [
        "".join(output["text"] for output in cell["outputs"] if output.get("name") == "stdout")
        for cell in code_cells(path)
    ]


def test_there_are_six_notebooks_and_all_are_on_the_site():
    assert len(notebooks.NOTEBOOKS) == 6
    navigation = (ROOT / "mkdocs.yml").read_text()
    index = (ROOT / "docs" / "index.md").read_text()
    for path in notebooks.NOTEBOOKS:
        assert f"examples/{path.stem}.md" in navigation
        assert f"(../examples/{path.name})" in index


@each_notebook
def test_notebooks_are_small_and_whole(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < 300_000
    counts = [cell["execution_count"] for cell in code_cells(path)]
    assert counts == list(range(1, len(counts) + 1)), "run `python docs/_build/notebooks.py`"
    assert "image/png" in text
    assert not re.search(r"/home/|/root/|/tmp/|/Users/|0x[0-9a-f]{8}", text)


@each_notebook
def test_the_page_of_a_notebook_has_its_pictures_with_text_and_a_sentence_below(path):
    text, pictures = notebooks.page(path)
    assert text.startswith("# ")
    shown = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)\n\n(.*)", text)
    assert [name for _, name, _ in shown] == list(pictures)
    for alternative, _, sentence in shown:
        assert len(alternative) > 20
        assert sentence.startswith("*"), sentence
    for code in re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S):
        ast.parse(code)
    for link in re.findall(r"\]\((\.\.[^)#]+)", text):
        assert (path.parent / link).exists(), link


@pytest.mark.thorough
@each_notebook
def test_notebooks_run_and_print_what_is_stored(path, tmp_path):
    for needed in ("nbclient", "ipykernel", "numpyro", "sklearn"):
        pytest.importorskip(needed)
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    for name in ("MPLBACKEND", "XLA_FLAGS"):  # a kernel draws by its own, and compiles as users do
        environment.pop(name, None)
    again = shutil.copy(path, tmp_path)
    command = [sys.executable, ROOT / "docs" / "_build" / "notebooks.py", again]
    subprocess.run(command, check=True, env=environment, timeout=1200)
    for now, expected in zip(printed(again), printed(path), strict=True):
        assert_printed(now, expected)
