"""Makes the pictures of the documentation: runs the Python blocks of the pages (`make docs-pictures`).

A page saves a picture with `savefig("name.png")` and shows it from `docs/images/name.png`. The picture of the page of a
run is a screenshot by Chromium, of the page that the first block of the README writes.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path

ROOT = Path(__file__).parent.parent
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
            print(f"{name}: {os.path.getsize(name) / 1000:.0f} kB")


def make_report_picture() -> None:
    """Take the screenshot of the page of a run, if Chromium is installed."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("report.png: not made, for lack of Chromium")
        return
    code, _ = blocks(ROOT / "README.md")[0]
    with tempfile.TemporaryDirectory() as directory, chdir(directory):
        exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1000,1890"]
        page = Path("out/banana/index.html").resolve().as_uri()
        subprocess.run([browser, *options, f"--screenshot={IMAGES / 'report.png'}", page], check=True, timeout=300)


if __name__ == "__main__":
    chosen = [Path(name).resolve() for name in sys.argv[1:]]
    for path in chosen or sorted((ROOT / "docs").rglob("*.md")):
        if saved_pictures(path):
            make_pictures(path)
    if not chosen:
        make_report_picture()
