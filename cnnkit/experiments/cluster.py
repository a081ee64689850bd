"""A cluster on cheap links: synchronous training against fixed periods, warm start, delay and hidden exchanges."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cnnkit.experiments import cluster_figure
from cnnkit.experiments.base import Experiment, Row, row
from cnnkit.experiments.job import Found
from cnnkit.experiments.nodes import on_nodes
from cnnkit.experiments.scaling import EXCHANGES, Fitted, fitted, rate_for
from cnnkit.names import choose
from cnnkit.parallel.cost import RoundCost

SYNC47 = "sync47"
PART = 0.47
"""Of one node's throughput: what the thesis's four nodes reached by synchronous training."""

POLICIES: dict[str, dict[str, Any]] = {
    "sync": {"mode": "accumulate", "fetch": 1},
    "every(8)": {"fetch": 8},
    "every(8) delay": {"fetch": 8, "delay": 1},
    "hide no delay": {"fetch": "hide(0.95)"},
    "hide": {"fetch": "hide(1.0)", "delay": 1},
}
"""What is timed; the first one is the baseline."""

TRAINED: dict[str, dict[str, Any]] = {
    "sync": {"mode": "accumulate", "fetch": 1, "lr": 0.02},
    "every(8)": {"fetch": 8, "lr": 0.01},
    "warm_start": {"fetch": "warm_start(1, 16, epochs=4)", "lr": 0.01},
    "hide": {"fetch": "hide(1.0)", "delay": 1, "lr": 0.01},
}
"""What is trained to an accuracy; of 0.01, 0.02 and 0.05 each takes the rate that brings it there soonest."""


def run(settings: Mapping[str, Any], folder: Path) -> list[Row]:
    """Time every policy on every number of nodes over every link, predict, and train to an accuracy.

    In a job of several machines: time every policy on them, over the links that they have.
    """
    import jax

    found = Cluster(settings, folder)
    return found.as_it_is(jax.process_count()) if jax.distributed.is_initialized() else found.rows()


class Cluster:
    """The jobs of the experiment, one for each number of nodes and each link.

    Args:
        settings: of a preset.
        folder: for logs.
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        from cnnkit.lab import environment

        self.settings, self.folder = settings, folder
        self.gpus = len(environment.gpus())
        self.nodes = [n for n in settings["nodes"] if n > 1 and (not self.gpus or n <= self.gpus)]
        self.policies = {label: choose(label, POLICIES, "policy") for label in settings["policies"]}
        self.batch: int = settings["batch"]
        self.rates: dict[str, Any] = {}
        self.models: dict[str, dict[str, Fitted]] = {}

    def rows(self) -> list[Row]:
        """Everything that the experiment finds in labs."""
        if 2 not in self.nodes:
            raise ValueError(
                f"cluster needs 2 among its nodes, for the model that predicts more; nodes is {self.settings['nodes']}"
                + (f", and GPUs are {self.gpus}" if self.gpus else "")
            )
        rate, rates = self.settings["train_rate"], self.settings["rates"]
        if self.settings["epochs"] and rate not in rates:
            raise ValueError(
                f"cluster trains over train_rate={rate!r}, which is not among its rates {rates}; "
                "name one of them, or give epochs=0 to train nothing"
            )
        self.alone = self.alone_on_a_node()
        self.one = float(np.median(self.alone["images_per_s"]))
        rows = [row("1 node", "images_per_s", self.alone["images_per_s"], "images/s", **self.work())]
        most = self.nodes[-1]
        unlinked = self.timed(most, "unshaped", None) if self.settings["unshaped"] else {}
        for label, found in unlinked.items():
            rows += self.of(f"{most} unshaped {label}", found, self.median(unlinked, "sync"))
        for rate in sorted(self.settings["rates"], key=lambda rate: rate == SYNC47):
            self.rates[rate] = self.bits(rate)
            for n in self.nodes:
                rows += self.over(rate, n, unlinked if n == most else {})
            rows += self.predictions(rate)
        if self.settings["epochs"]:
            rows += self.trained(self.settings["train_rate"], most)
        return rows

    def as_it_is(self, nodes: int) -> list[Row]:
        """The rows of this job's machines; what one of them does alone is taken from its steps."""
        found = self.timed(nodes, "link", None)
        step = next(iter(found.values()))["step_seconds"]
        self.one = self.batch / float(np.median(step))
        sync = self.median(found, "sync")
        return [r for label, got in found.items() for r in self.of(f"{nodes} link {label}", got, sync)]

    # --- jobs ---------------------------------------------------------------------------------------

    def case(self, label: str, nodes: int, **more: Any) -> dict[str, Any]:
        """What all cases share, unless ``more`` has it otherwise: on CPU nodes mostly wait, on GPUs work is real."""
        s = self.settings
        shared = {
            "label": label,
            "net": s["net"],
            "data": s["data"],
            "batch": self.batch,
            "augment": s["augment"],
        }
        waits = {} if self.gpus else {"speeds": [1.0] * nodes, "wait": s["wait"]}
        return {**shared, **waits, **more}

    def timing(self) -> dict[str, Any]:
        """What a timed case says: its rate is low, as noise may be what there is to learn."""
        return {"windows": self.settings["windows"], "examples": self.settings["examples"], "lr": 1e-4}

    def alone_on_a_node(self) -> Found:
        """One node, without anyone to talk to."""
        # Rounds of a single worker have an end too; long ones cost what plain training does.
        case = self.case("1 node", 1, **self.timing(), fetch=64)
        return on_nodes([case], 1, None, self.folder / "1")[0]

    def timed(self, nodes: int, name: str, rate: Any) -> dict[str, Found]:
        """Every policy on so many nodes over such a link."""
        cases = [
            self.case(f"{nodes} {name} {label}", nodes, **self.timing(), **policy)
            for label, policy in self.policies.items()
        ]
        found = on_nodes(cases, nodes, rate, self.folder / f"{nodes} {name}".replace(" ", "-"))
        return dict(zip(self.policies, found))

    def bits(self, rate: str) -> float:
        """The rate in bits a second; the one where synchronous training has its part of a node's throughput
        follows from the model of the link before it."""
        from cnnkit.lab import units

        if rate != SYNC47:
            return units.bits(rate)
        step, most = self.batch / self.one, self.nodes[-1]
        if not self.models:
            raise ValueError(f"{SYNC47} needs another rate beside it, from which the link is known")
        before = list(self.models)[-1]
        sync = self.models[before]["sync"]
        efficiency = sync.link.rate / self.rates[before]
        return float(f"{rate_for(PART, most, step, sync.values, sync.overhead, efficiency):.4g}")

    # --- rows ---------------------------------------------------------------------------------------

    def work(self) -> dict[str, Any]:
        """What a step is, for the record."""
        real = {"work": "real"}
        return real if self.gpus else {"work": "waiting", "wait_seconds": self.settings["wait"]}

    @staticmethod
    def median(found: Mapping[str, Found], label: str) -> float:
        """The median throughput of a policy, or of the first one."""
        return float(np.median(found.get(label, next(iter(found.values())))["images_per_s"]))

    def of(self, case: str, found: Found, sync: float, **more: Any) -> list[Row]:
        """Throughput, and what it is of synchronous training's and of one node's."""
        rates = np.array(found["images_per_s"])
        facts = {key: found[key] for key in ("fetch", "exchange_seconds", "step_seconds")}
        return [
            row(case, "images_per_s", list(rates), "images/s", **self.work(), **facts, **more),
            row(case, "over_sync", list(rates / sync), "ratio"),
            row(case, "of_one_node", list(rates / self.one), "ratio"),
            row(case, "busy_min", [min(found["busy"])], "fraction"),
        ]

    def over(self, rate: str, nodes: int, unlinked: Mapping[str, Found]) -> list[Row]:
        """The rows of every policy on so many nodes over a link."""
        found = self.timed(nodes, rate, self.rates[rate])
        if nodes == 2:
            self.models[rate] = fitted(self.alone, found, self.policies, self.batch)
        rows = []
        for label, got in found.items():
            case, rates = f"{nodes} {rate} {label}", np.array(got["images_per_s"])
            model = self.models[rate][label]
            delay = self.policies[label].get("delay", 0)
            measured = RoundCost(model.step_seconds, got["fetch"], got["exchange_seconds"], delay)
            # Of two nodes the model has seen their own rounds, so there the exchange as measured speaks.
            foretold = model.images_per_s(nodes) if nodes > 2 else measured.throughput(self.batch)
            rows += self.of(
                case, got, self.median(found, "sync"), bits_per_s=self.rates[rate], predicted=foretold
            )
            rows.append(row(case, "predicted", list(foretold / rates), "ratio"))
            if unlinked:
                base = max(self.median(unlinked, label) for label in unlinked)
                rows.append(row(case, "of_no_link", list(rates / base), "fraction"))
        return rows

    def predictions(self, rate: str) -> list[Row]:
        """Curves to a thousand nodes, for each exchange and period: nothing of it is measured."""
        rows = []
        for label, model in self.models[rate].items():
            for how in EXCHANGES:
                points = model.curve(how)
                curve = {
                    "nodes": [p.workers for p in points],
                    "images_per_s": [float(f"{p.examples_per_s:.5g}") for p in points],
                    "fetch": [p.fetch for p in points],
                }
                found = row(
                    f"1000 {rate} {label} {how}", "predicted_of_ideal", [points[-1].of_ideal], "fraction"
                )
                rows.append({**found, "n": 0, "predicted": True, "curve": curve})
        return rows

    def trained(self, rate: str, nodes: int) -> list[Row]:
        """Seconds to the same accuracy, and the last accuracy, of every policy that is trained."""
        s = self.settings
        shared = {"epochs": s["epochs"], "data": s["train_data"] or s["data"]}
        faster = lambda policy: {**policy, "lr": policy["lr"] * s["train_lr"]}
        cases = [
            self.case(f"{nodes} {rate} {label}", nodes, seed=seed, **shared, **faster(policy))
            for label, policy in TRAINED.items()
            if label in s["trained"]
            for seed in range(s["seeds"])
        ]
        found = on_nodes(cases, nodes, self.rates[rate], self.folder / f"{nodes}-{rate}-trained")
        curves: dict[str, list[Any]] = {}
        for one in found:
            curves.setdefault(one["label"], []).append(one["curve"])
        rows, sync = [], float("nan")
        for case, several in curves.items():
            seconds = [reached(curve, s["target"]) for curve in several]
            accuracies = [100 * curve[-1]["accuracy"] for curve in several]
            rows.append(row(case, "accuracy", accuracies, "%", epochs=s["epochs"], curve=several[0]))
            if None in seconds:
                continue
            reach = [float(second) for second in seconds if second]
            sync = float(np.median(reach)) if case.endswith(" sync") else sync
            rows.append(row(case, "seconds_to_target", reach, "s", target=100 * s["target"]))
            rows.append(row(case, "to_target_over_sync", [sync / second for second in reach], "ratio"))
        return rows


def reached(curve: Sequence[Mapping[str, Any]], target: float) -> float | None:
    """Seconds of training until an accuracy is reached, between epochs along a straight line; None if never.

    >>> reached([{"seconds": 2.0, "accuracy": 0.5}, {"seconds": 4.0, "accuracy": 0.9}], 0.8)
    3.5
    """
    before = None
    for point in curve:
        if point["accuracy"] >= target:
            if before is None:
                return point["seconds"]
            part = (target - before["accuracy"]) / (point["accuracy"] - before["accuracy"])
            return before["seconds"] + part * (point["seconds"] - before["seconds"])
        before = point
    return None


SHARED: dict[str, Any] = {
    "trained": list(TRAINED),
    "train_rate": SYNC47,
    "train_data": None,  # what is timed
    "train_lr": 1.0,  # times that of TRAINED
    "target": 0.95,
}
ON_CPU: dict[str, Any] = {**SHARED, "augment": "shift", "data": "digits", "examples": 100_000, "batch": 8}

EXPERIMENT = Experiment(
    name="cluster",
    title="A cluster on cheap links",
    source="thesis, section 5.6.2",
    presets={
        "smoke": {
            **ON_CPU,
            "net": "linear",
            "wait": 0.005,
            "nodes": [1, 2],
            "rates": ["10mbit"],
            "policies": ["sync", "hide"],
            "unshaped": False,
            "windows": [1, 0.1, 0.1],
            "epochs": 0,
            "seeds": 1,
        },
        "small": {
            **ON_CPU,
            "net": "wide",
            "wait": 0.036,
            "nodes": [1, 2, 4],
            "rates": ["100mbit", SYNC47],
            "policies": ["sync", "every(8)", "every(8) delay", "hide"],
            "unshaped": False,
            "windows": [3, 0.8, 0.8],
            "trained": ["sync", "warm_start", "hide"],
            "epochs": 8,
            "seeds": 1,
        },
        "full": {
            **SHARED,
            "net": "cuda_cnn_cifar10",
            "data": "noise",
            "examples": 400_000,
            "augment": "crop24",
            "batch": 128,
            "wait": 0.03,
            "nodes": [1, 2, 4, 8],
            "rates": ["10gbit", "1gbit", "100mbit"],
            "policies": list(POLICIES),
            "unshaped": True,
            "windows": [3, 2.0, 3.0],
            "epochs": 0,
            "seeds": 1,
        },
    },
    run=run,
    figure=cluster_figure.figure,
    shown=(
        "images_per_s",
        "over_sync",
        "of_one_node",
        "of_no_link",
        "predicted",
        "seconds_to_target",
        "to_target_over_sync",
    ),
    originals={("4 sync47 sync", "of_one_node"): PART, ("4 100mbit hide", "over_sync"): 12.34},
    note=(
        "The thesis's two figures do not go together on four nodes of one worker: 0.47 · 12.34 = 5.8 nodes' worth, where 4 is "
        "the most there can be. So its nodes held several GPUs, or its two baselines differ. Here sync47 is the link at which "
        "synchronous training has 0.47 of a node; 12.34 times synchronous needs a slower link, such as 100mbit. On CPU a step "
        "mostly waits, since there are fewer cores than nodes; of_no_link is of the fastest policy on unshaped links; predicted is the cost model's throughput over the measured "
        "one: for more than two nodes it was fitted to one and two alone."
    ),
)
