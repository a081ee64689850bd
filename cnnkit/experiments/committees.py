"""Committees as they were chosen: in which views their members are asked, and the rows that come of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cnnkit.experiments.base import Row
from cnnkit.experiments.trials import figures, right

# Rows of the views in which images are judged, and which of them make a choice of views.
LOOKS = {
    "as it is": [0],
    "shifted": range(5),
    "turned": [0, 5, 6],
    "scaled": [0, *range(7, 15)],
    "all": range(15),
}


def looks(strengths: Mapping[str, float]) -> np.ndarray:
    """The image as it is, shifted towards the 4 corners, turned both ways, and at 8 other scales: [15, 6]."""
    from cnnkit.train.judges import looks

    shifted, turned = looks(shift=strengths["pixels"]), looks(degrees=strengths["degrees"])
    return np.concatenate([shifted, turned[1:], looks(percent=strengths["percent"])[1:]])


class Made:
    """What was trained for the test, as rows.

    Args:
        data: whose test part judges.
        way, augmentation, epochs, single, members, each, votes: as they were chosen.
    """

    def __init__(
        self,
        data: Any,
        way: str,
        augmentation: str,
        epochs: int,
        single: str,
        members: list[str],
        each: int,
        votes: tuple[str, str],
    ) -> None:
        self.labels, self.single, self.members, self.votes = data.test.labels, single, members, votes
        # The work's figure is MNIST's, and stands beside no other set's.
        self.of = "" if data.name == "mnist" else f", {data.name}"
        self.recipe = {"data": data.name, "way": way, "augmentation": augmentation, "epochs": epochs}
        self.together = {"members": members, "each": each, "views": votes[0], "vote": votes[1]}
        self.alone: dict[str, list[np.ndarray]] = {}
        self.curves: dict[str, list[list[float]]] = {}
        self.said: list[np.ndarray] = []
        self.seconds: list[float] = []

    def add(self, found: Mapping[str, tuple[list[Any], np.ndarray]], seconds: float | None = None) -> None:
        """A committee's members by their net, or with no seconds networks that are in none."""
        for net, (trained, chances) in found.items():
            self.alone.setdefault(net, []).extend(chances)
            curves = [[100 * row["train_accuracy"] for row in one.rows] for one in trained]
            self.curves.setdefault(net, []).extend(curves)
        if seconds is not None:
            together = np.concatenate([chances for _, chances in found.values()])
            self.said.append(asked(together, *self.votes))
            self.seconds.append(seconds)

    def rows(self, timed: bool) -> list[Row]:
        """Of each kind of network alone, and of the committees, with seconds or without."""
        labels, rows = self.labels, []
        for net, chances in self.alone.items():
            more = {**self.recipe, "net": net, "chosen": net == self.single}
            curve = np.mean(self.curves[net], 0).round(3).tolist()
            plain = [right(one[0], labels) for one in chances]
            rows.append(figures(f"single {net}{self.of}", "accuracy", plain, "%", **more, train_curve=curve))
            if self.votes[0] != "as it is":
                seen = [right(asked(one[None], *self.votes), labels) for one in chances]
                rows.append(
                    figures(f"single {net}{self.of}, views {self.votes[0]}", "accuracy", seen, "%", **more)
                )
        exact = [right(one, labels) for one in self.said]
        more = {**self.together, **self.recipe, **_wrong(self.said, labels)}
        rows.append(figures(f"committee{self.of}", "accuracy", exact, "%", **more))
        if timed:
            rows.append(figures(f"committee{self.of}", "seconds", self.seconds, "s", **self.together))
        return rows


def asked(chances: np.ndarray, views: str, how: str) -> np.ndarray:
    """What members [M, V, N, classes] say together in these views."""
    from cnnkit.train.judges import vote

    chosen = chances[:, list(LOOKS[views])]
    return vote(chosen.reshape(-1, *chosen.shape[2:]), how)


def _wrong(said: Sequence[np.ndarray], labels: np.ndarray) -> dict[str, Any]:
    """Which test images the first committee gets wrong, in how many committees each is, and its confusion."""
    first = said[0].argmax(-1)
    often = sum((one.argmax(-1) != labels).astype(int) for one in said)
    wrong = np.flatnonzero(first != labels)
    classes = said[0].shape[-1]
    counts = np.bincount(labels * classes + first, minlength=classes**2).reshape(classes, classes)
    rows = [[int(i), int(labels[i]), int(first[i]), int(often[i])] for i in wrong]
    return {"wrong": rows, "confusion": counts.tolist()}
