"""Ctrl-C as a request to end a loop cleanly."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, SimpleNamespace


@contextmanager
def interruptible(notice: str = "") -> Iterator[SimpleNamespace]:
    """A context in which the first Ctrl-C sets `requested` and the second raises `KeyboardInterrupt`.

    The first Ctrl-C also prints `notice` to the terminal, for loops that take a while to end. Outside the main thread,
    where Python handles no signals, and where another handler is installed, Ctrl-C is left alone.
    """
    interrupt = SimpleNamespace(requested=False)
    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield interrupt
        return

    def handle(number: int, frame: FrameType | None) -> None:
        interrupt.requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if notice and sys.stderr is not None and sys.stderr.isatty():
            with suppress(OSError):
                os.write(2, f"\n{notice}\n".encode())  # `print` is not safe here: the signal may interrupt a print

    signal.signal(signal.SIGINT, handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
