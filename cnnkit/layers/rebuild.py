"""A network built again from what its ``describe`` said of it."""

from collections.abc import Callable, Mapping
from typing import Any

from cnnkit.layers.activate import gelu, leaky_relu, relu, scaled_tanh, sigmoid, silu, softmax, tanh
from cnnkit.layers.conv import conv, local
from cnnkit.layers.dense import affine, dense, flatten
from cnnkit.layers.dropout import dropout
from cnnkit.layers.layer import Layer, branch, identity, serial
from cnnkit.layers.norm import batch_norm, lrn
from cnnkit.layers.pool import avg_pool, global_pool, max_pool
from cnnkit.layers.whiten import whiten

_ACTIVATIONS = (gelu, leaky_relu, relu, scaled_tanh, sigmoid, silu, softmax, tanh)
_OTHERS = (
    affine,
    avg_pool,
    batch_norm,
    conv,
    dense,
    dropout,
    flatten,
    global_pool,
    identity,
    local,
    lrn,
    max_pool,
    whiten,
)
_MAKERS: dict[str, Callable[..., Layer]] = {maker.__name__: maker for maker in (*_ACTIVATIONS, *_OTHERS)}
_COMBINATORS: dict[str, Callable[..., Layer]] = {"serial": serial, "branch": branch}


def rebuild(description: Mapping[str, Any]) -> Layer:
    """The network that was described so.

    Args:
        description: from `Layer.describe`, perhaps by way of JSON.

    Raises:
        ValueError: a layer in it is of a kind that cnnkit does not make.

    >>> from cnnkit.layers import conv, relu
    >>> net = serial(conv(8, 3, stride=2, decay=1e-4), relu())
    >>> rebuild(net.describe()).describe() == net.describe()
    True
    """
    settings = dict(description)
    kind, name = settings.pop("kind"), settings.pop("named", None)
    parts = [rebuild(part) for part in settings.pop("parts", ())]
    makers = _COMBINATORS if parts else _MAKERS
    if kind not in makers:
        raise ValueError(
            f"a layer of kind {kind!r} is none of cnnkit's, so it cannot be built again from its description; "
            "pass the network itself"
        )
    layer = makers[kind](*parts, **settings)
    return layer.named(name) if name else layer
