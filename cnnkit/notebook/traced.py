"""Where the time of a compiled program goes: its operations, from a trace of a real run, by kind and by layer."""

import gzip
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from cnnkit.layers import compiler_options


class Op(NamedTuple):
    """One operation of a program, over all its calls.

    Args:
        name: the compiler's.
        source: what it was made of, as ``jit(step)/jvp(0_conv)/conv_general_dilated``; "" where it does not say.
        seconds: of one run of the program.
        calls: in one run of the program.
    """

    name: str
    source: str
    seconds: float
    calls: float

    @property
    def kind(self) -> str:
        """What it does, in a word or two."""
        last, name = self.source.rpartition("/")[2], self.name
        for kind, pattern in _KINDS.items():
            if re.search(pattern, last) or re.search(pattern, name):
                return kind
        return "element by element"

    @property
    def backward(self) -> bool:
        """Whether it belongs to the backward pass."""
        return "transpose(" in self.source

    @property
    def layer(self) -> str:
        """The outermost layer that it belongs to, as ``0_conv``; "" for what belongs to none."""
        found = re.search(r"(?:^|[/(])(\d+_[a-z_0-9]+)", self.source)
        return found[1] if found else ""


# Asked in this order, first of what an operation was made of and then of its compiled name.
_KINDS = {
    "convolution": r"conv_general_dilated|^conv|cudnn-conv|custom-call.*conv|fprop|dgrad|wgrad",
    "matrix product": r"dot_general|^dot|gemm|cublas",
    "pooling": r"reduce_window|reduce-window|select-and-scatter",
    "gather, scatter": r"gather|scatter|dynamic[-_](update[-_])?slice|take",
    "random numbers": r"threefry|random_bits|^rng",
    "sum, maximum": r"^reduce|reduce_sum|reduce_max|^argmax|input_reduce|cumsum",
    "copy": r"^copy|^transpose|transpose$|memcpy|Memcpy|convert_element_type$",
}
# These hold others, which are counted themselves.
_HOLDERS = re.compile(r"^(while|call|conditional|fori|tuple)([._]\d+)?$")


def trace(function: Callable[..., Any], *arguments: Any, runs: int = 3) -> list[Op]:
    """The operations of a function's compiled program, the longest first.

    Args:
        function: of arrays; compiled here, as a training's programs are.
        arguments: of it; none is donated.
        runs: how often it runs under the profiler, after once without.

    Returns:
        one entry an operation; on several devices the time is their sum.

    Raises:
        RuntimeError: the profiler left no trace of the program.
    """
    jitted = jax.jit(function, compiler_options=compiler_options(traced=True))
    program = jitted.lower(*arguments).compile()
    jax.block_until_ready(program(*arguments))
    with tempfile.TemporaryDirectory() as folder:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # every call of a Python function would be kept, too
        with jax.profiler.trace(folder, profiler_options=options):
            for _ in range(runs):
                out = program(*arguments)
            jax.block_until_ready(out)
        events = [e for path in Path(folder).rglob("*.trace.json.gz") for e in _events(path)]
    if not events:
        raise RuntimeError(
            "the profiler left no trace of the program; jax.profiler.trace may be in use elsewhere"
        )
    return summed(events, sources(program.as_text() or ""), runs)


def _events(path: Path) -> list[dict[str, Any]]:
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def sources(text: str) -> dict[str, str]:
    """What each operation of a program was made of, from the program's text."""
    found = re.findall(r'^\s*(?:ROOT )?%?([\w.-]+) = .*op_name="([^"]*)"', text, re.MULTILINE)
    return dict(found)


def summed(events: Iterable[Mapping[str, Any]], made_of: Mapping[str, str], runs: int) -> list[Op]:
    """Operations out of a trace's events, the longest first.

    Args:
        events: of a trace in Chrome's form; those of operations name it in ``args["hlo_op"]``.
        made_of: from `sources`.
        runs: that the trace has.
    """
    seconds: dict[str, float] = {}
    calls: dict[str, int] = {}
    for event in events:
        name = event.get("args", {}).get("hlo_op")
        if name is None or event.get("ph") != "X" or _HOLDERS.match(name):
            continue
        seconds[name] = seconds.get(name, 0.0) + event["dur"] / 1e6
        calls[name] = calls.get(name, 0) + 1
    ops = [Op(name, made_of.get(name, ""), s / runs, calls[name] / runs) for name, s in seconds.items()]
    return sorted(ops, key=lambda op: -op.seconds)


def by_kind(ops: Sequence[Op]) -> dict[str, float]:
    """Seconds of each kind of operation, the longest first."""
    found: dict[str, float] = {}
    for op in ops:
        found[op.kind] = found.get(op.kind, 0.0) + op.seconds
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def by_layer(ops: Sequence[Op]) -> dict[str, tuple[float, float]]:
    """(seconds forward, seconds backward) of each layer in order, the rest under "rest" as if forward."""
    found: dict[str, list[float]] = {}
    for op in ops:
        both = found.setdefault(op.layer or "rest", [0.0, 0.0])
        both[bool(op.layer) and op.backward] += op.seconds
    place = lambda name: (name == "rest", int(name.partition("_")[0]) if name != "rest" else 0)
    return {name: (found[name][0], found[name][1]) for name in sorted(found, key=place)}


def figure(ops: Sequence[Op]) -> Any:
    """Two panels: a step's time by kind of operation, and by layer, forward and backward."""
    from cnnkit.notebook import style

    kinds, layers = by_kind(ops), by_layer(ops)
    picture, axes = style.figure(8.0, 0.9 + 0.17 * max(len(kinds), len(layers)), columns=2)
    axes[0].barh(list(kinds), [1e3 * s for s in kinds.values()], color=style.COLORS[0])
    style.label(axes[0], "ms", title="by kind of operation")
    for i, name in enumerate(("forward", "backward")):
        left = [1e3 * both[0] * i for both in layers.values()]
        values = [1e3 * both[i] for both in layers.values()]
        axes[1].barh(list(layers), values, left=left, color=style.COLORS[i], label=name)
    style.label(axes[1], "ms", title="by layer")
    style.legend(axes[1])
    for ax in axes:
        ax.invert_yaxis()
        ax.tick_params(axis="y", labelsize=7)
    return picture
