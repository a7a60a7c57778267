"""Puts the tables of `results/*/table.md` into `docs/results/*.md` (`make results-pages`).

Rows without a result are left out. `default_tables` does the same for `docs/default.md`.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
_NO_RESULT = re.compile(r"^\|[^|]*\|(?: not run: data absent \|)+\n", flags=re.M)
_TABLES = re.compile(r"(<!-- tables -->\n).*?(<!-- end of tables -->)", flags=re.S)


def pages() -> list[Path]:
    """The pages of the studies."""
    return sorted((ROOT / "docs" / "results").glob("*.md"))


def filled(page: Path) -> str:
    """The text of a page with the tables of its study between the two marks."""
    made = (ROOT / "results" / page.stem / "table.md").read_text()
    tables = re.findall(r"(?:^\|.*\n)+", _NO_RESULT.sub("", made), flags=re.M)
    return _TABLES.sub(lambda match: match[1] + "\n" + "\n".join(tables) + "\n" + match[2], page.read_text())


if __name__ == "__main__":
    from default_tables import PAGE, filled_default  # beside this file

    PAGE.write_text(filled_default())
    for path in pages():
        path.write_text(filled(path))
