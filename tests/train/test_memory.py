"""What a round holds on a device beyond plain training, in copies of the parameters."""

import jax
import pytest

from cnnkit.layers import dense, relu, serial
from cnnkit.train.clock import held

NET = lambda: serial(dense(400), relu(), dense(400), relu(), dense(10))
CASES = [
    ({}, 1),  # where the round began
    ({"momentum": "reset"}, 1),
    ({"exchange": "ring"}, 1),
    ({"mode": "accumulate"}, 2),  # the sum of gradients, and what is exchanged
    ({"outer": "nesterov"}, 2 + 1),  # the outer velocity besides
    ({"momentum": "average"}, 2 + 1),  # two copies to exchange, parameters and momentum
    ({"delay": 1}, 3),  # what is on its way, and where the round began
]


@pytest.fixture(scope="module")
def programs():
    """The training program of a run, before it is run."""
    from cnnkit.train import clock

    found = []
    with pytest.MonkeyPatch.context() as patch:
        program = clock.Compiled.program
        patch.setattr(clock.Compiled, "program", lambda self, *a: found.append(p := program(self, *a)) or p)
        yield found


@pytest.mark.parametrize(("rules", "copies"), CASES, ids=lambda value: " ".join(map(str, value)) if isinstance(value, dict) else str(value))  # fmt: skip
def test_a_round_holds_few_copies_more_than_plain_training(make, programs, rules, copies):
    def trained(**settings):
        programs.clear()
        run = make(NET(), batch=4, epochs=1, judge=(), **settings).fit()
        return run, held(programs[0])

    run, plain = trained()
    _, rounds = trained(workers=2, fetch=2, **rules)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(run.params))
    over = (rounds - plain) / size
    # A tenth for the plan of an epoch and the like, which do not grow with the network.
    assert copies - 1 < over < copies + 0.1
