"""Rounds of several workers against a simulation in NumPy, through the Run that people use."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from cnnkit.data import batches, from_arrays
from cnnkit.layers import Layer, dense, in_loop, serial
from cnnkit.parallel.emulate import emulate
from cnnkit.parallel.fetch import Policy, every
from cnnkit.parallel.traffic import collectives, sent_bytes
from cnnkit.train import engine, loop, optim
from cnnkit.train import round as rounds
from cnnkit.train.step import Source
from tests.simulation import Simulation
from tests.train.conftest import Quiet, flat, plain_rows, small_net

N, BATCH, CLASSES = 41, 4, 3


@dataclasses.dataclass(frozen=True)
class fixed(Policy):
    """Local steps of each worker, by turns."""

    turns: tuple[tuple[int, ...], ...]

    def __call__(self, view):
        return np.array(self.turns[view.round % len(self.turns)])


def mean_keeper() -> Layer:
    """Hands its input on and keeps a running mean of it, as batch-norm does."""

    def apply(params, state, x, *, key=None, train=False):
        x = x.reshape(len(x), -1)
        return x, {"mean": 0.5 * state["mean"] + 0.5 * x.mean(0)} if train else state

    init = lambda key, shape: ((), {"mean": jnp.zeros(np.prod(shape))}, (int(np.prod(shape)),))
    return Layer(init, apply, "mean_keeper")


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(5)
    images = random.integers(0, 256, (N + 7, 2, 2, 1), np.uint8)
    labels = random.integers(0, CLASSES, N + 7).astype(np.int32)
    return from_arrays(images[:N], labels[:N], images[N:], labels[N:], classes="abc", name="dots")


@pytest.fixture
def team(make, data, monkeypatch):
    """A run on the dots, one round a dispatch, that keeps what its workers agreed on after each round."""
    monkeypatch.setattr(loop, "TICK", 1e-4)

    def team(net=None, **settings):
        seen = []

        def look(run):
            if run.phase == "train":
                common = jax.device_get(run.engine.carry.common)
                one = [jax.tree.map(lambda leaf, w=w: leaf[w], common) for w in range(run.engine.workers)]
                for other in one[1:]:
                    np.testing.assert_array_equal(flat(one[0]), flat(other))
                seen.append((flat(one[0].model.params), flat(one[0].model.state), flat(run.params)))

        settings = {
            "batch": BATCH, "epochs": 2, "normalize": False, "loss": "squared_error", "watch": Quiet(look),
            "optimizer": optim.sgd(optim.stages((0.1, 1), (0.05, 1)), momentum=0.5), "judge": (),
        } | settings  # fmt: skip
        run = make(net or serial(mean_keeper(), dense(CLASSES)), data, **settings)
        run.seen = seen
        return run

    return team


def simulated(run, turns, lr=lambda epoch, j: (0.1, 0.05)[epoch], **settings) -> Simulation:
    """The simulation of a run before it is trained."""
    x = run.data.train.images.reshape(N, -1) / 255
    target = np.eye(CLASSES)[run.data.train.labels]

    def gradient(w, state, index, weight):
        bias, weights = w[:CLASSES], w[CLASSES:].reshape(-1, CLASSES)
        error = (x[index] @ weights + bias - target[index]) * weight[:, None]
        return np.concatenate([error.sum(0), (x[index].T @ error).ravel()]), 0.5 * state + 0.5 * x[
            index
        ].mean(0)

    simulation = Simulation(
        gradient, lambda epoch: batches(N, BATCH, 0, epoch), len(turns[0]), fetch=lambda r: turns[r % len(turns)],
        lr=lr, momentum=0.5, **settings,
    )  # fmt: skip
    simulation.run(np.float64(flat(run.params)), np.float64(flat(run.state)), epochs=run.epochs)
    return simulation


UNEQUAL = ((2, 1, 3), (1, 1, 1), (1, 3, 2))
CASES = [
    *(pytest.param({"momentum": "keep", "delay": d}, marks=pytest.mark.timed) for d in (0, 1)),
    *({"momentum": m, "delay": d} for m in ("average", "reset") for d in (0, 1)),
    {"mode": "accumulate"},
    pytest.param({"mode": "accumulate", "delay": 1}, marks=pytest.mark.timed),
    {"outer": "nesterov", "outer_lr": 0.5, "outer_momentum": 0.6},
    {"outer": "nesterov", "delay": 1, "momentum": "average"},
    {"payload": "bfloat16", "exchange": "redundant", "mode": "accumulate"},
    {"payload": "int8", "exchange": "redundant", "delay": 1},
    {"exchange": "ring", "momentum": "average"},
    {"exchange": "tree", "delay": 1},
    {"exchange": "server", "mode": "accumulate"},
]


@pytest.mark.parametrize("rules", CASES, ids=lambda rules: " ".join(map(str, rules.values())))
def test_rounds_are_those_of_the_simulation(team, rules):
    run = team(workers=3, fetch=fixed(UNEQUAL), **rules)
    settings = {k: v for k, v in rules.items() if k not in ("exchange", "momentum")}
    wanted = simulated(run, UNEQUAL, **settings, inner=rules.get("momentum", "keep")).rounds
    run.fit()
    assert len(run.seen) == len(wanted) == run.engine.round
    # A float32 that lies half-way between two int8 steps may be rounded to either.
    off = 2e-2 if rules.get("payload") == "int8" else 3e-6
    for (params, state, settled), then in zip(run.seen, wanted, strict=True):
        np.testing.assert_allclose(params, then.common.w, atol=off)
        np.testing.assert_allclose(state, then.common.state, atol=off)
        np.testing.assert_allclose(settled, then.settled.w, atol=off)
    assert [row["fetch"] for row in run.record.rounds()] == [r.shares for r in wanted]


@pytest.mark.timed
@pytest.mark.parametrize("rules", [{}, {"delay": 1}, {"mode": "accumulate"}])
def test_many_rounds_in_one_program_are_the_same(team, monkeypatch, rules):
    run = team(workers=3, fetch=fixed(UNEQUAL), **rules, epochs=12, optimizer=optim.sgd(0.05, momentum=0.5))
    wanted = simulated(run, UNEQUAL, lr=0.05, **rules).rounds
    monkeypatch.setattr(loop, "TICK", 1e3)
    run.fit()
    assert len(run.seen) < len(wanted) == run.engine.round
    np.testing.assert_allclose(flat(run.params), wanted[-1].settled.w, atol=1e-5)
    np.testing.assert_allclose(flat(run.state), wanted[-1].settled.state, atol=1e-5)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_every_example_once_an_epoch_for_any_workers_and_fetch(team, workers, monkeypatch):
    monkeypatch.setattr(engine, "plain", lambda rules, fetch: False)
    random = np.random.default_rng(workers)
    turns = tuple(tuple(map(int, random.integers(1, 5, workers))) for _ in range(5))
    run = team(workers=workers, fetch=fixed(turns), mode="accumulate")
    wanted = simulated(run, turns, mode="accumulate").rounds
    run.fit()
    np.testing.assert_allclose(flat(run.params), wanted[-1].common.w, atol=3e-6)
    assert [row["examples"] for row in run.history] == [N, 2 * N]
    assert [sum(r.shares) for r in wanted] == [sum(row["steps"]) for row in run.record.rounds()]


def test_fetch_one_in_accumulate_is_one_device_on_the_joined_batch(make):
    one = make(batch=32)
    four = make(batch=8, workers=4, mode="accumulate", fetch=1)
    # Rates follow the epoch, and mini-batches of 8, taken by four, are those of 32.
    np.testing.assert_allclose(flat(one.fit().params), flat(four.fit().params), atol=2e-6)
    assert [row["train_loss"] for row in one.history] == pytest.approx(
        [row["train_loss"] for row in four.history], rel=1e-5
    )
    assert one.engine.round == four.engine.round == 14


def test_period_one_is_synchronous(make, digits):
    data = digits.take(train=192)
    runs = [
        make(data=data, batch=8, workers=4, **rules).fit()
        for rules in ({"momentum": "average"}, {"momentum": "keep"}, {"mode": "accumulate"})
    ]
    for run in runs[:2]:
        np.testing.assert_allclose(flat(run.params), flat(runs[2].params), atol=2e-6)


def test_local_rounds_of_one_worker_are_plain_sgd(make, monkeypatch):
    plain = make(small_net()).fit()
    assert type(plain.engine).__name__ == "Solo"
    monkeypatch.setattr(engine, "plain", lambda rules, fetch: False)
    by_rounds = make(small_net(), fetch=3).fit()
    assert type(by_rounds.engine).__name__ == "Team"
    np.testing.assert_allclose(flat(plain.model[:2]), flat(by_rounds.model[:2]), atol=1e-6)
    assert plain.history[-1]["train_accuracy"] == by_rounds.history[-1]["train_accuracy"]


def laid_out(run, counts):
    """(carry of one worker, source, plan, firsts, counts) for a round of these counts."""
    plan, counts = loop.lay_out(run, 0), np.array(counts, np.int32)
    model = jax.device_get(run.model)
    carry = jax.device_get(rounds.fresh(run.task, run.rules, model))
    return (
        carry,
        *jax.tree.map(jnp.asarray, (Source(*run.data.train), plan)),
        np.cumsum(counts, dtype=np.int32) - counts,
        counts,
    )


@pytest.mark.parametrize("rules", [{"momentum": "average"}, {"mode": "accumulate"}])
def test_a_round_under_pmap_gives_the_same_numbers(team, rules):
    run = team(workers=3, fetch=fixed(((2, 1, 3),)), **rules)
    carry, *rest = laid_out(run, (2, 1, 3))
    stacked = jax.tree.map(lambda leaf: np.stack([leaf] * 3), carry)
    one = lambda carry, *rest: rounds.one_round(run.task, run.rules, carry, *rest)
    mapped = jax.pmap(one, axis_name="worker", in_axes=(0, None, None, None, None), devices=jax.devices()[:3])
    by_pmap = mapped(stacked, *rest)
    run.watch.at = lambda run, at=run.watch.at: (at(run), run.stop())
    run.fit()
    np.testing.assert_allclose(flat(by_pmap.common.model), flat(run.engine.carry.common.model), atol=1e-6)


@pytest.mark.parametrize(
    "rules", [{}, {"delay": 1}, {"mode": "accumulate"}, {"mode": "accumulate", "delay": 1}]
)
def test_workers_compute_without_a_word_between_them(team, rules):
    run = team(workers=3, **rules)
    carry, source, plan, firsts, counts = laid_out(run, (2, 1, 3))
    mesh, rows = run.engine.team.mesh, jax.sharding.PartitionSpec("worker")
    stacked = jax.tree.map(lambda leaf: np.stack([leaf] * 3), carry)

    def over_workers(body):
        view = lambda carry: jax.tree.map(lambda x: x[None], body(jax.tree.map(lambda x: x[0], carry)))
        return jax.shard_map(view, mesh=mesh, in_specs=rows, out_specs=rows)

    me = lambda of: jnp.asarray(of)[lax.axis_index("worker")]
    phase = lambda c: rounds.local_phase(run.task, run.rules, c, source, plan, me(firsts), me(counts))
    assert collectives(over_workers(phase), stacked) == []
    lines = np.stack([firsts] * 2), np.stack([counts] * 2)
    many = lambda c: rounds.rounds(
        run.task, run.rules, c, source, plan, *map(jnp.asarray, lines), jnp.int32(2)
    )
    found = collectives(over_workers(many), stacked)
    # One exchange a round: in the loop over rounds, and in no loop within it.
    assert [(around.count("while"), around.count("scan")) for _, around, _ in found] == [(1, 0)]


@pytest.mark.timed
def test_no_policy_recompiles(team):
    random = np.random.default_rng(0)
    turns = tuple(tuple(map(int, random.integers(1, 4, 3))) for _ in range(97))
    run = team(workers=3, fetch=fixed(turns), epochs=8)
    run.fit()
    compiled = run.engine.compilations()
    assert compiled == 2  # the rounds, and a round that looks at the clock
    run.control.fetch_scale, run.control.lr_scale = 2.0, 0.5
    run.fit(16)
    assert run.engine.compilations() == compiled


@pytest.mark.timed
def test_a_rounds_row_says_who_did_what(team):
    run = team(workers=3, fetch=fixed(UNEQUAL), delay=1, epochs=8)
    run.fit()
    rows = run.record.rounds()
    assert [row["round"] for row in rows] == list(range(1, run.engine.round + 1))
    values = CLASSES * 4 + CLASSES + 4  # weights, biases, statistics
    for row in rows:
        assert row["rounds"] == 1
        assert row["steps"] == row["fetch"]
        assert row["bytes"] == list(sent_bytes(values, 3).sent)
        assert row["seconds"] > 0
        assert np.isfinite(row["train_loss"])
    assert sum(sum(row["steps"]) for row in rows) == 8 * 11
    assert [row["examples"] for row in rows if row["epochs"] % 1 == 0] == [N * (e + 1) for e in range(8)]
    last = rows[-1]
    assert all(0 <= busy <= 1 for busy in last["busy"])
    assert all(seconds > 0 for seconds in last["step_seconds"])
    assert last["exchange_seconds"] > 0


def test_fetch_may_be_scaled_while_it_trains(team):
    run = team(workers=3, fetch=1, epochs=2)
    run.control.fetch_scale = 2.6
    run.fit()
    assert run.record.rounds()[0]["fetch"] == [3, 3, 3]


@dataclasses.dataclass(frozen=True)
class watched(Policy):
    """Another policy, with all that it was shown kept."""

    policy: Policy
    views: list = dataclasses.field(default_factory=list, compare=False)

    def __call__(self, view):
        self.views.append(view)
        return self.policy(view)


@pytest.mark.timed
def test_what_is_measured_gets_to_the_policy(team):
    """A worker that sleeps at least 0.03 s in each step, beside one that does not."""
    from cnnkit.parallel.fetch import balanced

    policy = watched(balanced(every(4)))
    slow = emulate([1, 0.5], waits=True, step_seconds=0.03)
    run = team(workers=2, fetch=policy, emulate=slow, epochs=3, delay=1)
    plain = team(workers=2, fetch=1, epochs=3)
    run.fit()
    plain.fit()
    views = policy.views[1:]  # the first was the trial at the start
    assert views[0].speeds is None
    assert views[0].exchange_seconds is None
    later = views[-1]
    assert later.speeds[1] < 1 / 0.03
    assert later.exchange_seconds > 0
    assert (later.workers, later.delay, later.lr) == (2, 1, np.float32(0.05))
    assert sorted({view.round for view in views}) == list(range(run.engine.round))
    assert 2 <= later.epochs < 3
    assert N * 2 <= later.examples < N * 3
    fetch = [row["fetch"] for row in run.record.rounds()]
    assert fetch[0] == [4, 4]
    assert fetch[3][0] > fetch[3][1]


@pytest.mark.parametrize("waits", [False, True])
def test_emulated_slowness_changes_no_number(team, waits):
    slow = emulate([1, 0.3, 0.5], waits=waits, step_seconds=0.001 if waits else None)
    runs = [team(workers=3, fetch=fixed(UNEQUAL), emulate=e).fit() for e in (None, slow)]
    np.testing.assert_array_equal(flat(runs[0].model), flat(runs[1].model))
    assert plain_rows(runs[0]) == plain_rows(runs[1])


def test_nan_on_one_worker_stops_with_its_name(team, tmp_path):
    def apply(params, state, x, *, key=None, train=False):
        try:
            here = lax.axis_index("worker")
        except NameError:  # no worker's program
            here = 0
        return jnp.where((here == 1) & (state["steps"] >= 2), jnp.nan, x), {"steps": state["steps"] + 1}

    fragile = Layer(lambda key, shape: ((), {"steps": jnp.float32(0)}, shape), apply, "fragile")
    run = team(serial(fragile, dense(CLASSES)), workers=3, fetch=2, folder=tmp_path, checkpoint_every=0)
    from cnnkit.train.diverge import Diverged

    with pytest.raises(
        Diverged, match=r"since epoch 1, mini-batch 9, worker 1.* back at its checkpoint of epoch 0\.55"
    ):
        run.fit()
    event = run.record.rows[-1]
    assert (event["event"], event["mini_batch"], event["worker"]) == ("diverged", 8, 1)
    assert np.isfinite(flat(run.params)).all()


def test_loops_know_that_they_are_loops(team):
    """Layers choose another algorithm inside a loop, so they must be told in every program that loops."""
    from cnnkit.layers import inside_loop

    seen = []

    def apply(params, state, x, *, key=None, train=False):
        seen.append((train, inside_loop()))
        return x, state

    told = Layer(lambda key, shape: ((), (), shape), apply, "told")
    team(serial(told, dense(CLASSES)), watch=Quiet(), workers=2, judge="test", delay=1, epochs=3).fit()
    team(serial(told, dense(CLASSES)), watch=Quiet(), judge="test").fit().predict()
    assert set(seen) == {(True, True), (False, True)}
    with in_loop():
        assert inside_loop()
