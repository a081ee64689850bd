"""Where a run stands: its epoch, the engine that holds its model, and the checkpoint that it goes back to."""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from cnnkit.data import Dataset
from cnnkit.parallel import workers as mesh
from cnnkit.parallel.fetch import Policy
from cnnkit.train import diverge, engine
from cnnkit.train.clock import Clocks, Compiled
from cnnkit.train.control import Control, Scales, Turns
from cnnkit.train.keeper import Keeper
from cnnkit.train.regroup import like, regroup, settle
from cnnkit.train.round import Carry
from cnnkit.train.rules import Rules
from cnnkit.train.solo import Solo
from cnnkit.train.task import SAMPLE, Model, Task, init_key


@dataclass
class Setup:
    """What is trained, on what, by whom: a run's settings as objects; ``config`` has them as plain data."""

    task: Task
    rules: Rules
    data: Dataset
    batch: int
    epochs: int
    seed: int
    fetch: Policy
    workers: int | None
    config: dict[str, Any]

    @property
    def mini_batches(self) -> int:
        """Mini-batches in an epoch."""
        return -(-len(self.data) // self.batch)


class Standing:
    """The changing part of a run.

    Args:
        setup: what does not change.
        keeper: its folder.
        clocks: where the time goes.
        control: what people wish.
    """

    def __init__(self, setup: Setup, keeper: Keeper, clocks: Clocks, control: Control) -> None:
        self.setup, self.keeper, self.clocks, self.control = setup, keeper, clocks, control
        self.turns = Turns()
        self.epoch = self.position = 0
        self._engine: Any = None
        self._at_rest: Model | None = None
        self._drawing: Compiled | None = None
        self._certain, self._ended = True, False
        if (facts := keeper.facts()) is not None:
            self.epoch, self.position = facts["epoch"], facts["position"]
            control.scales = Scales(*facts["scales"])

    @property
    def epochs_done(self) -> float:
        """Epochs done, with the part of the one begun."""
        return self.epoch + self.position / self.setup.mini_batches

    @property
    def engine(self) -> Any:
        """What trains, with the model as last saved or freshly drawn; made at first use."""
        return self._engine or self._make()

    def about_to_train(self) -> Any:
        """The engine; while a first model is drawn, its first program is compiled."""
        return self._engine or self._make(self._beside)

    def _make(self, draw: Callable[[Any], Model] | None = None) -> Any:
        made = engine.make(self.setup, self.clocks, self.control)
        content = self._content()
        if content is None:
            made.place(draw(made) if draw else self._fresh())
        else:
            self._restore(made, content)
            self.clocks.restore(self.keeper.facts_in(content)["clocks"])
        self._engine, self._at_rest = made, None
        return made

    def _beside(self, made: Any) -> Model:
        """A fresh model, drawn beside the compiling of what is to train it."""
        if not isinstance(made, Solo):
            return self._fresh()
        images = made.source.images

        def prepare():
            # What fails here fails again where it is needed, and is told there.
            with contextlib.suppress(Exception):
                made.prepare(jax.eval_shape(self._draw), self.setup.mini_batches, self.setup.batch)

        thread = threading.Thread(target=prepare, name="cnnkit compiling", daemon=True)
        thread.start()
        model = self._fresh(images)
        with self.clocks.measure("compile"):
            thread.join()
        return model

    def model(self, training: bool = False) -> Model:
        """The model where it lies; the training's next dispatch may take its memory over.

        Without an engine it is that of the checkpoint, or freshly drawn, and no training data is loaded.

        Args:
            training: whether another thread trains meanwhile.
        """
        if self._engine is None:
            if self._at_rest is None:
                self._at_rest = self._stored() or self._fresh()
            return self._at_rest
        if training and self._engine.talks:
            raise RuntimeError(
                "with delay=1 and several processes a model can be had when the training has ended: the last "
                "exchange is still under way; stop() the run first"
            )
        return self._engine.model()

    def restart(self, keeper: Keeper) -> None:
        """Stand at the beginning, with clocks at 0 and the model drawn by the setup's seed."""
        self.keeper, self.epoch, self.position = keeper, 0, 0
        self._at_rest, self._certain, self._ended = None, True, False
        self.clocks.reset()
        if not isinstance(self._engine, Solo):
            self._engine = None if self._engine is None else self._engine.close()
            return
        given = (init_key(self.setup.seed), self._engine.source.images)
        program = self._drawer().program(*given)
        with self.clocks.measure("train"):
            self._engine.place(program(*given))

    def advance(self, seconds: float, save: bool) -> None:
        """One dispatch of training, of about so many seconds."""
        with self.turns:
            self._certain = False
            self.position = self.engine.advance(self.position, seconds, save)
            self._certain = True

    def recover(self) -> None:
        """After an end within a dispatch, when what is on the device may be lost: stand at the last checkpoint.

        Raises:
            RuntimeError: the training diverged, and there is no checkpoint to stand at.
        """
        if self._ended:
            raise RuntimeError(
                "this training has diverged, and no checkpoint was kept to go on from: run.model has the weights from "
                "before; make another Run, with a lower rate or with warm-up"
            )
        if self._certain:
            return
        self._engine.close()
        self._engine, self._certain = None, True
        facts = self.keeper.facts() or {"epoch": 0, "position": 0}
        self.epoch, self.position = facts["epoch"], facts["position"]

    def snapshot(self) -> tuple[Carry, dict[str, Any]]:
        """Everything that a checkpoint holds: arrays on the host, and facts about them."""
        with self.turns:
            facts = {"epoch": self.epoch, "position": self.position, "clocks": self.clocks.facts()}
            return self.engine.snapshot(), facts | self.engine.facts()

    def keep(self) -> None:
        """Write a checkpoint, if there is a folder.

        Raises:
            Diverged: numbers are not finite; the checkpoint before stays.
        """
        if self.keeper.folder is None:
            return
        carry, facts = self.snapshot()
        own = carry.own
        if not diverge.finite((carry.common, own.opt, own.change)) or (own.bad >= 0).any():
            layer = diverge.bad_weight(self.setup.task.net, carry.common.model.params)
            at = f"{self.epochs_done:.2f}" + (f", first in {layer}" if layer else "")
            raise diverge.Diverged(
                f"not all weights are finite numbers at epoch {at}. {self.go_back()} {diverge.ADVICE}"
            )
        self.keeper.write(carry, facts)

    def go_back(self) -> str:
        """Return to the last checkpoint if there is one; what was kept, in words."""
        content = None if self.keeper.folder is None else self._content()
        if content is None:
            self._ended = True
            none = "No checkpoint was kept, for want of a folder="
            none = none if self.keeper.folder is None else "There was no checkpoint yet"
            return f"{none}; run.model has the weights from before."
        with self.turns:
            self._restore(self.engine, content)
        return f"The run is back at its checkpoint of epoch {self.epochs_done:.2f} in {self.keeper.folder}."

    def _fresh(self, images: Any = None) -> Model:
        """A model drawn by the setup's seed, and the training images for it where they lie already."""
        # On a CPU each small operation compiles at once and is there for the next run; a program of all of them
        # would be compiled by every run anew. A GPU takes as long for one small operation as for many together.
        if _in_pieces():
            with self.clocks.measure("compile"):
                return jax.block_until_ready(self._draw())
        given = (
            init_key(self.setup.seed),
            self.setup.data.train.images[:SAMPLE] if images is None else images,
        )
        program = self._drawer().program(*given)
        with self.clocks.measure("compile"):
            return jax.block_until_ready(program(*given))

    def _draw(self) -> Model:
        return self.setup.task.fresh(init_key(self.setup.seed), self.setup.data.train.images)

    def _drawer(self) -> Compiled:
        """All of the drawing as one program; made at first use."""
        if self._drawing is None:
            self._drawing = Compiled(self.setup.task.fresh, self.clocks)
        return self._drawing

    def _content(self) -> bytes | None:
        """The last checkpoint as process 0 has it: the disks of others need not hold one."""
        if jax.process_count() == 1:
            return self.keeper.content()
        mine = self.keeper.content() if jax.process_index() == 0 else None
        return mesh.from_first(mine or b"") or None

    def _restore(self, made: Any, content: bytes) -> None:
        facts = self.keeper.facts_in(content)
        carry = self._carry(content, facts)
        task = self._task_before(facts)
        carry = regroup(task, self.setup.rules, carry, made.workers, *facts["rates"])
        made.restore(carry, facts)
        self.epoch, self.position = facts["epoch"], facts["position"]

    def _task_before(self, facts: dict[str, Any]) -> Task:
        return self.setup.task.before(facts["epoch"], facts["position"])

    def _carry(self, content: bytes, facts: dict[str, Any]) -> Carry:
        shapes = like(self.setup.task, self.setup.rules, jax.eval_shape(self._draw), facts["workers"])
        return self.keeper.tree_in(content, shapes)

    def _stored(self) -> Model | None:
        if (content := self.keeper.content()) is None:
            return None
        facts = self.keeper.facts_in(content)
        task = self._task_before(facts)
        settled = settle(task, self.setup.rules, self._carry(content, facts), *facts["rates"])
        return jax.device_put(settled.model)


def _in_pieces() -> bool:
    """Whether weights are drawn operation by operation."""
    return jax.default_backend() == "cpu"
