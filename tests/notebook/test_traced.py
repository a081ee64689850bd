"""Operations out of a trace: sums, kinds, layers; and one real trace."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit.layers import dense, relu, serial
from cnnkit.notebook import traced
from cnnkit.notebook.traced import Op

TEXT = """
ENTRY %main {
  %cudnn-conv.3 = (bf16[2]) custom-call(%a), metadata={op_name="jit(step)/jvp(0_conv)/conv_general_dilated" source_line=1}
  ROOT %loop_fusion = f32[2]{0} fusion(%b), metadata={op_name="jit(step)/transpose(jvp(2_serial))/1_relu/mul"}
}
"""


def event(name, dur, **more):
    return {"ph": "X", "dur": dur, "args": {"hlo_op": name}} | more


def test_events_are_summed_over_runs_without_those_that_hold_others():
    events = [
        *[event("cudnn-conv.3", 300.0), event("cudnn-conv.3", 500.0), event("loop_fusion", 50.0)],
        *[event("while.7", 9000.0), event("copy.1", 2.0), event("x", 1.0, ph="M")],
        {"ph": "X", "dur": 7.0, "args": {}},
    ]
    ops = traced.summed(events, traced.sources(TEXT), runs=2)
    assert [(op.name, op.calls) for op in ops] == [("cudnn-conv.3", 1), ("loop_fusion", 0.5), ("copy.1", 0.5)]
    assert [op.seconds for op in ops] == pytest.approx([4e-4, 2.5e-5, 1e-6])
    assert [op.kind for op in ops] == ["convolution", "element by element", "copy"]
    assert [(op.layer, op.backward) for op in ops] == [("0_conv", False), ("2_serial", True), ("", False)]
    layers = traced.by_layer(ops)
    assert list(layers) == ["0_conv", "2_serial", "rest"]
    assert layers["2_serial"] == (0.0, pytest.approx(2.5e-5))
    assert list(traced.by_kind(ops)) == ["convolution", "element by element", "copy"]


@pytest.mark.parametrize(
    ("name", "source", "kind"),
    [
        ("fusion.2", "jit(f)/jvp(1_dense)/dot_general", "matrix product"),
        ("cublas-gemm.1", "", "matrix product"),
        ("input_reduce_fusion", "jit(f)/reduce_sum", "sum, maximum"),
        ("select-and-scatter.4", "", "pooling"),
        ("fusion", "jit(f)/threefry2x32", "random numbers"),
        ("loop_multiply_fusion", "jit(f)/mul", "element by element"),
    ],
)
def test_kinds(name, source, kind):
    assert Op(name, source, 1.0, 1).kind == kind


def test_a_real_trace_finds_the_products_in_their_layers():
    net = serial(dense(64), relu(), dense(8))
    params, state, _ = net.init(jax.random.key(0), (256,))
    x = jax.random.normal(jax.random.key(1), (64, 256))
    loss = lambda params: jnp.square(net.apply(params, state, x, train=True)[0]).sum()
    ops = traced.trace(jax.grad(loss), params, runs=2)
    layers = traced.by_layer(ops)
    assert {"0_dense", "2_dense"} <= set(layers)
    assert sum(map(sum, layers.values())) == pytest.approx(sum(traced.by_kind(ops).values()))
    drawn = traced.figure(ops).axes
    assert len(drawn) == 2
    np.testing.assert_allclose(
        sum(bar.get_width() for bar in drawn[0].patches), 1e3 * sum(op.seconds for op in ops), rtol=1e-6
    )
