"""What becomes of each kind of layer in CUDA-CNN's text configuration files."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cnnkit.layers import (
    Layer,
    affine,
    avg_pool,
    conv,
    dense,
    dropout,
    leaky_relu,
    local,
    lrn,
    max_pool,
    relu,
    scaled_tanh,
    sigmoid,
)
from cnnkit.nets.cuda_cnn_text import Block

Shape = tuple[int, ...]

_ACTIVATIONS: dict[str, Callable[[], Layer]] = {
    "NL_RELU": relu,
    "NL_LRELU": lambda: leaky_relu(0.1),
    "NL_TANH": scaled_tanh,
    "NL_SIGMOID": sigmoid,
}
_POOLINGS = {"max": "max", "avr": "mean", "avg": "mean", "average": "mean", "mean": "mean"}


@dataclass
class Node:
    """A layer's block, and how it hangs together with others.

    Args:
        inputs: names of the layers before.
        outputs: of a branch: its outputs' names, and who takes each.
        layers, shape: what becomes of it, once its input's shape is known.
    """

    block: Block
    kind: str
    name: str
    inputs: list[str]
    outputs: dict[str, str] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)
    shape: Shape = ()


def _initial(block: Block) -> Any:
    size, kind = block.number("initW", 0), block.settings.get("initType")
    if size and not (kind and kind.value == "Gaussian"):
        block.read.add("initType")
        return "uniform", size
    block.read.discard("initW")
    return "he"


def _finish(node: Node, layer: Layer, shape: Shape) -> None:
    """A layer, then its non-linearity."""
    node.layers = [layer]
    if "NON_LINEARITY" in node.block.settings:
        node.layers.append(_ACTIVATIONS[node.block.one_of("NON_LINEARITY", {n: n for n in _ACTIVATIONS})]())
    node.shape = shape


def _image(node: Node, inputs: list[Shape]) -> Shape:
    if len(inputs[0]) != 3:
        node.block.fail(
            "INPUT", f"{node.kind} needs images, but {node.inputs[0]!r} gives a flat row of numbers"
        )
    return inputs[0]


def _kernel(node: Node, shape: Shape, padding: int) -> tuple[int, Shape]:
    size = node.block.whole("KERNEL_SIZE", 1)
    height, width = (n + 2 * padding - size + 1 for n in shape[:2])
    if min(height, width) < 1:
        node.block.fail(
            "KERNEL_SIZE", f"is {size}, too large for {shape[0]}×{shape[1]} pixels and PADDING={padding}"
        )
    return size, (height, width)


def _convolution(node: Node, inputs: list[Shape]) -> None:
    shape, block = _image(node, inputs), node.block
    padding, amount = block.whole("PADDING", 0, 0), block.whole("KERNEL_AMOUNT", 1)
    size, out = _kernel(node, shape, padding)
    by_map = node.kind == "CONV"
    layer = conv(
        amount * shape[2] if by_map else amount,
        size,
        padding=padding or "valid",
        groups=shape[2] if by_map else 1,
        tied=by_map,
        decay=block.number("WEIGHT_DECAY", 0),
        init=_initial(block),
    )
    _finish(node, layer, (*out, layer.config["features"]))


def _local(node: Node, inputs: list[Shape]) -> None:
    shape, block = _image(node, inputs), node.block
    size = block.whole("KERNEL_SIZE", 1)
    decay = block.number("WEIGHT_DECAY", 0)
    layer = local(shape[2], size, padding="same", groups=shape[2], decay=decay, init=_initial(block))
    _finish(node, layer, shape)


def _nin(node: Node, inputs: list[Shape]) -> None:
    shape, block = _image(node, inputs), node.block
    features = block.whole("KERNEL_AMOUNT", 1, shape[2])
    layer = conv(features, 1, decay=block.number("WEIGHT_DECAY", 0), init=_initial(block))
    _finish(node, layer, (*shape[:2], features))


def _pooling(node: Node, inputs: list[Shape]) -> None:
    shape, block = _image(node, inputs), node.block
    make = max_pool if block.one_of("POOLINGTYPE", _POOLINGS) == "max" else avg_pool
    size, skip = block.whole("SIZE", 1), block.whole("SKIP", 1)
    height, width = (-(-n // skip) for n in shape[:2])
    _finish(node, make(size, skip, padding="clip"), (height, width, shape[2]))


def _lrn(node: Node, inputs: list[Shape]) -> None:
    shape, block = _image(node, inputs), node.block
    size = 2 * (block.whole("LRN_N", 1) // 2) + 1
    k, alpha, beta = (block.number(key) for key in ("LRN_K", "LRN_ALPHA", "LRN_BALTA"))
    if not k:
        block.fail("LRN_K", "is 0; a number above 0 is needed")
    _finish(node, lrn(size, k=k, alpha=alpha / size, beta=beta), shape)


def _one(node: Node, inputs: list[Shape]) -> None:
    _finish(node, affine(decay=node.block.number("WEIGHT_DECAY", 0)), inputs[0])


def _full(node: Node, inputs: list[Shape]) -> None:
    block = node.block
    neurons = block.whole("NUM_FULLCONNECT_NEURONS", 1)
    decay, rate = block.number("WEIGHT_DECAY", 0), block.number("DROPOUT_RATE", 0, below=1)
    _finish(node, dense(neurons, decay=decay, init=_initial(block)), (neurons,))
    node.layers += [dropout(rate)] if rate else []


def _softmax(node: Node, inputs: list[Shape]) -> None:
    block = node.block
    classes, decay = block.whole("NUM_CLASSES", 1), block.number("WEIGHT_DECAY", 0)
    init = _initial(block)
    node.layers = [dense(classes, decay=decay, init="lecun" if init == "he" else init)]
    node.shape = (classes,)


def _same(node: Node, inputs: list[Shape]) -> None:
    node.shape = inputs[0]


def _combine(node: Node, inputs: list[Shape]) -> None:
    node.shape = (sum(math.prod(shape) for shape in inputs),)


KINDS: dict[str, Callable[[Node, list[Shape]], None]] = {
    "DATA": _same,
    "CONVCFM": _convolution,
    "CONV": _convolution,
    "LOCAL": _local,
    "NIN": _nin,
    "POOLING": _pooling,
    "FC": _full,
    "SOFTMAX": _softmax,
    "LRN": _lrn,
    "ONE": _one,
    "BRANCHLAYER": _same,
    "COMBINELAYER": _combine,
}
"""By the value of LAYER: sets a node's layers and its shape from the shapes of its inputs."""
