"""AlexNet, with its two groups of channels."""

from cnnkit.layers import (
    Layer,
    conv,
    dense,
    dropout,
    lrn,
    max_pool,
    relu,
    serial,
)


def alexnet(classes: int = 1000) -> Layer:
    """Five convolutions and three dense layers, 60,965,224 parameters on 227×227×3 with 1000 classes.

    Krizhevsky et al. 2012; the groups are the halves that its two GPUs held.
    """
    return serial(
        conv(96, 11, stride=4),
        relu(),
        lrn(),
        max_pool(3, 2),
        conv(256, 5, padding=2, groups=2),
        relu(),
        lrn(),
        max_pool(3, 2),
        conv(384, 3, padding=1),
        relu(),
        conv(384, 3, padding=1, groups=2),
        relu(),
        conv(256, 3, padding=1, groups=2),
        relu(),
        max_pool(3, 2),
        dense(4096, init="he"),
        relu(),
        dropout(0.5),
        dense(4096, init="he"),
        relu(),
        dropout(0.5),
        dense(classes),
    )
