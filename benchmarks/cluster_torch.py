"""PyTorch's part of benchmarks.cluster: DDP and PostLocalSGD over the lab's links, one process a node.

The network is that of the cluster experiment, and so is what a step waits: a third of it before the forward
pass ends, two thirds in the backward pass, after the dense layers' gradients are known and on their way.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer

PORT = 20900


class Waits(torch.autograd.Function):
    """Passes through, and waits in both directions."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds / 3)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * ctx.seconds / 3)
        return gradient.clone(), None


class Wide(nn.Module):
    """The cluster experiment's network on 8×8 images, with the wait between convolutions and dense layers."""

    def __init__(self, wait: float) -> None:
        super().__init__()
        self.wait = wait
        self.convs = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
        )
        self.dense = nn.Sequential(nn.Flatten(), nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 10))

    def forward(self, x):
        return self.dense(Waits.apply(self.convs(x), self.wait))


def measure(period: int, wait: float, batch: int, n: int, seconds: float, warm: float) -> list[float]:
    """Images a second over all nodes in each window; with period 1 plain DDP."""
    torch.set_num_threads(1)
    net = nn.parallel.DistributedDataParallel(Wide(wait))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    if period > 1:
        state = PostLocalSGDState(None, None, start_localSGD_iter=0, post_local_gradient_allreduce=False)
        net.register_comm_hook(state, post_localSGD_hook)
        averager = PeriodicModelAverager(period=period, warmup_steps=0)
        optimizer = PostLocalSGDOptimizer(optim=optimizer, averager=averager)
    images, labels = torch.randn(batch, 1, 8, 8), torch.randint(0, 10, (batch,))

    def rounds(count: int) -> float:
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(count * period):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
        return time.perf_counter() - begin

    rounds(2)
    # As many in every process: what the slowest needs decides.
    took = torch.tensor([rounds(2) / 2])
    dist.all_reduce(took, dist.ReduceOp.MAX)
    rounds(max(1, round(warm / float(took))))
    count = max(1, round(seconds / float(took)))
    return [count * period * batch * dist.get_world_size() / rounds(count) for _ in range(n)]


def main() -> None:
    """Measure in every node; the first one prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--periods", default="1", help="1 for DDP, more for PostLocalSGD")
    parser.add_argument("--wait", type=float, required=True)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--n", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--warm", type=float, default=2.0)
    a = parser.parse_args()
    rank, world = int(os.environ["CNNKIT_PROCESS"]), int(os.environ["CNNKIT_PROCESSES"])
    dist.init_process_group("gloo", init_method=f"tcp://node0:{PORT}", rank=rank, world_size=world)
    found = {k: measure(int(k), a.wait, a.batch, a.n, a.seconds, a.warm) for k in a.periods.split(",")}
    dist.barrier()
    if rank == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
