"""Runs the notebooks of `examples` (`make examples`), and makes pages of the documentation from them.

A notebook is stored with its outputs. Its page has the same text, code, printed output and pictures; the text
alternative of a picture is the entry "alt" of its cell's metadata, and a cell with the tag "setup" is left out.
"""

import argparse
import base64
import json
import os
import re
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
LARGEST = 300_000  # bytes of a notebook with its outputs
_LONGEST_CELL = 600  # seconds
_PICTURES = {"image/png": "png", "image/gif": "gif"}
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_BAR = re.compile(r"\d+%\|")


def notebooks() -> list[Path]:
    """The notebooks, in the order of their names."""
    return sorted(EXAMPLES.glob("*.ipynb"))


def read(path: Path) -> dict[str, Any]:
    """A notebook as JSON, with the lines of every text joined."""
    content = json.loads(path.read_text(encoding="utf-8"))
    for cell in content["cells"]:
        cell["source"] = "".join(cell["source"])
        for output in cell.get("outputs", ()):
            if "text" in output:
                output["text"] = "".join(output["text"])
            for kind, value in output.get("data", {}).items():
                output["data"][kind] = "".join(value) if isinstance(value, list) else value
    return content


def run(path: Path) -> str:
    """Run a notebook in a new kernel and an empty directory, and return it with its outputs as JSON.

    Outputs hold nothing that depends on the machine beyond numbers: addresses, versions and progress bars are removed.
    """
    import nbformat
    from nbclient import NotebookClient

    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # tqdm asks for widgets, which no output here needs
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as directory:
        resources = {"metadata": {"path": directory}}
        client = NotebookClient(
            notebook, timeout=_LONGEST_CELL, kernel_name="python3", resources=resources, record_timing=False
        )
        client.execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = _merge_streams([output for output in cell.outputs if not _is_progress(output)])
        for output in cell.get("outputs", ()):
            output.pop("metadata", None)
            if output.output_type in ("display_data", "execute_result"):
                output.metadata = {}
                shown = output.data.get("text/plain", "")
                output.data["text/plain"] = _ADDRESS.sub("", shown)
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
         "language_info": {"name": "python"}}
    )  # fmt: skip
    return nbformat.writes(notebook) + "\n"


def _is_progress(output: Any) -> bool:
    """Whether an output is a progress bar and nothing else."""
    lines = re.split(r"[\r\n]", output.get("text", ""))
    return output.get("name") == "stderr" and all(_BAR.search(line) or not line.strip() for line in lines)


def _merge_streams(outputs: list[Any]) -> list[Any]:
    """The outputs of a cell, with what it prints in one piece."""
    merged: list[Any] = []
    for output in outputs:
        if merged and output.output_type == "stream" and output.name == merged[-1].get("name"):
            merged[-1].text += output.text
        else:
            merged.append(output)
    return merged


def hosted_links(path: Path) -> str:
    """Links that open a notebook on Binder and Colab, from the repository's address in `pyproject.toml`."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    repository = urls["Repository"].removeprefix("https://github.com/")
    place = f"examples/{path.name}"
    binder = f"https://mybinder.org/v2/gh/{repository}/HEAD?labpath={place}"
    colab = f"https://colab.research.google.com/github/{repository}/blob/main/{place}"
    return f"[Open on Binder]({binder}) (no account needed) · [open in Colab]({colab}) · [the notebook]({path.name})"


def page(path: Path) -> tuple[str, dict[str, bytes]]:
    """The page of a notebook in Markdown, and its pictures by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in read(path)["cells"]:
        if "setup" in cell["metadata"].get("tags", ()):
            continue
        if cell["cell_type"] == "markdown":
            parts.append(cell["source"])
            continue
        parts.append(f"```python\n{cell['source']}\n```")
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                parts.append(f"```text\n{output['text'].rstrip()}\n```")
                continue
            kind = next((kind for kind in _PICTURES if kind in output.get("data", {})), None)
            if kind is None:
                parts.append(f"```text\n{output['data']['text/plain']}\n```")
                continue
            name = f"{path.stem}-{len(pictures) + 1}.{_PICTURES[kind]}"
            pictures[name] = base64.b64decode(output["data"][kind])
            parts.append(f"![{cell['metadata']['alt']}]({name})")
    title, _, rest = parts[0].partition("\n")
    return "\n\n".join([title, hosted_links(path), rest.strip(), *parts[1:]]) + "\n", pictures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("notebooks", nargs="*", type=Path, help="all of examples by default")
    parser.add_argument("--out", type=Path, help="a directory for the notebooks with new outputs; by default in place")
    arguments = parser.parse_args()
    for path in arguments.notebooks or notebooks():
        text = run(path)
        place = path if arguments.out is None else arguments.out / path.name
        place.write_text(text, encoding="utf-8")
        print(f"{path.name}: {len(text.encode()) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
