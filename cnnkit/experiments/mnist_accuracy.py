"""MNIST as exactly as can be: single networks, and committees of networks that differ in kind or in their kernels."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cnnkit.experiments.base import Experiment, Row
from cnnkit.experiments.committees import LOOKS, Made, asked, looks
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
    surprise,
)
from cnnkit.layers import Layer
from cnnkit.names import choose
from cnnkit.train.schedule import one_cycle


def run(settings: Mapping[str, Any], folder: Path) -> list[Row]:
    """Choose on held-out images, then train on all, and judge once by the test set."""
    return Search(settings, folder).run()


class Search:
    """The choices one after another, and what is trained by them.

    Args:
        settings: of a preset.
        folder: where rows are kept as they come.
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        from cnnkit.data import load

        self.settings, self.data = settings, load(settings["data"])
        self.book = Book(folder, print if settings["say"] else None)
        self.looks = looks(settings["views"])
        self.nets, self.way = list(settings["nets"]), next(iter(settings["ways"]))
        self._trials: dict[tuple[str, str, str], Trial] = {}
        self.compile_seconds = 0.0

    def run(self) -> list[Row]:
        """All rows."""
        augmentation, epochs, found = self._recipe()
        single, members, votes = self._members(augmentation, epochs, found)
        if self.settings["timed"]:
            self.book.add(figures("all programs", "compile_seconds", [self.compile_seconds], "s"))
        self._test(augmentation, epochs, single, members, votes)
        if self.settings["workers"]["seeds"]:
            self.by_workers(single, augmentation, epochs, self.settings["workers"])
        return self.book.rows

    def by_workers(self, net: str, augmentation: str, epochs: int, workers: Mapping[str, Any]) -> None:
        """A network alone, through workers that take local steps, in the way that `way` names."""
        self.book.add(by_workers(self.trial(net, augmentation), f"single {net}", workers, epochs))

    def trial(self, net: str, augmentation: str) -> Trial:
        """A recipe's trial in the way that `way` names, made once."""
        s, name = self.settings, (net, augmentation, self.way)
        if name not in self._trials:
            way = s["ways"][self.way]
            same = [t for (other, _, how), t in self._trials.items() if (other, how) == (net, self.way)]
            self._trials[name] = Trial(
                self.data,
                s["hold"],
                decayed(self._net(net), way["decay"]),
                looks=self.looks,
                seer=same[0].seer if same else None,
                batch=way["batch"],
                dtype=s["dtype"],
                smoothing=way.get("smoothing", 0.0),
                optimizer=optimizer(way, one_cycle(way["lr"])),
                augment=chain(s["augmentations"][augmentation]),
            )
        return self._trials[name]

    def _net(self, name: str) -> Layer:
        from cnnkit import nets

        options = dict(self.settings["nets"][name])
        kind = choose(options.pop("net", "unpooled"), nets.NAMES, "network")
        return kind(len(self.data.classes), **options)

    def _compile(self, trials: Sequence[Trial]) -> None:
        self.compile_seconds += compile_all(trials)

    def _recipe(self) -> tuple[str, int, dict[str, Any]]:
        """Way to train, augmentation, then epochs, by one network on held-out images; the last is kept."""
        s, net = self.settings, self.settings["try_with"]
        self._choose_way(net, next(iter(s["augmentations"])))
        self._compile([self.trial(net, name) for name in s["augmentations"]])
        kept, rows = {}, []
        for name in s["augmentations"]:
            kept[name], row = self._try(net, name, s["epochs"][0])
            rows.append(row)
        augmentation = best(rows)["augmentation"]
        self.book.write()
        rows = [next(r for r in rows if r["chosen"])]
        by_epochs = {s["epochs"][0]: kept[augmentation]}
        for epochs in s["epochs"][1:]:
            by_epochs[epochs], row = self._try(net, augmentation, epochs)
            rows.append(row)
        epochs = best(rows)["epochs"]
        self.book.write()
        return augmentation, epochs, {net: by_epochs[epochs]}

    def _choose_way(self, net: str, augmentation: str) -> None:
        """Try the ways to train, shortened; with one there is nothing to choose."""
        s, rows = self.settings, []
        if len(s["ways"]) == 1:
            return
        trials = []
        for self.way in s["ways"]:
            trials.append(self.trial(net, augmentation))
        self._compile(trials)
        for self.way in s["ways"]:
            row = self._row(
                net, augmentation, s["way_epochs"], self._held_out(net, augmentation, s["way_epochs"])
            )
            rows.append({**row, "case": f"choice: {self.way}", "settings": s["ways"][self.way]})
            self.book.add(rows[-1])
        self.way = best(rows, "surprise")["way"]

    def _try(self, net: str, augmentation: str, epochs: int) -> tuple[np.ndarray, Row]:
        chances = self._held_out(net, augmentation, epochs)
        row = self._row(net, augmentation, epochs, chances)
        self.book.add(row)
        return chances, row

    def _held_out(self, net: str, augmentation: str, epochs: int) -> np.ndarray:
        return self.trial(net, augmentation).held_out(range(self.settings["tries"]), epochs)[1]

    def _row(self, net: str, augmentation: str, epochs: int, chances: np.ndarray) -> Row:
        labels = self.trial(net, augmentation).held.labels
        return figures(
            f"choice: {net}, {augmentation}, {epochs} epochs",
            "held_out_accuracy",
            [right(one[0], labels) for one in chances],
            "%",
            net=net,
            augmentation=augmentation,
            strengths=self.settings["augmentations"][augmentation],
            epochs=epochs,
            way=self.way,
            surprise=round(float(np.mean([surprise(one[0], labels) for one in chances])), 5),
        )

    def _members(
        self, augmentation: str, epochs: int, found: dict[str, Any]
    ) -> tuple[str, list[str], tuple[str, str]]:
        """Which network is best alone, and which together, in which views and by which vote."""
        s, rows = self.settings, []
        self._compile([self.trial(net, augmentation) for net in self.nets if net not in found])
        for net in self.nets:
            if net not in found:
                found[net], _ = self._try(net, augmentation, epochs)
        labels = self.trial(self.nets[0], augmentation).held.labels
        for net in self.nets:
            values = [right(one[0], labels) for one in found[net]]
            rows.append(figures(f"choice: single, {net}", "held_out_accuracy", values, "%", net=net))
        single = best(rows)["net"]
        self.book.add(*rows)
        together = []
        for size in range(1, len(self.nets) + 1):
            for members in itertools.combinations(self.nets, size):
                chances = np.concatenate([found[net] for net in members])
                together += [
                    self._together(members, chances, labels, name, how)
                    for name in LOOKS
                    for how in s["votes"]
                ]
        chosen = best(together, "surprise")
        # Of a hundred ways to ask them, those that were nearly chosen tell enough.
        together.sort(key=lambda r: (-r["mean"], r["surprise"]))
        self.book.add(*together[: s["shown"]])
        return single, chosen["members"], (chosen["views"], chosen["vote"])

    def _together(
        self, members: Sequence[str], chances: np.ndarray, labels: np.ndarray, name: str, how: str
    ) -> Row:
        said = asked(chances, name, how)
        return figures(
            f"choice: committee of {' and '.join(members)}, {name}, {how} votes",
            "held_out_accuracy",
            [right(said, labels)],
            "%",
            members=list(members),
            views=name,
            vote=how,
            surprise=round(surprise(said, labels), 5),
            size=len(chances),
        )

    def _test(
        self, augmentation: str, epochs: int, single: str, members: list[str], votes: tuple[str, str]
    ) -> None:
        """Committee after committee, none of whose members is in another, while there is time."""
        s, begun = self.settings, len(self.book.rows)
        made = Made(self.data, self.way, augmentation, epochs, single, members, s["each"], votes)
        for i in range(s["committees"]):
            if i >= s["least"] and self.book.seconds > s["limit_s"]:
                break
            seeds = range(1000 + i * s["each"], 1000 + (i + 1) * s["each"])
            before = {net: self.trial(net, augmentation).seconds for net in members}
            found = {net: self.trial(net, augmentation).tested(seeds, epochs) for net in members}
            took = sum(self.trial(net, augmentation).seconds - before[net] for net in members)
            made.add(found, took)
            del self.book.rows[begun:]
            self.book.add(*made.rows(s["timed"]))
        # Alone, a network is judged by more seeds than there are members of its kind.
        more = max(0, s["singles"] - len(made.alone.get(single, ())))
        if more:
            made.add({single: self.trial(single, augmentation).tested(range(2000, 2000 + more), epochs)})
            del self.book.rows[begun:]
            self.book.add(*made.rows(s["timed"]))


def figure(rows: list[Row]) -> Any:
    """Every seed's test accuracy and the median, alone and together; and the training curves."""
    from cnnkit.notebook import style

    picture, (left, right_) = style.figure(7.0, 2.9, columns=2)
    found = [r for r in rows if r["figure"] == "accuracy" and "views" not in r["case"]]
    for y, r in enumerate(found):
        color = style.COLORS[y % len(style.COLORS)]
        spread = np.linspace(-0.18, 0.18, len(r["samples"])) if len(r["samples"]) > 1 else [0.0]
        left.plot(r["samples"], y + np.asarray(spread), "o", color=color, markersize=3, alpha=0.7)
        left.plot([r["value"]] * 2, [y - 0.3, y + 0.3], color=color, linewidth=1.6)
        left.annotate(f"{r['value']:.2f}", (r["value"], y + 0.36), fontsize=8, color=style.TEXT, ha="center")
        if "train_curve" in r:
            epochs = range(1, 1 + len(r["train_curve"]))
            line = style.LINES[y % len(style.LINES)]
            right_.plot(
                epochs,
                100 - np.array(r["train_curve"]),
                color=color,
                linestyle=line,
                linewidth=1.4,
                label=r["case"],
            )
    style.case_ticks(left, found)
    left.set_ylim(-0.6, len(found))
    left.margins(x=0.15)
    style.label(left, "test accuracy, last epoch (%)")
    style.few_ticks(left.xaxis)
    style.few_ticks(right_.xaxis, 5, whole=True)
    right_.set_yscale("log")
    style.log_ticks(right_.yaxis)
    style.label(right_, "epoch", "training error (%)")
    style.legend(right_)
    return picture


_WORKERS = {"count": 2, "fetch": "warm_start(1, 8, epochs=1)", "seeds": 0}
_THESIS = {"percent": 12, "degrees": 12, "elastic": 3.4}
_SGD = {"optimizer": "sgd", "nesterov": True}
_MUON: dict[str, Any] = {**UNIT_MUON, "lr": 0.1, "batch": 1000, "decay": 0.0}
_DIGITS = {
    "data": "digits",
    "hold": 360,
    "dtype": "float32",
    "ways": {"SGD": {**_SGD, "lr": 0.1, "batch": 64, "decay": 1e-3}},
    "way_epochs": 2,
    "views": {"pixels": 0.5, "degrees": 6, "percent": 6},
    "votes": ["soft", "hard"],
    "shown": 6,
    "limit_s": 600,
    "least": 2,
    "singles": 2,
    "workers": _WORKERS,
    "say": False,
    "timed": False,  # what the small presets run on is shared, mostly
}

EXPERIMENT = Experiment(
    name="mnist_accuracy",
    title="MNIST: single networks and committees",
    source="thesis; CUDA-CNN",
    presets={
        "smoke": {
            **_DIGITS,
            "nets": {"kernel 3": {"kernel": 3, "features": [4]}, "kernel 5": {"kernel": 5, "features": []}},
            "augmentations": {"turned": {"degrees": 12}},
            "try_with": "kernel 5",
            "epochs": [2],
            "tries": 1,
            "each": 1,
            "committees": 2,
        },
        "small": {
            **_DIGITS,
            "nets": {
                "kernel 3": {"kernel": 3, "features": [16, 24]},
                "kernel 5": {"kernel": 5, "features": [24]},
                "kernel 7": {"kernel": 7, "features": [32]},
            },
            "augmentations": {
                "thesis": {**_THESIS, "elastic": 1.0},
                "thesis, shifted": {**_THESIS, "elastic": 1.0, "pixels": 0.5},
            },
            "try_with": "kernel 3",
            "epochs": [12, 24],
            "tries": 2,
            "each": 2,
            "committees": 3,
        },
        "full": {
            "data": "mnist",
            "hold": 10_000,
            "dtype": "bfloat16",
            "ways": {
                "SGD": {**_SGD, "lr": 0.2, "batch": 256, "decay": 5e-4},
                "Muon": _MUON,
                "Muon, slower": {**_MUON, "lr": 0.04},
                "Muon, smoothed": {**_MUON, "smoothing": 0.1},
            },
            "way_epochs": 16,
            "views": {"pixels": 1, "degrees": 6, "percent": 5},
            "votes": ["soft", "hard"],
            "shown": 10,
            "limit_s": 300,
            "least": 3,
            "singles": 10,
            "workers": _WORKERS,
            "say": True,
            "timed": True,
            "nets": {
                **{f"kernel {k}": {"kernel": k} for k in (3, 5)},
                "fast94": {"net": "fast94"},
                "fast96": {"net": "fast96"},
            },
            "augmentations": {
                "thesis, shifted": {**_THESIS, "pixels": 2},
                "thesis, shifted, erased": {**_THESIS, "pixels": 2, "cutout": 8},
                "turned and shifted": {"degrees": 20, "pixels": 2.8},
            },
            "try_with": "fast94",
            "epochs": [40],
            "tries": 3,
            "each": 3,
            "committees": 5,
        },
    },
    run=run,
    figure=figure,
    originals={("committee", "accuracy"): 99.81},
    shown=("accuracy", "seconds", "compile_seconds"),
    note=(
        "Accuracy of the last epoch on the test set, which no choice has seen: the way to train, augmentation, members, views "
        "and vote were chosen on held-out training images, whose figures are in the file. Committees have no member in "
        "common; their seconds are those of training all members, one after another, without compiling; ≤ where "
        "other trainings shared the device. The thesis's figure is of its best epoch and best members on the test set."
    ),
)
