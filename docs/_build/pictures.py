"""Makes the pictures of the documentation: runs the Python blocks of the pages (`python docs/_build/pictures.py`).

A page saves a picture with `savefig("name.png")` and shows it from `docs/images/name.png`. The picture of the page of a
run is a screenshot by Chromium, of the page that the first block of the README writes.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
BLOCK = re.compile(r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", flags=re.M | re.S)
_SAVED = re.compile(r"savefig\(\"([\w-]+\.png)\"")


def blocks(page: Path) -> list[tuple[str, str]]:
    """The Python blocks of a page, each with the output that the page prints below it."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def saved_pictures(page: Path) -> list[str]:
    """The names of the pictures that the code on a page saves."""
    return [name for code, _ in blocks(page) for name in _SAVED.findall(code)]


def run_page(page: Path) -> list[tuple[str, str]]:
    """Run the Python blocks of a page, in order, in the current directory.

    Returns:
        For each block, what it prints and what the page says that it prints.
    """
    names: dict = {"__name__": "__main__"}
    outputs = []
    for code, said in blocks(page):
        printed = StringIO()
        with redirect_stdout(printed):
            exec(compile(code, page.name, "exec"), names)
        outputs.append((printed.getvalue(), said))
    return outputs


def make_pictures(page: Path) -> None:
    """Run a page in an empty directory and copy its pictures to `docs/images`."""
    with tempfile.TemporaryDirectory() as directory, chdir(directory):
        run_page(page)
        for name in saved_pictures(page):
            shutil.copy(name, IMAGES / name)


def make_report_picture() -> None:
    """Take the screenshot of the page that the first block of the README writes, by Chromium."""
    with tempfile.TemporaryDirectory() as directory, chdir(directory):
        exec(blocks(ROOT / "README.md")[0][0], {"__name__": "__main__"})
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1000,1890"]
        page = Path("out/banana/index.html").resolve().as_uri()
        subprocess.run(["chromium", *options, f"--screenshot={IMAGES / 'report.png'}", page], check=True)


if __name__ == "__main__":
    pages = [Path(name).resolve() for name in sys.argv[1:]] or sorted((ROOT / "docs").rglob("*.md"))
    for path in filter(saved_pictures, pages):
        make_pictures(path)
    make_report_picture()
