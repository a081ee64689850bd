"""What a process's exchanges go through: the scheduler's queue of the network, with the computing beside it."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax

from cnnkit.graph import Graph, OperationError, Scheduler, Timeline
from cnnkit.parallel import watch


class Scheduled:
    """Runs calls and graphs; whatever communicates goes through one thread, one at a time.

    Two threads with collectives in flight would mix their data without an error; the queue of the network
    has one, which is made with the first exchange.
    """

    def __init__(self) -> None:
        self._scheduler = Scheduler()
        self.seconds = 0.0  # that the last call took
        self._call = Graph("a call", ["function", "args"])
        call = lambda function, args: communicate(function, *args)
        self._call.add("exchange", call, ["function", "args"], "made", on="network")

    def call(
        self, function: Callable[..., Any], *args: Any, meanwhile: Callable[[], Any] | None = None
    ) -> Any:
        """A call that communicates, and what it returns; what is to be done meanwhile does not communicate."""
        found, line = self.run(self._call, {"function": function, "args": args}, meanwhile)
        self.seconds = line.seconds
        return found["made"]

    def run(
        self, graph: Graph, feeds: dict[str, Any], meanwhile: Callable[[], Any] | None = None
    ) -> tuple[dict[str, Any], Timeline]:
        """A graph's outputs, and what ran when; its operations on the network communicate by `communicate`.

        Raises:
            Exception: what an operation raised.
        """
        handle = self._scheduler.start(graph, feeds)
        try:
            try:
                if meanwhile is not None:
                    meanwhile()
            finally:  # whatever happens here, what is in flight is waited for
                made = handle.wait()
            return made, handle.timeline
        except OperationError as error:
            # What went wrong is what people need, and not which operation met it.
            cause = error.__cause__ or error
        raise cause from cause.__cause__

    def close(self) -> None:
        """Let the threads go; one that waits for another process for good is left behind."""
        with contextlib.suppress(RuntimeError):
            self._scheduler.close()


def communicate(function: Callable[..., Any], *args: Any) -> Any:
    """A call that takes all processes, waited for; an error names the process that is gone."""
    with watch.current.exchange():
        return jax.block_until_ready(function(*args))
