"""Looking at what a run sees and says: a batch, the confusion, the worst and the least sure, saliency."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from cnnkit.notebook import style
from cnnkit.notebook.inside import feature_maps, filters
from cnnkit.notebook.style import Picture
from cnnkit.train.loop import lay_out
from cnnkit.train.step import Source, mini_batch

__all__ = ["batch", "class_accuracy", "confusion", "feature_maps", "filters", "saliency", "unsure", "worst"]

COLUMNS = 10


def batch(run: Any, number: int = 0, epoch: int = 0, count: int = 10) -> Picture:
    """The first images of a mini-batch, as they lie in the data set and as the run is given them.

    Args:
        run: a Run.
        number: which mini-batch of the epoch.
        epoch: from 0; the same epoch and number show the same images for ever.
        count: how many of its images.

    Raises:
        ValueError: the epoch has no such mini-batch.
    """
    if not 0 <= number < run.mini_batches:
        raise ValueError(
            f"number is {number}; an epoch of this run has mini-batches 0 to {run.mini_batches - 1}"
        )
    drawn = mini_batch(Source(*run.data.train), lay_out(run, epoch), number)
    augment_key, _ = jax.random.split(drawn.key)
    task = run.task.at(epoch)
    given = jax.jit(task.augmented)(drawn, augment_key) * task.std + task.mean
    real = np.flatnonzero(np.asarray(drawn.weight) > 0)[:count]
    names = [run.data.classes[label] for label in np.asarray(drawn.labels)[real]]
    above = _sheet(np.asarray(drawn.images)[real] / 255, names, len(real), rows=2)
    for ax, image in zip(above.axes[len(real) :], np.asarray(given, np.float32)[real]):
        _show(ax, image)
    for ax, text in zip(above.axes[:: len(real)], ("as it is", "as given")):
        ax.set_ylabel(text, fontsize=8, color=style.TEXT)
    return above


def confusion(run: Any, part: str = "test") -> Picture:
    """How often each class is taken for each: rows are what is true, columns what the run says.

    Args:
        run: a Run.
        part: ``"train"``, ``"held_out"`` or ``"test"``.
    """
    counts = confusion_counts(run, part)
    classes = run.data.classes
    n = len(classes)
    size = min(0.34 * n + 1.4, 9.0)
    figure, (ax,) = style.figure(size, size)
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    ax.imshow(share, cmap="Blues", vmin=0, vmax=1)
    ax.grid(False)
    if n <= 20:
        for (i, j), count in np.ndenumerate(counts):
            if count:
                color = "white" if share[i, j] > 0.5 else style.TEXT
                ax.text(j, i, f"{count}", ha="center", va="center", fontsize=7, color=color)
        ax.set_xticks(range(n), classes, rotation=90 if max(map(len, classes)) > 3 else 0)
        ax.set_yticks(range(n), classes)
    right = np.trace(counts)
    title = f"{style.PART_NAMES[part]}: {right} of {counts.sum()} right"
    style.label(ax, "the run says", "it is", title)
    return figure


def confusion_counts(run: Any, part: str = "test") -> np.ndarray:
    """int [classes, classes]: how many examples of each true class (row) are called each class (column)."""
    said, labels = run.predict(part).argmax(-1), run.data.split(part).labels
    n = len(run.data.classes)
    return np.bincount(labels * n + said, minlength=n * n).reshape(n, n)


def class_accuracy(run: Any, part: str = "test") -> Picture:
    """The share of each class's examples that the run gets right, and of all.

    Args:
        run: a Run.
        part: ``"train"``, ``"held_out"`` or ``"test"``.
    """
    counts = confusion_counts(run, part)
    each = 100 * np.diag(counts) / np.maximum(counts.sum(1), 1)
    whole = 100 * np.trace(counts) / counts.sum()
    classes = run.data.classes
    figure, (ax,) = style.figure(max(3.5, min(0.32 * len(classes) + 1.2, 12)), 2.6)
    ax.bar(range(len(classes)), each, color=style.PALETTE["blue"], width=0.7)
    ax.axhline(whole, color=style.PALETTE["vermilion"], linestyle="--", linewidth=1.4)
    ax.set_xticks(range(len(classes)), classes, rotation=90 if max(map(len, classes)) > 3 else 0)
    low = min(each.min(), whole)
    ax.set_ylim(max(0.0, low - 0.3 * (100.5 - low) - 1), 100.5)
    style.label(ax, "", "right (%)", f"{style.PART_NAMES[part]}, all classes {whole:.2f} % (dashed)")
    return figure


def worst(run: Any, part: str = "test", count: int = 20) -> Picture:
    """The examples whose true class the run holds for least likely, the worst first.

    Args:
        run: a Run.
        part: ``"train"``, ``"held_out"`` or ``"test"``.
        count: how many.
    """
    chances, labels = run.predict(part), run.data.split(part).labels
    of_truth = chances[np.arange(len(labels)), labels]
    return _judged(run, part, chances, np.argsort(of_truth, kind="stable")[:count])


def unsure(run: Any, part: str = "test", count: int = 20) -> Picture:
    """The examples between whose two likeliest classes the run wavers most, the least sure first.

    Args:
        run: a Run.
        part: ``"train"``, ``"held_out"`` or ``"test"``.
        count: how many.
    """
    chances = run.predict(part)
    two = np.sort(chances, -1)[:, -2:]
    return _judged(run, part, chances, np.argsort(two[:, 1] - two[:, 0], kind="stable")[:count])


def saliency(run: Any, images: Sequence[int] | np.ndarray = range(10), part: str = "test") -> Picture:
    """Images, and below each how much every pixel sways the score of the likeliest class.

    ``max over channels of |∂ logit / ∂ pixel|`` (Simonyan et al. 2014), each map scaled by itself.

    Args:
        run: a Run.
        images: numbers of examples of the part, or images uint8 [N, H, W, C].
        part: ``"train"``, ``"held_out"`` or ``"test"``.
    """
    shown = _chosen(run, images, part)
    maps, said = saliency_maps(run, shown)
    figure = _sheet(shown / 255, [run.data.classes[c] for c in said], len(shown), rows=2)
    for ax, each in zip(figure.axes[len(shown) :], maps):
        style.image_axes(ax).imshow(each, cmap="magma", vmin=0, vmax=max(float(each.max()), 1e-12))
    return figure


def saliency_maps(run: Any, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(float32 [N, H, W], int [N]): each pixel's sway over the likeliest class, and that class.

    Args:
        run: a Run.
        images: uint8 [N, H, W, C].
    """
    task, model = run.task, run.model

    def score(pixels):
        logits, _ = task.logits(model.params, model.state, task.inputs(255 * pixels), None, False)
        return logits.max(-1).sum(), logits.argmax(-1)

    slope, said = jax.jit(jax.grad(score, has_aux=True))(np.float32(images) / 255)
    return np.abs(np.asarray(slope)).max(-1), np.asarray(said)


def _judged(run: Any, part: str, chances: np.ndarray, which: np.ndarray) -> Picture:
    split, classes = run.data.split(part), run.data.classes
    said = chances.argmax(-1)
    titles = [
        f"{classes[split.labels[i]]} → {classes[said[i]]}\n{100 * chances[i, said[i]]:.0f} %" for i in which
    ]
    return _sheet(split.images[which] / 255, titles, min(len(which), COLUMNS))


def _chosen(run: Any, images: Any, part: str) -> np.ndarray:
    """Images themselves, or those with these numbers.

    Raises:
        ValueError: a number that the part does not have.
    """
    if isinstance(images, np.ndarray) and images.ndim == 4:
        return images
    which, there = np.asarray(images, int), run.data.split(part).images
    if len(which) and not (which.min() >= 0 and which.max() < len(there)):
        raise ValueError(
            f"{run.data.name} has {style.PART_NAMES[part]} images 0 to {len(there) - 1}, not {which.max()}"
        )
    return there[which]


def _sheet(images: np.ndarray, titles: Sequence[str], columns: int, rows: int | None = None) -> Picture:
    """Images 0..1 in rows, each under its title; axes that are left over stay empty."""
    columns = max(columns, 1)
    rows = rows or -(-len(images) // columns)
    lines = max((title.count("\n") + 1 for title in titles), default=0)
    wide = 7.0 / max(columns, 7)
    figure, axes = style.figure(max(wide * columns, 2.0), rows * (wide + 0.13 * lines + 0.05), rows, columns)
    for ax in axes:
        style.image_axes(ax)
    for ax, image, title in zip(axes, images, titles):
        _show(ax, image)
        ax.set_title(title, fontsize=7, color=style.TEXT, pad=2)
    return figure


def _show(ax: Any, image: np.ndarray) -> None:
    """One image 0..1, grey or in colour."""
    grey = {"cmap": "gray", "vmin": 0, "vmax": 1} if image.shape[-1] == 1 else {}
    ax.imshow(np.clip(image[..., 0] if grey else image, 0, 1), **grey)
