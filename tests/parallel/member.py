"""One process of a job of two, started by the tests: joins, compares, exchanges, and reports what it found."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from cnnkit.parallel import workers
from cnnkit.parallel.exchange import ALGORITHMS, exchange, no_error
from cnnkit.parallel.payload import PAYLOADS


def main() -> dict:
    workers.join(timeout=60)
    workers.join()  # the second time does nothing
    team = workers.make()
    rng = np.random.default_rng(0)
    values = rng.normal(size=(team.count, 700)).astype(np.float32)
    rows = jax.make_array_from_callback(values.shape, team.rows, lambda index: values[index])

    def summed(x):
        tree = {"a": x[0, :300].reshape(20, 15), "b": x[0, 300:]}
        out = {}
        for how in sorted(ALGORITHMS):
            for payload in sorted(PAYLOADS):
                total, left = exchange(tree, "worker", how, payload, no_error(tree))
                lost = jax.lax.psum(jnp.concatenate([left["a"].ravel(), left["b"]]), "worker")
                out[f"{how} {payload}"] = (
                    jnp.concatenate([total["a"].ravel(), total["b"]])[None],
                    lost[None],
                )
        return out

    program = jax.jit(jax.shard_map(summed, mesh=team.mesh, in_specs=P("worker"), out_specs=P("worker")))
    true = values.astype(np.float64).sum(0)
    off, digests = {}, []
    for name, (total, lost) in program(rows).items():
        got = np.asarray(total.addressable_data(0), np.float64)[0]
        off[name] = float(np.abs(got + np.asarray(lost.addressable_data(0), np.float64)[0] - true).max())
        digests.append(got.tobytes())
    everyone = workers.gather(np.frombuffer(b"".join(digests), np.uint8))
    workers.agree({"seed": 0, "net": {"width": 8}})
    try:
        workers.agree({"seed": 0, "net": {"width": 8 + team.process}, "data": "x"})
        differ = ""
    except ValueError as error:
        differ = str(error)
    return {
        "process": team.process,
        "processes": team.processes,
        "count": team.count,
        "local": team.local,
        "platform": team.platform,
        "off": off,
        "same": bool((everyone == everyone[0]).all()),
        "differ": differ,
    }


if __name__ == "__main__":
    with open(sys.argv[1], "w") as out:
        json.dump(main(), out)
