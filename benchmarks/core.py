"""Training speed and peak memory of the single-device core beside its peers, in turn on the same machine.

    python -m benchmarks.core                          # a CPU's nets beside PyTorch, n = 7; or a GPU's, where one is
    python -m benchmarks.core --nets lenet --n 11
    python -m benchmarks.core --compiled               # PyTorch compiled too; the faster one is the peer
    python -m benchmarks.core --nets vgg16@256 --seconds 120

On a CPU the peer is PyTorch, channels last. On a GPU all compute in bfloat16 with float32 weights, and the peers are
PyTorch compiled, channels last, under autocast, and Flax NNX, a jitted step a call. Each side has a process of its own
to a net, so that peak memory is its own. All train on the same random images from memory: pixels to floats, forward,
backward, SGD with momentum. cnnkit runs the steps of ``Run(dispatch="epoch")``. Compiling is measured apart.
Writes results/core_cpu.json or core_gpu.json after each net, and draws the .png beside it; rows of other nets stay.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks import results

# net: shape of an image, batch, steps to a repetition
NETS = {
    "lenet": ((28, 28, 1), 128, 100),
    "nin_cifar10": ((32, 32, 3), 64, 8),
    "cuda_cnn_cifar10": ((24, 24, 3), 128, 16),
}
# The same on a GPU, and the number of classes; the most telling first.
GPU_NETS = {
    "vgg16@256": ((224, 224, 3), 256, 8, 1000),
    "resnet18@256": ((224, 224, 3), 256, 20, 1000),
    "nin_cifar10@512": ((32, 32, 3), 512, 40, 10),
    "googlenet@256": ((224, 224, 3), 256, 16, 1000),
    "cuda_cnn_cifar10@1024": ((24, 24, 3), 1024, 60, 10),
    "alexnet@512": ((227, 227, 3), 512, 16, 1000),
    "lenet@2048": ((28, 28, 1), 2048, 100, 10),
    "lenet@128": ((28, 28, 1), 128, 400, 10),
    "nin_cifar10@128": ((32, 32, 3), 128, 100, 10),
    "resnet18@128": ((224, 224, 3), 128, 30, 1000),
}
EXAMPLES = 2048
SIDES = {
    "cnnkit": "cnnkit",
    "eager": "PyTorch, channels-last",
    "compiled": "PyTorch, channels-last, compiled",
    "flax": "Flax NNX",
}


def main() -> None:
    """Measure and write the file."""
    gpu = shutil.which("nvidia-smi") is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--nets", default=",".join(GPU_NETS if gpu else NETS), help="names, with commas between"
    )
    parser.add_argument("--n", type=int, default=7, help="repetitions")
    parser.add_argument("--compiled", action="store_true", help="also run PyTorch compiled, on a CPU")
    parser.add_argument(
        "--sides", default="cnnkit,compiled,flax" if gpu else "cnnkit,eager", help="who takes part"
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="no net is begun after so long")
    parser.add_argument(
        "--together", action="store_true", help="let all sides compile at once, and keep no seconds of it"
    )
    parser.add_argument("--dry", action="store_true", help="write no file")
    parser.add_argument("--serve", nargs=2, metavar=("SIDE", "NET"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(*options.serve)
    sides, begin = options.sides.split(",") + ["compiled"] * options.compiled, time.perf_counter()
    for net in options.nets.split(","):
        if time.perf_counter() - begin > options.seconds:
            print(f"{net}: no time left")
            continue
        try:
            rows = measure(net, options.n, sides, options.together)
        except (RuntimeError, OSError, ValueError) as error:
            print(f"{net}: {error}", flush=True)
            continue
        for row in rows:
            told = ("case", "figure", "value", "tflops", "peer", "peer_value", "ratio", "others")
            print(*(f"{k}={row[k]}" for k in told if k in row), flush=True)
        if not options.dry:
            name = f"core_{'gpu' if gpu else 'cpu'}"
            results.update(name, rows, packages=("torch", "flax"))
            from benchmarks import figures  # not for the peers' processes

            print(figures.draw(name))
    return None


def case(net: str) -> tuple[tuple[int, ...], int, int, int]:
    """Shape of an image, batch, steps to a repetition, classes."""
    return GPU_NETS[net] if net in GPU_NETS else (*NETS[net], 10)


def measure(net: str, n: int, sides: list[str], together: bool = False) -> list[dict]:
    """The rows of a net: speed, memory, and compiling if each side did it alone."""
    servers = {side: Server(side, net) for side in sides}
    try:
        with ThreadPoolExecutor(len(servers) if together else 1) as pool:
            list(pool.map(Server.ready, servers.values()))
        counts = {server.ask("parameters") for server in servers.values()}
        if len(counts) != 1:
            raise RuntimeError(f"{net} has not the same number of parameters on all sides: {counts}")
        speeds = results.in_turn({side: lambda s=server: s.ask("run") for side, server in servers.items()}, n)
        memory = {side: server.ask("memory") for side, server in servers.items()}
        flops = servers["cnnkit"].ask("flops")
        product = servers["cnnkit"].ask("product") if net in GPU_NETS else None
    finally:
        for server in servers.values():
            server.close()
    ours, median = speeds["cnnkit"], {side: statistics.median(v) for side, v in speeds.items()}
    more = {"batch": case(net)[1], "parameters": int(counts.pop())}
    more["tflops"] = float(f"{3 * flops * median['cnnkit'] / 1e12:.4g}")
    part = [] if product is None else [3 * flops * speed / product for speed in ours]
    best, used, slow = {}, {}, {}
    if len(sides) > 1:
        peer = max(sides[1:], key=median.__getitem__)
        best = {"peer": SIDES[peer], "peer_values": speeds[peer]}
        best["others"] = {SIDES[side]: float(f"{median[side]:.4g}") for side in sides[1:]}
        used = {"peer": SIDES[peer], "peer_values": [memory[peer]]}
        slow = {"peer": SIDES[peer], "peer_values": [servers[peer].compiling]}
    seconds = [servers["cnnkit"].compiling]
    compiling = results.row(net, "compile_seconds", seconds, "s", **slow, less_is_better=True)
    return [
        results.row(net, "train_images_per_s", ours, "1/s", **best, **more),
        results.row(net, "peak_memory_mb", [memory["cnnkit"]], "MB", **used, less_is_better=True, **more),
        *([] if together else [compiling]),
        *([results.row(net, "of_product", part, "ratio")] if part else []),
    ]


class Server:
    """One side's process: it takes questions on a pipe and answers each with a number."""

    def __init__(self, side: str, net: str) -> None:
        command = [sys.executable, "-m", "benchmarks.core", "--serve", side, net]
        # Several processes share the device's memory.
        env = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        self.compiling = float("nan")

    def ready(self) -> None:
        """Let it compile and warm up."""
        self.compiling = self.ask("first")
        self.ask("run")

    def ask(self, question: str) -> float:
        """Its answer; a moment is left before, in which the other side's threads fall asleep."""
        time.sleep(0.05)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(question + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{' '.join(self.process.args[1:])} ended without an answer")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def serve(side: str, net: str) -> None:
    """Answer questions from standard input until it closes."""
    shape, batch, steps, classes = case(net)
    half, name = net in GPU_NETS, net.partition("@")[0]
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (EXAMPLES, *shape), np.uint8)
    labels = draw.integers(0, classes, EXAMPLES, np.int32)
    index = draw.integers(0, EXAMPLES, (steps, batch), np.int32)
    arguments = (name, images, labels, index)
    if side == "cnnkit":
        training = Ours(*arguments, classes, half)
    elif side == "flax":
        from benchmarks import peers_flax

        training = peers_flax.Training(*arguments, classes, half)
        training.memory = memory
    else:
        from benchmarks import peers_torch

        training = peers_torch.Training(*arguments, side == "compiled", half, classes)

    def first() -> float:
        """Seconds of a first run, which compiles."""
        begin = time.perf_counter()
        training.run()
        return time.perf_counter() - begin

    answers = {
        "first": first,
        "run": training.run,
        "parameters": lambda: training.parameters,
        "memory": training.memory,
        "flops": lambda: training.flops,
        "product": product,
    }
    for question in sys.stdin:
        print(json.dumps(answers[question.strip()]()), flush=True)


def memory() -> float:
    """The most memory held, in MB: the GPU's, or the process's."""
    import jax

    used = jax.devices()[0].memory_stats()
    return used["peak_bytes_in_use"] / 1e6 if used else results.peak_memory_mb()


def product() -> float:
    """Operations a second of a large bfloat16 matrix product on this device."""
    from benchmarks.ceilings import ceilings

    return ceilings()["flops"]


class Ours:
    """Steps as ``Run(dispatch="epoch")`` takes them: an epoch's in one program."""

    def __init__(self, name: str, images, labels, index, classes: int = 10, half: bool = False) -> None:
        import jax

        from cnnkit import losses, nets
        from cnnkit.layers import in_loop, summary
        from cnnkit.train.clock import Clocks, Compiled
        from cnnkit.train.optim import sgd
        from cnnkit.train.step import Plan, Progress, Source, local_steps
        from cnnkit.train.task import DTYPES, Task, epoch_key, init_key

        net = nets.NAMES[name](classes)
        mean, std = np.float32([0.5] * images.shape[-1]), np.float32([0.25] * images.shape[-1])
        dtype = DTYPES["bfloat16" if half else "float32"]
        task = Task(net, sgd(0.01, momentum=0.9), None, losses.cross_entropy, mean, std, *dtype)
        ones = np.ones(len(index), np.float32)
        plan = Plan(index, np.ones(index.shape, np.float32), 0.01 * ones, 0.9 * ones, epoch_key(0, 0), 0)
        self.source, self.plan = jax.device_put((Source(images, labels), plan))
        self.progress = Progress.fresh(jax.jit(lambda: task.init(init_key(0), images.shape[1:]))())
        self.parameters = sum(p.size for p in jax.tree.leaves(self.progress.model.params))
        self.flops, self.memory = summary(net, images.shape[1:]).flops, memory

        def program(progress, source, plan):
            with in_loop():
                return local_steps(task, progress, source, plan, 0, len(plan.index))

        self.program = Compiled(program, Clocks(), donate=(0,))

    def run(self) -> float:
        """Take every step of the plan; returns images a second."""
        import jax

        program = self.program.program(self.progress, self.source, self.plan)
        begin = time.perf_counter()
        self.progress = program(self.progress, self.source, self.plan)
        jax.block_until_ready(self.progress)
        return self.plan.index.size / (time.perf_counter() - begin)


if __name__ == "__main__":
    main()
