"""How the workers' updates are summed: psum, ring, tree, redundant, server; used inside ``shard_map``.

Every algorithm gives every worker the same sum, bit for bit, and all algorithms agree to rounding.
The leaves of a tree are first laid end to end in one buffer for each dtype, so an exchange is one
message a hop however many layers a network has.

With a payload other than float32, what a worker sends is rounded once, when it is made; relays pass
it on unchanged, and sums are taken in float32. Each worker makes exactly one message for each value
in an exchange (its own value, a partial sum, or the final sum, by the algorithm), so one residual a
value is enough for error feedback: the worker keeps what rounding took away and adds it to what it
sends next. Over any number of exchanges

    Σ_r result_r = Σ_r Σ_i x_i,r − Σ_i (last residual)_i,

so nothing is lost, only delayed (Seide et al. 2014; Karimireddy et al. 2019).
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from cnnkit.names import choose
from cnnkit.parallel.payload import PAYLOADS, Payload

Tree = Any
Flat = jax.Array
Send = Callable[[Flat, Flat, Payload, str], tuple[Flat, Flat]]


def _message(x: Flat, residual: Flat, payload: Payload) -> tuple[jax.Array, Flat]:
    """The message that carries x, and what rounding left behind."""
    if payload.exact:
        return payload.encode(x), residual
    wanted = x + residual
    message = payload.encode(wanted)
    return message, wanted - payload.decode(message)


def _psum(x: Flat, residual: Flat, payload: Payload, axis: str) -> tuple[Flat, Flat]:
    if payload.exact:
        return lax.pcast(lax.psum(x, axis), axis, to="varying"), residual
    # A psum would add in the payload's own type, so: each worker sums one segment in float32.
    here, workers = lax.axis_index(axis), lax.axis_size(axis)
    parts, kept = x.reshape(workers, -1), residual.reshape(workers, -1)
    message, left = _message(parts, kept, payload)
    arrived = payload.decode(lax.all_to_all(message, axis, 0, 0, tiled=True))
    own = (jnp.arange(workers) == here)[:, None]
    total = _add_in_order(jnp.where(own, parts, arrived))
    message, left_of_total = _message(total, kept[here], payload)
    result = payload.decode(lax.all_gather(message, axis)).reshape(-1)
    return result, jnp.where(own, left_of_total, left).reshape(-1)


def _ring(x: Flat, residual: Flat, payload: Payload, axis: str) -> tuple[Flat, Flat]:
    here, workers = lax.axis_index(axis), lax.axis_size(axis)
    right = [(i, (i + 1) % workers) for i in range(workers)]
    # Segments in the order in which this worker sends them; the order is its own inverse.
    order = (here - jnp.arange(workers)) % workers
    rows, left = list(x.reshape(workers, -1)[order]), list(residual.reshape(workers, -1)[order])
    for hop in range(workers - 1):
        message, left[hop] = _message(rows[hop], left[hop], payload)
        rows[hop + 1] = rows[hop + 1] + payload.decode(lax.ppermute(message, axis, right))
    # The last one is now summed over all workers; what follows hands the W sums around.
    message, left[-1] = _message(rows[-1], left[-1], payload)
    for hop in range(workers):
        rows[hop - 1] = payload.decode(message)
        if hop < workers - 1:
            message = lax.ppermute(message, axis, right)
    return jnp.stack(rows)[order].reshape(-1), jnp.stack(left)[order].reshape(-1)


def _tree(x: Flat, residual: Flat, payload: Payload, axis: str) -> tuple[Flat, Flat]:
    here, workers = lax.axis_index(axis), lax.axis_size(axis)
    levels = tree_levels(workers)
    total = x
    for pairs in levels:
        message, left = _message(total, residual, payload)
        residual = jnp.where(_among(here, [child for child, _ in pairs]), left, residual)
        total = total + payload.decode(lax.ppermute(message, axis, pairs))
    return _broadcast(total, residual, payload, axis, [[(p, c) for c, p in pairs] for pairs in levels[::-1]])


def _server(x: Flat, residual: Flat, payload: Payload, axis: str) -> tuple[Flat, Flat]:
    here, workers = lax.axis_index(axis), lax.axis_size(axis)
    message, left = _message(x, residual, payload)
    residual = jnp.where(here == 0, residual, left)
    total = x
    for worker in range(1, workers):
        total = total + payload.decode(lax.ppermute(message, axis, [(worker, 0)]))
    return _broadcast(total, residual, payload, axis, [[(0, worker)] for worker in range(1, workers)])


def _redundant(x: Flat, residual: Flat, payload: Payload, axis: str) -> tuple[Flat, Flat]:
    message, residual = _message(x, residual, payload)
    return _add_in_order(payload.decode(lax.all_gather(message, axis))), residual


def _broadcast(
    total: Flat, residual: Flat, payload: Payload, axis: str, rounds: list[list[tuple[int, int]]]
) -> tuple[Flat, Flat]:
    """Worker 0's total to everyone, along the pairs of each round."""
    here = lax.axis_index(axis)
    message, left = _message(total, residual, payload)
    residual = jnp.where(here == 0, left, residual)
    for pairs in rounds:
        arrived = lax.ppermute(message, axis, pairs)
        message = jnp.where(_among(here, [to for _, to in pairs]), arrived, message)
    return payload.decode(message), residual


def tree_levels(workers: int) -> list[list[tuple[int, int]]]:
    """Who sends to whom at each level of the reduction, from the leaves to worker 0.

    >>> tree_levels(6)
    [[(1, 0), (3, 2), (5, 4)], [(2, 0)], [(4, 0)]]
    """
    spans = [2**level for level in range(math.ceil(math.log2(workers)))] if workers > 1 else []
    return [[(i, i - span) for i in range(span, workers, 2 * span)] for span in spans]


def _among(here: jax.Array, workers: list[int]) -> jax.Array:
    return jnp.isin(here, jnp.asarray(workers))


def _add_in_order(rows: jax.Array) -> Flat:
    # One by one, so that every worker adds in the same order whatever a backend's reductions do.
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    return total


ALGORITHMS: dict[str, Send] = {
    "psum": _psum,
    "ring": _ring,
    "tree": _tree,
    "redundant": _redundant,
    "server": _server,
}


def no_error(tree: Tree) -> Tree:
    """The residuals before the first exchange: float32 zeros in the shapes of the tree."""
    return jax.tree.map(lambda leaf: jnp.zeros(jnp.shape(leaf), jnp.float32), tree)


def exchange(
    tree: Tree,
    axis: str,
    how: str = "psum",
    payload: str = "float32",
    error: Tree | None = None,
) -> tuple[Tree, Tree | None]:
    """The sum of a tree over all workers of an axis, the same at every worker.

        result = Σ_i x_i

    Args:
        tree: arrays of any shape, floating or integer; every worker has the same shapes and dtypes.
            Floats are summed in float32 and come back in their own dtype; integers are summed exactly.
        axis: name of the mesh axis, e.g. ``"worker"``.
        how: ``psum`` (what XLA picks), ``ring`` (reduce-scatter, then all-gather, between neighbours),
            ``tree`` (reduce to worker 0, then broadcast, ⌈log₂ W⌉ hops each), ``redundant`` (everyone sends
            to everyone and sums for itself: more bytes, one latency), ``server`` (gather at worker 0, sum,
            broadcast: Purine's way).
        payload: ``float32``, ``bfloat16`` or ``int8``: how floats travel. With another payload than
            float32, ``psum`` becomes all-to-all, a sum in float32, and all-gather.
        error: residuals of the exchange before, from `no_error` at first; None does without feedback.

    Returns:
        The sum, marked as varying over the axis whatever the algorithm; the new residuals, float32,
        this worker's own (None where none were given).

    Raises:
        ValueError: an unknown algorithm or payload.
        TypeError: a leaf that is neither floating nor integer.

    The paper's exchange strategies (Li et al. 2018) and Purine's parameter server (thesis, chapter 4).
    """
    if lax.axis_size(axis) == 1:
        return tree, error
    message = lay_out(tree, axis, payload, error)
    return read(send(message, axis, how, payload), tree, error, payload)


class Message(NamedTuple):
    """A tree laid end to end, ready to be sent, or summed.

    Args:
        values: one flat array for each dtype.
        residuals: what rounding took from the values before; an empty array where nothing is rounded.
    """

    values: list[Flat]
    residuals: list[Flat]


def lay_out(tree: Tree, axis: str, payload: str = "float32", error: Tree | None = None) -> Message:
    """The message of a tree, the first of the three parts of `exchange`.

    Apart from the others, so that it can be made before something that the exchange is to run beside: a
    compiler that saves memory would make it last.
    """
    wire = choose(payload, PAYLOADS, "payload")
    leaves = jax.tree.leaves(tree)
    residuals = jax.tree.leaves(no_error(tree) if error is None else error)
    values, before = [], []
    for dtype, indices in _by_dtype(leaves).items():
        form = _form(dtype, wire)
        sent = dtype if form.exact else jnp.float32
        values.append(join([leaves[i] for i in indices], sent, form, axis))
        kept = [] if form.exact else [residuals[i] for i in indices]
        before.append(join(kept, jnp.float32, form, axis))
    return Message(values, before)


def send(message: Message, axis: str, how: str = "psum", payload: str = "float32") -> Message:
    """The sum of all workers' messages, at every worker, and what rounding left of one's own."""
    algorithm = choose(how, ALGORITHMS, "exchange")
    wire = choose(payload, PAYLOADS, "payload")
    if lax.axis_size(axis) == 1:
        return message
    summed = []
    for values, residuals in zip(*message, strict=True):
        form = _form(values.dtype, wire)
        total, left = algorithm(values, residuals, form, axis)
        summed.append((total, residuals if form.exact else left))
    return Message([total for total, _ in summed], [left for _, left in summed])


def read(
    message: Message, like: Tree, error: Tree | None = None, payload: str = "float32"
) -> tuple[Tree, Tree | None]:
    """What a summed message says, in the shapes and dtypes of the tree that was laid out, and the new residuals."""
    wire = choose(payload, PAYLOADS, "payload")
    leaves, treedef = jax.tree.flatten(like)
    summed = list(leaves)
    left = jax.tree.leaves(no_error(like) if error is None else error)
    for (dtype, indices), total, after in zip(_by_dtype(leaves).items(), *message, strict=True):
        own = [leaves[i] for i in indices]
        for i, part in zip(indices, split(total, own), strict=True):
            summed[i] = part.astype(jnp.asarray(leaves[i]).dtype)
        if not _form(dtype, wire).exact:
            for i, part in zip(indices, split(after, own), strict=True):
                left[i] = part
    return jax.tree.unflatten(treedef, summed), None if error is None else jax.tree.unflatten(treedef, left)


def _form(dtype: Any, wire: Payload) -> Payload:
    """How values of a dtype travel: whole numbers as they are."""
    return wire if jnp.issubdtype(dtype, jnp.floating) else PAYLOADS["float32"]


def weighted_mean(
    tree: Tree,
    weight: jax.Array,
    axis: str,
    how: str = "psum",
    payload: str = "float32",
    error: Tree | None = None,
) -> tuple[Tree, jax.Array, Tree | None]:
    """The mean of a tree over all workers, each counted by its own weight.

        result = Σ_i n_i x_i / Σ_i n_i

    Args:
        tree: floating arrays, as in `exchange`.
        weight: n_i, this worker's weight, a scalar ≥ 0: the examples that it saw. Not all may be 0.
        axis, how, payload, error: as in `exchange`; residuals are in units of n_i x_i.

    Returns:
        The mean; Σ n_i, a float32 scalar; the new residuals.
    """
    weighed = lay_out_weighted(tree, weight, axis, payload, error)
    return read_mean(send_weighted(weighed, axis, how, payload), tree, payload, error)


class Weighed(NamedTuple):
    """A tree with its weight, ready to be sent, or summed.

    Args:
        values: n_i x_i, with n_i at the end where nothing is rounded: one message then.
        weight: n_i by itself where the values are rounded.
    """

    values: Message
    weight: Message


def lay_out_weighted(
    tree: Tree, weight: jax.Array, axis: str, payload: str = "float32", error: Tree | None = None
) -> Weighed:
    """The message of a tree that counts by a weight, the first of the three parts of `weighted_mean`."""
    weight = jnp.asarray(weight, jnp.float32)
    weighted = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32) * weight, tree)
    if choose(payload, PAYLOADS, "payload").exact:
        return Weighed(lay_out((weighted, weight), axis), Message([], []))
    return Weighed(lay_out(weighted, axis, payload, error), lay_out(weight, axis))


def send_weighted(weighed: Weighed, axis: str, how: str = "psum", payload: str = "float32") -> Weighed:
    """The sums over all workers, at every worker."""
    return Weighed(send(weighed.values, axis, how, payload), send(weighed.weight, axis, how))


def read_mean(
    weighed: Weighed, like: Tree, payload: str = "float32", error: Tree | None = None
) -> tuple[Tree, jax.Array, Tree | None]:
    """What `weighted_mean` returns, from sums over all workers."""
    one, floats = jnp.float32(0), jax.tree.map(lambda x: jnp.zeros(jnp.shape(x), jnp.float32), like)
    if choose(payload, PAYLOADS, "payload").exact:
        (summed, total), _ = read(weighed.values, (floats, one))
    else:
        summed, error = read(weighed.values, floats, error, payload)
        total, _ = read(weighed.weight, one)
    mean = jax.tree.map(lambda s, x: (s / total).astype(jnp.asarray(x).dtype), summed, like)
    return mean, total, error


def _by_dtype(leaves: list[Any]) -> dict[Any, list[int]]:
    """Which leaves share a buffer: all floats that float32 holds, and each other dtype for itself."""
    groups: dict[Any, list[int]] = {}
    for i, leaf in enumerate(leaves):
        dtype = jnp.asarray(leaf).dtype
        if jnp.issubdtype(dtype, jnp.floating):
            dtype = jnp.promote_types(dtype, jnp.float32)
        elif not jnp.issubdtype(dtype, jnp.integer):
            raise TypeError(f"an exchange sums floating and integer arrays; leaf {i} of the tree is {dtype}")
        groups.setdefault(dtype, []).append(i)
    return groups


def join(leaves: list[Any], dtype: Any, payload: Payload, axis: str) -> Flat:
    """Leaves end to end, padded so that each worker's segment is a whole number of the payload's units."""
    flat = [jnp.ravel(leaf).astype(dtype) for leaf in leaves]
    size = sum(part.size for part in flat)
    padding = -size % (lax.axis_size(axis) * payload.unit)
    # Varying, also when empty: so the buffer varies over the axis even where all leaves are replicated.
    return jnp.concatenate([*flat, lax.pcast(jnp.zeros(padding, dtype), axis, to="varying")])


def split(flat: Flat, like: list[Any]) -> list[jax.Array]:
    """What was joined, in the leaves' shapes."""
    ends = itertools.accumulate(jnp.size(leaf) for leaf in like)
    return [flat[end - jnp.size(x) : end].reshape(jnp.shape(x)) for x, end in zip(like, ends, strict=True)]
