"""The inception block: convolutions of several sizes side by side."""

from cnnkit.layers.activate import relu
from cnnkit.layers.conv import conv
from cnnkit.layers.initial import Initial
from cnnkit.layers.layer import Layer, branch, identity, serial
from cnnkit.layers.pool import max_pool


def inception(
    one: int,
    three: tuple[int, int],
    five: tuple[int, int],
    pool: int,
    *,
    keep: bool = False,
    activation: Layer | None = None,
    decay: float = 0.0,
    lr: float = 1.0,
    init: Initial = "he",
) -> Layer:
    """1×1, 3×3 and 5×5 convolutions and a projected 3×3 max-pooling of one input, concatenated.

    Args:
        one: features of the 1×1 path.
        three: features of the 3×3 path's 1×1 reduction, 0 for none, and of its 3×3 convolution.
        five: the same of the 5×5 path.
        pool: features of the 1×1 convolution after max-pooling.
        keep: also concatenate the input itself, as Purine's variant for CIFAR-10 does.
        activation: after every convolution; relu when left out.
        decay: strength of the L2 penalty on each convolution's weights.
        lr: factor on the learning rate.
        init: initial weights, see `check_initial`.

    Szegedy et al. 2014.
    """
    act = activation or relu()

    def step(features: int, size: int) -> list[Layer]:
        return [conv(features, size, padding="same", decay=decay, lr=lr, init=init), act]

    def reduced(reduce: int, features: int, size: int) -> Layer:
        return serial(*(step(reduce, 1) if reduce else []), *step(features, size))

    paths = [
        serial(*step(one, 1)),
        reduced(*three, 3),
        reduced(*five, 5),
        serial(max_pool(3, 1, padding="same"), *step(pool, 1)),
    ]
    if keep:
        paths = [identity(), *paths]
    return branch(*paths).named(f"inception {one} {three[1]} {five[1]} {pool}")
