"""Lets the site hold files of the repository that lie beside `docs`: results, the changelog, how to contribute.

Pages link to them as they lie in the repository (`../results/toy/table.md`), so that the links work where the source is
read as well; here they become links within the site.
"""

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
BESIDE = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "results/*/table.md",
    "results/*/*.png",
    "results/*/results.json",
    "results/*/search.json",
    "benchmarks/results/*.json",
]
_WORKER, _FETCHED = "javascripts/worker.js", "https://unpkg.com/iframe-worker/shim"
_LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies beside `docs`."""
    for pattern in BESIDE:
        for path in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Take the site's own stand-in for a worker where the theme would fetch one from the network."""
    own = os.path.relpath(_WORKER, Path(page.file.dest_uri).parent)
    return output.replace(_FETCHED, Path(own).as_posix())


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """The same for the page that a server shows where there is none."""
    return output_content.replace(_FETCHED, f"/{_WORKER}")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between places in the repository into links between places in the site."""
    source, docs = Path(str(page.file.abs_src_path)), Path(config.docs_dir)

    def moved(match: re.Match[str]) -> str:
        linked = Path(os.path.normpath(source.parent / match[2]))
        if not linked.is_relative_to(ROOT):
            return match[0]
        place = linked.relative_to(docs if linked.is_relative_to(docs) else ROOT)
        return match[1] + Path(os.path.relpath(place, Path(page.file.src_uri).parent)).as_posix() + match[3]

    outside_code = re.split(r"(^```.*?^```)", markdown, flags=re.M | re.S)
    return "".join(part if part.startswith("```") else _LINK.sub(moved, part) for part in outside_code)
