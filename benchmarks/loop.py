"""What a run's loop costs over a jitted loop written by hand: LeNet on MNIST, an epoch of each in turn.

    python -m benchmarks.loop

Both take the same steps on the same mini-batches, compiled with the same options: pixels to floats, normalized, cross-entropy, SGD with momentum.
The hand-written loop keeps no books, draws no keys, looks at nothing and writes nothing; the run does all that
in a folder, and its time is an epoch's whole wall-clock time without evaluation. Writes results/loop_cpu.json or
loop_gpu.json.
"""

import argparse
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np

import cnnkit as ck
from benchmarks import results
from cnnkit import losses
from cnnkit.data import batches
from cnnkit.layers import compiler_options, in_loop

BATCH, LR, MOMENTUM = 128, 0.02, 0.9


class HandLoop:
    """An epoch as a research script would write it."""

    def __init__(self, net: ck.Layer, data: ck.Dataset) -> None:
        mean, std = data.statistics()
        params, state, _ = net.init(jax.random.key(0), data.shape)
        self.at = (params, jax.tree.map(jnp.zeros_like, params))
        self.arrays = jax.device_put((*data.train, *self._order(data, 0)))
        self.data, self.epochs = data, 0

        def epoch(at, images, labels, index, weight):
            def body(i, at):
                params, velocity = at
                x = (images[index[i]].astype(jnp.float32) / 255 - mean) / std

                def loss(params):
                    logits, _ = net.apply(params, state, x, key=None, train=True)
                    return losses.cross_entropy(logits, labels[index[i]], weight[i]).sum() / weight[i].sum()

                grads = jax.grad(loss)(params)
                velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, grads)
                return jax.tree.map(lambda w, v: w - LR * v, params, velocity), velocity

            with in_loop():
                return jax.lax.fori_loop(0, len(index), body, at)

        jitted = jax.jit(epoch, donate_argnums=0, compiler_options=compiler_options())
        self.epoch = jitted.lower(self.at, *self.arrays).compile()

    @staticmethod
    def _order(data: ck.Dataset, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        return batches(len(data), BATCH, 0, epoch)

    def seconds(self) -> float:
        """One more epoch."""
        begin = time.perf_counter()
        order = jax.device_put(self._order(self.data, self.epochs))
        self.at = jax.block_until_ready(self.epoch(self.at, *self.arrays[:2], *order))
        self.epochs += 1
        return time.perf_counter() - begin


class RunLoop:
    """An epoch of a run."""

    def __init__(self, net: ck.Layer, data: ck.Dataset, folder: str) -> None:
        optimizer = ck.optim.sgd(LR, momentum=MOMENTUM)
        self.run = ck.Run(net, data, batch=BATCH, epochs=1, optimizer=optimizer, judge=(), folder=folder)
        self.run.fit(panel=False)

    def seconds(self) -> float:
        """One more epoch."""
        compiling, begin = self.run.clocks.seconds["compile"], time.perf_counter()
        self.run.fit(self.run.epochs + 1, panel=False)
        assert self.run.clocks.seconds["compile"] == compiling
        return time.perf_counter() - begin


def main() -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--n", type=int, default=7, help="epochs measured of each")
    parser.add_argument("--take", type=int, help="training images, all when left out")
    options = parser.parse_args()
    data = ck.load("mnist").take(train=options.take)
    net = ck.nets.lenet()
    with tempfile.TemporaryDirectory() as folder:
        by_hand, by_run = HandLoop(net, data), RunLoop(net, data, folder)
        by_hand.seconds()
        found = results.in_turn({"hand": by_hand.seconds, "run": by_run.seconds}, options.n)
    ratios = [ours / theirs for ours, theirs in zip(found["run"], found["hand"], strict=True)]
    rows = [
        results.row("lenet", "over_hand_loop", ratios, "×", images=len(data), batch=BATCH),
        results.row(
            "lenet", "epoch_seconds", found["run"], "s", peer="a jitted loop by hand",
            peer_values=found["hand"], less_is_better=True,
        ),
    ]  # fmt: skip
    for row in rows:
        print(row)
    print(results.write(f"loop_{jax.devices()[0].platform}", rows))


if __name__ == "__main__":
    main()
