"""Options for compiling programs with convolutions."""

from functools import cache
from typing import Any

import jax

# XLA on a CPU hands convolutions and matrix products to one library and, where that does not take them, to
# another, which is up to twice as fast on a training step's. Reductions stay with the first.
_CPU = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE"}

GPU: dict[str, Any] = {}
"""Options on a GPU: none by default; measurements put some here before anything is compiled."""


def compiler_options() -> dict[str, Any]:
    """What to give ``jax.jit(…, compiler_options=…)`` for convolutions to be fast; none where none is known.

    Results are the same to rounding. An option that this version of XLA does not know is left out.
    """
    return dict(_known()) if jax.default_backend() == "cpu" else dict(GPU)


@cache
def _known() -> dict[str, Any]:
    try:
        jax.jit(lambda x: x, compiler_options=dict(_CPU)).lower(0).compile()
    except Exception:  # jax.errors has no narrower class for it in all versions
        return {}
    return _CPU
