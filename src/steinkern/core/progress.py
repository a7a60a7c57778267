"""Progress bars, shown by default on a terminal and in a notebook."""

import importlib.util
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm.std import tqdm

_SECONDS_BETWEEN_UPDATES = 0.5
"""A shorter compilation shows no text."""


def progress_bar(total: int, initial: int = 0, wanted: bool | None = None) -> Any:
    """A tqdm bar of `total` steps.

    Args:
        total: the number of steps.
        initial: the number of steps already taken.
        wanted: whether to show the bar; `None` shows it on a terminal and in a notebook.
    """
    notebook = in_notebook()
    by_default = False if notebook else None  # `None` hides the bar unless stderr is a terminal
    disable = by_default if wanted is None else not wanted
    bar: Any = tqdm
    if notebook and importlib.util.find_spec("ipywidgets") is not None:  # the notebook bar warns without ipywidgets
        from tqdm.notebook import tqdm as notebook_bar

        bar = notebook_bar
    return bar(total=total, initial=initial, disable=disable, leave=False)


def in_notebook() -> bool:
    """Whether this process is the kernel of a Jupyter or Colab notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ in ("ZMQInteractiveShell", "Shell")  # Jupyter's and Colab's


@contextmanager
def compiling(bar: Any) -> Iterator[None]:
    """Show the elapsed seconds on the bar during the first call of a program, most of which is compilation."""
    if bar.disable:
        yield
        return
    done = threading.Event()

    def count() -> None:
        start = time.monotonic()
        while not done.wait(_SECONDS_BETWEEN_UPDATES):
            bar.set_description_str(f"compiling … {time.monotonic() - start:.0f} s")

    counter = threading.Thread(target=count, name="steinkern-compiling", daemon=True)
    counter.start()
    try:
        yield
    finally:
        done.set()
        counter.join()
        bar.set_description_str("")
