"""What people may ask of a run while it trains: pause, stop, checkpoint, other rates."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Scales(NamedTuple):
    """Factors that people set while a run trains."""

    lr: float = 1.0
    fetch: float = 1.0


class Control:
    """Wishes from any thread, looked at by the training loop between two dispatches.

    Attributes:
        lr_scale: factor on the scheduled learning rate, from the next dispatch on.
        fetch_scale: factor on the fetch policy's counts, from the next round on.
    """

    def __init__(self) -> None:
        self.lr_scale = 1.0
        self.fetch_scale = 1.0
        self._stop = threading.Event()
        self._go = threading.Event()
        self._go.set()
        self._save = threading.Event()
        self.interrupted = False

    def stop(self) -> None:
        """End after the dispatch in flight."""
        self._stop.set()
        self._go.set()

    def pause(self) -> None:
        """Hold after the dispatch in flight."""
        self._go.clear()

    def resume(self) -> None:
        """Go on after a pause."""
        self._go.set()

    def save(self) -> None:
        """Write a checkpoint after the dispatch in flight."""
        self._save.set()

    @property
    def scales(self) -> Scales:
        """Both factors."""
        return Scales(self.lr_scale, self.fetch_scale)

    @scales.setter
    def scales(self, scales: Scales) -> None:
        self.lr_scale, self.fetch_scale = scales

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def paused(self) -> bool:
        return not self._go.is_set()

    def wait_while_paused(self) -> None:
        """Block as long as a pause lasts."""
        while not self._go.wait(0.2):
            pass

    def take_save(self) -> bool:
        """Whether a checkpoint was asked for since the last look."""
        asked = self._save.is_set()
        self._save.clear()
        return asked

    def clear(self) -> None:
        """Forget stop and pause, for a fresh fit."""
        self._stop.clear()
        self._go.set()
        self.interrupted = False

    @contextmanager
    def interrupts(self) -> Iterator[None]:
        """Turn the first Ctrl-C into a stop and let the second one through; the old handler comes back.

        Outside the main thread signals cannot be caught, and nothing is changed.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # None where the handler was not set from Python, and then cannot be put back from here either.
        before = signal.getsignal(signal.SIGINT) or signal.default_int_handler

        def first(number, frame):
            self.interrupted = True
            self.stop()
            signal.signal(signal.SIGINT, before if callable(before) else signal.default_int_handler)

        signal.signal(signal.SIGINT, first)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


class Turns:
    """One at a time, in the order of asking: the training's dispatches, and questions from other threads.

    A plain lock would let the training, which asks again at once, go before whoever waits.
    """

    def __init__(self) -> None:
        self._next, self._now = threading.Lock(), threading.Lock()

    def __enter__(self) -> "Turns":
        with self._next:
            self._now.acquire()
        return self

    def __exit__(self, *exc: object) -> None:
        self._now.release()


def stop_at_exit(run: Callable[[], Any]) -> None:
    """End the training in the background of the run that a weak reference gives, if it is still there."""
    there = run()
    if there is not None and there._thread is not None and there._thread.is_alive():
        there.stop()
        there._thread.join()
