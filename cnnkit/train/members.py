"""Committees: networks that differ, trained one after another or side by side, saved, and asked for their votes."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from cnnkit.data import Dataset
from cnnkit.layers import Layer
from cnnkit.parallel import workers
from cnnkit.parallel.fetch import every
from cnnkit.record.folder import check_writable, write_whole
from cnnkit.train import settings
from cnnkit.train.clock import Clocks
from cnnkit.train.flock import Flock, Trained
from cnnkit.train.judges import PLAIN, Seer, vote
from cnnkit.train.rules import Rules
from cnnkit.train.run import Run

NAME = "committee.json"
Member = Layer | Mapping[str, Any]


def committee(
    members: Sequence[Member],
    data: Dataset,
    *,
    folder: str | Path | None = None,
    seed: int = 0,
    at_once: int | None = None,
    say: Callable[[str], None] = print,
    **shared: Any,
) -> "Committee":
    """Train a committee, or what is missing of it, and return it.

    ``committee([nets.unpooled(kernel=k) for k in (3, 5, 7)], data, folder="runs/c", epochs=10)``

    Members should differ in more than their seeds: kernel size, width, augmentation. A member that is trained
    to its end is not trained again, and one that was interrupted goes on.

    Args:
        members: networks, or what a run takes by name with ``net`` among it, such as
            ``{"net": …, "epochs": 20, "augment": …}``.
        data: what all learn from.
        folder: each member is a run in a folder of its own in this one; None keeps all in memory.
        seed: of the first member that names none; those after it count on.
        at_once: how many members that differ in their seeds alone are trained side by side, in one program, on
            each device; with ``workers=W`` devices in the settings, W times as many. There are no rounds then.
            They are evaluated and saved when they are trained. None trains member by member, as runs.
        say: is told of each member that is trained.
        shared: settings of a run that all members have; a member's own come first.

    Raises:
        ValueError: no members, a member without a network or with settings that cannot be, two members that
            are the same, or a folder that holds others; nothing is trained then.
        OSError: the folder cannot be written.
    """
    given = [_settings(i, member, seed, shared) for i, member in enumerate(members)]
    if not given:
        raise ValueError("a committee needs members: networks, or settings of runs with a net in each")
    where = None if folder is None else check_writable(folder)
    runs = [
        Run(data=data, folder=None if where is None else where / f"member-{i:02d}", **one)
        for i, one in enumerate(given)
    ]
    _differ(runs)
    if at_once is not None:
        _check_flocks(runs, at_once)
    if where is not None:
        names = [run.folder.name for run in runs if run.folder]
        write_whole(where / NAME, (json.dumps({"members": names}, indent=1) + "\n").encode())
    _train(runs, at_once, say)
    return Committee(runs)


class Committee:
    """Trained networks that are asked together.

    Args:
        runs: its members, all on the same data.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        if not runs:
            raise ValueError("a committee needs members")
        if len({run.data.fingerprint() for run in runs}) > 1:
            raise ValueError("the members of a committee must have the same data set")
        self.runs, self.data = list(runs), runs[0].data
        self._seers: dict[str, Seer] = {}

    @classmethod
    def load(
        cls, folder: str | Path, data: Dataset | None = None, nets: Sequence[Layer] | None = None
    ) -> "Committee":
        """The committee in a folder.

        Args:
            folder: where `committee` left it.
            data: the data set, where it is not one that is known by name.
            nets: the members' networks, where they have layers of your own making.

        Raises:
            FileNotFoundError: there is no committee, or a member's folder is gone.
            ValueError: it is damaged, a member is not trained to its end, or networks are not as many as members.
        """
        path = Path(folder) / NAME
        if not path.exists():
            raise FileNotFoundError(
                f"{folder} holds no committee: it has no {NAME}; train one with committee(…)"
            )
        try:
            names = [str(name) for name in json.loads(path.read_text(encoding="utf-8"))["members"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is damaged ({error}); call committee(…) again to write it anew"
            ) from error
        if nets is not None and len(nets) != len(names):
            raise ValueError(f"{len(nets)} networks were given for the {len(names)} members in {folder}")
        runs: list[Run] = []
        for i, name in enumerate(names):
            run = Run.load(Path(folder) / name, nets[i] if nets else None, data)
            data = run.data
            if run.epoch < run.epochs:
                raise ValueError(
                    f"{name} in {folder} is trained for {run.epoch} of {run.epochs} epochs; call committee(…) "
                    "with its settings to go on"
                )
            runs.append(run)
        return cls(runs)

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __repr__(self) -> str:
        return f"Committee of {len(self)} on {self.data.name}"

    def chances(self, images: np.ndarray | str = "test", looks: np.ndarray = PLAIN) -> np.ndarray:
        """What each member says in each view: float32 [members, views, N, classes].

        Args:
            images: uint8 [N, H, W, C], or a part of the data by its name.
            looks: views, from `looks`.
        """
        if isinstance(images, str):
            images = self.data.split(images).images
        images = settings.images(images, self.data.shape)
        return np.stack([self._seer(run)(run.model, images, looks) for run in self.runs])

    def predict(
        self, images: np.ndarray | str = "test", looks: np.ndarray = PLAIN, how: str = "soft"
    ) -> np.ndarray:
        """What all say together, float64 [N, classes]; rows sum to 1.

        Args:
            images: uint8 [N, H, W, C], or a part of the data by its name.
            looks: views, from `looks`.
            how: ``"soft"`` or ``"hard"``, as in `vote`.
        """
        found = self.chances(images, looks)
        return vote(found.reshape(-1, *found.shape[2:]), how)

    def evaluate(self, split: str = "test", looks: np.ndarray = PLAIN, how: str = "soft") -> dict[str, Any]:
        """Accuracy of all together, and of each member by itself.

        Args:
            split: ``"train"``, ``"held_out"`` or ``"test"``.
            looks: views, from `looks`.
            how: ``"soft"`` or ``"hard"``.

        Returns:
            accuracy (0 to 1), errors, examples, wrong (numbers of the examples), and members, their accuracies.
        """
        labels = self.data.split(split).labels
        found = self.chances(split, looks)
        said = vote(found.reshape(-1, *found.shape[2:]), how).argmax(-1)
        wrong = np.flatnonzero(said != labels)
        alone = [float((vote(one, how).argmax(-1) == labels).mean()) for one in found]
        return {
            "accuracy": 1 - len(wrong) / len(labels),
            "errors": len(wrong),
            "examples": len(labels),
            "wrong": wrong.tolist(),
            "members": alone,
        }

    def _seer(self, run: Run) -> Seer:
        # Members that differ in seeds have one program.
        key = json.dumps([run.config[name] for name in ("net", "augment", "normalize", "dtype")])
        if key not in self._seers:
            self._seers[key] = Seer(run.task, run.clocks)
        return self._seers[key]


def _settings(i: int, member: Member, seed: int, shared: Mapping[str, Any]) -> dict[str, Any]:
    own = {"net": member} if isinstance(member, Layer) else dict(member)
    found = {"seed": seed + i, **shared, **own}
    if "net" not in found:
        raise ValueError(f"member {i} has no net; give a network, or settings with a net among them")
    for key in ("folder", "data"):
        if key in found:
            raise ValueError(f"member {i} has its own {key}; a committee gives all members theirs")
    return found


def _differ(runs: Sequence[Run]) -> None:
    seen: dict[str, int] = {}
    for i, run in enumerate(runs):
        key = json.dumps([run.config[name] for name in (*settings.IDENTITY, "epochs")])
        if key in seen:
            raise ValueError(f"members {seen[key]} and {i} are the same; give them other seeds or networks")
        seen[key] = i


def _check_flocks(runs: Sequence[Run], at_once: int) -> None:
    """Let members that cannot be trained side by side be named before any is trained."""
    settings.count("at_once", at_once)
    for i, run in enumerate(runs):
        if not _begun(run):
            run.task.all_alike(f"at_once, as for member {i},")
            workers.make(run.config["workers"] or 1)
            usual = {**settings.describe_rules(Rules()), "fetch": every(1).describe()}
            if given := [f"{name}={run.config[name]!r}" for name in usual if run.config[name] != usual[name]]:
                raise ValueError(
                    f"member {i} has {', '.join(given)}, which is for workers that train one model together; with at_once "
                    "each device has models of its own. Leave out one or the other"
                )


def _begun(run: Run) -> bool:
    return bool(run.epoch or run.position)


def _train(runs: Sequence[Run], at_once: int | None, say: Callable[[str], None]) -> None:
    if at_once is not None:
        for group in _alike([run for run in runs if not _begun(run)]):
            _side_by_side(group, at_once, say)
    for i, run in enumerate(runs):
        if run.epoch < run.epochs:
            run.fit()
            say(f"member {i}: {run!r}")


def _alike(runs: Sequence[Run]) -> list[list[Run]]:
    """Those that differ in their seeds alone, together."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        same = {name: value for name, value in run.config.items() if name != "seed"}
        groups.setdefault(json.dumps(same), []).append(run)
    return list(groups.values())


def _side_by_side(runs: list[Run], at_once: int, say: Callable[[str], None]) -> None:
    first = runs[0]
    clocks = Clocks()
    flock = Flock(
        first.task,
        first.data.train,
        first.batch,
        at_once=at_once,
        workers=first.config["workers"] or 1,
        clocks=clocks,
    )
    seer = Seer(first.task, clocks)
    for begin in range(0, len(runs), flock.group):
        group = runs[begin : begin + flock.group]
        trained = flock.train([run.seed for run in group], first.epochs)
        for run, one in zip(group, trained, strict=True):
            _adopt(run, one, seer)
            say(f"{run!r}")


def _adopt(run: Run, trained: Trained, seer: Seer) -> None:
    """Let a run be as if it had trained this model itself."""
    run.engine.place(jax.device_put(trained.model))
    last = {}
    for part in run.judge:
        split = run.data.split(part)
        last[f"{part}_accuracy"] = float(
            (seer(trained.model, split.images)[0].argmax(-1) == split.labels).mean()
        )
    run.standing.epoch, run.standing.position, run.phase = run.epochs, 0, "done"
    rows = [{"kind": "epoch", **row} for row in trained.rows]
    run.record.append(*rows[:-1], rows[-1] | last)
    if run.folder:
        run.save()
