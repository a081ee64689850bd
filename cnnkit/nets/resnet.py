"""The residual network with eighteen layers."""

from cnnkit.layers import (
    Layer,
    batch_norm,
    conv,
    dense,
    global_pool,
    max_pool,
    relu,
    residual,
    serial,
)
from cnnkit.names import choose


def resnet18(classes: int = 1000, *, stem: str = "imagenet") -> Layer:
    """Eight residual blocks: 11,689,512 parameters for 1000 classes, 11,173,962 for 10 and small images.

    Args:
        classes: number of outputs.
        stem: ``"imagenet"``, a 7×7 convolution and a pooling that quarter the image, or ``"cifar"``, a 3×3
            convolution that keeps images of 32×32 as they are.

    He et al. 2015.
    """
    stems = {
        "imagenet": [*_normed(64, 7, 2), relu(), max_pool(3, 2, padding=1)],
        "cifar": [*_normed(64, 3, 1), relu()],
    }
    layers = list(choose(stem, stems, "stem"))
    before = 64
    for features, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += _block(before, features, stride) + _block(features, features, 1)
        before = features
    return serial(*layers, global_pool(), dense(classes))


def resnet18_cifar(classes: int = 10) -> Layer:
    """`resnet18` with the stem for images of 32×32."""
    return resnet18(classes, stem="cifar")


def _normed(features: int, size: int, stride: int) -> list[Layer]:
    return [conv(features, size, stride=stride, padding=size // 2, bias=False), batch_norm()]


def _block(before: int, features: int, stride: int) -> list[Layer]:
    path = serial(*_normed(features, 3, stride), relu(), *_normed(features, 3, 1))
    same = before == features and stride == 1
    shortcut = None if same else serial(*_normed(features, 1, stride))
    return [residual(path, shortcut), relu()]
