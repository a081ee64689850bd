"""Summaries, and going through layers with their parameters."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit.layers import (
    ShapeError,
    batch_norm,
    branch,
    conv,
    dense,
    inception,
    map_weights,
    max_pool,
    outline,
    relu,
    serial,
    summary,
    walk,
)

NET = serial(
    conv(4, 3),
    relu(),
    branch(dense(5), serial(max_pool(2), dense(3))).named("two ways"),
    dense(2, bias=False),
)


def test_rows_tell_shape_parameters_flops_and_bytes_of_every_layer():
    table = summary(NET, (6, 6, 1))
    assert [(row.layer, row.shape, row.parameters, row.flops, row.depth) for row in table.rows] == [
        ("0 conv 4 3×3", (4, 4, 4), 40, (2 * 9 + 1) * 64, 0),
        ("1 relu", (4, 4, 4), 0, 64, 0),
        ("2 two ways", (8,), 325 + 51, 645 + 64 + 99, 0),
        ("0 dense 5", (5,), 325, (2 * 64 + 1) * 5, 1),
        ("1 serial", (3,), 51, 64 + 99, 1),
        ("0 max_pool 2×2", (2, 2, 4), 0, 64, 2),
        ("1 dense 3", (3,), 51, (2 * 16 + 1) * 3, 2),
        ("3 dense 2 bias=False", (2,), 16, 2 * 8 * 2, 0),
    ]
    assert [row.activation_bytes for row in table.rows] == [256, 256, 96, 20, 76, 64, 12, 8]
    assert table.parameters == 40 + 376 + 16
    assert table.flops == 19 * 64 + 64 + 808 + 32
    assert table.activation_bytes == 256 + 256 + 96 + 8


def test_the_table_reads_as_text_and_as_html():
    table = summary(NET.named("mine <1>"), (6, 6, 1))
    lines = str(table).splitlines()
    assert lines[0].split() == ["layer", "output", "parameters", "FLOPs", "activations"]
    assert re.fullmatch(r"  0 dense 5 +5 +325 +645 +20 B", lines[6])
    assert re.fullmatch(r"total +432 +2\.1 k +616 B", lines[-1])
    page = summary(serial(conv(4, 3).named("mine <1>")), (6, 6, 1))._repr_html_()
    assert page.count("<tr>") == 4
    assert "0 mine &lt;1&gt;" in page
    assert '<td style="text-align:right">40</td>' in page


def test_a_single_layer_has_a_summary_too():
    assert [row.layer for row in summary(dense(3), (4,)).rows] == ["dense 3"]


def test_a_summary_computes_nothing_and_tells_shapes_that_do_not_fit():
    huge = serial(dense(100_000), dense(100_000))
    assert summary(huge, (100_000,)).parameters == 20_000_200_000
    with pytest.raises(ShapeError, match=re.escape("layer 1 (conv 4 3×3) got 2, but conv needs an image")):
        summary(serial(dense(2), conv(4, 3)), (4,))


def test_outline_gives_what_init_gives():
    net = serial(conv(4, 3), batch_norm())
    params, state, out = outline(net, (6, 6, 1))
    real = net.init(jax.random.key(0), (6, 6, 1))
    assert out == real[2] == (4, 4, 4)
    told = jax.tree.map(lambda a: (a.shape, a.dtype), (params, state))
    assert told == jax.tree.map(lambda a: (a.shape, a.dtype), real[:2])


def test_walk_names_every_layer_by_its_place():
    params, _, _ = outline(NET, (6, 6, 1))
    assert [(path, sorted(p)) for path, _, p in walk(NET, params)] == [
        ("0 conv 4 3×3", ["b", "w"]),
        ("1 relu", []),
        ("2 two ways / 0 dense 5", ["b", "w"]),
        ("2 two ways / 1 serial / 0 max_pool 2×2", []),
        ("2 two ways / 1 serial / 1 dense 3", ["b", "w"]),
        ("3 dense 2 bias=False", ["w"]),
    ]
    assert [path for path, _, _ in walk(dense(3), {})] == ["dense 3"]


def test_map_weights_keeps_the_nesting():
    params, _, _ = NET.init(jax.random.key(0), (6, 6, 1))
    paths = map_weights(lambda path, layer, name, value: f"{path} / {name}", NET, params)
    assert jax.tree.structure(paths) == jax.tree.structure(params)
    assert paths[2][1][1]["w"] == "2 two ways / 1 serial / 1 dense 3 / w"
    doubled = map_weights(lambda path, layer, name, value: 2 * value, NET, params)
    np.testing.assert_array_equal(doubled[0]["w"], 2 * params[0]["w"])


def test_an_inception_block_is_its_four_or_five_paths():
    block = inception(4, (3, 6), (0, 5), 2, keep=True)
    params, _, shape = block.init(jax.random.key(0), (6, 6, 7))
    assert shape == (6, 6, 7 + 4 + 6 + 5 + 2)
    assert block.name == "inception 4 6 5 2"
    assert [part.name for part in block.parts[2].parts] == [
        "conv 3 1×1 padding=same",
        "relu",
        "conv 6 3×3 padding=same",
        "relu",
    ]
    assert [part.name for part in block.parts[3].parts] == ["conv 5 5×5 padding=same", "relu"]
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 6, 6, 7)), jnp.float32)
    y, _ = jax.jit(block.apply)(params, block.init(jax.random.key(0), (6, 6, 7))[1], x)
    np.testing.assert_array_equal(y[..., :7], x)
    one = jnp.maximum(x @ params[1][0]["w"][0, 0], 0)
    np.testing.assert_allclose(y[..., 7:11], one, atol=1e-5)
