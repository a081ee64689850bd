"""Looking into a network: the filters it has learned, and the maps that they make of an image."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cnnkit.layers import Layer, walk
from cnnkit.notebook import style
from cnnkit.notebook.style import Picture

MOST = 64


def filters(run: Any, layer: int | str = 0) -> Picture:
    """The kernels of a convolution.

    Kernels over three channels are shown in colour, others channel by channel: a row for each kernel, a
    column for each channel that it looks at; at most 64 kernels and 16 channels.

    Args:
        run: a Run.
        layer: which convolution, counted from 0, or its path as `convolutions` lists it.

    Raises:
        ValueError: the network has no such layer; the text lists those that it has.
    """
    path, weights = _pick(layer, convolutions(run), "convolution")
    height, width, channels, number = weights.shape
    if channels == 3:
        tiles = list(np.moveaxis(_unit(weights), -1, 0))[:MOST]
        columns = 8
    else:
        shown = min(channels, 16)
        tiles = [weights[:, :, c, k] for k in range(min(number, MOST)) for c in range(shown)]
        columns = 8 if channels == 1 else shown
    title = f"{path}: {number} kernels of {height}×{width} over {channels} channel{'s' * (channels > 1)}"
    return _mosaic(tiles, columns, title, signed=channels != 3)


def convolutions(run: Any) -> dict[str, np.ndarray]:
    """Kernels [height, width, channels, number] of every layer that has some, by the layer's path."""
    found = {}
    for path, _, own in walk(run.net, run.params):
        if isinstance(own, dict) and getattr(own.get("w"), "ndim", 0) == 4:
            found[path] = np.asarray(own["w"], np.float32)
    return found


def feature_maps(run: Any, image: int | np.ndarray = 0, layer: int | str = 0, part: str = "test") -> Picture:
    """What a layer makes of one image, channel by channel; at most 64 of them.

    Args:
        run: a Run.
        image: the number of an example of the part, or an image uint8 [H, W, C].
        layer: which of the layers that give images, counted from 0, or its path.
        part: ``"train"``, ``"held_out"`` or ``"test"``.

    Raises:
        ValueError: the network has no such layer; the text lists those that it has.
    """
    pixels = image if isinstance(image, np.ndarray) else run.data.split(part).images[image]
    made = {path: y for path, y in activations(run, pixels) if y.ndim == 3}
    path, maps = _pick(layer, made, "layer with maps")
    tiles = list(np.moveaxis(maps, -1, 0))[:MOST]
    size = f"{maps.shape[0]}×{maps.shape[1]}×{maps.shape[2]}"
    return _mosaic(tiles, 8, f"{path}: {size}", signed=bool(maps.min() < 0))


def activations(run: Any, image: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Every layer's path and its output for one image, without the batch, in the order of computing.

    Args:
        run: a Run.
        image: uint8 [H, W, C].
    """
    x = run.task.inputs(jnp.asarray(image)[None]).astype(jnp.float32)
    model = run.model
    return [
        (path, np.asarray(y[0], np.float32)) for path, y in _through(run.net, model.params, model.state, x)
    ]


def _through(
    net: Layer, params: Any, state: Any, x: jax.Array, path: str = ""
) -> Iterator[tuple[str, jax.Array]]:
    """Each layer's output; the last one given is the network's."""
    opened = net.parts and (net.kind == "serial" or net.join is not None)
    if not opened:
        yield path or net.name, net.apply(params, state, x, key=None, train=False)[0]
        return
    ys = []
    for i, (part, p, s) in enumerate(zip(net.parts, params, state, strict=True)):
        at = f"{i} {part.name}"
        y = x
        for where, y in _through(part, p, s, x, f"{path} / {at}" if path else at):
            yield where, y
        ys.append(y)
        if net.join is None:
            x = y
    if net.join is not None:
        yield f"{path} / {net.name}" if path else net.name, net.join(ys)


def _pick(layer: int | str, options: dict[str, np.ndarray], what: str) -> tuple[str, np.ndarray]:
    paths = list(options)
    if isinstance(layer, int) and -len(paths) <= layer < len(paths):
        return paths[layer], options[paths[layer]]
    if layer in options:
        return str(layer), options[str(layer)]
    listed = "; ".join(f"{i}: {path}" for i, path in enumerate(paths)) or "none"
    raise ValueError(f"no {what} {layer!r} in this network; it has {listed}")


def _mosaic(tiles: list[np.ndarray], columns: int, title: str, signed: bool) -> Picture:
    """Tiles of one size in one image, a pixel of white between them; signed ones on a scale around 0."""
    height, width = tiles[0].shape[:2]
    columns = min(columns, len(tiles))
    rows = -(-len(tiles) // columns)
    whole = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1, *tiles[0].shape[2:]), np.nan)
    for i, tile in enumerate(tiles):
        top, left = i // columns * (height + 1), i % columns * (width + 1)
        whole[top : top + height, left : left + width] = tile
    inches = min(0.75 * columns, 7.0)
    figure, (ax,) = style.figure(max(inches, 3.0), min(inches * whole.shape[0] / whole.shape[1], 9.0) + 0.3)
    if whole.ndim == 3:
        scale: dict[str, Any] = {}
        whole = np.nan_to_num(whole, nan=1.0)
    else:
        top = float(np.nanmax(np.abs(whole))) or 1.0
        scale = (
            {"cmap": "RdBu_r", "vmin": -top, "vmax": top}
            if signed
            else {"cmap": "viridis", "vmin": 0, "vmax": top}
        )
    style.image_axes(ax, title).imshow(whole, interpolation="nearest", **scale)
    ax.set_title(title, fontsize=8, color=style.TEXT, pad=4)
    return figure


def _unit(weights: np.ndarray) -> np.ndarray:
    """Stretched to 0..1, all by the same."""
    low, high = float(weights.min()), float(weights.max())
    return (weights - low) / max(high - low, 1e-12)
