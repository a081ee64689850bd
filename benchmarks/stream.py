"""Training from JPEG files on disk: how long the device waits for data, with and without preload and copies.

    python -m benchmarks.stream                # on a machine without a GPU the step is emulated by waiting
    python -m benchmarks.stream --real         # a ResNet-18 step in bfloat16 on the device

An ImageNet-shaped set (500 × 375 pixels, about 110 kB a file) is made in a temporary folder and dropped from
the page cache before each measurement. First the readers alone: threads, processes, and PyTorch's DataLoader
with the same decoding. Then a step that takes a quarter longer than the readers need for a batch, so that
they can keep up, in the paper's four settings. Then a slow consumer, for the memory that the stream holds.
"""

import argparse
import concurrent.futures
import functools
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from benchmarks.results import in_turn, row, write
from cnnkit.data.readers import FolderReader
from cnnkit.data.stream import Stream
from cnnkit.graph.schedule import cores
from cnnkit.losses import cross_entropy
from cnnkit.nets import resnet18

MODES = {
    "preload, asynchronous copy": {},
    "preload alone": {"asynchronous": False},
    "asynchronous copy alone": {"preload": False},
    "neither": {"preload": False, "asynchronous": False},
}
SLACK = 1.25


def make_images(root: Path, n: int) -> None:
    """n JPEG files of 500 × 375 pixels in ten folders: smoothed noise, as large as ImageNet's are."""
    draw = np.random.default_rng(0)

    def one(i: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8)).resize(
            (500, 375), Image.Resampling.BICUBIC
        )
        fine = Image.fromarray(rng.integers(0, 256, (188, 250, 3), np.uint8)).resize(
            (500, 375), Image.Resampling.BILINEAR
        )
        folder = root / f"class {i % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.blend(coarse, fine, 0.45).save(folder / f"{i:05}.jpg", quality=92)

    with concurrent.futures.ThreadPoolExecutor(cores()) as pool:
        list(pool.map(one, range(n), draw.integers(0, 2**31, n).tolist()))


def forget(root: Path) -> None:
    """Drops the files from the page cache, so that the disk is read again."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in root.rglob("*.jpg"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@functools.cache
def _reader(root: str) -> FolderReader:
    return FolderReader(root)


def _decode(root: str, rows: list[int]) -> np.ndarray:
    reader = _reader(root)
    out = np.zeros((len(rows), *reader.shape), np.uint8)
    for i, into in zip(rows, out):
        reader.decode(reader.read(i), into)
    return out


def pool_rate(root: Path, pool: concurrent.futures.Executor, n: int) -> float:
    """Images a second that a pool decodes and hands over, sixteen to a task."""
    tasks = [list(range(i, min(i + 16, n))) for i in range(0, n, 16)]
    forget(root)
    start = time.perf_counter()
    for _ in pool.map(_decode, [str(root)] * len(tasks), tasks):
        pass
    return n / (time.perf_counter() - start)


class Examples:
    """The reader as PyTorch's DataLoader wants it: by index."""

    def __init__(self, reader: FolderReader):
        self.reader = reader

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        out = np.zeros(self.reader.shape, np.uint8)
        self.reader.decode(self.reader.read(i), out)
        return out, self.reader.label(i)


def loader_rate(root: Path, batch: int, workers: int) -> float:
    """Images a second of PyTorch's DataLoader with the same decoding in as many processes."""
    from torch.utils.data import DataLoader

    reader = FolderReader(root)
    loader = DataLoader(
        Examples(reader),  # type: ignore[arg-type]
        batch,
        shuffle=True,
        num_workers=workers,
        multiprocessing_context=_spawn(),
    )
    forget(root)
    batches = iter(loader)
    return _rate((len(images) for images, _ in batches), len(reader))


def _rate(sizes: Iterator[int], n: int) -> float:
    """Images a second after the first batch, so that starting costs nobody anything."""
    first = next(sizes)
    start = time.perf_counter()
    rest = sum(sizes)
    if first + rest != n:
        raise RuntimeError(f"{first + rest} of {n} images came")
    return rest / (time.perf_counter() - start)


def stream_rate(root: Path, stream: Stream, n: int) -> float:
    """Images a second of the stream alone, nothing computed."""
    forget(root)
    return _rate((int(batch.weight.sum()) for batch in stream.epoch(0)), n)


def resnet_step(batch: int) -> tuple[Callable, object]:
    """A jitted training step of ResNet-18 in bfloat16 on uint8 [batch, 224, 224, 3], and its parameters."""
    net = resnet18()
    params, state, _ = net.init(jax.random.key(0), (224, 224, 3))

    def loss(p, images, labels):
        half = jax.tree.map(lambda w: w.astype(jnp.bfloat16), p)
        logits, _ = net.apply(half, state, images.astype(jnp.bfloat16) / 128 - 1, train=True)
        return cross_entropy(logits, labels).mean()

    @jax.jit
    def step(p, images, labels):
        value, gradient = jax.value_and_grad(loss)(p, images, labels)
        return jax.tree.map(lambda w, g: w - 1e-3 * g, p, gradient), value

    return step, params


def real_compute(batch: int, seconds: float) -> tuple[Callable, float, str]:
    """A consumer that trains for at least so many seconds a batch, and how many it takes."""
    step, params = resnet_step(batch)
    images, labels = jnp.zeros((batch, 224, 224, 3), jnp.uint8), jnp.zeros(batch, jnp.int32)
    held = [params]

    def once(images, labels, times):
        for _ in range(times):
            held[0], value = step(held[0], images, labels)
        jax.block_until_ready(value)

    def timed(times: int) -> float:
        start = time.perf_counter()
        once(images, labels, times)
        return time.perf_counter() - start

    timed(3)
    times = max(1, round(seconds / statistics.median(timed(4) / 4 for _ in range(5)) + 0.5))
    took = statistics.median(timed(times) for _ in range(5))
    return (lambda b: once(b.images, b.labels, times)), took, f"{times} × ResNet-18 step, bfloat16"


def train(root: Path, stream: Stream, consume: Callable, step_seconds: float) -> dict[str, float]:
    """One epoch: the part of the time that the consumer waited, and the speed against never waiting."""
    forget(root)
    for batch in stream.epoch(0):
        consume(batch)
    report = stream.report
    # The first batch's step falls into the seconds counted, its reading does not.
    return {
        "waiting_fraction": report.waiting_fraction,
        "of_max": report.batches * step_seconds / report.seconds,
        "images_per_s": len(stream.reader) / report.seconds,
        "filling_s": report.filling,
    }


def reading_rows(root: Path, n: int, batch: int, threads: int, repeats: int) -> tuple[list[dict], float]:
    """The readers alone: by threads and processes, and the stream beside PyTorch's DataLoader."""
    rows = []
    for workers in sorted({1, threads}):
        # One worker's rate does not need all of a large set.
        some = min(n, 384 * workers)
        with (
            concurrent.futures.ThreadPoolExecutor(workers) as one,
            concurrent.futures.ProcessPoolExecutor(workers, _spawn()) as other,
        ):
            for pool in (one, other):
                list(pool.map(_decode, [str(root)] * 4, [[0, 1]] * 4))
            found = in_turn(
                {
                    "threads": lambda p=one, some=some: pool_rate(root, p, some),
                    "processes": lambda p=other, some=some: pool_rate(root, p, some),
                },
                repeats,
            )
        rows.append(
            row(
                f"decoding alone, {workers} threads" if workers > 1 else "decoding alone, 1 thread",
                "images_per_s",
                found["threads"],
                "images/s",
                peer=f"{workers} processes" if workers > 1 else "1 process",
                peer_values=found["processes"],
            )
        )
    with Stream(FolderReader(root), batch, threads=threads) as stream:
        stream_rate(root, stream, n)
        cases = {"ours": lambda: stream_rate(root, stream, n)}
        try:
            import torch  # noqa: F401

            cases["peer"] = lambda: loader_rate(root, batch, threads)
        except ImportError:
            print("PyTorch is not installed: its DataLoader is left out")
        found = in_turn(cases, repeats)
    beside = (
        {"peer": f"PyTorch DataLoader, {threads} processes", "peer_values": found["peer"]}
        if "peer" in found
        else {}
    )
    rows.append(row(f"stream alone, {threads} threads", "images_per_s", found["ours"], "images/s", **beside))
    return rows, statistics.median(found["ours"])


def training_rows(
    root: Path, batch: int, threads: int, repeats: int, pace: Callable, compute: str
) -> list[dict]:
    """The four settings, in turn; pace() gives each turn's consumer and the seconds it takes for a batch."""
    reader, rows, steps = FolderReader(root), [], []
    made: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for i in range(repeats):
        consume, step = pace()
        steps.append(step)
        for mode in list(MODES)[:: 1 if i % 2 == 0 else -1]:
            with Stream(reader, batch, threads=threads, **MODES[mode]) as stream:
                made[mode].append(train(root, stream, consume, step))
    units = {
        "waiting_fraction": "fraction",
        "of_max": "fraction",
        "images_per_s": "images/s",
        "filling_s": "s",
    }
    step_ms = round(1e3 * statistics.median(steps), 2)
    for mode, found in made.items():
        for figure, unit in units.items():
            values = [one[figure] for one in found]
            rows.append(row(mode, figure, values, unit, compute=compute, step_ms=step_ms))
    return rows


def waiting_pace(root: Path, batch: int, threads: int) -> tuple[Callable, float]:
    """A consumer that waits, and its seconds a batch: a quarter longer than the readers alone take just now."""
    with Stream(FolderReader(root), batch, threads=threads) as stream:
        step = SLACK * batch / stream_rate(root, stream, len(stream.reader))
    return (lambda b: time.sleep(step)), step


def memory_rows(root: Path, batch: int, threads: int, batches: int = 16) -> list[dict]:
    """Resident memory over a slow consumer's epoch, above what it was with the first batch in hand."""
    rows = []
    for depth in (2, 8):
        with Stream(FolderReader(root), batch, threads=threads, depth=depth) as stream:
            for _ in stream.epoch(0):
                pass
            before, most = _resident_mb(), 0.0
            for number, _ in enumerate(stream.epoch(1)):
                time.sleep(0.15)
                most = max(most, _resident_mb())
                if number + 1 == batches:
                    break
            limit = sum(stream.bound()) / 1e6
        case = f"a slow consumer, depth {depth}"
        rows.append(row(case, "memory_growth_mb", [max(0.0, most - before)], "MB", bound_mb=round(limit, 1)))
    return rows


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _spawn():
    import multiprocessing

    # A forked process would inherit JAX's threads' locks.
    return multiprocessing.get_context("spawn")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--images", type=int, default=768)
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--threads", type=int, default=cores())
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--real", action="store_true", help="a ResNet-18 step instead of waiting")
    options.add_argument("--name", default="stream", help="of the result file")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_images(root, chosen.images)
        size = statistics.mean(p.stat().st_size for p in root.rglob("*.jpg"))
        print(f"{chosen.images} files of {size / 1e3:.0f} kB, {threading.active_count()} threads")
        rows, rate = reading_rows(root, chosen.images, chosen.batch, chosen.threads, chosen.repeats)
        if chosen.real:
            consume, step, compute = real_compute(chosen.batch, SLACK * chosen.batch / rate)
            pace = lambda: (consume, step)
        else:
            compute = "emulated by waiting: the cores are needed to decode"
            pace = lambda: waiting_pace(root, chosen.batch, chosen.threads)
        rows += training_rows(root, chosen.batch, chosen.threads, chosen.repeats, pace, compute)
        rows += memory_rows(root, chosen.batch, chosen.threads)
    for made in rows:
        peer = f"  {made['peer']} {made['peer_value']} ratio {made['ratio']}" if "peer" in made else ""
        more = f"  bound {made['bound_mb']}" if "bound_mb" in made else ""
        print(
            f"{made['case']:30} {made['figure']:18} {made['value']} ± {made['spread']} {made['unit']}{peer}{more}"
        )
    print(write(chosen.name, rows, packages=("pillow", "torch")))


if __name__ == "__main__":
    main()
