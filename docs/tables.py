"""Puts the tables of `results/*/table.md` into `docs/results/*.md` (`make results-pages`).

Rows without a result are left out. `default_tables` does the same for `docs/default.md`, and `filled_speed` for
`docs/speed.md`.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
_NO_RESULT = re.compile(r"^\|[^|]*\|(?: not run: data absent \|)+\n", flags=re.M)
SPEED = ROOT / "docs" / "speed.md"
_FIRST = re.compile(r"(<!-- first calls -->\n).*?(<!-- end of first calls -->)", flags=re.S)
_TABLES = re.compile(r"(<!-- tables(?:: (\w+))? -->\n).*?(<!-- end of tables -->)", flags=re.S)


def pages() -> list[Path]:
    """The pages of the studies."""
    return sorted((ROOT / "docs" / "results").glob("*.md"))


def filled(page: Path) -> str:
    """The text of a page with the tables of its study between the marks; a mark may name a folder in the study's."""
    folder = ROOT / "results" / page.stem

    def with_tables(match: re.Match[str]) -> str:
        made = (folder / (match[2] or "") / "table.md").read_text()
        tables = re.findall(r"(?:^\|.*\n)+", _NO_RESULT.sub("", made), flags=re.M)
        return match[1] + "\n" + "\n".join(tables) + "\n" + match[3]

    return _TABLES.sub(with_tables, page.read_text())


def filled_speed() -> str:
    """The text of `docs/speed.md` with the table of first calls between its two marks."""
    table = (ROOT / "benchmarks" / "results" / "first.md").read_text()
    return _FIRST.sub(lambda match: match[1] + table + match[2], SPEED.read_text())


if __name__ == "__main__":
    from default_tables import PAGE, filled_default  # beside this file

    PAGE.write_text(filled_default())
    SPEED.write_text(filled_speed())
    for path in pages():
        path.write_text(filled(path))
