"""Training speed and peak memory of the single-device core beside PyTorch, in turn on the same machine.

    python -m benchmarks.core                          # all nets, n = 7
    python -m benchmarks.core --nets lenet --n 11
    python -m benchmarks.core --compiled               # PyTorch compiled too; the faster one is the peer

Each side has a process of its own to a net, so that peak memory is its own. Both train on the same random images
from memory: pixels to floats, forward, backward, SGD with momentum. cnnkit runs the steps that `Run` runs.
Writes results/core_cpu.json.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import numpy as np

from benchmarks import results

# net: shape of an image, batch, steps to a repetition
NETS = {
    "lenet": ((28, 28, 1), 128, 100),
    "nin_cifar10": ((32, 32, 3), 64, 8),
    "cuda_cnn_cifar10": ((24, 24, 3), 128, 16),
}
EXAMPLES = 2048
SIDES = {
    "cnnkit": "cnnkit",
    "eager": "PyTorch, channels-last",
    "compiled": "PyTorch, channels-last, compiled",
}


def main() -> None:
    """Measure and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", default=",".join(NETS), help="names, with commas between")
    parser.add_argument("--n", type=int, default=7, help="repetitions")
    parser.add_argument("--compiled", action="store_true", help="also run PyTorch compiled")
    parser.add_argument("--serve", nargs=2, metavar=("SIDE", "NET"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(*options.serve)
    rows = []
    for net in options.nets.split(","):
        rows += measure(net, options.n, ["cnnkit", "eager", *(["compiled"] if options.compiled else [])])
        for row in rows[-2:]:
            print(*(f"{k}={row[k]}" for k in ("case", "figure", "value", "peer_value", "ratio")), flush=True)
    print(results.write("core_cpu", rows, packages=("torch",)))
    return None


def measure(net: str, n: int, sides: list[str]) -> list[dict]:
    """The two rows of a net."""
    servers = {side: Server(side, net) for side in sides}
    counts = {server.ask("parameters") for server in servers.values()}
    if len(counts) != 1:
        raise RuntimeError(f"{net} has not the same number of parameters on all sides: {counts}")
    speeds = results.in_turn({side: lambda s=server: s.ask("run") for side, server in servers.items()}, n)
    memory = {side: server.ask("memory") for side, server in servers.items()}
    for server in servers.values():
        server.close()
    peer = max(sides[1:], key=lambda side: statistics.median(speeds[side]))
    more = {"batch": NETS[net][1], "parameters": int(counts.pop())}
    best = {"peer": SIDES[peer], "peer_values": speeds[peer]}
    used = {"peer": SIDES[peer], "peer_values": [memory[peer]]}
    return [
        results.row(net, "train_images_per_s", speeds["cnnkit"], "1/s", **best, **more),
        results.row(net, "peak_memory_mb", [memory["cnnkit"]], "MB", **used, less_is_better=True, **more),
    ]


class Server:
    """One side's process: it takes questions on a pipe and answers each with a number."""

    def __init__(self, side: str, net: str) -> None:
        command = [sys.executable, "-m", "benchmarks.core", "--serve", side, net]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ask("run")  # warm

    def ask(self, question: str) -> float:
        """Its answer; a moment is left before, in which the other side's threads fall asleep."""
        time.sleep(0.05)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{' '.join(self.process.args[1:])} ended without an answer")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def serve(side: str, net: str) -> None:
    """Answer questions from standard input until it closes."""
    shape, batch, steps = NETS[net]
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (EXAMPLES, *shape), np.uint8)
    labels = draw.integers(0, 10, EXAMPLES, np.int32)
    index = draw.integers(0, EXAMPLES, (steps, batch), np.int32)
    if side == "cnnkit":
        training = Ours(net, images, labels, index)
    else:
        from benchmarks.peers_torch import Training

        training = Training(net, images, labels, index, side == "compiled")
    answers = {
        "run": training.run,
        "parameters": lambda: training.parameters,
        "memory": results.peak_memory_mb,
    }
    for question in sys.stdin:
        print(json.dumps(answers[question.strip()]()), flush=True)


class Ours:
    """Steps as `Run` takes them, many to a dispatch."""

    def __init__(self, name: str, images, labels, index) -> None:
        import jax

        from cnnkit import losses, nets
        from cnnkit.layers import in_loop
        from cnnkit.train.clock import Clocks, Compiled
        from cnnkit.train.optim import sgd
        from cnnkit.train.step import Plan, Progress, Source, local_steps
        from cnnkit.train.task import Task, epoch_key, init_key

        net = nets.NAMES[name](10)
        mean, std = np.float32([0.5] * images.shape[-1]), np.float32([0.25] * images.shape[-1])
        task = Task(net, sgd(0.01, momentum=0.9), None, losses.cross_entropy, mean, std)
        ones = np.ones(len(index), np.float32)
        plan = Plan(index, np.ones(index.shape, np.float32), 0.01 * ones, 0.9 * ones, epoch_key(0, 0), 0)
        self.source, self.plan = jax.device_put((Source(images, labels), plan))
        self.progress = Progress.fresh(jax.jit(lambda: task.init(init_key(0), images.shape[1:]))())
        self.parameters = sum(p.size for p in jax.tree.leaves(self.progress.model.params))

        def program(progress, source, plan, first, stop):
            with in_loop():
                return local_steps(task, progress, source, plan, first, stop)

        self.program = Compiled(program, Clocks(), donate=(0,))

    def run(self) -> float:
        """Take every step of the plan; returns images a second."""
        import jax
        import jax.numpy as jnp

        ends = jnp.int32(0), jnp.int32(len(self.plan.index))
        program = self.program.program(self.progress, self.source, self.plan, *ends)
        begin = time.perf_counter()
        self.progress = program(self.progress, self.source, self.plan, *ends)
        jax.block_until_ready(self.progress)
        return self.plan.index.size / (time.perf_counter() - begin)


if __name__ == "__main__":
    main()
