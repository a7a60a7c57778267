"""Runs the notebooks of `examples` (`python docs/_build/notebooks.py`), and makes pages of the documentation from them.

A notebook is stored with its outputs. Its page has the same text, code, printed output and pictures; the text
alternative of a picture is the entry "alt" of its cell's metadata.
"""

import base64
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
_LONGEST_CELL = 600  # seconds
_PICTURES = {"image/png": "png", "image/gif": "gif"}


def read(path: Path) -> Any:
    """A notebook, with the lines of every text joined."""
    return nbformat.read(path, as_version=4)


def run(path: Path) -> str:
    """Run a notebook in a new kernel and an empty directory, and return it with what it prints and shows, as JSON."""
    from nbclient import NotebookClient

    notebook = read(path)
    with tempfile.TemporaryDirectory() as directory:
        resources = {"metadata": {"path": directory}}
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])  # the studies are beside the examples
        options = {"timeout": _LONGEST_CELL, "record_timing": False, "coalesce_streams": True}
        client = NotebookClient(notebook, resources=resources, **options)
        client.execute(env={**os.environ, "PYTHONPATH": paths})
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]  # progress bars
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return nbformat.writes(notebook) + "\n"


def page(path: Path) -> tuple[str, dict[str, bytes]]:
    """The page of a notebook in Markdown, and its pictures by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in read(path).cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            data = output.get("data", {})
            shown = next((mime for mime in _PICTURES if mime in data), None)
            if shown is None:
                text = output.text if output.output_type == "stream" else data["text/plain"]
                parts.append(f"```text\n{text.rstrip()}\n```")
                continue
            name = f"{path.stem}-{len(pictures) + 1}.{_PICTURES[shown]}"
            pictures[name] = base64.b64decode(data[shown])
            parts.append(f"![{cell.metadata['alt']}]({name})")
    title, _, rest = parts[0].partition("\n")
    return "\n\n".join([title, f"[The notebook]({path.name})", rest.strip(), *parts[1:]]) + "\n", pictures


if __name__ == "__main__":
    for notebook in [Path(name) for name in sys.argv[1:]] or NOTEBOOKS:
        notebook.write_text(run(notebook), encoding="utf-8")
