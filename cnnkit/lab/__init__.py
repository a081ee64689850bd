"""A cluster on one machine: nodes as network namespaces with shaped links, real processes of a real job.

    with ck.lab.cluster(nodes=4, rate="100mbit") as c:
        c.run(["python", "train.py"])

or ``cnnkit lab --nodes 4 --rate 100mbit -- python train.py``. The script is the one that runs on a real
cluster: under SLURM, Open MPI and Kubernetes JAX finds the other processes by itself, in a lab or under
``cnnkit launch`` through CNNKIT_COORDINATOR, CNNKIT_PROCESS and CNNKIT_PROCESSES, which plain ssh can set too.
docs/clusters.md has the command lines.
"""

from cnnkit.lab.cluster import Cluster, ClusterJob, cluster, require
from cnnkit.lab.jobs import Job, JobFailed
from cnnkit.lab.launch import launch

__all__ = ["Cluster", "ClusterJob", "Job", "JobFailed", "cluster", "launch", "require"]
