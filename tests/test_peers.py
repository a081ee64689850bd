"""The peers in the core benchmark are the same networks: equal outputs from equal weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.core import NETS
from cnnkit import nets
from cnnkit.layers import walk

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
