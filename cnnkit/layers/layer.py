"""The protocol of a layer, and the combinators that make any directed acyclic graph of layers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from cnnkit.names import brief, choose

Shape = tuple[int, ...]
Params = Any
State = Any
Init = Callable[[jax.Array, Shape], tuple[Params, State, Shape]]
Apply = Callable[..., tuple[jax.Array, State]]


class ShapeError(ValueError):
    """A layer was given a shape that it cannot take."""


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer of a network: a pair of pure functions, and what a summary needs to know of it.

    Args:
        init: ``init(key, shape) -> (params, state, out_shape)``; shapes carry no batch dimension.
        apply: ``apply(params, state, x, *, key=None, train=False) -> (y, state)``; x is [B, *shape].
        kind: the layer's type, e.g. ``"conv"``.
        config: its settings, as plain numbers, strings and tuples; with ``kind`` they identify it.
        parts: the layers inside a combinator; its params and state are tuples aligned with them.
        flops: ``flops(shape, out_shape)``: multiplications and additions of one example's forward pass.
        decay: strength of the L2 penalty ``decay/2 · ‖w‖²`` on this layer's weights (biases have none).
        lr: factor on the learning rate of this layer.
        title: how it reads in a summary and in errors; made from kind and config when left out.
        join: what makes one output of the parts' outputs, where all parts take the same input; None where
            they follow one another.
        measure: ``measure(state, x)``: the state with what the layer takes from a sample of its inputs, once,
            before the training; None where it takes nothing.
        fused: ``fused(after)``, given the layers that follow: an ``apply`` of this one and of some of them together,
            and how many these are; None where all are better left to themselves. To a layer that is known to take
            it, it may give what is not made yet (fold.Pending).
        beside: what layers of one input must have in common to be computed as one, and
            ``together(list of params, x, train) -> list of y``; None where nothing is gained by it.

    Who replaces ``apply`` sets ``fused`` and ``beside`` to None with it.
    """

    init: Init
    apply: Apply
    kind: str
    config: Mapping[str, Any] = field(default_factory=dict)
    parts: "tuple[Layer, ...]" = ()
    flops: Callable[[Shape, Shape], int] = lambda shape, out: 0
    decay: float = 0.0
    lr: float = 1.0
    title: str = ""
    join: Callable[[list[jax.Array]], jax.Array] | None = None
    measure: Callable[[State, jax.Array], State] | None = None
    fused: "Callable[[tuple[Layer, ...]], tuple[Apply, int] | None] | None" = None
    beside: tuple[Any, Callable[..., list[jax.Array]]] | None = None

    @property
    def name(self) -> str:
        """How this layer reads in a summary and in errors."""
        words = [self.kind, *(_brief(k, v) for k, v in self.config.items())]
        return self.title or " ".join(filter(None, words))

    def named(self, title: str) -> "Layer":
        """The same layer under a name of your own."""
        return replace(self, title=title, config={**self.config, "named": title})

    def describe(self) -> dict[str, Any]:
        """Kind, settings and parts as plain data: what identifies a network in a record."""
        out: dict[str, Any] = {"kind": self.kind, **_plain(self.config)}
        if self.decay:
            out["decay"] = self.decay
        if self.lr != 1.0:
            out["lr"] = self.lr
        if self.parts:
            out["parts"] = [part.describe() for part in self.parts]
        return out


def _brief(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return key if value else ""
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(v, int) for v in value):
        return f"{value[0]}×{value[1]}"
    return str(value) if key in ("features", "rate", "size") else f"{key}={value}"


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in config.items()}


def own(layer: Layer) -> Layer:
    """The layer, marked as one of this package, so that others may know by its kind what it computes."""
    layer.apply.of_kind = layer.kind  # type: ignore[attr-defined]  # goes with the function: who replaces it drops the mark
    return layer


def is_own(layer: Layer, *kinds: str) -> bool:
    """Whether it is one of this package's layers of these kinds, and not one of somebody's own of that name.

    >>> from dataclasses import replace
    >>> from cnnkit.layers import relu
    >>> is_own(relu(), "relu"), is_own(replace(relu(), apply=lambda p, s, x, **how: (x, s)), "relu")
    (True, False)
    """
    return layer.kind in kinds and getattr(layer.apply, "of_kind", None) == layer.kind


def stateless(kind: str, function: Callable[[jax.Array], jax.Array], **config: Any) -> Layer:
    """A layer without parameters that keeps the shape: an activation, for instance.

    Args:
        kind: its name.
        function: x [B, …] -> y of the same shape.
        config: settings to show.
    """
    return Layer(
        init=lambda key, shape: ((), (), shape),
        apply=lambda params, state, x, *, key=None, train=False: (function(x), state),
        kind=kind,
        config=config,
        flops=lambda shape, out: math.prod(out),
    )


def _init_part(part: Layer, place: str, key: jax.Array, shape: Shape) -> tuple[Params, State, Shape]:
    try:
        return part.init(key, shape)
    except ShapeError as error:
        raise ShapeError(
            f"{place} ({part.name}) {error}" if not part.parts else f"{place}, {error}"
        ) from None


def _subkey(key: jax.Array | None, i: int) -> jax.Array | None:
    return None if key is None else jax.random.fold_in(key, i)


def serial(*layers: Layer) -> Layer:
    """Layers one after another: y = f_n(… f_2(f_1(x))).

    >>> from cnnkit.layers import dense, relu
    >>> net = serial(dense(16), relu(), dense(10))
    >>> net.init(jax.random.key(0), (64,))[2]
    (10,)
    """
    parts = _layers("serial", layers)

    def init(key, shape):
        params, state = [], []
        for i, part in enumerate(parts):
            p, s, shape = _init_part(part, f"layer {i}", jax.random.fold_in(key, i), shape)
            params.append(p)
            state.append(s)
        return tuple(params), tuple(state), shape

    def apply(params, state, x, *, key=None, train=False):
        return _in_order(parts, params, state, x, key, train, [])

    return own(Layer(init, apply, "serial", parts=parts))


def _in_order(parts, params, state, x, key, train, done):
    """The output of layers one after another, and the states of all; those of the first ones are ``done``."""
    out: list[State] = list(done)
    for i in range(len(out), len(parts)):
        if i < len(out):  # it went with the one before
            continue
        part = parts[i]
        both = part.fused(parts[i + 1 :]) if part.fused and i + 1 < len(parts) else None
        apply, more = both or (part.apply, 0)
        with jax.named_scope(f"{i}_{part.kind}"):  # so that traces tell layers apart
            x, s = apply(params[i], state[i], x, key=_subkey(key, i), train=train)
        out += [s, *state[i + 1 : i + 1 + more]]
    return x, tuple(out)


def branch(*paths: Layer, merge: str | None = "concatenate") -> Layer:
    """One input sent down several paths, whose outputs are then merged.

    Args:
        paths: the layers that each take the same input.
        merge: ``"concatenate"`` the last axis (outputs of unequal rank or size are flattened first),
            or ``"sum"`` outputs of one shape.

    The thesis's branch and merge layers; nested, they make any directed acyclic graph.
    """
    parts = _layers("branch", paths)
    join = choose(str(merge), _MERGES, "merge")

    def init(key, shape):
        made = [
            _init_part(part, f"path {i}", jax.random.fold_in(key, i), shape) for i, part in enumerate(parts)
        ]
        return tuple(m[0] for m in made), tuple(m[1] for m in made), join.shape([m[2] for m in made])

    def apply(params, state, x, *, key=None, train=False):
        known = _beside(parts, params, x, train)
        made = [
            _from_first(part, p, s, known[i], _subkey(key, i), train)
            if i in known
            else part.apply(p, s, x, key=_subkey(key, i), train=train)
            for i, (part, p, s) in enumerate(zip(parts, params, state, strict=True))
        ]
        return join.apply([y for y, _ in made]), tuple(s for _, s in made)

    return Layer(init, apply, "branch", {"merge": str(merge)}, parts, join=join.apply)


def _beside(paths, params, x, train):
    """By path, the output of its first layer, for those whose first layers can be computed as one.

    On a GPU: the input is read once, and its gradient, written once, is no sum of several.
    """
    if jax.default_backend() == "cpu":
        return {}
    alike: dict[Any, list[int]] = {}
    firsts = [_first(path, p) for path, p in zip(paths, params, strict=True)]
    for i, (layer, _) in enumerate(firsts):
        if layer.beside is not None:
            alike.setdefault(layer.beside[0], []).append(i)
    known: dict[int, jax.Array] = {}
    for which in alike.values():
        if len(which) > 1:
            together = firsts[which[0]][0].beside[1]
            with jax.named_scope(f"{which[0]}_{firsts[which[0]][0].kind}"):
                known |= zip(which, together([firsts[i][1] for i in which], x, train), strict=True)
    return known


def _first(path, params):
    """The layer that a path begins with, and its parameters."""
    while is_own(path, "serial"):
        path, params = path.parts[0], params[0]
    return path, params


def _from_first(path, params, state, y, key, train):
    """What a path gives, where its first layer gave y."""
    if not is_own(path, "serial"):
        return y, state
    y, s = _from_first(path.parts[0], params[0], state[0], y, _subkey(key, 0), train)
    return _in_order(path.parts, params, state, y, key, train, [s])


def residual(path: Layer, shortcut: Layer | None = None) -> Layer:
    """path(x) + shortcut(x); the shortcut is the identity unless one is given (He et al. 2015)."""
    return branch(path, shortcut or identity(), merge="sum")


def identity() -> Layer:
    """y = x."""
    return replace(stateless("identity", lambda x: x), flops=lambda shape, out: 0)


def _layers(kind: str, layers: Sequence[Layer]) -> tuple[Layer, ...]:
    for i, layer in enumerate(layers):
        if not isinstance(layer, Layer):
            raise TypeError(f"{kind}: part {i} is {brief(layer)}, not a Layer{_remedy(kind, layer)}")
    if not layers:
        raise ValueError(f"{kind} needs at least one layer")
    return tuple(layers)


def _remedy(kind: str, given: Any) -> str:
    if isinstance(given, list | tuple):
        return f"; give layers one by one, or {kind}(*layers) for a list of them"
    return f"; call it, e.g. {getattr(given, '__name__', 'relu')}(…)" if callable(given) else ""


@dataclass(frozen=True)
class _Merge:
    shape: Callable[[list[Shape]], Shape]
    apply: Callable[[list[jax.Array]], jax.Array]


def _flattens(shapes: list[Shape]) -> bool:
    return len({s[:-1] for s in shapes}) > 1


def _concatenate_shape(shapes: list[Shape]) -> Shape:
    if _flattens(shapes):
        return (sum(math.prod(s) for s in shapes),)
    return (*shapes[0][:-1], sum(s[-1] for s in shapes))


def _concatenate(ys: list[jax.Array]) -> jax.Array:
    if _flattens([y.shape[1:] for y in ys]):
        ys = [y.reshape(len(y), -1) for y in ys]
    return jnp.concatenate(ys, axis=-1)


def _sum_shape(shapes: list[Shape]) -> Shape:
    if len(set(shapes)) > 1:
        wrote = " and ".join("×".join(map(str, s)) for s in shapes)
        raise ShapeError(
            f"merge='sum' needs paths of one shape, these give {wrote}; "
            "set strides, padding or features so that they agree, or concatenate"
        )
    return shapes[0]


_MERGES = {
    "concatenate": _Merge(_concatenate_shape, _concatenate),
    "sum": _Merge(_sum_shape, lambda ys: sum(ys[1:], start=ys[0])),
}
