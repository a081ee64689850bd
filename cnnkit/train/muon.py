"""Muon: momentum whose matrices are made orthogonal, many of them in one batched product."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

# A quintic that lifts small singular values fastest; it ends between 0.7 and 1.2 rather than at 1.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_EPS = 1e-7
# Multiply-additions of a product that a GPU does in less time than it takes to start a few more kernels.
_SMALL = 2**31


def orthogonalize(matrices: Sequence[jax.Array], steps: int, small: int | None = None) -> list[jax.Array]:
    """U·S'·Vᵀ for each matrix U·S·Vᵀ, with S' near 1, by Newton-Schulz steps (Jordan et al. 2024).

    X ← aX + (bA + cA²)X with A = XXᵀ, from X = G / ‖G‖. Matrices of one shape go together, in one product
    each time; smaller ones are padded with zeros, which stay zeros, where the padded product is still small.

    Args:
        matrices: float32, each [n, m].
        steps: how often.
        small: multiply-additions up to which padding is worth it; 0 for none. By default what suits the backend.

    Returns:
        matrices of the same shapes, float32.

    >>> made = orthogonalize([jnp.array([[3.0, 0.0], [0.0, 2.0]])], steps=5)[0]
    >>> bool((abs(made - jnp.eye(2)) < 0.35).all())
    True
    """
    on_cpu = jax.default_backend() == "cpu"
    if small is None:
        small = 0 if on_cpu else _SMALL
    wide = [m if m.shape[0] <= m.shape[1] else m.T for m in matrices]
    out: list[Any] = [None] * len(matrices)
    for group, (rows, cols) in _groups([m.shape for m in wide], small):
        x = jnp.stack([_padded(wide[i], rows, cols) for i in group])
        x = _iterate(x, steps, jnp.float32 if on_cpu else jnp.bfloat16)
        for place, i in enumerate(group):
            made = x[place, : wide[i].shape[0], : wide[i].shape[1]]
            out[i] = made if wide[i] is matrices[i] else made.T
    return out


def _iterate(x, steps, dtype):
    norm = jnp.sqrt(jnp.square(x).sum((1, 2), keepdims=True))
    x = (x / (norm + _EPS)).astype(dtype)
    for _ in range(steps):
        square = jnp.einsum("kij,klj->kil", x, x)
        both = _B * square + _C * jnp.einsum("kij,kjl->kil", square, square)
        x = _A * x + jnp.einsum("kij,kjl->kil", both, x)
    return x.astype(jnp.float32)


def _groups(shapes, small):
    """([which matrices], (rows, columns) that they are padded to), the largest first."""
    left = sorted(range(len(shapes)), key=lambda i: (-(shapes[i][0] ** 2) * shapes[i][1], i))
    while left:
        rows, cols = shapes[left[0]]
        fits = rows * rows * cols <= small
        group = [
            i for i in left
            if shapes[i] == (rows, cols) or (fits and shapes[i][0] <= rows and shapes[i][1] <= cols)
        ]  # fmt: skip
        left = [i for i in left if i not in group]
        yield group, (rows, cols)


def _padded(x, rows, cols):
    return jnp.pad(x, ((0, rows - x.shape[0]), (0, cols - x.shape[1])))


def scale_by_orthogonal(lr: Any, momentum: Any, steps: int, unit: bool) -> optax.GradientTransformation:
    """The step of Muon with Nesterov momentum: v ← m·v + g; w ← s·w − lr·orthogonal(g + m·v).

    A weight [h, w, C, F] is a matrix of F rows. s is 1, or, with unit, √F / ‖w‖: filters keep an average
    length of 1, so that steps turn them and the rate means the same throughout.

    Args:
        lr, momentum: numbers, perhaps traced.
        steps: of Newton-Schulz.
        unit: whether filters keep their length.
    """

    def init(params):
        return jax.tree.map(jnp.zeros_like, params)

    def update(grads, velocity, params):
        velocity = jax.tree.map(lambda v, g: momentum * v + g, velocity, grads)
        structure: Any = jax.tree.structure(grads)
        ahead = jax.tree.leaves(jax.tree.map(lambda v, g: g + momentum * v, velocity, grads))
        matrices = [g.reshape(-1, g.shape[-1]).T for g in ahead]
        weights = jax.tree.leaves(params)
        made = []
        for o, w in zip(orthogonalize(matrices, steps), weights, strict=True):
            step = -lr * o.T.reshape(w.shape)
            if unit:
                # A rate of 0 leaves weights as they are, whatever their length.
                factor = jnp.sqrt(w.shape[-1] / (jnp.square(w).sum() + _EPS))
                step = jnp.where(lr > 0, step + (factor - 1) * w, 0)
            made.append(step)
        return structure.unflatten(made), velocity

    return optax.GradientTransformation(init, update)
