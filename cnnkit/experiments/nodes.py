"""Cases on the nodes of a cluster: of a lab on this machine, or of the job that this process belongs to."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from cnnkit.experiments.job import Case, Found, elsewhere, here, whole


def on_nodes(cases: Sequence[Case], nodes: int, rate: str | float | None, folder: Path) -> list[Found]:
    """What was found in each case, one worker a node.

    In a job of several machines the cases run on all of them, over the links they have.

    Args:
        cases: as in `cnnkit.experiments.job.several`.
        nodes: how many.
        rate: of each node's link, as the lab takes it.
        folder: for logs.

    Raises:
        OSError: no lab can be made here; the text says what to do.
        ImportError: pyroute2 is missing.
    """
    import jax

    from cnnkit.lab import cluster, environment

    full = whole(cases, nodes)
    if jax.distributed.is_initialized():
        return here(full)
    # This process may hold most of a GPU's memory already; its children take what they need.
    own = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if environment.gpus() else {}

    def start(command: Sequence[str], logs: Path, env: Mapping[str, str]) -> None:
        with cluster(nodes=nodes, rate=rate, folder=logs) as lab:
            lab.run(command, env={**own, **env})

    return elsewhere(full, folder, start)
