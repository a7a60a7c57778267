"""Progress bars."""

import io
import threading
from types import SimpleNamespace

import pytest

from steinkern.core import progress

NOTEBOOK = SimpleNamespace(get_ipython=type("ZMQInteractiveShell", (), {}))
"""What IPython looks like inside a notebook's kernel."""


def test_a_bar_is_shown_where_a_person_looks(monkeypatch):
    monkeypatch.setattr("sys.stderr", io.StringIO())  # no terminal
    assert progress.progress_bar(10).disable
    assert not progress.progress_bar(10, wanted=True).disable
    monkeypatch.setitem(progress.sys.modules, "IPython", NOTEBOOK)
    assert not progress.progress_bar(10).disable
    assert progress.progress_bar(10, wanted=False).disable


def test_a_notebook_without_widgets_gets_a_bar_of_text_and_no_warning(monkeypatch, recwarn):
    monkeypatch.setattr(progress.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(progress.sys.modules, "IPython", NOTEBOOK)
    assert type(progress.progress_bar(10)) is progress.tqdm
    assert not recwarn.list


class Bar:
    """A bar that keeps what it is told."""

    disable = False

    def __init__(self):
        self.texts, self.counted = [], threading.Event()

    def set_description_str(self, text):
        self.texts.append(text)
        self.counted.set()


def test_the_bar_counts_while_a_program_is_compiled(monkeypatch):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_UPDATES", 0.01)
    with progress.compiling(bar := Bar()):
        assert bar.counted.wait(60)
    assert bar.texts[0].startswith("compiling … ")
    assert bar.texts[-1] == ""


def test_counting_ends_with_an_error():
    with pytest.raises(RuntimeError), progress.compiling(Bar()):
        raise RuntimeError("it could not be compiled")
    assert all(thread.name != "steinkern-compiling" for thread in threading.enumerate())
