"""Hooks of the documentation site.

The site holds files of the repository outside of `docs`: results, the changelog, how to contribute. Pages link to them
by their paths in the repository (`../results/toy/table.md`), so that the links work in the source too; here they become
links within the site. Notebooks become pages (`notebooks.py`). Numbers in tables stay on one line.
"""

import importlib
import inspect
import os
import re
from pathlib import Path

import notebooks
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
BESIDE = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "results/**/table.md",
    "results/**/*.png",
    "results/*/folds.json",
    "results/**/results.json",
    "results/*/search.json",
    "benchmarks/results/*.json",
    "examples/*.ipynb",
]
_WORKER, _FETCHED = "javascripts/worker.js", "https://unpkg.com/iframe-worker/shim"
_NUMBER_CELL = re.compile(r"<td>((?:<strong>)?[-+−]?\d[^<]{0,17}(?:</strong>)?)</td>")
_NAMES = re.compile(r"<!-- names: (.*?) -->")
_LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of `docs`, and the pages of the notebooks with their pictures."""
    for pattern in BESIDE:
        for path in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    for path in notebooks.NOTEBOOKS:
        text, pictures = notebooks.page(path)
        for name, content in {f"{path.stem}.md": text, **pictures}.items():
            files.append(File.generated(config, f"examples/{name}", content=content))
    return files


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Replace the worker script that the theme would fetch from the network by that of the site."""
    own = os.path.relpath(_WORKER, Path(page.file.dest_uri).parent)
    return output.replace(_FETCHED, Path(own).as_posix())


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """The same for the page of a missing address."""
    return output_content.replace(_FETCHED, f"/{_WORKER}")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep numbers on one line."""
    html = re.sub(r"(\d) ± (\d)", "\\1\u00a0±\u00a0\\2", html)
    return _NUMBER_CELL.sub(r'<td class="number">\1</td>', html)


def public_names(packages: list[str]) -> list[str]:
    """What these packages, or `steinkern` for them, make public, by the modules that define it: functions first."""
    top = importlib.import_module("steinkern")
    modules = [top, *(importlib.import_module(f"steinkern.{package}") for package in packages)]
    modules += [top.initial]
    found: dict[str, tuple[bool, str, str]] = {}
    for module in modules:
        for name, value in vars(module).items():
            home = getattr(value, "__module__", type(value).__module__)
            public = not name.startswith("_") and (hasattr(module, "__path__") or home == module.__name__)
            if public and not inspect.ismodule(value) and home.partition(".")[2].split(".")[0] in packages:
                found[name] = (inspect.isclass(value), name.lower(), f"{home}.{getattr(value, '__qualname__', name)}")
    return [path for _, _, path in sorted(found.values())]


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links within the site.

    The reference lists what is public. Pages of results have wide tables and no table of contents beside them; summaries of results get a title.
    """
    if page.file.src_uri.startswith("results/"):
        page.meta["hide"] = ["toc"]
    if page.file.src_uri.endswith("/table.md"):
        markdown = f"# Summary of the study: {Path(page.file.src_uri).parent.name}\n\n{markdown}"
    markdown = _NAMES.sub(
        lambda match: "\n\n".join(f"::: {name}" for name in public_names(match[1].split())), markdown
    )
    source, docs = Path(page.file.abs_src_path or ROOT / page.file.src_uri), Path(config.docs_dir)

    def moved(match: re.Match[str]) -> str:
        linked = Path(os.path.normpath(source.parent / match[2]))
        if not linked.is_relative_to(ROOT):
            return match[0]
        place = linked.relative_to(docs if linked.is_relative_to(docs) else ROOT)
        if linked.suffix == ".ipynb" and place.with_suffix(".md") != Path(page.file.src_uri):
            place = place.with_suffix(".md")  # the page of a notebook, which has the link to the file
        return match[1] + Path(os.path.relpath(place, Path(page.file.src_uri).parent)).as_posix() + match[3]

    outside_code = re.split(r"(^```.*?^```)", markdown, flags=re.M | re.S)
    return "".join(part if part.startswith("```") else _LINK.sub(moved, part) for part in outside_code)
