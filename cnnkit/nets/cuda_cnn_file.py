"""CUDA-CNN's text configuration files as networks of cnnkit's layers."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cnnkit import augment as augments
from cnnkit.augment import Augment
from cnnkit.layers import (
    Layer,
    affine,
    avg_pool,
    branch,
    conv,
    dense,
    dropout,
    leaky_relu,
    local,
    lrn,
    max_pool,
    relu,
    scaled_tanh,
    serial,
    sigmoid,
)
from cnnkit.names import choose
from cnnkit.nets.cuda_cnn_text import Block, blocks

Shape = tuple[int, ...]

_SHAPES = {1: (28, 28, 1), 3: (32, 32, 3)}  # MNIST's and CIFAR's, which CUDA-CNN comes with
_ACTIVATIONS: dict[str, Callable[[], Layer]] = {
    "NL_RELU": relu,
    "NL_LRELU": lambda: leaky_relu(0.1),
    "NL_TANH": scaled_tanh,
    "NL_SIGMOID": sigmoid,
}
_POOLINGS = {"max": "max", "avr": "mean", "avg": "mean", "average": "mean", "mean": "mean"}
_GLOBAL = "IS_GRADIENT_CHECKING BATCH_SIZE CHANNELS CROP SCALE ROTATION DISTORTION SHOWIMAGE HORIZONTAL"
_GLOBAL += " TEST_EPOCH WHITE_NOISE NON_LINEARITY COMBINE_FEATRUE_MAPS"
_LAYER = (
    "LAYER NAME INPUT SUBINPUT KERNEL_SIZE KERNEL_AMOUNT PADDING WEIGHT_DECAY initW initType NON_LINEARITY"
)
_LAYER += " SIZE SKIP POOLINGTYPE NUM_FULLCONNECT_NEURONS DROPOUT_RATE NUM_CLASSES OUTPUTS INPUTS LRN_K LRN_N"
_LAYER += " LRN_ALPHA LRN_BALTA COMBINE_FEATRUE_MAPS DROPCONNECT_RATE"


@dataclass(frozen=True)
class Configuration:
    """What a configuration file says.

    Args:
        net: the network; each layer's weight decay stands in it.
        batch: images in a mini-batch.
        augment: of training images, or None.
        shape: (H, W, C) of the images, before a crop.
        test_epoch: epochs between two evaluations.
        unused: settings that have no effect here, each as ``"line 9: SHOWIMAGE"``.
    """

    net: Layer
    batch: int
    augment: Augment | None
    shape: tuple[int, int, int]
    test_epoch: int
    unused: tuple[str, ...]

    @property
    def settings(self) -> dict[str, Any]:
        """What a run takes beside the network: batch, augment and evaluate_every."""
        return {"batch": self.batch, "augment": self.augment, "evaluate_every": self.test_epoch}


def from_cuda_cnn(path: str | Path, shape: tuple[int, int, int] | None = None) -> Configuration:
    """The network and the settings in one of CUDA-CNN's text configuration files.

    ``found = nets.from_cuda_cnn("MnistConfig.txt")`` and then ``Run(found.net, data, **found.settings)``.
    Weight decay is a layer's own and travels in ``found.net``; learning rates do not stand in such files: give
    the run an ``optimizer=sgd(stages(…))``.

    What a key means is what the program's source makes of it, with these differences. No layer takes a
    setting from the layer before it: NON_LINEARITY left out is none, WEIGHT_DECAY, PADDING and DROPOUT_RATE left
    out are 0. initType=Gaussian, or no initW, gives He's initial weights; else they are uniform, ±initW. An LRN
    window of an even number is one wider, as there, and LRN_ALPHA is divided by its width. WHITE_NOISE is halved,
    since images span 1 here and 2 there. LAYER=SOFTMAX is its dense layer, as losses take logits.

    Args:
        path: of the file.
        shape: (H, W, C) of the images; 28×28×1 or 32×32×3 by CHANNELS when left out.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is not of that form, or no network; the text names file, line and key.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; give the path of a CUDA-CNN configuration file")
    outside, layers = blocks(path.read_bytes().decode("utf-8", errors="replace"), path.name)
    _known(outside, _GLOBAL)
    batch, test_epoch = outside.whole("BATCH_SIZE", 1), outside.whole("TEST_EPOCH", 1, 1)
    shape = _shape(outside, shape)
    augment, seen = _augmentation(outside, shape)
    net = _Net(path.name, [_node(block) for block in layers], seen).build()
    unused = [line for block in (outside, *layers) for line in block.unread()]
    return Configuration(net, batch, augment, shape, test_epoch, tuple(unused))


def _known(block: Block, keys: str) -> None:
    known = dict.fromkeys(keys.split(), "")
    for key in block.settings:
        try:
            choose(key, known, "key")
        except ValueError as error:
            block.fail(key, str(error))


def _shape(outside: Block, shape: tuple[int, int, int] | None) -> tuple[int, int, int]:
    channels = outside.whole("CHANNELS", 1)
    shape = shape or _SHAPES.get(channels)
    if shape is None:
        outside.fail(
            "CHANNELS", f"is {channels}; say how large such images are: shape=(height, width, {channels})"
        )
    if shape[2] != channels:
        outside.fail("CHANNELS", f"is {channels}, but images of shape {shape} have {shape[2]}")
    return shape


def _augmentation(outside: Block, shape: tuple[int, int, int]) -> tuple[Augment | None, Shape]:
    """What the keys outside of all blocks ask for, and the shape that the network sees."""
    percent, degrees = outside.number("SCALE", 0, below=100), outside.number("ROTATION", 0)
    strength, noise = outside.number("DISTORTION", 0), outside.number("WHITE_NOISE", 0)
    height, width, channels = shape
    crop = outside.whole("CROP", 0, 0)
    if crop >= min(height, width):
        outside.fail("CROP", f"is {crop}; it must leave something of {height}×{width} pixels")
    parts = [augments.scale(percent)] if percent else []
    parts += [augments.rotate(degrees)] if degrees else []
    parts += [augments.elastic(strength)] if strength else []
    parts += [augments.crop((height - crop, width - crop))] if crop else []
    parts += [augments.flip()] if outside.flag("HORIZONTAL") else []
    parts += [augments.noise(noise / 2)] if noise else []
    return augments.chain(*parts) if parts else None, (height - crop, width - crop, channels)


@dataclass
class _Node:
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


def _node(block: Block) -> _Node:
    kind = block.one_of("LAYER", {name: name for name in _KINDS})
    _known(block, _LAYER)
    name = block.text("NAME")
    if kind == "DATA":
        return _Node(block, kind, name, [])
    if kind == "COMBINELAYER":
        return _Node(block, kind, name, block.names("INPUTS"))
    outputs = dict.fromkeys(block.names("OUTPUTS"), "") if kind == "BRANCHLAYER" else {}
    return _Node(block, kind, name, [block.text("INPUT")], outputs)


class _Net:
    """The blocks of a file as a graph, and the network made of it.

    Args:
        file: how errors call the file.
        nodes: in the file's order.
        shape: (H, W, C) of the images that the first layer sees.
    """

    def __init__(self, file: str, nodes: list[_Node], shape: Shape) -> None:
        self.file, self.shape = file, shape
        self.nodes: dict[str, _Node] = {}
        for node in nodes:
            if (same := self.nodes.get(node.name)) is not None:
                node.block.fail("NAME", f"{node.name!r} is the layer of line {same.block.line} already")
            self.nodes[node.name] = node

    def build(self) -> Layer:
        """The network.

        Raises:
            ValueError: the layers make none.
        """
        data, end = self._only("DATA"), self._only("SOFTMAX")
        data.shape = self.shape
        self._join()
        for node in self._in_order():
            if node.kind != "DATA":
                _KINDS[node.kind](node, [self.nodes[name].shape for name in node.inputs])
        return serial(*self._path(end.name, data.name))

    def _only(self, kind: str) -> _Node:
        found = [node for node in self.nodes.values() if node.kind == kind]
        if not found:
            raise ValueError(f"{self.file}: no layer has LAYER={kind}; a network has one")
        if len(found) > 1:
            found[1].block.fail("LAYER", f"a network has one {kind}, and line {found[0].block.line} has it")
        return found[0]

    def _join(self) -> None:
        """Hold every INPUT against the names there are, and give each output to one layer."""
        takers: dict[str, str] = {}
        for node in self.nodes.values():
            key = "INPUTS" if node.kind == "COMBINELAYER" else "INPUT"
            for name in node.inputs:
                try:
                    source = choose(name, self.nodes, "layer")
                except ValueError as error:
                    node.block.fail(key, str(error))
                if source.kind == "BRANCHLAYER":
                    self._take(node, key, source)
                elif name in takers:
                    node.block.fail(
                        key,
                        f"{name!r} goes to {takers[name]!r} already; a BRANCHLAYER sends one output down several paths",
                    )
                takers[name] = node.name
        for node in self.nodes.values():
            idle = [output for output, taker in node.outputs.items() if not taker]
            if idle:
                node.block.fail("OUTPUTS", f"{idle[0]!r} is the SUBINPUT of no layer")
            if node.kind != "SOFTMAX" and node.name not in takers:
                node.block.fail("NAME", f"{node.name!r} is the INPUT of no layer, so it leads nowhere")

    def _take(self, node: _Node, key: str, source: _Node) -> None:
        if key == "INPUTS":
            node.block.fail(key, f"{source.name!r} is a BRANCHLAYER; put a layer between it and this one")
        output = node.block.text("SUBINPUT")
        if output not in source.outputs:
            node.block.fail(
                "SUBINPUT", f"{source.name!r} has no output {output!r}, but {', '.join(source.outputs)}"
            )
        if source.outputs[output]:
            node.block.fail("SUBINPUT", f"{output!r} goes to {source.outputs[output]!r} already")
        source.outputs[output] = node.name

    def _in_order(self) -> Iterator[_Node]:
        """Layers after their inputs."""
        left = dict(self.nodes)
        while left:
            ready = [n for n in left.values() if not any(name in left for name in n.inputs)]
            if not ready:
                circle = self._circle(left)
                self.nodes[circle[0]].block.fail("INPUT", f"layers in a circle: {' ← '.join(circle)}")
            for node in ready:
                del left[node.name]
                yield node

    def _circle(self, left: dict[str, _Node]) -> list[str]:
        way = [next(iter(left))]
        while way[-1] not in way[:-1]:
            way.append(next(name for name in left[way[-1]].inputs if name in left))
        return way[way.index(way[-1]) :]

    def _path(self, end: str, begin: str) -> list[Layer]:
        """The layers after one and up to another, with branches and what combines them as one layer."""
        found: list[Layer] = []
        while end != begin:
            node = self.nodes[end]
            if node.kind == "COMBINELAYER":
                start = self._meeting(node)
                found.append(branch(*(serial(*self._path(name, start.name)) for name in node.inputs)))
                end = start.inputs[0]
                continue
            if node.kind == "BRANCHLAYER":
                node.block.fail("OUTPUTS", "these paths are brought together by no COMBINELAYER")
            found += node.layers[::-1]
            end = node.inputs[0]
        return found[::-1]

    def _meeting(self, node: _Node) -> _Node:
        """The branch at which all paths into a combining layer begin."""
        starts = {name: self._start(name, node) for name in node.inputs}
        first = next(iter(starts.values()))
        for name, start in starts.items():
            if start is not first:
                node.block.fail(
                    "INPUTS", f"{name!r} comes from {start.name!r} and {node.inputs[0]!r} from {first.name!r}"
                )
        if len(first.outputs) != len(starts):
            node.block.fail(
                "INPUTS", f"{len(starts)} paths of the {len(first.outputs)} that {first.name!r} has"
            )
        return first

    def _start(self, name: str, combining: _Node) -> _Node:
        while (node := self.nodes[name]).kind != "BRANCHLAYER":
            if node.kind == "DATA":
                combining.block.fail("INPUTS", "a path comes from DATA and not from a BRANCHLAYER")
            name = (self._meeting(node) if node.kind == "COMBINELAYER" else node).inputs[0]
        return node


# --- what becomes of each kind of layer --------------------------------------------------------------


def _initial(block: Block) -> Any:
    size, kind = block.number("initW", 0), block.settings.get("initType")
    if size and not (kind and kind.value == "Gaussian"):
        block.read.add("initType")
        return "uniform", size
    block.read.discard("initW")
    return "he"


def _finish(node: _Node, layer: Layer, shape: Shape) -> None:
    """A layer, then its non-linearity."""
    node.layers = [layer]
    if "NON_LINEARITY" in node.block.settings:
        node.layers.append(_ACTIVATIONS[node.block.one_of("NON_LINEARITY", {n: n for n in _ACTIVATIONS})]())
    node.shape = shape


def _image(node: _Node, inputs: list[Shape]) -> Shape:
    if len(inputs[0]) != 3:
        node.block.fail(
            "INPUT", f"{node.kind} needs images, but {node.inputs[0]!r} gives a flat row of numbers"
        )
    return inputs[0]


def _kernel(node: _Node, shape: Shape, padding: int) -> tuple[int, Shape]:
    size = node.block.whole("KERNEL_SIZE", 1)
    height, width = (n + 2 * padding - size + 1 for n in shape[:2])
    if min(height, width) < 1:
        node.block.fail(
            "KERNEL_SIZE", f"is {size}, too large for {shape[0]}×{shape[1]} pixels and PADDING={padding}"
        )
    return size, (height, width)


def _convolution(node: _Node, inputs: list[Shape]) -> None:
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


def _local(node: _Node, inputs: list[Shape]) -> None:
    shape, block = _image(node, inputs), node.block
    size = block.whole("KERNEL_SIZE", 1)
    decay = block.number("WEIGHT_DECAY", 0)
    layer = local(shape[2], size, padding="same", groups=shape[2], decay=decay, init=_initial(block))
    _finish(node, layer, shape)


def _nin(node: _Node, inputs: list[Shape]) -> None:
    shape, block = _image(node, inputs), node.block
    features = block.whole("KERNEL_AMOUNT", 1, shape[2])
    layer = conv(features, 1, decay=block.number("WEIGHT_DECAY", 0), init=_initial(block))
    _finish(node, layer, (*shape[:2], features))


def _pooling(node: _Node, inputs: list[Shape]) -> None:
    shape, block = _image(node, inputs), node.block
    make = max_pool if block.one_of("POOLINGTYPE", _POOLINGS) == "max" else avg_pool
    size, skip = block.whole("SIZE", 1), block.whole("SKIP", 1)
    height, width = (-(-n // skip) for n in shape[:2])
    _finish(node, make(size, skip, padding="clip"), (height, width, shape[2]))


def _lrn(node: _Node, inputs: list[Shape]) -> None:
    shape, block = _image(node, inputs), node.block
    size = 2 * (block.whole("LRN_N", 1) // 2) + 1
    k, alpha, beta = (block.number(key) for key in ("LRN_K", "LRN_ALPHA", "LRN_BALTA"))
    if not k:
        block.fail("LRN_K", "is 0; a number above 0 is needed")
    _finish(node, lrn(size, k=k, alpha=alpha / size, beta=beta), shape)


def _one(node: _Node, inputs: list[Shape]) -> None:
    _finish(node, affine(decay=node.block.number("WEIGHT_DECAY", 0)), inputs[0])


def _full(node: _Node, inputs: list[Shape]) -> None:
    block = node.block
    neurons = block.whole("NUM_FULLCONNECT_NEURONS", 1)
    decay, rate = block.number("WEIGHT_DECAY", 0), block.number("DROPOUT_RATE", 0, below=1)
    _finish(node, dense(neurons, decay=decay, init=_initial(block)), (neurons,))
    node.layers += [dropout(rate)] if rate else []


def _softmax(node: _Node, inputs: list[Shape]) -> None:
    block = node.block
    classes, decay = block.whole("NUM_CLASSES", 1), block.number("WEIGHT_DECAY", 0)
    init = _initial(block)
    node.layers = [dense(classes, decay=decay, init="lecun" if init == "he" else init)]
    node.shape = (classes,)


def _same(node: _Node, inputs: list[Shape]) -> None:
    node.shape = inputs[0]


def _combine(node: _Node, inputs: list[Shape]) -> None:
    node.shape = (sum(math.prod(shape) for shape in inputs),)


_KINDS: dict[str, Callable[[_Node, list[Shape]], None]] = {
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
