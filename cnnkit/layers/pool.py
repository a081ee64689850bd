"""Pooling: maximum and mean over windows, and over the whole image."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cnnkit.layers.layer import Layer, own
from cnnkit.layers.window import Padding, check_padding, need_image, out_size, pair, resolve, taps, title

_PADDINGS = ("valid", "same", "clip")
_MOST_TAPS = 25  # beyond, the program written out takes longer to compile than it saves


def max_pool(size, stride=None, *, padding: Padding = "valid") -> Layer:
    """The largest element of each window, channel by channel.

    Args:
        size: of the window in pixels, one number or (height, width).
        stride: between windows; the size when left out.
        padding: ``"valid"``, ``"same"``, pixels, ((top, bottom), (left, right)), or ``"clip"`` for
            ceil(in / stride) outputs with windows cut off at the border, as CUDA-CNN has them.
    """
    return _pool("max_pool", size, stride, padding, _max)


def avg_pool(size, stride=None, *, padding: Padding = "valid") -> Layer:
    """The mean of each window over the pixels that are inside the image.

    Args:
        size: of the window in pixels, one number or (height, width).
        stride: between windows; the size when left out.
        padding: as in `max_pool`; padded pixels do not count.
    """
    return _pool("avg_pool", size, stride, padding, _mean)


def global_pool() -> Layer:
    """The mean over the image: [B, H, W, C] -> [B, C]."""

    def init(key, shape):
        need_image(shape, "global_pool")
        return (), (), shape[-1:]

    def apply(params, state, x, *, key=None, train=False):
        return x.mean((1, 2), dtype=jnp.float32).astype(x.dtype), state

    return Layer(init, apply, "global_pool", flops=lambda shape, out: shape[0] * shape[1] * shape[2])


def _pool(kind, size, stride, padding, function) -> Layer:
    size = pair(size, "size")
    stride = size if stride is None else pair(stride, "stride")
    padding = check_padding(padding, _PADDINGS)

    def init(key, shape):
        need_image(shape, kind)
        pads = resolve(padding, shape, size, stride)
        return (), (), (*out_size(shape, size, stride, pads), shape[-1])

    def apply(params, state, x, *, key=None, train=False):
        return function(x, size, stride, resolve(padding, x.shape[1:], size, stride)), state

    config = {"size": size, "stride": stride, "padding": padding}
    flops = lambda shape, out: size[0] * size[1] * out[0] * out[1] * out[2]
    return own(Layer(init, apply, kind, config, flops=flops, title=title(kind, config)))


def _max(x, size, stride, pads):
    """Maxima over windows; equal maxima give the gradient to the first, whatever the backend."""
    if size[0] * size[1] > _MOST_TAPS:
        return _reduce(x, lax.max, -np.inf, size, stride, pads)
    return _written(x, size, stride, pads)


def _mean(x, size, stride, pads):
    # Where windows begin at every pixel, their sum's gradient is such a sum again, which the compiler is good at.
    if size[0] * size[1] <= _MOST_TAPS and stride != (1, 1):
        return _averaged(x, size, stride, pads)
    total = _reduce(x.astype(jnp.float32), lax.add, 0, size, stride, pads)
    return (total / _inside(x.shape[1:3], size, stride, pads)).astype(x.dtype)


def _inside(image, size, stride, pads):
    """How many pixels of each window are inside the image, [1, H', W', 1]."""
    return _reduce(jnp.ones((1, *image, 1)), lax.add, 0, size, stride, pads)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _averaged(x, size, stride, pads):
    wide = jnp.pad(x, ((0, 0), *pads, (0, 0))) if any(map(any, pads)) else x
    total = sum(tap.astype(jnp.float32) for tap in taps(wide, size, stride))
    return (total / _inside(x.shape[1:3], size, stride, pads)).astype(x.dtype)


def _averaged_forward(x, size, stride, pads):
    return _averaged(x, size, stride, pads), x[:0]  # of which the shape and the type are needed


def _averaged_backward(size, stride, pads, none, dy):
    image = none.shape[1:3]
    each = dy.astype(jnp.float32) / _inside(image, size, stride, pads)
    dx = _from_phases(lambda *at: _phase(each, None, *at), image, size, stride, pads)
    return (dx.astype(none.dtype),)


_averaged.defvjp(_averaged_forward, _averaged_backward)


def _reduce(x, function, start, size, stride, pads):
    dims = (1, *size, 1), (1, *stride, 1), ((0, 0), *pads, (0, 0))
    return lax.reduce_window(x, np.array(start, x.dtype), function, *dims)


# reduce_window's gradient is slow, on a CPU and, being scattered by atomic additions, on a GPU. Written out it is a choice among shifted copies: the forward pass
# keeps which pixel of its window each maximum was, in one byte.


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _written(x, size, stride, pads):
    return _first_maximum(x, size, stride, pads)[0]


def _written_forward(x, size, stride, pads):
    y, place = _first_maximum(x, size, stride, pads)
    if jax.default_backend() != "cpu" and size != stride:
        # Else the places, as the maxima for what looks at them through a window, are found anew where they are needed,
        # and x is kept for it.
        y, place = lax.optimization_barrier((y, place))
    return y, (place, x.shape[1:3])


def _written_backward(size, stride, pads, saved, dy):
    place, image = saved
    if jax.default_backend() != "cpu" and size == stride and not any(map(any, pads)):
        return (_spread(dy, place, size, image),)
    dy = lax.optimization_barrier(dy)  # read many times, so not to be made anew each time
    return (_from_phases(lambda *at: _phase(dy, place, *at), image, size, stride, pads),)


_written.defvjp(_written_forward, _written_backward)


def _first_maximum(x, size, stride, pads):
    wide = x
    if any(map(any, pads)):
        wide = jnp.pad(x, ((0, 0), *pads, (0, 0)), constant_values=-np.inf)
    return _first_of(taps(wide, size, stride))


def _first_of(pixels):
    """The largest of some arrays, element by element, and the number of the first that has it."""
    y, *others = pixels
    place = jnp.zeros(y.shape, jnp.uint8)
    for i, tap in enumerate(others, 1):
        place = jnp.where(tap > y, jnp.uint8(i), place)
        y = jnp.maximum(y, tap)
    return y, place


@jax.custom_vjp
def largest(y: jax.Array) -> jax.Array:
    """The maxima over the axis before the last; equal ones give the gradient to the first.

    Args:
        y: [B, H, W, n, C], the n pixels of each window side by side.

    Returns:
        [B, H, W, C]: what `max_pool` gives of the pixels in their places.
    """
    return _first_of([y[..., i, :] for i in range(y.shape[-2])])[0]


def _largest_forward(y):
    best, place = _first_of([y[..., i, :] for i in range(y.shape[-2])])
    return best, (place, y[:0])  # of which the number of pixels is needed


def _largest_backward(saved, dy):
    place, none = saved
    mine = jnp.arange(none.shape[-2], dtype=jnp.uint8)[:, None]
    return (jnp.where(place[..., None, :] == mine, dy[..., None, :], 0),)


largest.defvjp(_largest_forward, _largest_backward)


def _spread(dy, place, size, image):
    """The gradient where windows neither overlap nor reach outside: each is blown up to the pixels it covers."""
    # Windows that begin inside the image but would end outside have no maximum; with them, what is cut off at
    # the end is read from the small arrays, and the large one is written once.
    rows, cols = (-(-n // k) for n, k in zip(image, size))
    more = (0, 0), (0, rows - dy.shape[1]), (0, cols - dy.shape[2]), (0, 0)
    dy, place = jnp.pad(dy, more), jnp.pad(place, more)
    mine = jnp.arange(size[0] * size[1], dtype=jnp.uint8).reshape(1, 1, size[0], 1, size[1], 1)
    dx = jnp.where(place[:, :, None, :, None] == mine, dy[:, :, None, :, None], 0)
    dx = dx.reshape(len(dy), rows * size[0], cols * size[1], dy.shape[-1])
    return dx[:, : image[0], : image[1]]


def _from_phases(made, image, size, stride, pads):
    """The gradient of an image from its parts, made((u, v), size, stride, (rows, columns)).

    Pixels at one phase (u, v) of the stride make an image, which some pixels of the windows reach and others do not.
    """
    rows, cols = (-(-(n + near) // s) for n, (near, _), s in zip(image, pads, stride))
    part = lambda u, v: made((u, v), size, stride, (rows, cols))
    lines = [_woven([part(u, v) for v in range(stride[1])], 2) for u in range(stride[0])]
    return _woven(lines, 1)[:, pads[0][0] :, pads[1][0] :][:, : image[0], : image[1]]


def _woven(parts, axis):
    """Images whose lines along an axis follow one another in turn: what each pixel is made of is one of them."""
    shape = list(parts[0].shape)
    shape[axis] *= len(parts)
    return parts[0] if len(parts) == 1 else jnp.stack(parts, axis + 1).reshape(shape)


def _phase(dy, place, phase, size, stride, out):
    total = None
    for i in range(phase[0], size[0], stride[0]):
        for j in range(phase[1], size[1], stride[1]):
            mine = dy if place is None else jnp.where(place == i * size[1] + j, dy, 0)
            down, right = i // stride[0], j // stride[1]
            below, beside = out[0] - dy.shape[1] - down, out[1] - dy.shape[2] - right
            config = [(0, 0, 0), (down, below, 0), (right, beside, 0), (0, 0, 0)]
            moved = lax.pad(mine, jnp.zeros((), dy.dtype), config)
            total = moved if total is None else total + moved
    return jnp.zeros((len(dy), *out, dy.shape[-1]), dy.dtype) if total is None else total
