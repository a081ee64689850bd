"""Plain stacks of convolutions without pooling, for small grey images."""

from collections.abc import Sequence

from cnnkit.layers import Layer, batch_norm, conv, dense, relu, serial
from cnnkit.names import choose

_FEATURES = {3: range(32, 177, 16), 5: range(32, 161, 32), 7: range(48, 193, 48)}


def unpooled(
    classes: int = 10, *, kernel: int = 5, features: Sequence[int] | None = None, decay: float = 0.0
) -> Layer:
    """Convolutions of one kernel size, each normalized, then a dense layer: 1,128,180 parameters on 28×28×1.

    No padding and no pooling: each convolution takes kernel − 1 pixels off the image's sides.

    Args:
        classes: number of outputs.
        kernel: size of every kernel.
        features: of each convolution; left out, 10 of 32 to 176 for kernels of 3 (1,124,180 parameters), 5 of 32
            to 160 for kernels of 5, and 4 of 48 to 192 for kernels of 7 (2,291,972).
        decay: strength of the L2 penalty on kernels and matrix.

    An et al. 2020, "An ensemble of simple convolutional neural network models for MNIST digit recognition".
    """
    if features is None:
        sizes = {str(size): widths for size, widths in _FEATURES.items()}
        features = choose(str(kernel), sizes, "kernel without features")
    layers: list[Layer] = []
    for width in features:
        layers += [conv(width, kernel, bias=False, decay=decay), batch_norm(), relu()]
    return serial(*layers, dense(classes, bias=False, decay=decay), batch_norm())
