"""What this machine's first device can do at most: copying memory, and a large matrix product.

python -m benchmarks.ceilings
"""

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp


@cache
def ceilings() -> dict[str, float]:
    """``bytes_per_s`` of a copy, read and written, and ``flops`` of a bfloat16 product of random matrices."""
    big = jax.default_backend() != "cpu"
    size, side = (2**31, 8192) if big else (2**26, 512)
    x = jnp.zeros(size // 2, jnp.bfloat16)
    copy = seconds(jax.jit(lambda x: x + jnp.bfloat16(1)), x)
    kind = jnp.bfloat16 if big else jnp.float32
    a, b = (jax.random.normal(jax.random.key(i), (side, side), kind) for i in (0, 1))
    product = seconds(jax.jit(jnp.matmul), a, b)
    return {"bytes_per_s": 2 * size / copy, "flops": 2 * side**3 / product}


def seconds(function: Callable[..., Any], *arguments: Any, enough: float = 0.1, n: int = 5) -> float:
    """Median seconds of one call, of several started one after another so that starting them is hidden."""
    jax.block_until_ready(function(*arguments))
    begin = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    calls = max(1, min(200, int(enough / max(time.perf_counter() - begin, 1e-6))))
    taken = []
    for _ in range(n):
        begin = time.perf_counter()
        for _ in range(calls):
            out = function(*arguments)
        jax.block_until_ready(out)
        taken.append((time.perf_counter() - begin) / calls)
    return sorted(taken)[n // 2]


if __name__ == "__main__":
    found = ceilings()
    print(f"copy {found['bytes_per_s'] / 1e9:.0f} GB/s, product {found['flops'] / 1e12:.1f} TFLOP/s")
