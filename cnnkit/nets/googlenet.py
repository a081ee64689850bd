"""GoogLeNet, the inception network of 2014."""

from cnnkit.layers import (
    Layer,
    conv,
    dense,
    dropout,
    global_pool,
    inception,
    lrn,
    max_pool,
    relu,
    serial,
)


def googlenet(classes: int = 1000) -> Layer:
    """Nine inception blocks, 6,998,552 parameters on 224×224×3 with 1000 classes; no auxiliary outputs.

    Szegedy et al. 2014.
    """
    return serial(
        conv(64, 7, stride=2, padding=3),
        relu(),
        max_pool(3, 2, padding="clip"),
        lrn(),
        conv(64, 1),
        relu(),
        conv(192, 3, padding=1),
        relu(),
        lrn(),
        max_pool(3, 2, padding="clip"),
        inception(64, (96, 128), (16, 32), 32),
        inception(128, (128, 192), (32, 96), 64),
        max_pool(3, 2, padding="clip"),
        inception(192, (96, 208), (16, 48), 64),
        inception(160, (112, 224), (24, 64), 64),
        inception(128, (128, 256), (24, 64), 64),
        inception(112, (144, 288), (32, 64), 64),
        inception(256, (160, 320), (32, 128), 128),
        max_pool(3, 2, padding="clip"),
        inception(256, (160, 320), (32, 128), 128),
        inception(384, (192, 384), (48, 128), 128),
        global_pool(),
        dropout(0.4),
        dense(classes),
    )
