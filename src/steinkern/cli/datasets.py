"""`steinkern data`: download the datasets of the experiments, and verify them."""

from pathlib import Path
from typing import Annotated

import typer

from ..core.terminal import say
from ..experiments.data.datasets import DATASETS, data_directory
from ..experiments.data.images import SOURCES as IMAGES
from ..experiments.data.images import fetch_images
from ..experiments.data.sources import Status
from ..experiments.data.sources import check as check_sources
from ..experiments.data.sources import fetch as fetch_sources

data = typer.Typer(
    help="Fetch and check the datasets of the experiments.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Directory = Annotated[
    Path | None,
    typer.Option(
        "--data", help="The data directory; by default STEINKERN_DATA, or steinkern in the user's cache directory."
    ),
]


@data.command()
def fetch(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help=f"Of {', '.join((*DATASETS, *IMAGES))}; by default all but images."),
    ] = None,
    directory: Directory = None,
) -> None:
    """Download datasets from their public originals and check them; valid files that are already there are kept.

    All of them are about 230 MB to download, most of it year.
    """
    directory = data_directory(directory)
    tables = [name for name in names or () if name not in IMAGES]
    if tables or not names:
        for status in fetch_sources(tables, directory):
            say(_line(status))
    for name in IMAGES:
        if name in (names or ()):
            files = fetch_images(name, directory)
            say(f"{name:<14}present  {len(files)} files, digests ok")
    say(f"\nIn {directory}")


@data.command()
def check(directory: Directory = None) -> None:
    """Print for every dataset whether it is present and intact; exit with 1 where a file is damaged or differs."""
    directory = data_directory(directory)
    statuses = check_sources(directory)
    for status in statuses:
        say(_line(status))
    say(f"\nIn {directory}")
    if any(status.is_wrong for status in statuses):
        raise typer.Exit(1)


def _line(status: Status) -> str:
    if status.state == "absent":
        return f"{status.name:<10}absent"
    if status.state == "damaged":
        return f"{status.name:<10}damaged  {status.detail}"
    verdict = {
        "ok": "digest ok",
        "unknown": "digest unknown: not verified",
        "differs": f"digest differs: {status.detail}",
    }[status.state]
    return f"{status.name:<10}present  {status.rows:>7,} rows  {status.bytes:>11,} bytes  {verdict}"
