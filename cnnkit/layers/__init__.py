"""The single-GPU core: layers as (init, apply) pairs, and their combinators.

Gradients are written out for reverse mode where that makes them fast: in convolutions on a CPU, in poolings, and in
norms with their activation on a GPU. jax.jvp, and with it jax.hessian, does not go through these; jax.grad of
jax.grad does.
"""

from typing import TYPE_CHECKING

from cnnkit.layers.activate import gelu, leaky_relu, relu, scaled_tanh, sigmoid, silu, softmax, tanh
from cnnkit.layers.compiled import compiler_options
from cnnkit.layers.conv import conv, local, nin
from cnnkit.layers.dense import affine, dense, flatten
from cnnkit.layers.dropout import dropout
from cnnkit.layers.inception import inception
from cnnkit.layers.layer import Layer, ShapeError, branch, identity, residual, serial
from cnnkit.layers.loop import in_loop, inside_loop
from cnnkit.layers.norm import batch_norm, lrn
from cnnkit.layers.pool import avg_pool, global_pool, max_pool
from cnnkit.layers.rebuild import rebuild
from cnnkit.layers.summary import Summary, outline, summary
from cnnkit.layers.walk import map_weights, walk
from cnnkit.layers.whiten import measure, whiten
from cnnkit.names import lacking

__all__ = [
    "Layer",
    "ShapeError",
    "Summary",
    "affine",
    "avg_pool",
    "batch_norm",
    "branch",
    "compiler_options",
    "conv",
    "dense",
    "dropout",
    "flatten",
    "gelu",
    "global_pool",
    "identity",
    "in_loop",
    "inception",
    "inside_loop",
    "leaky_relu",
    "local",
    "lrn",
    "map_weights",
    "max_pool",
    "measure",
    "nin",
    "outline",
    "rebuild",
    "relu",
    "residual",
    "scaled_tanh",
    "serial",
    "sigmoid",
    "silu",
    "softmax",
    "summary",
    "tanh",
    "walk",
    "whiten",
]

if not TYPE_CHECKING:  # or type checkers would take any name for one of these
    __getattr__ = lacking(__name__, __all__)
