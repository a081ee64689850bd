"""How values travel: as float32, as bfloat16, or as int8 with a scale for every block."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

BLOCK = 256
"""Values that share one int8 scale: the scales then add 4/256 = 1.6 % to the bytes."""


@dataclass(frozen=True)
class Payload:
    """A way to put a flat array of floats on the wire.

    Args:
        name: how users choose it.
        unit: the number of values in an array to send is a multiple of this.
        encode: float32 [..., n] -> the message [..., m].
        decode: a message [..., m] -> float32 [..., n]; a message of zero bytes decodes to zeros.
        size: values -> bytes of their message.
        exact: whether decode(encode(x)) is x.
    """

    name: str
    unit: int
    encode: Callable[[jax.Array], jax.Array]
    decode: Callable[[jax.Array], jax.Array]
    size: Callable[[int], int]
    exact: bool = False


def _encode_bfloat16(x: jax.Array) -> jax.Array:
    # As integers, because XLA widens bfloat16 collectives to float32 where a backend has no bfloat16.
    return lax.bitcast_convert_type(x.astype(jnp.bfloat16), jnp.uint16)


def _decode_bfloat16(message: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(message, jnp.bfloat16).astype(jnp.float32)


def _encode_int8(x: jax.Array) -> jax.Array:
    blocks = x.reshape(*x.shape[:-1], -1, BLOCK)
    scale = jnp.max(jnp.abs(blocks), axis=-1, keepdims=True) / 127
    # A block with a NaN or an infinity has such a scale, and so decodes to NaN: it must not vanish on the way.
    quantized = jnp.round(blocks / jnp.where(scale == 0, 1, scale)).astype(jnp.int8)
    # Scales ride behind their block, so that an exchange stays one message.
    behind = lax.bitcast_convert_type(scale[..., 0], jnp.int8)
    return jnp.concatenate([quantized, behind], axis=-1).reshape(*x.shape[:-1], -1)


def _decode_int8(message: jax.Array) -> jax.Array:
    blocks = message.reshape(*message.shape[:-1], -1, BLOCK + 4)
    scale = lax.bitcast_convert_type(blocks[..., BLOCK:], jnp.float32)[..., None]
    return (blocks[..., :BLOCK].astype(jnp.float32) * scale).reshape(*message.shape[:-1], -1)


PAYLOADS = {
    "float32": Payload("float32", 1, lambda x: x, lambda m: m, lambda n: 4 * n, exact=True),
    "bfloat16": Payload("bfloat16", 1, _encode_bfloat16, _decode_bfloat16, lambda n: 2 * n),
    "int8": Payload("int8", BLOCK, _encode_int8, _decode_int8, lambda n: math.ceil(n / BLOCK) * (BLOCK + 4)),
}
"""``float32``: 4 bytes a value, exact. ``bfloat16``: 2 bytes, relative error up to 2⁻⁸.
``int8``: 1 + 4/256 bytes, round(127·x / max|block|), absolute error up to max|block| / 254."""
