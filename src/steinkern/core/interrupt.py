"""Ctrl-C as a request to end well, while a loop is under way."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class Interrupt:
    """Whether the user has asked for the end."""

    def __init__(self) -> None:
        self.requested = False


@contextmanager
def interruptible(notice: str = "") -> Iterator[Interrupt]:
    """Within it the first Ctrl-C sets `requested`; a second one raises `KeyboardInterrupt`, as it does everywhere.

    The notice, if there is one, goes to the terminal at the first: for loops that take a while to end.

    Python lets only the main thread handle signals, and a handler that somebody else has set stays: then Ctrl-C does
    what it did before.
    """
    interrupt = Interrupt()
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield interrupt
        return

    def handle(number: int, frame: FrameType | None) -> None:
        interrupt.requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if notice and sys.stderr is not None and sys.stderr.isatty():
            with suppress(OSError):
                os.write(2, f"\n{notice}\n".encode())  # a print may be under way where the signal came

    signal.signal(signal.SIGINT, handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
