"""What a run says of itself: where it stands, what it has recorded, in how many epochs."""

from pathlib import Path
from typing import Any

from cnnkit.data import Dataset
from cnnkit.record.rows import Record
from cnnkit.train.keeper import Keeper
from cnnkit.train.standing import Setup, Standing
from cnnkit.train.task import Model


class Facts:
    """The read-only side of `Run`, which sets what is declared here."""

    data: Dataset
    batch: int
    keeper: Keeper
    standing: Standing
    phase: str
    _setup: Setup

    @property
    def model(self) -> Model:
        """Parameters and statistics as they stand."""
        raise NotImplementedError

    @property
    def params(self) -> Any:
        """The network's parameters."""
        return self.model.params

    @property
    def state(self) -> Any:
        """The network's statistics."""
        return self.model.state

    @property
    def folder(self) -> Path | None:
        """Where record, settings and checkpoints lie."""
        return self.keeper.folder

    @property
    def record(self) -> Record:
        """Every row so far."""
        return self.keeper.record

    @property
    def history(self) -> list[dict[str, Any]]:
        """One row for each finished epoch."""
        return self.record.epochs()

    @property
    def engine(self) -> Any:
        """What trains, made at first use."""
        return self.standing.engine

    @property
    def epochs(self) -> int:
        """How many there will be."""
        return self._setup.epochs

    @property
    def epoch(self) -> int:
        """Whole epochs done."""
        return self.standing.epoch

    @property
    def position(self) -> int:
        """Mini-batches done of the epoch begun."""
        return self.standing.position

    @property
    def mini_batches(self) -> int:
        """Mini-batches in an epoch."""
        return self._setup.mini_batches

    @property
    def epochs_done(self) -> float:
        """Epochs done, with the part of the one begun."""
        return self.standing.epochs_done

    @property
    def examples_seen(self) -> int:
        """Training examples gone through."""
        return self.epoch * len(self.data) + min(self.position * self.batch, len(self.data))

    @property
    def training(self) -> bool:
        """Whether it trains now, in the background or not."""
        return self.phase in ("train", "evaluate", "paused")
