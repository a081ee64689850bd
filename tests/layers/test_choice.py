"""How auto chooses: the fastest algorithm at the nearest measured case, and options for the compiler."""

import jax
import jax.numpy as jnp
import pytest

from cnnkit.layers import compiled, compiler_options, conv, convolve, in_loop
from cnnkit.layers.choice import Case, choose_algorithm, read_table

ROWS = read_table()
CPU = [row for row in ROWS if row["backend"] == "cpu"]


def case(row):
    return Case(**{field: row[field] for field in Case._fields})


@pytest.mark.parametrize("row", ROWS[::3], ids=lambda row: str(list(case(row))))
def test_auto_takes_what_was_fastest_at_a_measured_case(row):
    assert choose_algorithm(case(row)) == min(row["ms"], key=row["ms"].get)


@pytest.mark.parametrize("row", CPU[::7], ids=lambda row: str(list(case(row))))
def test_auto_goes_by_the_nearest_case(row):
    near = case(row)._replace(batch=row["batch"] + 1, height=row["height"] + 1)
    assert choose_algorithm(near) == min(row["ms"], key=row["ms"].get)


def test_the_table_covers_every_algorithm_in_and_out_of_loops_forward_and_backward():
    assert {tuple(row["ms"]) for row in ROWS} == {tuple(convolve.ALGORITHMS)}
    kinds = {(row["loop"], row["gradient"]) for row in CPU}
    assert kinds == {(False, False), (False, True), (True, False), (True, True)}
    fastest = {min(row["ms"], key=row["ms"].get) for row in CPU}
    assert fastest >= {"direct", "matmul"}


def test_backends_not_measured_get_a_plain_rule():
    unknown = case(CPU[0])._replace(backend="abacus")
    assert choose_algorithm(unknown._replace(kernel=1)) == "matmul"
    assert choose_algorithm(unknown._replace(kernel=9)) == "direct"


def test_a_layer_asks_for_its_own_case(monkeypatch):
    asked = []
    monkeypatch.setattr(convolve, "choose_algorithm", lambda case: asked.append(case) or "direct")
    layer = conv(6, (3, 2), stride=2, groups=2)
    params, _, _ = layer.init(jax.random.key(0), (8, 9, 4))
    x = jnp.ones((5, 8, 9, 4))
    layer.apply(params, (), x)
    with in_loop():
        layer.apply(params, (), x, train=True)
    want = Case("cpu", False, False, 5, 8, 9, 4, 6, 6, 4, 2)
    assert asked == [want, want._replace(loop=True, gradient=True)]


def test_an_algorithm_named_is_the_one_taken(monkeypatch):
    monkeypatch.setattr(convolve, "choose_algorithm", lambda case: pytest.fail("asked for a choice"))
    layer = conv(2, 3, algorithm="fft")
    params, _, _ = layer.init(jax.random.key(0), (65, 65, 1))
    text = jax.jit(lambda x: layer.apply(params, (), x)[0]).lower(jnp.ones((1, 65, 65, 1))).as_text()
    assert "stablehlo.fft" in text


def test_compiler_options_are_those_that_this_version_knows(monkeypatch):
    known = compiler_options()
    assert jax.jit(lambda x: x + 1, compiler_options=known)(1) == 2
    monkeypatch.setattr(compiled, "_CPU", {"xla_cpu_no_such_option": "1"})
    assert compiler_options() == {}


def test_on_a_gpu_options_of_a_measurement_come_beside_those_that_are_known(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(compiled, "_known", dict)  # a CPU's compiler takes some of a GPU's options, too
    assert compiler_options() == {"xla_gpu_all_reduce_combine_threshold_bytes": 1}
    assert compiler_options(traced=True) == compiler_options() | {"xla_gpu_graph_min_graph_size": 1_000_000}
    monkeypatch.setitem(compiled.GPU, "xla_gpu_autotune_level", 0)
    assert compiler_options()["xla_gpu_autotune_level"] == 0


def test_a_gpus_rows_come_out_of_what_the_layers_benchmark_measured():
    from benchmarks.conv_table import from_layers

    measured = [
        {"group": "conv", "case": f"conv 3×3/2 64→128 at 56², batch 256, {name}", "value": ms}
        for name, ms in (("direct", 1.5), ("fft", 9.0))
    ]
    rows = from_layers([*measured, {"group": "pool", "case": "max pool", "value": 1.0}])
    shape = {
        "batch": 256,
        "height": 56,
        "width": 56,
        "channels": 64,
        "features": 128,
        "kernel": 9,
        "stride": 4,
    }
    assert [row["loop"] for row in rows] == [False, True]
    for row in rows:
        assert shape.items() <= row.items()
        assert (row["backend"], row["gradient"], row["ms"]) == ("gpu", True, {"direct": 1.5, "fft": 9.0})


def test_wide_strides_are_not_left_to_the_fourier_transform():
    """It computes every place of the window, of which they leave most out."""
    for batch, side, channels, features, kernel, stride in (
        (128, 224, 3, 96, 11, 4),
        (64, 224, 3, 64, 7, 2),
        (32, 84, 4, 32, 8, 4),
        (64, 64, 32, 64, 9, 2),
    ):
        for loop in (False, True):
            for gradient in (False, True):
                sizes = (batch, side, side, channels, features, kernel**2, stride**2, 1)
                assert choose_algorithm(Case("cpu", loop, gradient, *sizes)) != "fft"
