"""The peers in the core benchmark are the same networks: equal outputs from equal weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.core import NETS
from cnnkit import nets
from cnnkit.layers import (
    batch_norm,
    branch,
    conv,
    dense,
    dropout,
    global_pool,
    leaky_relu,
    lrn,
    max_pool,
    relu,
    residual,
    serial,
    walk,
)

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("name", NETS)
def test_the_peer_computes_the_same_logits(name):
    from benchmarks import peers_torch

    shape = NETS[name][0]
    net = nets.NAMES[name](10)
    params, state, _ = net.init(jax.random.key(0), shape)
    ours = [p for _, _, p in walk(net, params) if p]
    peer = peers_torch.NETS[name]().eval()
    theirs = [m for m in peer.modules() if hasattr(m, "weight")]
    assert len(ours) == len(theirs)
    for p, module in zip(ours, theirs, strict=True):
        w = np.asarray(p["w"])
        if w.ndim == 2:
            w = flattened_in_the_peers_order(w, module.in_features, name).T
        else:
            w = w.transpose(3, 2, 0, 1)
        module.weight.data = torch.from_numpy(np.ascontiguousarray(w))
        p["b"] = jnp.linspace(-0.1, 0.1, len(p["b"]))
        module.bias.data = torch.from_numpy(np.array(p["b"]))
    x = np.random.default_rng(0).standard_normal((2, *shape)).astype(np.float32)
    want = peer(torch.from_numpy(x.transpose(0, 3, 1, 2).copy())).detach().numpy()
    got, _ = jax.jit(net.apply)(params, state, x)
    np.testing.assert_allclose(got, want, atol=2e-3 * np.abs(want).max())


def flattened_in_the_peers_order(w, inputs, name):
    """Dense weights for images flattened channels first."""
    side, channels, before = {800: (4, 50, 0), 4608: (6, 128, 0), 5632: (6, 128, 1024)}.get(
        inputs, (0, 0, inputs)
    )
    if not side:
        return w
    images = w[before:].reshape(side, side, channels, -1).transpose(2, 0, 1, 3)
    return np.concatenate([w[:before], images.reshape(inputs - before, -1)])


def every_kind():
    """A network with each kind of layer that the peers' networks are made of."""
    return serial(
        conv(8, 5, stride=2, padding=2),
        relu(),
        lrn(),
        max_pool(3, 2, padding="clip"),
        conv(8, 3, padding="same", groups=2, bias=False),
        batch_norm(eps=1e-3),
        leaky_relu(0.1),
        max_pool(3, 2, padding=1),
        branch(max_pool(3, 1, padding="same"), conv(4, 1)),
        residual(serial(conv(12, 1), relu())),
        dropout(0.5),
        branch(global_pool(), serial(dense(6), relu())),
        dense(10),
    )


def test_networks_are_built_layer_by_layer_for_each_peer():
    nnx = pytest.importorskip("flax.nnx")
    from benchmarks import peers_flax, peers_torch

    shape, net = (20, 20, 4), every_kind()
    params, state, _ = net.init(jax.random.key(0), shape)
    x = np.random.default_rng(0).standard_normal((3, *shape)).astype(np.float32)
    want, _ = jax.jit(net.apply)(params, state, x)
    ours = [p for _, _, p in walk(net, params) if p]

    flax = peers_flax.Built(net, shape, nnx.Rngs(0), jnp.float32)

    def made(part):
        yield from ([part.made] if hasattr(part.made, "kernel") or hasattr(part.made, "scale") else [])
        for inner in part.parts:
            yield from made(inner)

    for p, module in zip(ours, made(flax), strict=True):
        for ours_name, name in (("w", "kernel"), ("b", "bias"), ("scale", "scale"), ("shift", "bias")):
            if ours_name in p:
                getattr(module, name)[...] = p[ours_name]
    flax.eval()
    found = nnx.jit(lambda net, x: net(x))(flax, x)
    np.testing.assert_allclose(found, want, atol=1e-4 * np.abs(want).max())

    peer = peers_torch.built(net, shape).eval()
    theirs = [m for m in peer.modules() if getattr(m, "weight", None) is not None]
    for p, module in zip(ours, theirs, strict=True):
        w = np.array(p["w"] if "w" in p else p["scale"])
        if w.ndim == 2 and len(w) == 3 * 3 * 12:
            w = w.reshape(3, 3, 12, -1).transpose(2, 0, 1, 3).reshape(len(w), -1)
        w = w.T if w.ndim == 2 else w.transpose(3, 2, 0, 1) if w.ndim == 4 else w
        module.weight.data = torch.from_numpy(np.ascontiguousarray(w))
        if module.bias is not None:
            module.bias.data = torch.from_numpy(np.array(p.get("b", p.get("shift"))))
    got = peer(torch.from_numpy(x.transpose(0, 3, 1, 2).copy())).detach().numpy()
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())
