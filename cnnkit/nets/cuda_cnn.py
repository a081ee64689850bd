"""CUDA-CNN's networks for MNIST and CIFAR-10."""

from cnnkit.layers import (
    Layer,
    branch,
    conv,
    dense,
    dropout,
    leaky_relu,
    max_pool,
    nin,
    relu,
    serial,
)


def cuda_cnn_mnist(classes: int = 10) -> Layer:
    """The network behind CUDA-CNN's MNIST results, 582,026 parameters on 28×28×1 with 10 classes."""
    return serial(
        conv(32, 5, decay=1e-6),
        leaky_relu(0.1),
        max_pool(2, padding="clip"),
        conv(64, 5, decay=1e-6),
        relu(),
        max_pool(2, padding="clip"),
        dense(512, decay=1e-8, init="he"),
        relu(),
        dropout(0.5),
        dense(classes, decay=1e-6),
    )


def cuda_cnn_cifar10(classes: int = 10) -> Layer:
    """CUDA-CNN's "87 %" network, 5,077,898 parameters on 24×24×3 crops with 10 classes.

    The file it was shipped with names rectifiers after every convolution; they are here, where a fault in
    the reading of that file left them out of the first two pairs.
    """
    decay = 1e-6
    wide = serial(dense(1024, decay=decay, init="he"), relu(), dropout(0.5))
    deep = nin(64, 3, 128, padding=1, decay=decay)
    return serial(
        nin(32, 5, 128, padding=2, decay=decay),
        max_pool(3, 2, padding="clip"),
        nin(64, 5, 128, padding=2, decay=decay),
        max_pool(3, 2, padding="clip"),
        branch(wide, deep),
        dense(classes, decay=decay),
    )
