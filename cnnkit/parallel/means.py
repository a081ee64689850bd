"""Gradients' means over all workers in a few messages, the first of them sent before the last gradients are known."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from cnnkit.parallel.exchange import Tree, join, split
from cnnkit.parallel.payload import PAYLOADS


def mean_of_sums(
    sums: Tree, others: Tree, weight: jax.Array, axis: str, messages: int = 1
) -> tuple[Tree, Tree, jax.Array]:
    """Means over all workers of what each has summed up, and of other things that count by the same weight.

        Σ_i s_i / Σ_i n_i  and  Σ_i n_i x_i / Σ_i n_i

    A message of float32 is multiplied and masked as a whole: on a GPU that is one kernel, where the leaves one by
    one would be as many as there are. With several messages the last leaves' goes first: of gradients that is what
    the backward pass has first, and while it computes the rest, the message is on its way.

    Args:
        sums, others: s_i and x_i, trees of floats.
        weight: n_i, a scalar ≥ 0; a worker of weight 0 counts with nothing, whatever its values are.
        axis: over which.
        messages: of about equal size, at most; no leaf is divided.

    Returns:
        Both means, zero where all weights are; Σ n_i.

    Li et al. 2020 (buckets).
    """
    summed, other = jax.tree.leaves(sums), jax.tree.leaves(others)
    first, *rest = _parts([leaf.size for leaf in summed], messages)
    means, moved, total = _mean_in_one(summed[first], other, weight, axis)
    for part in rest:
        means = _mean_in_one(summed[part], [], weight, axis)[0] + means
    whole = lambda tree, leaves: jax.tree.unflatten(jax.tree.structure(tree), leaves)
    return whole(sums, means), whole(others, moved), total


def _parts(sizes: Sequence[int], most: int) -> list[slice]:
    """Neighbours of about equal size together, the last ones first; at least one part.

    >>> _parts([1, 1, 4, 4], 2), _parts([2, 100, 1], 4)
    ([slice(3, 4, None), slice(0, 3, None)], [slice(1, 3, None), slice(0, 1, None)])
    """
    ends, since, due = [len(sizes)], 0, sum(sizes) / most
    for i in reversed(range(1, len(sizes))):
        since += sizes[i]
        if len(ends) < most and since >= due / 2 and since + sizes[i - 1] / 2 >= due:
            ends.append(i)
            since = 0
    return [slice(begin, end) for end, begin in zip(ends, [*ends[1:], 0])]


def _mean_in_one(
    sums: list[Any], others: list[Any], weight: jax.Array, axis: str
) -> tuple[list[jax.Array], list[jax.Array], jax.Array]:
    summed, size = (sum(map(jnp.size, part)) for part in (sums, sums + others))
    flat = join([*sums, *others, jnp.float32(1)], jnp.float32, PAYLOADS["float32"], axis)
    message = flat * jnp.where(jnp.arange(flat.size) < summed, 1, weight)
    total = lax.psum(jnp.where(weight > 0, message, 0), axis)
    mean = split(jnp.where(total[size] > 0, total / total[size], 0), sums + others)
    return mean[: len(sums)], mean[len(sums) :], total[size]
