"""Milliseconds that augmentation takes of an epoch: each alone and the usual chains, inside one loop.

    python -m benchmarks.augment --batch 128 1000

Every epoch is one jitted loop over mini-batches of uint8 images that lie on the device, as in training; the
row "none" is the loop itself with the conversion to float32. Writes results/augment_cpu.json or _gpu.json.
"""

import argparse
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

import cnnkit.augment as ck
from benchmarks import results

SETS = {"mnist": (60_000, (28, 28, 1)), "cifar10": (50_000, (32, 32, 3))}
CASES = {
    "mnist": [
        ck.chain(),
        ck.chain(ck.scale(12), ck.rotate(12), ck.elastic(3.4)),
        ck.scale(12),
        ck.rotate(12),
        ck.translate(2),
        ck.elastic(3.4),
        ck.noise(0.1),
    ],
    "cifar10": [
        ck.chain(),
        ck.chain(ck.flip(), ck.crop(32, pad=4, outside="reflect")),
        ck.flip(),
        ck.crop(32, pad=4),
        ck.crop(24),
        ck.chain(ck.flip(), ck.scale(10), ck.rotate(10)),
        ck.cutout(8),
        ck.noise(0.1),
        ck.brightness(0.2),
        ck.contrast(0.2),
        ck.normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
    ],
}


def epoch(augment: ck.Augment, batch: int) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """A jitted epoch: key, uint8 images [N, H, W, C] -> the last augmented mini-batch."""

    def run(key, images):
        def one(i, _):
            x = jax.lax.dynamic_slice_in_dim(images, i * batch, batch).astype(jnp.float32) / 255
            return augment(jax.random.fold_in(key, i), x)

        start = jnp.zeros((batch, *augment.out_shape(images.shape[1:])))
        return jax.lax.fori_loop(0, len(images) // batch, one, start)

    return jax.jit(run)


def timed(run: Callable[[jax.Array, jax.Array], jax.Array], images: jax.Array) -> Callable[[], float]:
    """A measurement: milliseconds of one epoch, compiled before."""
    keys = iter(jax.random.split(jax.random.key(1), 1000))
    jax.block_until_ready(run(next(keys), images))

    def measure() -> float:
        key = jax.block_until_ready(next(keys))
        start = time.perf_counter()
        jax.block_until_ready(run(key, images))
        return (time.perf_counter() - start) * 1e3

    return measure


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[128], help="images a mini-batch")
    parser.add_argument("--n", type=int, default=5, help="epochs measured of each")
    options = parser.parse_args()
    rows = []
    for name, (count, shape) in SETS.items():
        images = jax.random.bits(jax.random.key(0), (count, *shape), jnp.uint8)
        for batch in options.batch:
            measures = {str(a): timed(epoch(a, batch), images) for a in CASES[name]}
            for case, values in results.in_turn(measures, options.n).items():
                title = f"{name} {'none' if case == 'chain()' else case}"
                rows.append(results.row(title, "epoch_ms", values, "ms", batch=batch))
                made = rows[-1]
                print(
                    f"{title:62s} batch {batch:5d} {made['value']:9.2f} ± {made['spread']:.2f} ms", flush=True
                )
    print(results.write(f"augment_{jax.devices()[0].platform}", rows))


if __name__ == "__main__":
    main()
