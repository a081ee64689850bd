"""LeNet with rectifiers and max-pooling."""

from cnnkit.layers import Layer, conv, dense, max_pool, relu, serial


def lenet(classes: int = 10) -> Layer:
    """Two convolutions and two dense layers, 431,080 parameters on 28×28×1 with 10 classes.

    LeCun et al. 1998, in the widths that Caffe made customary.
    """
    return serial(
        conv(20, 5),
        relu(),
        max_pool(2),
        conv(50, 5),
        relu(),
        max_pool(2),
        dense(500, init="he"),
        relu(),
        dense(classes),
    )
