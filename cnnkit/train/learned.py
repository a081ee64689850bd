"""What rounds cost, learned as they run: how much longer steps take in them, and how long an exchange."""

from collections import deque
from statistics import median

KEPT = 5  # dispatches whose median counts
SEEN = 16  # dispatches that are looked back upon
LONGER = 1.3  # so many times as long, a local phase tells from another what a step costs in rounds
UNSURE = 0.03  # of a local phase: what steps timed on their own may be wrong by
WAITS = 1.02  # so much longer than its local phase, a round has waited
FADES = 0.995  # in a dispatch; an exchange that is always hidden may have become shorter, which nothing tells


class Learned:
    """From seconds of rounds, and of the local phases that they should take by steps timed on their own.

    A round takes stretch · phase + exchange, or the longer of the two with delay. From rounds of one length the
    stretch, what working side by side costs, cannot be told from the exchange: all is taken for the exchange, and a
    period that is to hide it grows. Then there are rounds of two lengths, which tell; and the period shrinks again.
    """

    def __init__(self) -> None:
        self._exchange: deque[float] = deque(maxlen=KEPT)
        self._stretch: deque[float] = deque(maxlen=KEPT)
        self._seen: deque[tuple[float, float]] = deque(maxlen=SEEN)

    @property
    def exchange(self) -> float | None:
        """Seconds of an exchange, None while no round has told."""
        return median(self._exchange) if self._exchange else None

    @property
    def stretch(self) -> float:
        """How many times as long as on its own a step takes in rounds."""
        return median(self._stretch) if self._stretch else 1.0

    def add(self, phase: float, took: float, delay: int, known: float | None) -> None:
        """Learn from rounds of one dispatch.

        Args:
            phase: seconds of the longest local phase, by steps timed on their own; the mean over rounds.
            took: seconds of a round.
            delay: 1 if exchanges ran beside the local phases.
            known: seconds of an exchange as far as all workers know.
        """
        other = next((seen for seen in reversed(self._seen) if phase > LONGER * seen[0]), None)
        self._seen.append((phase, took))
        if self.stretch < 1 or took * WAITS < self.stretch * phase:
            # A step timed on its own can take longer, too: a phase of one step on a GPU, with a look at the clock. That
            # holds until such steps are timed in longer phases; then rounds take no less than they should.
            self._stretch.append(min(max(1.0, self.stretch), took / phase))
        elif other is not None:
            (self._hidden_before if delay else self._slope)(phase, took, *other)
        inside = self.stretch * phase
        if delay:
            if waits(took, inside):
                self._exchange.append(took)
            elif known is not None:
                self._exchange.append(min(FADES * known, inside))  # it ended within the phase
        else:
            rest = max(took - inside, 1e-6)
            self._exchange.append(known if known and abs(rest - known) < UNSURE * inside else rest)

    def _slope(self, phase: float, took: float, before: float, then: float) -> None:
        slope = (took - then) / (phase - before)
        # Else exchanges would take less than nothing: the machine has changed in between.
        if slope < took / phase:
            self._stretch.append(max(1.0, slope))

    def _hidden_before(self, phase: float, took: float, before: float, then: float) -> None:
        """With delay, where rounds became longer as their phases did, the shorter ones had hidden the exchange."""
        if waits(took, self.stretch * phase) and took / then - 1 > 0.7 * (phase / before - 1):
            self._stretch.clear()
            self._stretch.append(took / phase)
            self._exchange.clear()
            self._exchange.append(min(then, self.stretch * before))


def waits(took: float, phase: float) -> bool:
    """Whether a round with delay that took so many seconds waited for its exchange after its local phase."""
    return took > WAITS * phase
