"""Preload and asynchronous copy: mini-batches from disk, for sets larger than the device's memory."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from cnnkit.data.order import batches
from cnnkit.data.readers import Reader
from cnnkit.graph.bigraph import Graph
from cnnkit.graph.schedule import OperationError, Scheduler, cores
from cnnkit.graph.schedule import Stream as _Flow
from cnnkit.graph.timeline import Timeline
from cnnkit.names import choose

Prepare = Callable[[np.random.Generator, np.ndarray], np.ndarray]
_ON_ERROR = {"raise": True, "skip": False}


class Batch(NamedTuple):
    """A mini-batch on the device.

    Attributes:
        images: uint8 [b, H, W, C], or what `prepare` makes of them.
        labels: int32 [b].
        weight: float32 [b], 1 for an example, 0 for padding and for what was skipped.
        examples: int32 [b], which examples of the reader.
        epoch, number: where it stands; ``epoch(epoch, start=number)`` begins with it.
    """

    images: jax.Array
    labels: jax.Array
    weight: jax.Array
    examples: np.ndarray
    epoch: int
    number: int


class ReadError(OSError):
    """An example could not be read; the text says which, why, and what can be done."""


@dataclass
class Report:
    """What the latest epoch's stream has done so far.

    Args:
        batches: handed out.
        seconds: since the first batch was handed out.
        waited: seconds of these in which the consumer waited for a batch.
        filling: seconds until the first batch was there.
        skipped: (example, its name, why) of each example skipped.
    """

    batches: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    filling: float = 0.0
    skipped: list[tuple[int, str, str]] = field(default_factory=list)

    @property
    def waiting_fraction(self) -> float:
        """The part of the time, after the first batch, in which the consumer waited for data."""
        return self.waited / self.seconds if self.seconds else 0.0


class Stream:
    """Mini-batches read, decoded, prepared and copied to the device while the one before is computed with.

    A graph of host operations run by the scheduler: read (the disk) → decode (the processor; each batch in
    as many parts as there are threads) → prepare → copy (the device's copy engine) → the consumer. Each may
    be at another batch. At most `depth` batches are under way on the host and `ahead` on the device, however
    fast the disk is.

    Args:
        reader: where examples come from: `FolderReader`, `ArrayReader`, or your own `Reader`.
        batch: examples in a mini-batch.
        seed: of the order of examples.
        threads: that decode; by default one a core.
        depth: batches under way at most.
        ahead: of these, batches copied to the device before they are asked for.
        preload: False reads a batch when it is asked for, not before.
        asynchronous: False copies a batch to the device when it is asked for, while the consumer waits.
        prepare: ``prepare(rng, images)``, the host's part of augmentation, images uint8 [b, H, W, C]; rng is
            a function of (seed, epoch, batch), so that resuming repeats it.
        device: a device or sharding to copy to; JAX's default when left out.
        on_error: ``"raise"``, or ``"skip"``: an example that cannot be read gets weight 0 and is counted.
        timeout: seconds that a batch may take before it counts as stuck; None waits for ever.

    Preload and asynchronous copy are the two input optimizations of Li et al. 2018.

    >>> from cnnkit.data.readers import ArrayReader
    >>> reader = ArrayReader(np.zeros((10, 4, 4, 1), np.uint8), np.arange(10) % 2)
    >>> with Stream(reader, batch=4, seed=1) as stream:
    ...     [int(batch.weight.sum()) for batch in stream.epoch(0)]
    [4, 4, 2]
    """

    def __init__(
        self,
        reader: Reader,
        batch: int,
        *,
        seed: int = 0,
        threads: int | None = None,
        depth: int = 4,
        ahead: int = 2,
        preload: bool = True,
        asynchronous: bool = True,
        prepare: Prepare | None = None,
        device: Any = None,
        on_error: str = "raise",
        timeout: float | None = 120.0,
    ):
        for name, value in (("batch", batch), ("threads", threads or 1), ("depth", depth), ("ahead", ahead)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if len(reader) < 1:
            raise ValueError("the reader has no examples; at least one is needed")
        self.reader, self.batch, self.seed = reader, batch, seed
        self.preload, self.asynchronous = preload, asynchronous
        self._raises = choose(on_error, _ON_ERROR, "on_error")
        self._prepare, self._device, self._timeout = prepare, device, timeout
        self._threads = min(threads or cores(), batch)
        self._depth, self._ahead = depth, min(ahead, depth)
        self._graph = self._pipeline()
        self._scheduler = Scheduler(
            {"cpu": self._threads, "cpu:1": min(self._threads, 4)}, name="cnnkit stream"
        )
        self._flow: _Flow | None = None
        self.report = Report()

    def epoch(self, epoch: int, start: int = 0) -> "Epoch":
        """An iterator over the mini-batches of an epoch, from batch number start on.

        What was under way for an epoch before is dropped.

        Raises:
            ReadError: an example could not be read (``on_error="raise"``), or none of a batch's examples.
            TimeoutError: a batch was not there within `timeout`; the text says what was running.
        """
        index, weight = batches(len(self.reader), self.batch, self.seed, epoch)
        if not 0 <= start <= len(index):
            raise ValueError(f"start must be from 0 to the epoch's {len(index)} batches, got {start}")
        if self._flow is not None:
            self._flow.close()
        items = (
            {"index": index[n], "weight": weight[n], "place": (epoch, n)} for n in range(start, len(index))
        )
        depth = self._depth if self.preload else 0
        self._flow = self._scheduler.stream(self._graph, items, depth=depth, timeout=self._timeout)
        self.report = Report()
        return Epoch(self, self._flow, self.report)

    def bound(self) -> tuple[int, int]:
        """Bytes of decoded images that are held at most, (on the host, on the device)."""
        one = self.batch * int(np.prod(self.reader.shape))
        under_way = max(self._depth if self.preload else 0, 1)
        return under_way * one, ((self._ahead if self.preload and self.asynchronous else 0) + 1) * one

    @property
    def timeline(self) -> Timeline:
        """What ran when, for the latest epoch: a Gantt chart of it shows where the time goes."""
        return Timeline([]) if self._flow is None else self._flow.timeline

    def close(self) -> None:
        """Ends the threads."""
        self._scheduler.close()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _pipeline(self) -> Graph:
        graph = Graph("stream", inputs=["index", "weight", "place"])
        graph.add("allocate", self._allocate, "index", "pixels", ordered=False)
        edges = np.linspace(0, self.batch, self._threads + 1).astype(int)
        faults = []
        for k, (first, last) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist())):
            part = slice(first, last)
            read = lambda index, weight, part=part: self._read(index[part], weight[part])
            decode = lambda raw, pixels, part=part: self._decode(raw, pixels[part])
            graph.add(f"read {k}", read, ["index", "weight"], f"raw {k}", on="cpu:1", ordered=False)
            faults.append(
                graph.add(f"decode {k}", decode, [f"raw {k}", "pixels"], f"faults {k}", ordered=False)
            )
        # Ordered, so that what is skipped is counted in the order of the batches.
        graph.add(
            "gather", self._gather, ["index", "weight", "place", "pixels", *faults], ["host", "skipped"]
        )
        if self.asynchronous:
            graph.add("copy", self._copy, "host", "batch", on="copy_in", ahead=self._ahead)
        graph.outputs = ["batch" if self.asynchronous else "host", "skipped", "place", "index"]
        return graph

    def _allocate(self, index: np.ndarray) -> np.ndarray:
        return np.zeros((len(index), *self.reader.shape), np.uint8)

    def _read(self, index: np.ndarray, weight: np.ndarray) -> list[Any]:
        raw: list[Any] = []
        for i, w in zip(index.tolist(), weight.tolist()):
            try:
                raw.append(self.reader.read(i) if w else None)
            except Exception as error:
                raw.append(_Fault("read", error))
        return raw

    def _decode(self, raw: list[Any], pixels: np.ndarray) -> list[Any]:
        return [None if one is None else self._decode_one(one, into) for one, into in zip(raw, pixels)]

    def _decode_one(self, raw: Any, into: np.ndarray) -> Any:
        if isinstance(raw, _Fault):
            return raw
        try:
            self.reader.decode(raw, into)
            return None
        except Exception as error:
            into[...] = 0
            return _Fault("decoded", error)

    def _gather(self, index, weight, place, pixels, *faults):
        epoch, number = place
        rows = [fault for part in faults for fault in part]
        found = [(int(i), fault) for i, fault in zip(index, rows) if fault is not None]
        skipped = [(i, self.reader.name(i), fault.why) for i, fault in found]
        real = int((weight > 0).sum())
        if found and (self._raises or len(found) == real):
            self._complain(found, real, epoch, number)
        weight = weight * np.array([fault is None for fault in rows], np.float32)
        labels = np.array([self.reader.label(int(i)) for i in index], np.int32)
        if self._prepare is not None:
            pixels = self._prepare(np.random.default_rng((self.seed, epoch, number)), pixels)
        return (pixels, labels, weight), skipped

    def _complain(self, found, real: int, epoch: int, number: int) -> None:
        i, fault = found[0]
        said = f"{self.reader.name(i)} (example {i}, epoch {epoch}, batch {number}) cannot be {fault.verb}: {fault.why}"
        if self._raises:
            raise ReadError(
                f"{said}; repair or remove it, or leave it out with on_error='skip'"
            ) from fault.error
        raise ReadError(
            f"none of the {real} examples of batch {number} of epoch {epoch} can be read, so nothing is left to "
            f"skip to; the first: {said}"
        ) from fault.error

    def _copy(self, host):
        return jax.device_put(host, self._device)


class Epoch(Iterator[Batch]):
    """The mini-batches of one epoch, in order; `Stream.epoch` makes it."""

    def __init__(self, stream: Stream, flow: _Flow, report: Report):
        self._stream, self._flow, self._report = stream, flow, report
        self._began = time.perf_counter()

    def __next__(self) -> Batch:
        start = time.perf_counter()
        report = self._report
        try:
            made = next(self._flow)
        except OperationError as error:
            # The example is what matters, not which operation of the pipeline met it.
            known = error.__cause__ if isinstance(error.__cause__, ReadError) else error
            raise known from known.__cause__
        except StopIteration:
            report.seconds = start - self._began if report.batches else 0.0
            raise
        if "batch" in made:
            images, labels, weight = made["batch"]
        else:
            images, labels, weight = jax.block_until_ready(self._stream._copy(made["host"]))
        now = time.perf_counter()
        if report.batches:
            report.seconds, report.waited = now - self._began, report.waited + now - start
        else:
            self._began, report.filling = now, now - start
        report.batches += 1
        report.skipped += made["skipped"]
        return Batch(images, labels, weight, made["index"], *made["place"])

    def close(self) -> None:
        """Drops what is under way."""
        self._flow.close()


class _Fault:
    def __init__(self, verb: str, error: Exception):
        self.verb, self.error = verb, error
        self.why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
