"""A process that trains in a folder until it is done, or killed: python driver.py FOLDER."""

import sys
import time

from cnnkit.data import load
from cnnkit.train import loop
from cnnkit.train.report import Silent
from cnnkit.train.run import Run
from tests.train.test_resume import SETTINGS, small_net

loop.TICK = 1e-4  # one mini-batch a dispatch


class Told(Silent):
    """Says where the run goes on, when it does; a killing then hits neither the start nor a compilation."""

    begun = False

    def tick(self, run):
        if not self.begun:
            print(f"at {run.epochs_done}", flush=True)
        self.begun = True
        time.sleep(0.004)


if __name__ == "__main__":
    data = load("digits").take(train=203, test=101)
    Run(small_net(), data, folder=sys.argv[1], checkpoint_every=0.02, watch=Told(), **SETTINGS).fit()
    print("done", flush=True)
