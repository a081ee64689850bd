"""The networks of the core benchmark in PyTorch, and its training step."""

import time

import torch
from torch import nn
from torch.nn import functional as F

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


NETS = {"lenet": lenet, "nin_cifar10": nin_cifar10, "cuda_cnn_cifar10": cuda_cnn_cifar10}


class Training:
    """Steps of SGD with momentum on mini-batches taken from images in memory, channels last.

    Args:
        name: of the network.
        images: uint8 [N, H, W, C].
        labels: [N].
        index: [steps, batch], which images a step takes.
        compiled: by torch.compile.
    """

    def __init__(self, name: str, images, labels, index, compiled: bool) -> None:
        torch.manual_seed(0)
        net = NETS[name]().to(memory_format=torch.channels_last)
        self.parameters = sum(p.numel() for p in net.parameters())
        self.images = torch.from_numpy(images)
        self.labels, self.index = (torch.from_numpy(a.astype("int64")) for a in (labels, index))
        self.net = torch.compile(net) if compiled else net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)

    def run(self) -> float:
        """A step on every mini-batch; returns images a second."""
        begin = time.perf_counter()
        for index in self.index:
            # NHWC in memory, seen as NCHW: what channels-last means.
            x = ((self.images[index].float() / 255 - MEAN) / STD).permute(0, 3, 1, 2)
            self.optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(self.net(x), self.labels[index]).backward()
            self.optimizer.step()
        return self.index.numel() / (time.perf_counter() - begin)
