"""How workers work together: modes, delay, exchange, payload, and what becomes of momentum."""

import math
from dataclasses import dataclass

from cnnkit.names import choose
from cnnkit.parallel.emulate import Emulated
from cnnkit.parallel.exchange import ALGORITHMS
from cnnkit.parallel.payload import PAYLOADS

MODES = ("accumulate", "local")
MOMENTA = ("average", "keep", "reset")
OUTERS = ("plain", "nesterov")


@dataclass(frozen=True)
class Rules:
    """How workers work together.

    Args:
        mode: ``"local"``, each worker takes its own optimizer steps and the changes are averaged; or
            ``"accumulate"``, gradients are summed at fixed weights and one step is taken (the thesis).
        delay: 1 exchanges the round before while this one computes.
        exchange: ``psum``, ``ring``, ``tree``, ``redundant`` or ``server``.
        payload: ``float32``, ``bfloat16`` or ``int8`` (with error feedback).
        momentum: what becomes of the inner optimizer's state after a local round: ``average`` (with delay,
            of the round before), ``keep`` (each worker its own) or ``reset``.
        outer: how the averaged change is applied: ``plain`` adds it; ``nesterov`` is DiLoCo's outer step.
        outer_lr, outer_momentum: of the Nesterov step.
        emulated: workers made slower than they are, or None.
        single: no worker takes more than one mini-batch in a round, for which accumulating needs no loop.
    """

    mode: str = "local"
    delay: int = 0
    exchange: str = "psum"
    payload: str = "float32"
    momentum: str = "keep"
    outer: str = "plain"
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    emulated: Emulated | None = None
    single: bool = False

    def __post_init__(self) -> None:
        choose(self.mode, dict.fromkeys(MODES), "mode")
        choose(self.exchange, ALGORITHMS, "exchange")
        choose(self.payload, PAYLOADS, "payload")
        choose(self.momentum, dict.fromkeys(MOMENTA), "inner momentum")
        choose(self.outer, dict.fromkeys(OUTERS), "outer step")
        if self.delay not in (0, 1):
            raise ValueError(f"delay is {self.delay!r}; it must be 0 or 1 round")
        if not (math.isfinite(self.outer_lr) and self.outer_lr > 0):
            raise ValueError(f"outer_lr is {self.outer_lr!r}; it must be a number above 0")
        if not 0 <= self.outer_momentum < 1:
            raise ValueError(f"outer_momentum is {self.outer_momentum!r}; it must be at least 0 and below 1")
        if self.mode == "accumulate" and self.outer != "plain":
            raise ValueError(
                "outer='nesterov' goes with mode='local'; accumulate takes one optimizer step itself"
            )

    @property
    def shares_opt(self) -> bool:
        """Whether the optimizer's state is the same on every worker."""
        return self.mode == "accumulate" or self.momentum == "average"
