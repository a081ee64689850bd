"""A real job of JAX processes over the lab's links."""

import json
from pathlib import Path

import pytest

from cnnkit.lab import cluster

SUM = """
import json
from pathlib import Path
import cnnkit as ck

ck.workers.join()
import jax
import numpy as np
from jax.sharding import PartitionSpec as P

w = ck.workers.make()
rows = jax.make_array_from_callback(
    (w.count, 3), w.rows, lambda at: np.full((1, 3), 10.0 ** at[0].start, np.float32)
)
add = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "worker"), mesh=w.mesh, in_specs=P("worker"), out_specs=P()))
total = add(rows).addressable_data(0)
print(json.dumps([w.processes, w.process, w.count, np.asarray(total).tolist()]))
"""


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.usefixtures("allowed")
def test_two_processes_of_two_workers_add_over_the_link():
    with cluster(nodes=2, rate="100mbit", workers_per_node=2, gpus=False) as c:
        job = c.run(["python", "-c", SUM], show=False, cwd=Path(__file__).parents[2])
        said = [json.loads(job.tail(name, 1)) for name in c.names]
    assert said == [[2, i, 4, [[1111.0] * 3]] for i in range(2)]
