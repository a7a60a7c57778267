"""Ctrl-C as a request to end well, while a loop is under way."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether the user has asked for the end."""

    def __init__(self) -> None:
        self.requested = False


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Within it the first Ctrl-C sets `requested`; a second one raises `KeyboardInterrupt`, as it does everywhere.

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

    signal.signal(signal.SIGINT, handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
