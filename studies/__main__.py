"""`python -m studies NAME`: runs a study; every study is a command with its own options."""

import argparse
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import jax

from . import driver
from .covtype.study import Covtype
from .images.study import ImageStudy
from .sentences.study import Sentences
from .study import Study
from .tables import aligned
from .toy.study import Toy
from .uci.study import UCI

STUDIES: tuple[Study, ...] = (Toy(), Covtype(), UCI(), Sentences(), ImageStudy())


def split_names(text: str) -> tuple[str, ...]:
    """The names in a list separated by commas."""
    return tuple(text.replace(",", " ").split())


_READERS: dict[Any, Any] = {int: int, Path | None: Path} | dict.fromkeys(
    (tuple[str, ...], tuple[str, ...] | None), split_names
)


def add_options(parser: argparse.ArgumentParser, study: Study) -> None:
    """Add the options of all studies, and the arguments of the study's `tasks` that are `Annotated` with their help."""
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out") / study.name,
        help="Where to write results.json, table.md and the figures. Finished runs that are there are not run again.",
    )
    parser.add_argument("--quick", action="store_true", help=study.quick_help)
    if study.has_search:
        parser.add_argument(
            "--tune",
            action="store_true",
            help="Search the settings instead, into OUT/search.json and OUT/settings.json; resumable.",
        )
        parser.add_argument("--settings", type=Path, help="A settings.json from --tune, in place of the recorded one.")
    if study.selectable:
        parser.add_argument("--methods", type=split_names, help=f"Of {','.join(study.methods)}; all by default.")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="Rows compiled and run at once: on an accelerator much of the time is spent compiling.",
    )
    for name, parameter in inspect.signature(study.tasks).parameters.items():
        if get_origin(parameter.annotation) is Annotated:
            kind, text = get_args(parameter.annotation)
            reading = {"action": "store_true"} if kind is bool else {"type": _READERS[kind]}
            parser.add_argument(f"--{name.replace('_', '-')}", **reading, default=parameter.default, help=text)


def run(study: Study, out: Path, quick: bool, tune: bool = False, settings: Path | None = None, **options: Any) -> None:
    """Run a study, or search its settings, and print its tables."""
    if tune and (quick or settings is not None):
        raise ValueError("`--tune` searches settings on the full data: leave out `--quick` and `--settings`.")
    if study.double_precision:
        jax.config.update("jax_enable_x64", True)
    if tune:
        driver.search(study, out, **options)
        return
    outcome = driver.reproduce(study, out, quick=quick, settings=settings, **options)
    print("", *map(aligned, outcome.tables().values()), "\n".join(study.verdicts(outcome)), sep="\n\n")
    print(f"\nResults, tables and figures: {out / study.page}")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command. Wrong input, and a file that cannot be used, end it with one line."""
    parser = argparse.ArgumentParser("python -m studies", description=__doc__)
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for study in STUDIES:
        add_options(commands.add_parser(study.name, help=study.help.splitlines()[0], description=study.help), study)
    options = vars(parser.parse_args(arguments))
    name = options.pop("name")
    try:
        run(next(study for study in STUDIES if study.name == name), **options)
    except (ValueError, OSError) as error:
        raise SystemExit(f"studies: {error}") from None


if __name__ == "__main__":
    main()
