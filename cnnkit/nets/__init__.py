"""Networks by name: function(classes) -> Layer."""

from collections.abc import Callable

from cnnkit.layers import Layer
from cnnkit.nets.lenet import lenet

NAMES: dict[str, Callable[[int], Layer]] = {"lenet": lenet}

__all__ = ["NAMES", "lenet"]
