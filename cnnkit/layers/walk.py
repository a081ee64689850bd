"""Going through a network's layers beside their parameters."""

from collections.abc import Callable, Iterator
from typing import Any

from cnnkit.layers.layer import Layer, Params


def walk(net: Layer, params: Params, path: str = "") -> Iterator[tuple[str, Layer, Params]]:
    """Every layer that is no combinator: its path, itself, and its parameters or whatever is shaped so.

    Args:
        net: the network.
        params: its parameters, or its state, gradients, … of the same nesting.
        path: where the network itself stands; put before each path.

    >>> import jax
    >>> from cnnkit.layers import dense, relu, serial
    >>> net = serial(dense(16), relu(), dense(10))
    >>> params, _, _ = net.init(jax.random.key(0), (4,))
    >>> [(path, sorted(p)) for path, layer, p in walk(net, params) if p]
    [('0 dense 16', ['b', 'w']), ('2 dense 10', ['b', 'w'])]
    """
    if not net.parts:
        yield path or net.name, net, params
        return
    for i, (part, p) in enumerate(zip(net.parts, params, strict=True)):
        yield from walk(part, p, _join(path, f"{i} {part.name}"))


def map_weights(function: Callable[[str, Layer, str, Any], Any], net: Layer, params: Params) -> Params:
    """function(path, layer, name, weight) of every parameter, in the parameters' nesting.

    Args:
        function: is given the layer's path, the layer, the parameter's name in it ("w", "b", …), its value.
        net: the network.
        params: its parameters, or gradients, … of the same nesting.
    """
    return _map(function, net, params, "")


def _map(function, net, params, path):
    if net.parts:
        pairs = enumerate(zip(net.parts, params, strict=True))
        return tuple(_map(function, part, p, _join(path, f"{i} {part.name}")) for i, (part, p) in pairs)
    if not isinstance(params, dict):
        return params
    return {name: function(path or net.name, net, name, value) for name, value in params.items()}


def _join(path: str, name: str) -> str:
    return f"{path} / {name}" if path else name
