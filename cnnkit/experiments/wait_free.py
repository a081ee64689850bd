"""Training layer by layer, timed: computing alone, exchanging alone, and both, hidden and not hidden.

A case runs on real processes over shaped links, where the machine has what a lab needs, or in this process
over a link that is imagined: each exchange then takes as long as the cost model says, and nothing is sent.
"""

import contextlib
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cnnkit.experiments import job
from cnnkit.names import choose

Case = Mapping[str, Any]
Found = dict[str, Any]

DEFAULTS: dict[str, Any] = {
    "label": "",
    "net": "lenet",
    "shape": (28, 28, 1),
    "batch": 1,
    "how": "psum",
    "ratio": 1.0,
    "piece": 2**15,
    "steps": 4,
    "n": 3,
    "link": None,
}
"""What a case may say. ``ratio`` is computing over exchanging: waiting is added to each step's computing until
it is so long, or None for computing as it is; ``steps`` are timed together, ``n`` times; ``link`` is (workers,
bits a second) of a link that is imagined."""

WAYS = ("off", "within", "across")
"""One operation after the other; exchanges beside the back-propagation; beside the next step's computing too."""


def over_links(cases: Sequence[Case], nodes: int, rate: str, folder: Path, pin: bool = False) -> list[Found]:
    """What was found in each case on so many nodes, a process each, joined by links of that rate.

    Args:
        cases: see `DEFAULTS`.
        nodes: how many.
        rate: of each node's link, e.g. ``"100mbit"``.
        folder: where logs lie.
        pin: share the cores out among the nodes.
    """
    from cnnkit.lab.cluster import cluster

    folder.mkdir(parents=True, exist_ok=True)
    asked, found = folder / "cases.json", folder / "found.json"
    asked.write_text(json.dumps([_full(case) for case in cases]))
    command = ["python", "-m", __name__, str(asked.absolute()), str(found.absolute())]
    root = str(Path(__file__).parents[2])
    with (
        contextlib.redirect_stdout(job.Spoken(sys.stdout)),
        cluster(nodes, rate, gpus=False, pin=pin, folder=folder / "logs") as lab,
    ):
        lab.run(command, env={"PYTHONPATH": root})
    return json.loads(found.read_text())


def imagined(cases: Sequence[Case], workers: int, rate: str) -> list[Found]:
    """The same in this process, which is one of so many workers whose links are imagined."""
    from cnnkit.lab import units

    link = (workers, units.bits(rate))
    return [_told(measured(_full(case) | {"link": link}), print) for case in cases]


def possible() -> bool:
    """Whether this machine can hold a lab."""
    from cnnkit.lab.cluster import cluster

    try:
        cluster(1, gpus=False).close()
    except (OSError, ImportError):
        return False
    return True


def measured(case: Case) -> Found:
    """Seconds of a step in each way, and of its computing and its exchanging alone; of a job, a collective."""
    one = trainer(case)
    with one:
        items = list(itertools.islice(mini_batches(case), case["steps"] + 2))
        _pace(one, case, items[0])
        ways: dict[str, Callable[[], float]] = {
            "computing": _clocked(one.alone(items[0], "compute")),
            "exchanging": _clocked(one.alone(items[0], "network")),
            "off": lambda: _a_step(one, items[1:], overlap=False),
            "within": lambda: _a_step(one, items[1:], depth=1),
            "across": lambda: _a_step(one, items, depth=2),
        }
        found: Found = {name: [] for name in ways}
        for turn in range(case["n"]):
            for name in list(ways)[:: 1 if turn % 2 == 0 else -1]:
                found[name].append(ways[name]())
        workers = case["link"][0] if case["link"] else one.team.count
    shown = {key: case[key] for key in ("label", "net", "how", "ratio")}
    return (
        shown
        | {"workers": workers, "real": case["ratio"] is None, "imagined": case["link"] is not None}
        | found
    )


def timeline(case: Case, depth: int = 2, shown: int = 2) -> Any:
    """What ran when in the last few of a case's steps, over a link that is imagined.

    Args:
        case: see `DEFAULTS`, with a link.
        depth: steps that may be under way; 1 begins one when the one before has ended.
        shown: steps.
    """
    from cnnkit.graph import Timeline

    case = _full(case)
    with trainer(case) as one:
        items = list(itertools.islice(mini_batches(case), shown + 2))
        _pace(one, case, items[0])
        list(one.steps(items, depth))
        events = [event for event in one.timeline if event.item >= 2]
    # They stood ready since the steps before, which are not shown.
    begin = min(event.start for event in events)
    return Timeline(event._replace(ready=max(event.ready, begin)) for event in events)


def _pace(one: Any, case: Case, item: Any) -> None:
    """Measure, and make computing as long as the case asks for."""
    costs = one.tune(item, repeats=3)
    if case["ratio"] is not None:
        ops = one.graph.ops
        spent = {
            kind: sum(s for n, s in costs.items() if ops[n].on.kind == kind)
            for kind in ("compute", "network")
        }
        one.slowed(max(0.0, case["ratio"] * spent["network"] - spent["compute"]))
        one.tune(item, repeats=1)


def trainer(case: Case) -> Any:
    """What trains the case's network layer by layer, over the link that there is or an imagined one."""
    import jax
    import numpy as np

    from cnnkit import losses
    from cnnkit.parallel import workers
    from cnnkit.parallel.cost import Link
    from cnnkit.parallel.traffic import sent_bytes
    from cnnkit.train import optim
    from cnnkit.train.layerwise import Layerwise
    from cnnkit.train.task import Task

    class Imagined(Layerwise):
        """Its exchanges take as long as a link would need for the bytes that it does not send."""

        def _together(self, name, body, values=0):
            run = super()._together(name, body, values)
            count, rate = case["link"]
            seconds = Link(rate).seconds(sent_bytes(values, count, self.how))

            def exchange(*args):
                time.sleep(seconds)
                return run(*args)

            return exchange

    zero, unit = np.zeros(1, np.float32), np.ones(1, np.float32)
    task = Task(job.network(case["net"]), optim.sgd(0.01), None, losses.cross_entropy, zero, unit)
    model = task.init(jax.random.key(0), tuple(case["shape"]))
    make, team = (Imagined, workers.make(1)) if case["link"] else (Layerwise, workers.make())
    return make(task, model, tuple(case["shape"]), case["batch"], team, how=case["how"], piece=case["piece"])


def mini_batches(case: Case) -> Iterator[Any]:
    """Noise without end, as `Layerwise.steps` takes it; this process's own."""
    import jax
    import numpy as np

    from cnnkit.train.task import MiniBatch

    draw, batch = np.random.default_rng(jax.process_index()), case["batch"]
    for i in itertools.count():
        images = draw.integers(0, 256, (batch, *case["shape"]), np.uint8)
        labels = draw.integers(0, 10, batch).astype(np.int32)
        weight, index = np.ones(batch, np.float32), np.arange(batch, dtype=np.int32)
        yield MiniBatch(images, labels, weight, jax.random.key(i), index, np.int32(0)), 0.01, 0.9


def _clocked(run: Callable[[], None]) -> Callable[[], float]:
    def timed() -> float:
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin

    return timed


def _a_step(one: Any, items: Sequence[Any], depth: int = 1, overlap: bool = True) -> float:
    """Seconds from one step's end to the next one's, after the first."""
    one.overlap = overlap
    ends = [time.perf_counter() for _ in one.steps(items, depth)]
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def of_max(found: Found, way: str) -> list[float]:
    """Time of a step over the longer of computing and exchanging: 1 where all is hidden that can be."""
    longer = max(statistics.median(found["computing"]), statistics.median(found["exchanging"]))
    return [seconds / longer for seconds in found[way]]


def hidden(found: Found, way: str) -> list[float]:
    """The part of the shorter of computing and exchanging that hides behind the longer one."""
    both = [statistics.median(found[name]) for name in ("computing", "exchanging")]
    return [(sum(both) - seconds) / min(both) for seconds in found[way]]


def _told(found: Found, say: Callable[[str], None]) -> Found:
    seconds = {way: statistics.median(found[way]) for way in ("computing", "exchanging", *WAYS)}
    ratios = ", ".join(f"{way} {statistics.median(of_max(found, way)):.2f}" for way in WAYS)
    alone = " and ".join(f"{1000 * seconds[way]:.0f} ms {way}" for way in ("computing", "exchanging"))
    say(f"{found['label']}: {alone}; over the longer one: {ratios}")
    return found


def _full(case: Case) -> dict[str, Any]:
    for key in case:
        choose(key, DEFAULTS, "setting of a case")
    return {**DEFAULTS, **case}


def main(arguments: Sequence[str]) -> None:
    """Run the cases in one file and write what was found into another."""
    from cnnkit.parallel import workers

    workers.join()
    import jax

    asked, into = map(Path, arguments)
    say = (
        (lambda text: print(job.MARK + text, flush=True)) if jax.process_index() == 0 else (lambda text: None)
    )
    found = [_told(measured(case), say) for case in json.loads(asked.read_text())]
    if jax.process_index() == 0:
        into.write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
