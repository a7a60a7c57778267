"""The notebooks of `examples`: they run, print what is stored, are small, and become pages."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from docs import notebooks

from steinkern.experiments.tables import read_results
from tests.test_site import assert_said

ROOT = Path(__file__).parent.parent
NOTEBOOKS = notebooks.notebooks()
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(path: Path) -> list[dict]:
    return [cell for cell in notebooks.read(path)["cells"] if cell["cell_type"] == "code"]


def printed(path: Path) -> list[str]:
    """What every cell prints; messages of libraries on their first use go elsewhere."""
    return [
        "".join(output["text"] for output in cell["outputs"] if output.get("name") == "stdout")
        for cell in code_cells(path)
    ]


def test_there_are_six_notebooks_and_all_are_on_the_site():
    assert len(NOTEBOOKS) == 6
    navigation = (ROOT / "mkdocs.yml").read_text()
    index = (ROOT / "docs" / "index.md").read_text()
    for path in NOTEBOOKS:
        assert f"examples/{path.stem}.md" in navigation
        assert f"(../examples/{path.name})" in index


@each_notebook
def test_notebooks_are_small_whole_and_the_same_for_everybody(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < notebooks.LARGEST
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), "run `make examples`"
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert all(output["output_type"] in ("stream", "display_data", "execute_result") for output in outputs)
    assert all(output.get("name", "stdout") == "stdout" for output in outputs), "a notebook shows no warnings"
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not re.search(r"/home/|/root/|/tmp/|/Users/|OWNER|0x[0-9a-f]{8}", text)
    assert json.loads(text)["metadata"]["language_info"] == {"name": "python"}


@each_notebook
def test_the_page_of_a_notebook_has_its_pictures_with_text_and_a_sentence_below(path):
    text, pictures = notebooks.page(path)
    assert text.startswith("# ")
    assert "%pip" not in text
    shown = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)\n\n(.*)", text)
    assert [name for _, name, _ in shown] == list(pictures)
    for alternative, _, sentence in shown:
        assert len(alternative) > 20
        assert sentence.startswith("*"), sentence
    for code in re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S):
        ast.parse(code)
    for link in re.findall(r"\]\((\.\.[^)#]+)", text):
        assert (path.parent / link).exists(), link


@each_notebook
def test_hosted_notebooks_are_at_the_address_of_the_project(path):
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    place = repository.removeprefix("https://github.com/")
    text, _ = notebooks.page(path)
    assert f"(https://mybinder.org/v2/gh/{place}/HEAD?labpath=examples/{path.name})" in text
    assert f"(https://colab.research.google.com/github/{place}/blob/main/examples/{path.name})" in text


def installed_by(requirements: str) -> set[str]:
    """The packages that `.[extra]`, `steinkern[extra]` and further names in a text of requirements bring."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = [name for group in re.findall(r"[.n]\[(.*?)\]", requirements) for name in group.split(",")]
    lines = [line for name in named for line in extras[name]] + re.findall(r"[\w-]{5,}", requirements)
    return {"steinkern", "jax", "numpy", "optax", "equinox", "IPython", *(re.split("[>=]", line)[0] for line in lines)}


@each_notebook
def test_what_a_notebook_imports_is_installed_where_it_is_hosted(path):
    cells = code_cells(path)
    (setup,) = [cell["source"] for cell in cells if "setup" in cell["metadata"].get("tags", ())]
    code = "\n".join(cell["source"] for cell in cells if cell["source"] != setup)
    modules = {name.partition(".")[0] for name in re.findall(r"^(?:import|from) ([\w.]+)", code, flags=re.M)}
    needed = {{"sklearn": "scikit-learn"}.get(name, name) for name in modules - set(sys.stdlib_module_names)}
    assert needed <= installed_by(setup)
    assert needed <= installed_by((ROOT / ".binder" / "requirements.txt").read_text())


def test_the_numbers_of_a_gpu_are_those_of_the_benchmark():
    _, _, rows = read_results(ROOT / "benchmarks" / "results" / "gpu.json")
    found = {(row.case, row.method, row.metric): row.mean for row in rows}
    text = next(
        cell["source"]
        for cell in notebooks.read(ROOT / "examples" / "many.ipynb")["cells"]
        if "| particles | kernel |" in cell["source"]
    )
    kernels = {
        "`sk.RBF()`": "vanilla-float32",
        '`sk.Isotropic(sk.RBF(), precision="fast")`': "vanilla-fast",
        "the same by plain XLA, all pairs at once": "vanilla-xla-dense",
    }
    lines = re.findall(r"^\| ([\d,]+) \| (.*?) \| ([\d.]+) (m?s) \| ([\d.]+) GB \|$", text, flags=re.M)
    assert len(lines) == 5
    for number, kernel, time, unit, memory in lines:
        case = f"n={number.replace(',', '')},d=50"
        milliseconds = found[case, kernels[kernel], "milliseconds"]
        assert float(time) * (1 if unit == "ms" else 1e3) == pytest.approx(milliseconds, rel=0.01)
        assert float(memory) == pytest.approx(found[case, kernels[kernel], "gigabytes"], abs=0.005)


@pytest.mark.thorough
@each_notebook
def test_notebooks_run_and_print_what_is_stored(path, tmp_path):
    for needed in ("nbclient", "ipykernel", "numpyro", "sklearn"):
        pytest.importorskip(needed)
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "STEINKERN_CACHE": "0"}
    for name in ("MPLBACKEND", "XLA_FLAGS"):  # a kernel draws by its own, and compiles as users do
        environment.pop(name, None)
    command = [sys.executable, ROOT / "docs" / "notebooks.py", "--out", tmp_path, path]
    subprocess.run(command, check=True, env=environment, timeout=1200)
    for now, said in zip(printed(tmp_path / path.name), printed(path), strict=True):
        assert_said(now, said)
