"""Progress bars: by default where a person looks, on a terminal or in a notebook."""

import importlib.util
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm.std import tqdm

_THREAD = "steinkern-compiling"
_AFTER = 0.5  # seconds of waiting from which on a bar says what it waits for


def progress_bar(total: int, initial: int = 0, wanted: bool | None = None) -> Any:
    """A bar of `total` steps.

    Args:
        total: steps.
        initial: those taken before.
        wanted: whether it is shown; `None` for a terminal or a notebook.
    """
    notebook = in_notebook()
    hidden = (None if not notebook else False) if wanted is None else not wanted
    return _bar_class(notebook)(total=total, initial=initial, disable=hidden, leave=False)


def in_notebook() -> bool:
    """Whether this is the kernel of a Jupyter notebook, whose output a person sees though it is no terminal."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ in ("ZMQInteractiveShell", "Shell")  # Jupyter's and Colab's


@contextmanager
def compiling(bar: Any) -> Iterator[None]:
    """While the first call of a program lasts, the bar counts the seconds: most of them go to its compilation."""
    if bar.disable:
        yield
        return
    done = threading.Event()

    def count() -> None:
        start = time.monotonic()
        while not done.wait(_AFTER):
            bar.set_description_str(f"compiling … {time.monotonic() - start:.0f} s")

    counter = threading.Thread(target=count, name=_THREAD, daemon=True)
    counter.start()
    try:
        yield
    finally:
        done.set()
        counter.join()
        bar.set_description_str("")


def _bar_class(notebook: bool) -> Any:
    """That of notebooks needs ipywidgets, and warns where they are missing: there a bar of text will do."""
    if notebook and importlib.util.find_spec("ipywidgets") is not None:
        from tqdm.notebook import tqdm as notebook_bar

        return notebook_bar
    return tqdm
