"""Committees' judgement: images looked at in several ways, and judges' votes counted."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cnnkit.augment import view
from cnnkit.layers import in_loop
from cnnkit.names import choose
from cnnkit.train.clock import Clocks, Compiled
from cnnkit.train.evaluate import padded_batches
from cnnkit.train.schedule import not_negative
from cnnkit.train.task import Model, Task

VOTES = ("soft", "hard")


def looks(
    *, shift: float = 0.0, flip: bool = False, percent: float = 0.0, degrees: float = 0.0
) -> np.ndarray:
    """The views in which images are judged, as float32 [V, 6]; the first one is the image as it is.

    Each that is switched on multiplies their number: 5 places, 2 flips, 3×3 scales, 3 turns.

    Args:
        shift: pixels towards each corner, beside the middle: with a network on cropped images the five crops.
        flip: also left for right.
        percent: also smaller and larger by so many percent, in either direction by itself.
        degrees: also turned by so many degrees, either way.

    CUDA-CNN's views.

    >>> len(looks()), len(looks(shift=4, flip=True)), len(looks(percent=5, degrees=6))
    (1, 10, 27)
    """
    not_negative("looks", shift=shift, percent=percent, degrees=degrees)
    corners = [(0.0, 0.0), *itertools.product((-shift, shift), repeat=2)] if shift else [(0.0, 0.0)]
    factors = [1.0, 1 - percent / 100, 1 + percent / 100] if percent else [1.0]
    turns = [0.0, -degrees, degrees] if degrees else [0.0]
    made = itertools.product(
        corners, (0.0, 1.0) if flip else (0.0,), itertools.product(factors, repeat=2), turns
    )
    rows = [(*place, mirrored, *scale, turn) for place, mirrored, scale, turn in made]
    return np.array(rows, np.float32)


PLAIN = looks()


def look(images: jax.Array, seen: Any) -> jax.Array:
    """Images float32 [B, H, W, C] in one view, a row of what `looks` gives."""
    moved = view(images, scale=(seen[3], seen[4]), degrees=seen[5], shift=(seen[0], seen[1]))
    return jnp.where(seen[2] > 0, moved[:, :, ::-1], moved)


def chances_in_views(task: Task, params: Any, state: Any, images: Any, index: Any, seen: Any) -> jax.Array:
    """Class probabilities float32 [V, batches, batch, classes] of padded batches in each view."""

    def batch(row, at):
        x = look(images[at].astype(jnp.float32) / 255, row)
        return jax.nn.softmax(task.logits(params, state, task.inputs(255 * x), None, train=False)[0])

    def one(_, row):
        return None, lax.scan(lambda _, at: (None, batch(row, at)), None, index)[1]

    with in_loop():
        return lax.scan(one, None, seen)[1]


class Seer:
    """Class probabilities of models of one task in several views, by one program.

    Args:
        task: network and input.
        clocks: whose ``evaluate`` runs meanwhile.
        batch: images at a time; what suits the device when left out.
    """

    def __init__(self, task: Task, clocks: Clocks | None = None, batch: int | None = None) -> None:
        self._clocks, self._batch = (
            clocks or Clocks(),
            batch or (500 if jax.default_backend() == "cpu" else 2000),
        )
        self._program = Compiled(functools.partial(chances_in_views, task), self._clocks)

    def compile(self, model: Model, images: np.ndarray, seen: np.ndarray = PLAIN) -> None:
        """Compile for so many images and views before they come, perhaps beside other programs."""
        self._program.program(*self._arguments(model, images, seen))

    def _arguments(self, model: Model, images: np.ndarray, seen: np.ndarray) -> tuple[Any, ...]:
        index, _ = padded_batches(len(images), min(self._batch, len(images)))
        # From the host always, as a program is compiled for arrays of one kind.
        return (*jax.device_get((model.params, model.state)), images, index, seen)

    def __call__(self, model: Model, images: np.ndarray, seen: np.ndarray = PLAIN) -> np.ndarray:
        """float32 [V, N, classes] of images uint8 [N, H, W, C]."""
        arguments = self._arguments(model, images, seen)
        program = self._program.program(*arguments)
        with self._clocks.measure("evaluate"):
            found = np.asarray(program(*arguments))
        return found.reshape(len(seen), -1, found.shape[-1])[:, : len(images)]


def vote(chances: np.ndarray, how: str = "soft") -> np.ndarray:
    """What many judges say together, float64 [N, classes]; rows sum to 1.

    Args:
        chances: [judges, N, classes], each judge's probabilities.
        how: ``"soft"``, their mean; or ``"hard"``, each judge's likeliest class as one vote, where a tie goes
            to the higher mean.

    Raises:
        ValueError: another way to vote.

    >>> both = np.array([[[0.6, 0.4]], [[0.6, 0.4]], [[0.1, 0.9]]])
    >>> vote(both, "soft").round(3).tolist(), vote(both, "hard").round(2).tolist()
    ([[0.433, 0.567]], [[0.67, 0.33]])
    """
    choose(how, dict.fromkeys(VOTES), "vote")
    mean = np.asarray(chances, np.float64).mean(0)
    if how == "soft":
        return mean
    classes = chances.shape[-1]
    counts = np.eye(classes)[chances.argmax(-1)].mean(0)
    tied = counts + 1e-6 * mean
    return tied / tied.sum(-1, keepdims=True)
