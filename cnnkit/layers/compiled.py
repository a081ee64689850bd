"""Options for compiling programs with convolutions."""

from functools import cache
from typing import Any

import jax

# XLA on a CPU hands convolutions and matrix products to one library and, where that does not take them, to
# another, which is up to twice as fast on a training step's. Reductions stay with the first.
_CPU = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE"}

# XLA on a GPU would join the sums of gradients into one, that waits for the last of them.
_GPU = {"xla_gpu_all_reduce_combine_threshold_bytes": 1}

# Kernels start in graphs, each of which a trace shows as one operation without a name.
_GPU_TRACED = {"xla_gpu_graph_min_graph_size": 1_000_000}

GPU: dict[str, Any] = {}
"""More options on a GPU: measurements put some here before anything is compiled."""


def compiler_options(*, traced: bool = False) -> dict[str, Any]:
    """What to give ``jax.jit(…, compiler_options=…)`` for a training's programs to be fast; none where none is known.

    Results are the same to rounding. An option that this version of XLA does not know is left out.

    Args:
        traced: whether a trace is to name each operation, which can take a little longer.
    """
    if jax.default_backend() == "cpu":
        return dict(_known(tuple(_CPU.items())))
    return {**_known(tuple(_GPU.items())), **(_known(tuple(_GPU_TRACED.items())) if traced else {}), **GPU}


@cache
def _known(options: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    try:
        jax.jit(lambda x: x, compiler_options=dict(options)).lower(0).compile()
    except Exception:  # jax.errors has no narrower class for it in all versions
        return {}
    return dict(options)
