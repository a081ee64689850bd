"""Arrays between the host and the workers: the same one everywhere, or a row on each."""

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from cnnkit.parallel.workers import Workers


class Place:
    """Puts trees of host arrays onto the workers of a mesh, and fetches them.

    Args:
        team: the workers.
    """

    def __init__(self, team: Workers) -> None:
        self.team = team

    def everywhere(self, tree: Any) -> Any:
        """The same arrays on every worker."""
        return jax.tree.map(lambda leaf: _placed(leaf, self.team.everywhere), tree)

    def stacked(self, tree: Any) -> Any:
        """Each worker's copy of the arrays, as rows [workers, …]."""
        rows = lambda leaf: np.broadcast_to(np.asarray(leaf)[None], (self.team.count, *np.shape(leaf)))
        return self.rows(jax.tree.map(rows, tree))

    def rows(self, tree: Any) -> Any:
        """Arrays [workers, …], a row on each worker."""
        return jax.tree.map(lambda leaf: _placed(leaf, self.team.rows), tree)

    def own_rows(self, mine: np.ndarray) -> jax.Array:
        """What the workers of this process have to say, [local workers, …], as rows [workers, …]."""
        shape = (self.team.count, *mine.shape[1:])
        return jax.make_array_from_process_local_data(self.team.rows, mine, shape)

    def first(self, tree: Any, host: bool = False) -> Any:
        """The row of this process's first worker."""
        rows = jax.tree.map(lambda leaf: leaf.addressable_shards[0].data, tree)
        # To the host whole, and all at once: a row taken on the device is a program to be started for each.
        return jax.tree.map(lambda row: row[0], jax.device_get(rows) if host else rows)

    def mine(self, rows: jax.Array) -> dict[int, Any]:
        """Worker -> its row, of the workers of this process, for rows of one number each."""
        shards = rows.addressable_shards
        values = jax.device_get([shard.data for shard in shards])
        return {shard.index[0].start or 0: value[0].item() for shard, value in zip(shards, values)}


def _placed(leaf: Any, sharding: NamedSharding) -> jax.Array:
    if jax.dtypes.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key):
        data = np.asarray(jax.random.key_data(leaf))
        return jax.random.wrap_key_data(_placed(data, sharding), impl=jax.random.key_impl(leaf))
    leaf = np.asarray(leaf)
    return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index])
