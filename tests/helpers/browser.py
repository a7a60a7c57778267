"""A real browser for tests: a page is opened in headless Chromium and asked questions by a script of the test's own."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

_LISTEN = """<script>
window.trouble = [];
window.addEventListener("error", (event) => window.trouble.push(String(event.message)));
window.addEventListener("unhandledrejection", (event) => window.trouble.push(String(event.reason)));
console.error = (...words) => window.trouble.push(words.join(" "));
</script>"""
_ASK = """<script>
window.addEventListener("load", async () => {
  let answer;
  try { answer = await (async () => { %s })(); } catch (error) { window.trouble.push("in the test: " + error); }
  const box = document.createElement("pre");
  box.id = "answer";
  box.textContent = JSON.stringify({ answer, trouble: window.trouble });
  document.body.append(box);
});
</script>"""


def find() -> str:
    """The path of a browser; without one the test is skipped."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"needs a browser, one of {', '.join(NAMES)}: apt-get install chromium")
    return found


def ask(page: Path, directory: Path, script: str, size: str = "1200,900") -> Any:
    """What `script`, the body of a function that may wait, returns on a page that has loaded without an error.

    Args:
        page: the file.
        directory: where a copy of the page with the script and the browser's profile are kept.
        script: JavaScript.
        size: of the window.
    """
    browser = find()
    html = page.read_text(encoding="utf-8")
    asked = directory / "asked.html"
    html = html.replace("<head>", f"<head>{_LISTEN}", 1).replace("</body>", f"{_ASK % script}</body>", 1)
    asked.write_text(html, encoding="utf-8")
    options = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--enable-logging=stderr", "--virtual-time-budget=10000", "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={directory / 'profile'}", f"--window-size={size}",
    ]  # fmt: skip
    done = subprocess.run(
        [browser, *options, "--dump-dom", asked.as_uri()], capture_output=True, text=True, timeout=600, check=False
    )
    found = re.search(r'<pre id="answer">(.*?)</pre>', done.stdout, re.S)
    assert found, f"the page did not load: {done.stderr[-2000:]}"
    content = json.loads(unescape(found[1]))
    assert content["trouble"] == []
    assert "CONSOLE" not in done.stderr, done.stderr[-2000:]
    return content.get("answer")
