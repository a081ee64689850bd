"""CIFAR-10: the networks of the works and their relatives, by recipes shortened to what one GPU does in minutes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cnnkit.experiments.base import Experiment, Row
from cnnkit.experiments.trials import (
    UNIT_MUON,
    Book,
    Trial,
    best,
    by_workers,
    chain,
    compile_all,
    decayed,
    figures,
    optimizer,
    right,
)


def run(settings: Mapping[str, Any], folder: Path) -> list[Row]:
    """Choose rate and decay of each network on held-out images, then train on all, seed by seed."""
    return Nets(settings, folder).run()


class Nets:
    """The networks' trials, choices and results.

    Args:
        settings: of a preset.
        folder: where rows are kept as they come.
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        from cnnkit.data import load

        data = load(settings["data"])
        self.settings = settings
        self.data = data.take(**settings["take"]) if settings["take"] else data
        self.book = Book(folder, print if settings["say"] else None)
        self.cases: dict[str, Any] = settings["cases"]
        self.chosen: dict[str, Mapping[str, Any]] = {}
        self._trials: dict[tuple[str, str], Trial] = {}

    def run(self) -> list[Row]:
        """All rows."""
        found = [self.trial(name, way) for name, case in self.cases.items() for way in case["tries"]]
        took = compile_all(list(dict.fromkeys(found)))
        for name in self.cases:
            self._choose(name)
        if self.settings["timed"]:
            self.book.add(figures("all programs", "compile_seconds", [took], "s"))
        self._test()
        for name in self.settings["workers"]["cases"]:
            self.by_workers(name, self.settings["workers"])
        self._fast()
        return self.book.rows

    def trial(self, name: str, way: Mapping[str, Any]) -> Trial:
        """A network's trial in a way to train, whatever its rate; made once."""
        from cnnkit import nets
        from cnnkit.names import choose
        from cnnkit.train.judges import looks

        kind = json.dumps({key: way[key] for key in sorted(way) if key != "lr"})
        if (name, kind) not in self._trials:
            case = self.cases[name]
            made = choose(case["net"], nets.NAMES, "network")(len(self.data.classes), **case["options"])
            same = [t for (other, _), t in self._trials.items() if other == name]
            self._trials[name, kind] = Trial(
                self.data,
                self.settings["hold"],
                decayed(made, way["decay"]),
                looks=looks(**case["views"]),
                seer=same[0].seer if same else None,
                batch=way.get("batch", case["batch"]),
                dtype=case["dtype"],
                smoothing=case["smoothing"],
                optimizer=self.optimizer(name, way),
                augment=chain(case["augment"]),
            )
        return self._trials[name, kind]

    def optimizer(self, name: str, way: Mapping[str, Any]) -> Any:
        """A way's optimizer at its peak rate, or in the stages of the network's recipe at a multiple of them."""
        from cnnkit.train import optim

        case, lr = self.cases[name], way["lr"]
        if case["stages"]:
            schedule = optim.stages(*((rate * lr, *rest) for rate, *rest in case["stages"]))
        else:
            schedule = optim.one_cycle(lr)
        usual = {"optimizer": "sgd", "momentum": case["momentum"], "nesterov": True}
        return optimizer(way, schedule, usual)

    def _choose(self, name: str) -> None:
        """Try a network's ways, shortened, on held-out images; with one way there is nothing to choose."""
        case, rows = self.cases[name], []
        self.chosen[name] = case["tries"][0]
        if len(case["tries"]) == 1:
            return
        for way in case["tries"]:
            trial = self.trial(name, way)
            _, chances = trial.held_out([0], case["try_epochs"], self.optimizer(name, way))
            value = right(chances[0, 0], trial.held.labels)
            rows.append(
                figures(
                    f"choice: {name}, {_told(way)}",
                    "held_out_accuracy",
                    [value],
                    "%",
                    epochs=case["try_epochs"],
                    way=dict(way),
                )
            )
        self.chosen[name] = best(rows)["way"]
        self.book.add(*rows)

    def _test(self) -> None:
        """Every network by one seed, then by the next, while there is time."""
        begun = len(self.book.rows)
        found: dict[str, list[tuple[Any, np.ndarray, float]]] = {name: [] for name in self.cases}
        for seed in range(self.settings["seeds"]):
            for name, case in self.cases.items():
                if seed and self.book.seconds > self.settings["limit_s"]:
                    break
                way = self.chosen[name]
                trial = self.trial(name, way)
                before = trial.seconds
                trained, chances = trial.tested([1000 + seed], case["epochs"], self.optimizer(name, way))
                found[name].append((trained[0], chances[0], trial.seconds - before))
                del self.book.rows[begun:]
                self.book.add(*[r for each, made in found.items() if made for r in self._rows(each, made)])

    def _rows(self, net: str, made: list[tuple[Any, np.ndarray, float]]) -> list[Row]:
        case, labels = self.cases[net], self.data.test.labels
        # The works' figures are of the whole set, and stand beside no part of it.
        name = f"{net}, {len(self.data):,} images" if self.settings["take"] else net
        more = {"epochs": case["epochs"], "way": dict(self.chosen[net])}
        curve = np.mean([[100 * row["train_accuracy"] for row in one.rows] for one, _, _ in made], 0)
        plain = [right(chances[0], labels) for _, chances, _ in made]
        seen = [right(chances.mean(0), labels) for _, chances, _ in made]
        views = len(made[0][1])
        rows = [figures(name, "accuracy", plain, "%", **more, train_curve=curve.round(2).tolist())]
        if views > 1:
            rows.append(figures(f"{name}, {views} views", "accuracy", seen, "%", **more))
        if self.settings["timed"]:
            rows.append(figures(name, "seconds", [took for _, _, took in made], "s"))
        return rows

    def by_workers(self, name: str, workers: Mapping[str, Any]) -> None:
        """A network in the way that was chosen, through workers that take local steps."""
        case, way = self.cases[name], self.chosen[name]
        rates = self.optimizer(name, way)
        self.book.add(by_workers(self.trial(name, way), name, workers, case["epochs"], rates))

    def _fast(self) -> None:
        from cnnkit.experiments.fast_cifar10 import recipe, timed

        for name, seeds in self.settings["fast"].items():
            accuracies, seconds, _ = timed(recipe(name, self.data), seeds)
            self.book.add(
                figures(name, "accuracy", [100 * a if a <= 1 else a for a in accuracies], "%"),
                figures(name, "seconds", seconds, "s"),
            )


def _told(way: Mapping[str, Any]) -> str:
    """A way to train in words, all that ways differ in.

    >>> _told({"optimizer": "muon", "unit": True, "lr": 0.1, "decay": None})
    'muon at length 1, lr 0.1, decay as the net has it'
    """
    how = way.get("optimizer", "sgd") + " at length 1" * way.get("unit", False)
    batch = f", batch {way['batch']}" if "batch" in way else ""
    decay = "as the net has it" if way["decay"] is None else f"{way['decay']:g}"
    return f"{how}, lr {way['lr']:g}{batch}, decay {decay}"


def figure(rows: list[Row]) -> Any:
    """Every seed's test accuracy and the median by network, and the training curves."""
    from cnnkit.notebook import style

    found = [r for r in rows if r["figure"] == "accuracy"][::-1]
    picture, (left, beside) = style.figure(7.0, max(3.2, 0.6 + 0.42 * len(found)), columns=2)
    for y, r in enumerate(found):
        color = style.COLORS[y % len(style.COLORS)]
        left.plot(r["samples"], [y] * r["n"], "o", color=color, markersize=4, alpha=0.7)
        left.plot([r["value"]] * 2, [y - 0.3, y + 0.3], color=color, linewidth=1.6)
        left.annotate(f"{r['value']:.2f}", (r["value"], y + 0.36), fontsize=7, color=style.TEXT, ha="center")
        if "train_curve" in r:
            done = np.arange(1, 1 + len(r["train_curve"])) / len(r["train_curve"])
            line = style.LINES[y % len(style.LINES)]
            beside.plot(
                100 * done, r["train_curve"], color=color, linestyle=line, linewidth=1.4, label=r["case"]
            )
    style.case_ticks(left, found)
    left.set_ylim(-0.6, len(found))
    left.margins(x=0.15)
    style.few_ticks(left.xaxis)
    style.label(left, "test accuracy, last epoch (%)")
    style.label(beside, "of the training done (%)", "training accuracy (%)")
    style.legend(beside)
    return picture


_CASE: dict[str, Any] = {
    "options": {},
    "momentum": 0.9,
    "stages": [],
    "smoothing": 0.0,
    "dtype": "bfloat16",
    "try_epochs": 10,
    "views": {"flip": True},
    "augment": {"crop": 32, "pad": 4, "flip": 1},
}
_CUDA_CNN = {
    **_CASE,
    "net": "cuda_cnn_cifar10",
    "batch": 128,
    "augment": {"crop": 24, "flip": 1},
    "views": {"shift": 4, "flip": True},
}
_MUON: dict[str, Any] = {"optimizer": "muon", "momentum": 0.9}
_NONE: dict[str, Any] = {"count": 2, "fetch": "warm_start(1, 8, epochs=1)", "seeds": 0, "cases": []}

EXPERIMENT = Experiment(
    name="cifar10_accuracy",
    title="CIFAR-10: the works' networks and their relatives",
    source="thesis; CUDA-CNN; Purine",
    presets={
        "smoke": {
            "data": "digits",
            "take": {},
            "hold": 360,
            "seeds": 2,
            "limit_s": 600,
            "timed": False,
            "say": False,
            "cases": {
                "stack": {
                    **_CASE,
                    "net": "unpooled",
                    "options": {"kernel": 3, "features": []},
                    "batch": 64,
                    "epochs": 2,
                    "try_epochs": 1,
                    "dtype": "float32",
                    "augment": {"crop": 8, "pad": 1, "flip": 0},
                    "views": {"shift": 1},
                    "tries": [{"lr": 0.05, "decay": None}, {"lr": 0.0001, "decay": None}],
                }
            },
            "workers": {**_NONE, "seeds": 1, "cases": ["stack"]},
            "fast": {},
        },
        "small": {
            "data": "cifar10",
            "take": {"train": 2000, "test": 1000},
            "hold": 400,
            "seeds": 1,
            "limit_s": 600,
            "timed": False,
            "say": True,
            "cases": {
                "cuda_cnn_cifar10": {
                    **_CUDA_CNN,
                    "batch": 32,
                    "epochs": 6,
                    "try_epochs": 6,
                    "dtype": "float32",
                    "tries": [{"lr": 0.02, "decay": None}, {"lr": 0.05, "decay": None}],
                }
            },
            "workers": _NONE,
            "fast": {},
        },
        "full": {
            "data": "cifar10",
            "take": {},
            "hold": 10_000,
            "seeds": 3,
            "limit_s": 900,
            "timed": True,
            "say": True,
            "cases": {
                "cuda_cnn_cifar10": {
                    **_CUDA_CNN,
                    "epochs": 40,
                    "tries": [{"lr": 0.05, "decay": None}, {"lr": 0.05, "decay": 5e-4}],
                },
                "nin_cifar10": {
                    **_CASE,
                    "net": "nin_cifar10",
                    "batch": 128,
                    "epochs": 100,
                    "try_epochs": 20,
                    "tries": [
                        {"lr": 0.05, "decay": None},
                        {**_MUON, "lr": 0.02, "batch": 256, "decay": None},
                        {**_MUON, "lr": 0.05, "batch": 256, "decay": None},
                    ],
                },
                "resnet18_cifar": {
                    **_CASE,
                    "net": "resnet18_cifar",
                    "batch": 512,
                    "epochs": 30,
                    "augment": {"crop": 32, "pad": 4, "flip": 1, "cutout": 8},
                    "smoothing": 0.1,
                    "tries": [{"lr": 0.4, "decay": 5e-4}, {**UNIT_MUON, "lr": 0.1, "decay": 0.0}],
                },
                "inception_cifar10": {
                    **_CASE,
                    "net": "inception_cifar10",
                    "batch": 128,
                    "epochs": 30,
                    "tries": [{"lr": 0.1, "decay": None}],
                },
            },
            "workers": _NONE,
            "fast": {},
        },
    },
    run=run,
    figure=figure,
    originals={
        ("cuda_cnn_cifar10, 10 views", "accuracy"): 87.0,
        ("nin_cifar10", "accuracy"): 89.6,
    },
    shown=("accuracy", "seconds", "compile_seconds"),
    note=(
        "Accuracy of the last epoch on the test set. Rates rise and fall once over a shortened training, where the "
        "originals go down in stages over 800 epochs of CUDA-CNN and 128 of Purine; optimizer, rate and decay "
        "were chosen on held-out training images where there was more than one way. Seconds are of training alone; ≤ "
        "where other trainings shared the device."
    ),
)
