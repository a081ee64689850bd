"""What ran when and where: the events of a run, and what they add up to."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Event(NamedTuple):
    """One operation's run on one item: when it became ready, started and ended, in seconds."""

    op: str
    item: int
    resource: str
    thread: int
    ready: float
    start: float
    end: float


class Timeline:
    """The events of a run, in order of their start, in seconds since the first became ready.

    >>> line = Timeline([Event("a", 0, "cpu", 0, 5.0, 5.0, 6.0), Event("b", 0, "cpu", 0, 6.0, 7.0, 9.0)])
    >>> line.seconds, line.busy(), line.waited("b")
    (4.0, {'cpu': 0.75}, 1.0)
    """

    def __init__(self, events: Iterable[Event]):
        found = sorted(events, key=lambda e: (e.start, e.end))
        zero = min((e.ready for e in found), default=0.0)
        self.events = [
            e._replace(ready=e.ready - zero, start=e.start - zero, end=e.end - zero) for e in found
        ]

    @property
    def seconds(self) -> float:
        """From the first operation's being ready to the last one's end."""
        return max((e.end for e in self.events), default=0.0)

    @property
    def lanes(self) -> list[tuple[str, int]]:
        """(resource, thread), one for each thread that ran something, sorted."""
        return sorted({(e.resource, e.thread) for e in self.events})

    def busy(self) -> dict[str, float]:
        """Each resource's fraction of the time in which its threads ran operations."""
        lanes: dict[str, set[int]] = {}
        spent: dict[str, float] = {}
        for e in self.events:
            lanes.setdefault(e.resource, set()).add(e.thread)
            spent[e.resource] = spent.get(e.resource, 0.0) + e.end - e.start
        whole = self.seconds or 1.0
        return {r: spent[r] / (whole * len(lanes[r])) for r in sorted(spent)}

    def waited(self, op: str) -> float:
        """Seconds that an operation stood ready in the queue of its resource, over all items."""
        return sum(e.start - e.ready for e in self.events if e.op == op)

    def costs(self) -> dict[str, float]:
        """Mean seconds of each operation, as `analyse` takes them."""
        spent: dict[str, list[float]] = {}
        for e in self.events:
            spent.setdefault(e.op, []).append(e.end - e.start)
        return {op: sum(s) / len(s) for op, s in spent.items()}

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)
