"""Augmentations that follow one another as a training goes on, for example from small crops to whole images."""

from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from cnnkit.augment.base import Augment, Kind, Shape, at_least

_NEVER = Kind(lambda images, drawn, background: images)


def stages(*parts: Any) -> Augment:
    """One augmentation for the first epochs, another for the next, the last one to the end.

    Their results may differ in size: then only a `Run` can use them, which compiles a program for each, and the
    network must have the same parameters on all of them. Evaluation sees images as the last stage does.

    Args:
        parts: (augmentation, epochs) pairs; the last one's epochs may be left out.

    Raises:
        TypeError: something else than such pairs.
        ValueError: epochs that are no whole number of at least 1.

    >>> from cnnkit.augment import crop
    >>> made = stages((crop(24), 3), (crop(28), 2), crop(32, pad=4))
    >>> [made.at(epoch).out_shape((32, 32, 3))[0] for epoch in range(7)]
    [24, 24, 24, 28, 28, 32, 32]
    >>> print(made)
    stages((crop(24), 3), (crop(28), 2), crop(32, pad=4))
    """
    if not parts:
        raise TypeError("stages: give it (augmentation, epochs) pairs, the last one perhaps without epochs")
    pairs = [part if isinstance(part, tuple | list) else (part, None) for part in parts]
    for i, pair in enumerate(pairs):
        if len(pair) != 2 or not isinstance(pair[0], Augment):
            raise TypeError(f"stages: part {i} is {_written(parts[i])}, not an (augmentation, epochs) pair")
        if pair[0].stages:
            raise TypeError(f"stages: part {i} has stages itself; give its parts one by one")
        if i < len(pairs) - 1 or pair[1] is not None:
            at_least(f"stages: epochs of part {i}", pair[1], 1, whole=True)
    augments, epochs = zip(*pairs, strict=True)

    def shape(entering: Shape) -> Shape:
        return [augment.out_shape(entering) for augment in augments][-1]

    return Augment(
        "stages",
        {"epochs": epochs},
        _NEVER,
        lambda source: None,
        at_test=augments[-1].test,
        shape=shape,
        parts=augments,
        stages=(*accumulate(epochs[:-1]), None),
    )


def _written(part: Any) -> str:
    if isinstance(part, Augment):
        return str(part)
    return f"({', '.join(map(_written, part))})" if isinstance(part, tuple) else repr(part)


def staged(key: jax.Array, images: jax.Array, made: Augment, index: Any, epoch: Any) -> jax.Array:
    """The images as the epoch's stage has them, also where the epoch is traced and all sizes are the same."""
    if epoch is None:
        raise ValueError(
            "stages needs to know the epoch: call augment(key, images, epoch=…), or augment.at(epoch)"
        )
    if not isinstance(epoch, jax.core.Tracer):
        return made.at(int(epoch))(key, images, index=index, epoch=epoch)
    sizes = {part.out_shape(images.shape[1:]) for part in made.parts}
    if len(sizes) > 1:
        shown = " and ".join("×".join(map(str, size)) for size in sorted(sizes))
        raise ValueError(
            f"stages gives images of {shown}: only a Run trains on several sizes, as it takes a program for each; "
            "here all stages must give one size, or take augment.at(epoch)"
        )
    stage = jnp.searchsorted(jnp.array(made.stages[:-1], jnp.int32), epoch, side="right")
    calls = [lambda part=part: part(key, images, index=index, epoch=epoch) for part in made.parts]
    return lax.switch(stage, calls)
