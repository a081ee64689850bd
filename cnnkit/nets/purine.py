"""Purine's networks for CIFAR-10: network in network, and a small inception network."""

from typing import Any

from cnnkit.layers import (
    Layer,
    conv,
    dropout,
    global_pool,
    inception,
    leaky_relu,
    max_pool,
    nin,
    serial,
)

_ALL: dict[str, Any] = {"decay": 1e-4, "init": ("normal", 0.05)}


def nin_cifar10(classes: int = 10) -> Layer:
    """Network in network, 966,986 parameters on 32×32×3 with 10 classes; the last layer learns at a tenth.

    Lin et al. 2013, as Purine trained it.
    """
    act = leaky_relu(0.01)
    return serial(
        nin(192, 5, 160, 96, padding=2, activation=act, **_ALL),
        max_pool(3, 2, padding="clip"),
        dropout(0.5),
        nin(192, 5, 192, 192, padding=2, activation=act, **_ALL),
        max_pool(3, 2, padding="clip"),
        dropout(0.5),
        nin(192, 3, 192, padding=1, activation=act, **_ALL),
        conv(classes, 1, lr=0.1, **_ALL),
        act,
        global_pool(),
    )


def inception_cifar10(classes: int = 10) -> Layer:
    """A NIN stem and two inception blocks of five paths with 32 maps, whole channels dropped at rate 0.1.

    Szegedy et al. 2014, in the size that Purine's authors used for CIFAR-10.
    """
    act = leaky_relu(0.01)

    def block() -> Layer:
        return inception(32, (32, 32), (32, 32), 32, keep=True, activation=act, **_ALL)

    return serial(
        nin(192, 5, 160, 96, padding=2, activation=act, **_ALL),
        max_pool(3, 2, padding="clip"),
        block(),
        dropout(0.1, channels=True),
        max_pool(3, 2, padding="clip"),
        block(),
        dropout(0.1, channels=True),
        conv(classes, 1, lr=0.1, **_ALL),
        global_pool(),
    )
