"""What `benchmarks.layers` measures: the cases of each group, as (name, function, arguments, (operations, bytes))."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import cnnkit.augment as augment
from cnnkit import layers, losses
from cnnkit.layers import pool as pools
from cnnkit.layers.convolve import matmul
from cnnkit.layers.fold import folded, neighbours
from cnnkit.layers.product import Window
from cnnkit.layers.written import convolution, written

Function = Callable[..., Any]


def both(function: Function, inputs: int) -> Function:
    """A forward pass and the gradients with respect to the first so many arguments."""

    def run(*arguments):
        first = arguments[:inputs]
        y, back = jax.vjp(lambda *a: function(*a, *arguments[inputs:]), *first)
        # As from the layers after it: else the two passes of a cheap layer become one, and y is never written.
        return back(lax.optimization_barrier(y))

    return run


def _kind() -> Any:
    return jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16


def _draw(*shape: int, seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape).astype(_kind())


# batch, image, channels, features, kernel, stride: of fast94, VGG-16, ResNet-18, NIN, LeNet, and a large kernel.
CONVS = [
    (2000, 31, 24, 64, 3, 1),
    (2000, 15, 64, 256, 3, 1),
    (2000, 7, 256, 256, 3, 1),
    (256, 224, 64, 64, 3, 1),
    (256, 56, 256, 256, 3, 1),
    (256, 14, 512, 512, 3, 1),
    (256, 56, 64, 128, 3, 2),
    (512, 32, 192, 160, 1, 1),
    (512, 16, 96, 192, 5, 1),
    (2048, 12, 20, 50, 5, 1),
    (256, 32, 32, 32, 15, 1),
]


def convolutions(small: bool) -> Iterator[tuple]:
    """Convolution by each algorithm, forward and both gradients."""
    for batch, side, channels, features, kernel, stride in CONVS[:1] if small else CONVS:
        batch = 2 if small else batch
        x, w = _draw(batch, side, side, channels), _draw(kernel, kernel, channels, features, seed=1)
        for algorithm in ("direct", "matmul", "fft"):
            # Their intermediates would not fit, or the answer is known.
            if algorithm == "fft" and kernel < 5 and side > 32:
                continue
            if algorithm == "matmul" and batch * side * side * channels * kernel**2 > 4e9:
                continue
            layer = layers.conv(
                features, kernel, stride=stride, padding="same", bias=False, algorithm=algorithm
            )
            function = lambda x, w, layer=layer: layer.apply({"w": w}, (), x, train=True)[0]
            out = math.ceil(side / stride)
            flops = 3 * 2 * batch * out**2 * features * channels * kernel**2
            moved = x.dtype.itemsize * 3 * (x.size + batch * out**2 * features + w.size)
            name = f"conv {kernel}×{kernel}/{stride} {channels}→{features} at {side}², batch {batch}, {algorithm}"
            yield name, both(function, 2), (x, w), (flops, moved)


# batch, image, channels, features, kernel, stride, padding, whether 2×2 are pooled: fast94, LeNet, the stems of
# ResNet-18 and AlexNet, first layers of VGG-16 and of the MNIST networks without pooling, CUDA-CNN's MNIST network,
# the stem of a network that plays, and some that are not as narrow.
NARROW = [
    (2000, 31, 24, 64, 3, 1, 1, True),
    (2048, 28, 1, 20, 5, 1, 0, True),
    (2048, 12, 20, 50, 5, 1, 0, True),
    (256, 224, 3, 64, 7, 2, 3, False),
    (512, 224, 3, 96, 11, 4, 0, False),
    (256, 224, 3, 64, 3, 1, 1, False),
    (2000, 28, 1, 32, 3, 1, 0, False),
    (2000, 28, 1, 32, 5, 1, 0, False),
    (2000, 15, 64, 64, 3, 1, 1, True),
    (2048, 28, 1, 32, 5, 1, 0, True),
    (2048, 12, 32, 64, 5, 1, 0, True),
    (2000, 31, 24, 128, 3, 1, 1, True),
    (512, 96, 3, 32, 7, 3, 0, False),
    (512, 84, 4, 32, 8, 4, 0, False),
    (512, 64, 3, 32, 3, 2, 1, False),
    (512, 56, 16, 32, 3, 2, 1, False),
]


def narrow(small: bool) -> Iterator[tuple]:
    """Convolutions over few channels, as they are, folded, and as products: forward, and the gradients that are needed."""
    plain = written if jax.default_backend() == "cpu" else convolution
    for batch, side, channels, features, kernel, stride, pad, pooled in NARROW[:1] if small else NARROW:
        # A CPU's mini-batches are small; and a network's first layer needs no gradient of its image.
        batch, inputs = batch // (16 if jax.default_backend() == "cpu" else 1), 1 + (channels > 4)
        x = _draw(2 if small else batch, side, side, channels)
        w = _draw(kernel, kernel, channels, features, seed=1)
        window = Window((stride, stride), ((pad, pad), (pad, pad)))
        out = (side + 2 * pad - kernel) // stride + 1
        flops = (1 + inputs) * 2 * len(x) * out**2 * features * channels * kernel**2
        moved = x.dtype.itemsize * (
            (1 + inputs) * x.size + 2 * len(x) * out**2 * features / (4 if pooled else 1)
        )
        name = f"conv {kernel}×{kernel}/{stride}{', pool' * pooled} {channels}→{features} at {side}², batch {batch}"
        for way, convolved in (("plain", plain), ("matmul", matmul)):
            function = lambda w, x, window=window, convolved=convolved: convolved(x, w, window)
            if pooled:
                function = lambda w, x, inner=function: _applied(layers.max_pool(2))(inner(w, x))
            yield f"{name}, {way}", both(function, inputs), (w, x), (flops, moved)
        together = neighbours("gpu", x.shape, w.shape, window)
        if pooled or stride > 1 or together > 1:
            phases = (2, 2) if pooled else (1, together)
            # Neighbours in a row stand as they should; one alone is at place 0.
            pick = pools.largest if pooled else lambda y: y.reshape(*y.shape[:3], -1)
            function = lambda w, x, window=window, phases=phases, pick=pick: pick(
                folded(plain, x, w, window, phases)
            )
            yield f"{name}, folded", both(function, inputs), (w, x), (flops, moved)


def pooling(small: bool) -> Iterator[tuple]:
    """Maximum and mean pooling, forward and backward, beside reduce_window's own gradient."""
    shapes = [(2000, 31, 64, 2, 2), (256, 112, 64, 3, 2), (256, 224, 64, 2, 2), (512, 32, 96, 3, 2)]
    for batch, side, channels, size, stride in [(2, 31, 8, 2, 2)] if small else shapes:
        x = _draw(batch, side, side, channels)
        out = (side - size) // stride + 1
        moved = x.dtype.itemsize * 2 * (x.size + batch * out**2 * channels)
        of = f"pool {size}/{stride}, {side}²×{channels}, batch {batch}"
        window = (size, size), (stride, stride), ((0, 0), (0, 0))
        whole = lambda x, window=window: pools._reduce(x, lax.max, -np.inf, *window)
        for kind, function in (
            ("max", _applied(layers.max_pool(size, stride))),
            ("reduce_window max", whole),
            ("avg", _applied(layers.avg_pool(size, stride))),
        ):
            yield f"{kind} {of}", both(function, 1), (x,), (0.0, moved)


def pointwise(small: bool) -> Iterator[tuple]:
    """Batch-norm, activations, softmax with cross-entropy: forward and backward."""
    shape = (2, 8, 8, 8) if small else (2000, 15, 15, 256)
    x = _draw(*shape)
    moved, at = x.dtype.itemsize * x.size, f"{shape[1]}²×{shape[3]}, batch {shape[0]}"
    norm = layers.batch_norm(scale=False)
    params, state, _ = norm.init(jax.random.key(0), shape[1:])
    normed = lambda x: norm.apply(params, state, x, train=True)[0]
    # The statistics need x once before it is read again, and their gradients dy likewise.
    yield f"batch_norm {at}", both(normed, 1), (x,), (0.0, 8 * moved)
    for name in ("relu", "gelu", "silu"):
        yield f"{name} {at}", both(_applied(getattr(layers, name)()), 1), (x,), (0.0, 4 * moved)
    together = layers.serial(norm, layers.gelu())
    gated = lambda x: together.apply((params, ()), (state, ()), x, train=True)[0]
    yield f"batch_norm, gelu {at}", both(gated, 1), (x,), (0.0, 8 * moved)
    rows, classes = (4, 10) if small else (65536, 1000)
    logits, labels = _draw(rows, classes), jnp.arange(rows) % classes
    entropy = lambda logits, labels: losses.cross_entropy(logits, labels, smoothing=0.1)
    took = logits.dtype.itemsize * logits.size
    yield f"softmax, cross-entropy {rows}×{classes}", both(entropy, 1), (logits, labels), (0.0, 3 * took)


def augmentation(small: bool) -> Iterator[tuple]:
    """A whole epoch's augmentation, in mini-batches as training takes them."""
    mnist, cifar = (
        ((200, 28, 28, 1), (200, 32, 32, 3)) if small else ((60_000, 28, 28, 1), (50_000, 32, 32, 3))
    )
    cases = [
        ("MNIST epoch: scale, rotate, elastic", mnist, [augment.scale(12), augment.rotate(12), augment.elastic(3.4)]),
        ("CIFAR-10 epoch: flip, crop", cifar, [augment.flip(), augment.crop(32, pad=4, outside="reflect")]),
    ]  # fmt: skip
    for name, shape, parts in cases:
        images = jax.random.bits(jax.random.key(0), shape, jnp.uint8)
        chain, batch = augment.chain(*parts), min(2000, shape[0])

        def epoch(images, chain=chain, batch=batch):
            def one(i, _):
                x = lax.dynamic_slice_in_dim(images, i * batch, batch).astype(jnp.float32) / 255
                return chain(jax.random.fold_in(jax.random.key(1), i), x).astype(_kind())

            start = jnp.zeros((batch, *images.shape[1:]), _kind())
            return lax.fori_loop(0, len(images) // batch, one, start)

        yield name, epoch, (images,), (0.0, images.size * (1 + jnp.dtype(_kind()).itemsize))


GROUPS = {
    "conv": convolutions,
    "narrow": narrow,
    "pool": pooling,
    "pointwise": pointwise,
    "augment": augmentation,
}


def _applied(layer: layers.Layer) -> Function:
    return lambda x: layer.apply((), (), x, train=True)[0]
