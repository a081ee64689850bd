"""A graph from any function that JAX can trace: one operation an equation of its jaxpr."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from cnnkit.graph.bigraph import Blob, Graph, Resource
from cnnkit.names import choose

_CALLS = {
    *("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint"),
    *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),
}
_OPEN = {"nothing": (), "calls": _CALLS, "all": {*_CALLS, "scan", "cond"}}


class Traced(Graph):
    """A graph made from a function: its inputs are the arguments' arrays, its outputs the result's."""

    _result: Any = None

    def feeds(self, *args: Any) -> dict[str, Any]:
        """The values of its inputs for these arguments, of the shapes it was traced with."""
        leaves = jax.tree.leaves(args)
        if len(leaves) != len(self.inputs):
            raise ValueError(
                f"{self.name} was traced with {len(self.inputs)} arrays in its arguments, got {len(leaves)}"
            )
        return dict(zip(self.inputs, leaves))

    def result(self, values: Mapping[str, Any]) -> Any:
        """What the function returns, from the values of the outputs."""
        return jax.tree.unflatten(self._result, [values[name] for name in self.outputs])


def from_function(
    function: Callable[..., Any],
    *args: Any,
    open: str = "calls",
    unroll: int = 64,
    on: str | Resource = "compute",
    name: str | None = None,
) -> Traced:
    """The graph of what a function does: an operation for each equation of its jaxpr.

    Args:
        function: anything that `jax.make_jaxpr` traces, jitted or not, gradients included.
        args: example arguments, arrays or `jax.ShapeDtypeStruct`.
        open: which equations that hold further equations are opened: ``"nothing"``; ``"calls"`` (jit,
            checkpoint, functions with derivatives of their own); ``"all"``, control flow too. An opened scan
            is unrolled; an opened cond has all its branches and an operation that chooses. The trips of a
            while loop are not known before it runs, so it stays one operation.
        unroll: scans of more steps stay folded.
        on: the resource of the operations.
        name: of the graph; the function's by default.

    Returns:
        The graph, whose ``feeds(*args)`` and ``result(values)`` speak the function's own types.

    >>> g = from_function(lambda x, w: jnp.tanh(x @ w).sum(), jnp.ones((2, 3)), jnp.ones((3, 4)))
    >>> list(g.ops), g.inputs
    (['dot_general', 'tanh', 'reduce_sum'], ('x', 'w'))
    """
    opened = choose(open, _OPEN, "kind of equations to open")
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    graph = Traced(name or str(getattr(function, "__name__", "function")))
    graph._result = jax.tree.structure(shape)
    build = _Build(graph, opened, unroll, on)
    jaxpr, consts = _parts(closed)
    env: dict[Any, str] = {}
    for var, label in zip(jaxpr.invars, _argument_names(function, args)):
        env[var] = graph.input(Blob(label, *_aval(var)))
    build.constants(jaxpr, consts, env)
    build.equations(jaxpr, env, "")
    graph.outputs = [build.read(var, env) for var in jaxpr.outvars]
    return graph


class _Build:
    def __init__(self, graph: Traced, opened, unroll: int, on: str | Resource):
        self.graph, self.opened, self.unroll, self.on = graph, opened, unroll, on
        self.count: dict[str, int] = {}
        self.literals = 0

    def constants(self, jaxpr, consts, env) -> None:
        for var, value in zip(jaxpr.constvars, consts):
            env[var] = self._constant(value, _aval(var))

    def read(self, var, env) -> str:
        return self._constant(var.val, _aval(var)) if isinstance(var, core.Literal) else env[var]

    def equations(self, jaxpr, env, scope: str) -> None:
        for eqn in jaxpr.eqns:
            kind = eqn.primitive.name
            if kind not in self.opened or not self._open(eqn, kind, env, scope):
                self._one(eqn, kind, env, scope)

    def _open(self, eqn, kind: str, env, scope: str) -> bool:
        if kind == "scan" and eqn.params["length"] <= self.unroll:
            self._scan(eqn, env, scope)
        elif kind == "cond" and not eqn.effects:
            self._cond(eqn, env, scope)
        elif kind in _CALLS and len(inner := _inner(eqn)) == 1 and len(inner[0][0].invars) == len(eqn.invars):
            label = self._unique(f"{scope}{eqn.params.get('name', kind)}")
            outs = self._body(inner[0], [self.read(v, env) for v in eqn.invars], f"{label}/")
            env.update(zip(eqn.outvars, outs))
        else:
            return False
        return True

    def _body(self, inner, blobs: Sequence[str], scope: str) -> list[str]:
        jaxpr, consts = inner
        env = dict(zip(jaxpr.invars, blobs))
        self.constants(jaxpr, consts, env)
        self.equations(jaxpr, env, scope)
        return [self.read(var, env) for var in jaxpr.outvars]

    def _scan(self, eqn, env, scope: str) -> None:
        # The split into constants, carry and slices is read off the shapes: the parameters that say it
        # differ between JAX's versions.
        inner, length = _inner(eqn)[0], eqn.params["length"]
        body = inner[0]
        sliced = [len(v.aval.shape) > len(b.aval.shape) for v, b in zip(eqn.invars, body.invars)]
        stacked = [len(v.aval.shape) > len(b.aval.shape) for v, b in zip(eqn.outvars, body.outvars)]
        n_carry, n_slices = stacked.count(False), sliced.count(True)
        n_const = len(sliced) - n_slices - n_carry
        label = self._unique(f"{scope}scan")
        blobs = [self.read(v, env) for v in eqn.invars]
        const, carry, xs = blobs[:n_const], blobs[n_const : n_const + n_carry], blobs[n_const + n_carry :]
        ys: list[list[str]] = [[] for _ in range(len(stacked) - n_carry)]
        steps = range(length)[:: -1 if eqn.params["reverse"] else 1]
        for i in steps:
            inside = f"{label}[{i}]/"
            now = [
                self._add(f"{inside}slice", "slice", lambda a, i=i: a[i], [x], [_aval(b)])[0]
                for x, b in zip(xs, body.invars[n_const + n_carry :])
            ]
            outs = self._body(inner, [*const, *carry, *now], inside)
            carry = outs[:n_carry]
            for made, out in zip(ys, outs[n_carry:]):
                made.append(out)
        stacks = []
        for made, var in zip(ys, eqn.outvars[n_carry:]):
            made = made[:: -1 if eqn.params["reverse"] else 1]
            shape, dtype = _aval(var)
            run = (lambda *a: jnp.stack(a)) if length else (lambda s=shape, d=dtype: jnp.zeros(s, d))
            stacks += self._add(f"{label}/stack", "stack", run, made, [(shape, dtype)])
        env.update(zip(eqn.outvars, [*carry, *stacks]))

    def _cond(self, eqn, env, scope: str) -> None:
        label = self._unique(f"{scope}cond")
        index, *blobs = [self.read(v, env) for v in eqn.invars]
        made = [self._body(inner, blobs, f"{label}[{i}]/") for i, inner in enumerate(_inner(eqn))]
        for var, *outs in zip(eqn.outvars, *made):
            run = lambda i, *ys: ys[int(i)]
            env[var] = self._add(f"{label}/choose", "choose", run, [index, *outs], [_aval(var)])[0]

    def _one(self, eqn, kind: str, env, scope: str) -> None:
        ins = list(dict.fromkeys(v for v in eqn.invars if not isinstance(v, core.Literal)))
        outs = [v for v in eqn.outvars if not isinstance(v, core.DropVar)]
        told = core.DebugInfo(kind, kind, ("",) * len(ins), ("",) * len(outs))
        one = core.ClosedJaxpr(core.Jaxpr((), ins, outs, [eqn], eqn.effects, told), ())
        evaluate = core.jaxpr_as_fun(one)
        run = evaluate if len(outs) != 1 else (lambda *a: evaluate(*a)[0])
        label = eqn.params["name"] if kind in ("jit", "pjit") else kind
        blobs = self._add(
            f"{scope}{label}", kind, run, [env[v] for v in ins], [_aval(v) for v in outs], _flops(eqn)
        )
        env.update(zip(outs, blobs))

    def _add(self, name, kind, run, inputs, avals, flops=0.0) -> list[str]:
        name = self._unique(name)
        labels = [name if len(avals) == 1 else f"{name}:{i}" for i in range(len(avals))]
        # An argument may be called as an operation is.
        labels = [f"{label}'" if label in self.graph.blobs else label for label in labels]
        blobs = [Blob(label, *aval) for label, aval in zip(labels, avals)]
        self.graph.add(name, run, inputs, blobs, on=self.on, kind=kind, flops=flops)
        return [blob.name for blob in blobs]

    def _unique(self, name: str) -> str:
        seen = self.count[name] = self.count.get(name, 0) + 1
        return name if seen == 1 else f"{name}.{seen}"

    def _constant(self, value, aval) -> str:
        self.literals += 1
        return self.graph.input(Blob(f"constant {self.literals}", *aval), value)


def _parts(jaxpr) -> tuple[Any, Sequence[Any]]:
    # JAX 0.12 made one type of the open and the closed jaxpr.
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return inner, getattr(jaxpr, "consts", ())


def _inner(eqn) -> list[tuple[Any, Sequence[Any]]]:
    found = []
    for value in eqn.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if hasattr(getattr(one, "jaxpr", one), "eqns"):
                found.append(_parts(one))
    return found


def _aval(var) -> tuple[tuple[int, ...] | None, str | None]:
    shape, dtype = getattr(var.aval, "shape", None), getattr(var.aval, "dtype", None)
    return (None if shape is None else tuple(shape)), (None if dtype is None else str(dtype))


def _argument_names(function, args) -> list[str]:
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []
    labels = []
    for path, _ in jax.tree_util.tree_flatten_with_path(args)[0]:
        i = path[0].idx
        labels.append((names[i] if i < len(names) else f"argument {i}") + jax.tree_util.keystr(path[1:]))
    # A function that takes *args has fewer parameters than arguments, so that labels may meet.
    return labels if len(set(labels)) == len(labels) else [f"{n}#{i}" for i, n in enumerate(labels)]


def _flops(eqn) -> float:
    kind, out = eqn.primitive.name, [math.prod(getattr(v.aval, "shape", ())) for v in eqn.outvars]
    if kind == "dot_general":
        (contract, _), _ = eqn.params["dimension_numbers"]
        return 2.0 * out[0] * math.prod(eqn.invars[0].aval.shape[d] for d in contract)
    if kind == "conv_general_dilated":
        kernel = eqn.invars[1].aval.shape
        return 2.0 * out[0] * math.prod(kernel) / kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
    inner = [sum(_flops(e) for e in jaxpr.eqns) for jaxpr, _ in _inner(eqn)]
    if kind == "cond":
        return max(inner, default=0.0)
    if inner:
        return sum(inner) * eqn.params.get("length", 1)
    return float(sum(out))
