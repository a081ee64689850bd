"""CUDA-CNN's text configuration files as networks of cnnkit's layers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cnnkit import augment as augments
from cnnkit.augment import Augment
from cnnkit.layers import (
    Layer,
    branch,
    serial,
)
from cnnkit.names import choose
from cnnkit.nets.cuda_cnn_layers import KINDS, Node, Shape
from cnnkit.nets.cuda_cnn_text import Block, blocks

_SHAPES = {1: (28, 28, 1), 3: (32, 32, 3)}  # MNIST's and CIFAR's, which CUDA-CNN comes with
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


def _node(block: Block) -> Node:
    kind = block.one_of("LAYER", {name: name for name in KINDS})
    _known(block, _LAYER)
    name = block.text("NAME")
    if kind == "DATA":
        return Node(block, kind, name, [])
    if kind == "COMBINELAYER":
        return Node(block, kind, name, block.names("INPUTS"))
    outputs = dict.fromkeys(block.names("OUTPUTS"), "") if kind == "BRANCHLAYER" else {}
    return Node(block, kind, name, [block.text("INPUT")], outputs)


class _Net:
    """The blocks of a file as a graph, and the network made of it.

    Args:
        file: how errors call the file.
        nodes: in the file's order.
        shape: (H, W, C) of the images that the first layer sees.
    """

    def __init__(self, file: str, nodes: list[Node], shape: Shape) -> None:
        self.file, self.shape = file, shape
        self.nodes: dict[str, Node] = {}
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
                KINDS[node.kind](node, [self.nodes[name].shape for name in node.inputs])
        return serial(*self._path(end.name, data.name))

    def _only(self, kind: str) -> Node:
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

    def _take(self, node: Node, key: str, source: Node) -> None:
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

    def _in_order(self) -> Iterator[Node]:
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

    def _circle(self, left: dict[str, Node]) -> list[str]:
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

    def _meeting(self, node: Node) -> Node:
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

    def _start(self, name: str, combining: Node) -> Node:
        while (node := self.nodes[name]).kind != "BRANCHLAYER":
            if node.kind == "DATA":
                combining.block.fail("INPUTS", "a path comes from DATA and not from a BRANCHLAYER")
            name = (self._meeting(node) if node.kind == "COMBINELAYER" else node).inputs[0]
        return node
