"""VGG with sixteen layers of weights."""

from cnnkit.layers import (
    Layer,
    conv,
    dense,
    dropout,
    max_pool,
    relu,
    serial,
)


def vgg16(classes: int = 1000) -> Layer:
    """Thirteen 3×3 convolutions and three dense layers, 138,357,544 parameters on 224×224×3, 1000 classes.

    Simonyan and Zisserman 2014, configuration D.
    """
    layers: list[Layer] = []
    for features, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += [conv(features, 3, padding=1), relu()]
        layers.append(max_pool(2))
    for _ in range(2):
        layers += [dense(4096, init="he"), relu(), dropout(0.5)]
    return serial(*layers, dense(classes))
