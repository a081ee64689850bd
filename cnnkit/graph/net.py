"""The graph of a network's training step, layer by layer: forward, backward, one exchange a parameter."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from cnnkit.graph.bigraph import Blob, Graph, Resource


class Stepwise(Graph):
    """A network's training step: its inputs are weights, state and a mini-batch, its outputs what follows.

    ``feeds(params, state, x, labels, key)`` and ``result(values)`` speak the network's own nesting.
    """

    _params: Any = None
    _made: Any = None
    _state: Any = None
    _state_made: Any = None

    def feeds(self, params: Any, state: Any, x: Any, labels: Any, key: Any = None) -> dict[str, Any]:
        """The values of its inputs; the key is for layers that draw, such as dropout."""
        fed = dict(zip(jax.tree.leaves(self._params), jax.tree.leaves(params), strict=True))
        fed |= dict(zip(jax.tree.leaves(self._state), jax.tree.leaves(state), strict=True))
        return fed | {"x": x, "labels": labels, "key": key}

    def result(self, values: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """(loss, gradients as exchanged or, with an update, the new parameters, the new state)."""
        take = lambda names: jax.tree.map(values.__getitem__, names)
        return values["loss"], take(self._made), take(self._state_made)


def from_net(
    net: Any,
    shape: tuple[int, ...],
    batch: int,
    loss: Callable[[jax.Array, Any], jax.Array],
    *,
    exchange: Callable[[jax.Array], jax.Array] | None = None,
    update: Callable[[jax.Array, jax.Array], jax.Array] | None = None,
    on: str | Resource = "compute",
    name: str | None = None,
) -> Stepwise:
    """The graph of one training step, layer by layer, each parameter with an exchange of its own.

    For each layer there is a forward and a backward operation, and an exchange may start as soon as its
    gradient exists: wait-free back-propagation, as in Purine.

    Args:
        net: a layer, `serial` and `branch` (whatever has ``join``) opened; other combinators stay one operation.
        shape: of one example, (H, W, C).
        batch: examples in a mini-batch.
        loss: ``loss(y, labels)``, a scalar: the mean over the mini-batch.
        exchange: combines one parameter's gradient with the other workers' on the network; by default it
            hands it on, so that the graph can be looked at and run alone.
        update: ``update(weight, gradient)``, the new weight; without it the gradients are the outputs.
        on: the device's compute.
        name: of the graph; the network's by default.

    Returns:
        The graph, its blobs' shapes known.
    """
    graph = Stepwise(name or net.name)
    build = _Build(graph, batch, exchange or (lambda g: g), update, on)
    params, state = jax.eval_shape(lambda k: net.init(k, shape)[:2], jax.random.key(0))
    x = jax.ShapeDtypeStruct((batch, *shape), "float32")
    for blob in (_named("x", x), "labels", "key"):
        graph.input(blob)
    node = build.forward(net, params, state, "x", x, "", (), False)
    scored = jax.jit(lambda y, labels: jax.value_and_grad(loss)(y, labels))
    score = jax.ShapeDtypeStruct((), "float32")
    blobs = [_named("loss", score), _named("loss gradient", node.shape)]
    graph.add("loss", scored, [node.y, "labels"], blobs, on=on, kind="loss")
    build.backward(node, "loss gradient")
    graph._params, graph._state, graph._state_made = node.params, node.state, node.state_made
    graph._made = jax.tree.map(build.made.__getitem__, node.params)
    graph.outputs = ["loss", *jax.tree.leaves(graph._made), *jax.tree.leaves(graph._state_made)]
    return graph


@dataclass
class _Node:
    """A layer that went forward: its output, and what its backward operation needs."""

    y: str
    shape: Any
    path: str
    params: Any = ()
    state: Any = ()
    state_made: Any = ()
    learned: bool = False
    before: bool = False
    chain: bool = False
    parts: "list[_Node]" = field(default_factory=list)
    back: str = ""
    x: Blob | None = None
    flops: float = 0.0


class _Build:
    def __init__(self, graph: Stepwise, batch: int, exchange, update, on: str | Resource):
        self.graph, self.batch, self.exchange, self.update, self.on = graph, batch, exchange, update, on
        self.made: dict[str, str] = {}

    def forward(self, layer, params, state, x, given, path, folds, learned) -> _Node:
        if layer.parts and (layer.kind == "serial" or layer.join is not None):
            return self._combine(layer, params, state, x, given, path, folds, learned)
        return self._leaf(layer, params, state, x, given, path or layer.name, folds, learned)

    def _combine(self, layer, params, state, x, given, path, folds, learned) -> _Node:
        parts: list[_Node] = []
        chain, y, out, deep = layer.join is None, x, given, learned
        for i, (part, p, s) in enumerate(zip(layer.parts, params, state, strict=True)):
            at = f"{path} / {i} {part.name}" if path else f"{i} {part.name}"
            into = (y, out, deep) if chain else (x, given, learned)
            parts.append(self.forward(part, p, s, *into[:2], at, (*folds, i), into[2]))
            y, out, deep = parts[-1].y, parts[-1].shape, deep or parts[-1].learned
        node = _Node(y, out, path or layer.name, learned=deep, before=learned, chain=chain, parts=parts)
        node.x = _named(x, given)
        for tree in ("params", "state", "state_made"):
            setattr(node, tree, tuple(getattr(part, tree) for part in parts))
        if not chain:
            self._join(layer, node)
        return node

    def _join(self, layer, node: _Node) -> None:
        join = jax.jit(lambda *ys: jax.vjp(lambda *y: layer.join(list(y)), *ys))
        node.shape = jax.eval_shape(join, *[part.shape for part in node.parts])[0]
        node.y, node.back = f"{node.path} join", f"{node.path} join residuals"
        outs = [_named(node.y, node.shape), Blob(node.back)]
        self.graph.add(f"{node.path} join", join, [p.y for p in node.parts], outs, on=self.on, kind="join")

    def _leaf(self, layer, params, state, x, given, path, folds, learned) -> _Node:
        weights, tree = jax.tree_util.tree_flatten_with_path(params)
        names = [f"{path}{_key(at)}" for at, _ in weights]
        stats, stats_tree = jax.tree_util.tree_flatten_with_path(state)
        held = [f"{path}{_key(at)}" for at, _ in stats]
        for label, (_, value) in zip([*names, *held], [*weights, *stats]):
            self.graph.input(_named(label, value))
        run = jax.jit(_forward(layer, folds, tree, stats_tree, len(names), len(held), learned))
        shapes = jax.eval_shape(
            run, *[v for _, v in weights], *[v for _, v in stats], given, jax.random.key(0)
        )
        has_back = learned or bool(names)
        node = _Node(f"{path} y", shapes[0], path, learned=has_back, before=learned, x=_named(x, given))
        outs = [_named(node.y, node.shape)]
        if has_back:
            node.back = f"{path} residuals"
            outs.append(Blob(node.back))
        after = [f"{label} after" for label in held]
        outs += [_named(label, value) for label, (_, value) in zip(after, stats)]
        node.flops = float(self.batch * layer.flops(tuple(given.shape[1:]), tuple(node.shape.shape[1:])))
        single = run if len(outs) > 1 else (lambda *a: run(*a)[0])
        self.graph.add(
            f"{path} forward",
            single,
            [*names, *held, x, "key"],
            outs,
            on=self.on,
            kind=layer.kind,
            flops=node.flops,
        )
        node.params = jax.tree.unflatten(tree, names)
        node.state, node.state_made = (jax.tree.unflatten(stats_tree, n) for n in (held, after))
        return node

    def backward(self, node: _Node, gradient: str) -> str | None:
        """Adds the operations from the gradient of the node's output to that of its input, if one is needed."""
        if not node.learned:
            return None
        if node.parts:
            return self._back_through(node, gradient)
        names = jax.tree.leaves(node.params)
        outs = [Blob(f"{n} gradient", self.graph.blobs[n].shape, self.graph.blobs[n].dtype) for n in names]
        assert node.x is not None
        if node.before:
            outs.append(Blob(f"{node.path} x gradient", node.x.shape, node.x.dtype))
        run = _backward if len(outs) > 1 else (lambda back, g: _backward(back, g)[0])
        self.graph.add(
            f"{node.path} backward",
            run,
            [node.back, gradient],
            outs,
            on=self.on,
            kind="backward",
            flops=2 * node.flops,
        )
        for n in names:
            self._exchange(n)
        return outs[-1].name if node.before else None

    def _exchange(self, weight: str) -> None:
        blob = self.graph.blobs[weight]
        shared = Blob(f"{weight} exchanged", blob.shape, blob.dtype)
        self.graph.add(
            f"{weight} exchange", self.exchange, f"{weight} gradient", shared, on="network", kind="exchange"
        )
        self.made[weight] = shared.name
        if self.update is not None:
            new = Blob(f"{weight} after", blob.shape, blob.dtype)
            self.graph.add(
                f"{weight} update", self.update, [weight, shared.name], new, on=self.on, kind="update"
            )
            self.made[weight] = new.name

    def _back_through(self, node: _Node, gradient: str) -> str | None:
        if node.chain:
            at: str | None = gradient
            for part in reversed(node.parts):
                if at is not None:
                    at = self.backward(part, at)
            return at
        outs = [
            Blob(f"{part.path} y gradient", tuple(part.shape.shape), str(part.shape.dtype))
            for part in node.parts
        ]
        run = _backward if len(outs) > 1 else (lambda back, g: _backward(back, g)[0])
        self.graph.add(f"{node.path} split", run, [node.back, gradient], outs, on=self.on, kind="split")
        into = [g for part, out in zip(node.parts, outs) if (g := self.backward(part, out.name)) is not None]
        if len(into) < 2 or not node.before:
            return into[0] if into and node.before else None
        assert node.x is not None
        total = Blob(f"{node.path} x gradient", node.x.shape, node.x.dtype)
        return self.graph.add(f"{node.path} sum", _total, into, total, on=self.on, kind="sum")


def _forward(layer, folds, tree, stats_tree, n: int, held: int, learned: bool):
    def forward(*args):
        params = jax.tree.unflatten(tree, args[:n])
        state = jax.tree.unflatten(stats_tree, args[n : n + held])
        x, key = args[-2:]
        # As the combinators do: part i gets the key folded with i.
        for i in folds if key is not None else ():
            key = jax.random.fold_in(key, i)
        apply = lambda p, x: layer.apply(p, state, x, key=key, train=True)
        if learned:
            y, back, made = jax.vjp(apply, params, x, has_aux=True)
        elif n:
            y, back, made = jax.vjp(lambda p: apply(p, x), params, has_aux=True)
        else:
            y, made = apply(params, x)
            return (y, *jax.tree.leaves(made))
        return (y, back, *jax.tree.leaves(made))

    return forward


@jax.jit
def _backward(back, gradient):
    return tuple(jax.tree.leaves(back(gradient)))


@jax.jit
def _total(*gradients):
    return sum(gradients[1:], start=gradients[0])


def _named(name: str, value: Any) -> Blob:
    return Blob(name, tuple(value.shape), str(value.dtype))


def _key(path) -> str:
    return "".join(f".{getattr(part, 'key', getattr(part, 'idx', part))}" for part in path)
