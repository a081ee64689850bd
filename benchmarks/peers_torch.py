"""The networks of the core benchmark in PyTorch, and its training step."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks import results
from cnnkit.layers.window import resolve

MEAN, STD, LR, MOMENTUM = 0.5, 0.25, 0.01, 0.9


def pairs(before: int, *stages: tuple[int, int, int]) -> list[nn.Module]:
    """Convolutions (features, kernel, padding), each with a rectifier in place."""
    layers: list[nn.Module] = []
    for features, kernel, padding in stages:
        layers += [nn.Conv2d(before, features, kernel, padding=padding), nn.ReLU(inplace=True)]
        before = features
    return layers


def lenet() -> nn.Module:
    """As cnnkit.nets.lenet, on 28×28×1."""
    return nn.Sequential(
        *pairs(1, (20, 5, 0)),
        nn.MaxPool2d(2),
        *pairs(20, (50, 5, 0)),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 500),
        nn.ReLU(inplace=True),
        nn.Linear(500, 10),
    )


def nin_cifar10() -> nn.Module:
    """As cnnkit.nets.nin_cifar10."""
    layers = [
        *pairs(3, (192, 5, 2), (160, 1, 0), (96, 1, 0)),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.Dropout(0.5),
        *pairs(96, (192, 5, 2), (192, 1, 0), (192, 1, 0)),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.Dropout(0.5),
        *pairs(192, (192, 3, 1), (192, 1, 0), (10, 1, 0)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ]
    leaky = [nn.LeakyReLU(0.01, inplace=True) if isinstance(layer, nn.ReLU) else layer for layer in layers]
    return nn.Sequential(*leaky)


class TwoWays(nn.Module):
    """A dense and a convolutional path side by side, flattened and concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Sequential(
            nn.Flatten(), nn.Linear(6 * 6 * 128, 1024), nn.ReLU(inplace=True), nn.Dropout(0.5)
        )
        self.deep = nn.Sequential(*pairs(128, (64, 3, 1), (128, 1, 0)), nn.Flatten())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.wide(x), self.deep(x)], 1)


def cuda_cnn_cifar10() -> nn.Module:
    """As cnnkit.nets.cuda_cnn_cifar10, on crops of 24×24."""
    return nn.Sequential(
        *pairs(3, (32, 5, 2), (128, 1, 0)),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        *pairs(128, (64, 5, 2), (128, 1, 0)),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        TwoWays(),
        nn.Linear(1024 + 6 * 6 * 128, 10),
    )


def built(layer: Any, shape: tuple[int, ...]) -> nn.Module:
    """A cnnkit network's layers in PyTorch, one for one, for images of shape (H, W, C)."""
    s = layer.config
    if layer.parts:
        if layer.kind == "serial":
            modules = []
            for part in layer.parts:
                modules.append(built(part, shape))
                shape = out_shape(part, shape)
            return nn.Sequential(*modules)
        return Paths([built(part, shape) for part in layer.parts], s["merge"])
    if layer.kind == "conv":
        pads = resolve(s["padding"], shape, s["size"], s["stride"], s["dilation"])
        return nn.Conv2d(
            shape[-1], s["features"], s["size"], s["stride"], (pads[0][0], pads[1][0]), s["dilation"],
            s["groups"], s["bias"],
        )  # fmt: skip
    if layer.kind == "max_pool":
        (top, bottom), (left, right) = resolve(s["padding"], shape, s["size"], s["stride"])
        if s["padding"] != "clip":
            return nn.MaxPool2d(s["size"], s["stride"], (top, left))
        if all((n - k) % t for n, k, t in zip(shape, s["size"], s["stride"])):
            return nn.MaxPool2d(s["size"], s["stride"], ceil_mode=True)
        pads = nn.ConstantPad2d((left, right, top, bottom), -float("inf"))
        return nn.Sequential(pads, nn.MaxPool2d(s["size"], s["stride"]))
    if layer.kind == "dense":
        linear = nn.Linear(int(np.prod(shape)), s["features"], s["bias"])
        return nn.Sequential(nn.Flatten(), linear) if len(shape) > 1 else linear
    simple: dict[str, Callable[[], nn.Module]] = {
        "batch_norm": lambda: nn.BatchNorm2d(shape[-1], s["eps"], 1 - s["momentum"]),
        "lrn": lambda: nn.LocalResponseNorm(s["size"], s["alpha"] * s["size"], s["beta"], s["k"]),
        "dropout": lambda: nn.Dropout(s["rate"]),
        "relu": lambda: nn.ReLU(inplace=True),
        "leaky_relu": lambda: nn.LeakyReLU(s["slope"], inplace=True),
        "identity": nn.Identity,
        "global_pool": lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    }
    return simple[layer.kind]()


def out_shape(layer: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """What a cnnkit layer makes of an image's shape."""
    from cnnkit.layers import outline

    return outline(layer, shape)[2]


class Paths(nn.Module):
    """One input sent down several paths."""

    def __init__(self, paths: list[nn.Module], merge: str) -> None:
        super().__init__()
        self.paths, self.merge = nn.ModuleList(paths), merge

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ys = [path(x) for path in self.paths]
        if self.merge == "sum":
            return sum(ys[1:], start=ys[0])
        if len({y.shape[2:] for y in ys}) > 1:
            ys = [y.flatten(1) for y in ys]
        return torch.cat(ys, 1)


NETS = {"lenet": lenet, "nin_cifar10": nin_cifar10, "cuda_cnn_cifar10": cuda_cnn_cifar10}


class Training:
    """Steps of SGD with momentum on mini-batches taken from images in memory, channels last.

    Args:
        name: of the network.
        images: uint8 [N, H, W, C].
        labels: [N].
        index: [steps, batch], which images a step takes.
        compiled: by torch.compile.
        half: computed in bfloat16 where PyTorch's autocast holds it for safe, on the GPU.
        classes: number of outputs.
    """

    def __init__(
        self, name: str, images, labels, index, compiled: bool, half: bool = False, classes: int = 10
    ) -> None:
        torch.manual_seed(0)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.backends.cudnn.benchmark = True
        net = NETS[name]() if name in NETS and classes == 10 else self._built(name, images, classes)
        net = net.to(self.device, memory_format=torch.channels_last)
        self.parameters = sum(p.numel() for p in net.parameters())
        self.images = torch.from_numpy(images).to(self.device)
        self.labels, self.index = (
            torch.from_numpy(a.astype("int64")).to(self.device) for a in (labels, index)
        )
        self.net = torch.compile(net) if compiled else net
        self.half = half
        self.optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM, fused=half or None)

    @staticmethod
    def _built(name: str, images, classes: int) -> nn.Module:
        from cnnkit import nets

        return built(nets.NAMES[name](classes), images.shape[1:])

    def memory(self) -> float:
        """The most memory held, in MB: the GPU's, or the process's."""
        if self.device == "cpu":
            return results.peak_memory_mb()
        return torch.cuda.max_memory_allocated() / 1e6

    def run(self) -> float:
        """A step on every mini-batch; returns images a second."""
        begin = time.perf_counter()
        for index in self.index:
            # NHWC in memory, seen as NCHW: what channels-last means.
            x = ((self.images[index].float() / 255 - MEAN) / STD).permute(0, 3, 1, 2)
            self.optimizer.zero_grad(set_to_none=True)
            with torch.autocast(self.device, torch.bfloat16, enabled=self.half):
                loss = F.cross_entropy(self.net(x), self.labels[index])
            loss.backward()
            self.optimizer.step()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return self.index.numel() / (time.perf_counter() - begin)
