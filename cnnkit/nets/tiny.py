"""A small network for small images."""

from cnnkit.layers import Layer, conv, dense, dropout, max_pool, relu, serial


def tiny(classes: int = 10) -> Layer:
    """Three 3×3 convolutions and two dense layers, 62,250 parameters on the digits' 8×8×1 with 10 classes."""
    return serial(
        conv(32, 3, padding="same"),
        relu(),
        conv(32, 3, padding="same"),
        relu(),
        max_pool(2),
        conv(64, 3, padding="same"),
        relu(),
        max_pool(2),
        dense(128, init="he"),
        relu(),
        dropout(0.5),
        dense(classes),
    )
