"""Emulated slow workers: the same results, more work."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from cnnkit.parallel import emulate as emulation
from cnnkit.parallel.emulate import emulate
from cnnkit.parallel.traffic import collectives_in_loops


def step(i, carry):
    w, count = carry
    return jnp.tanh(w * 1.5 + i), count + 1


def run_on(workers, emulated, counts):
    """Local steps on every worker; (w, steps taken) and the compiled program's text."""
    mesh = Mesh(np.array(jax.devices()[:workers]), ("worker",), axis_types=(AxisType.Auto,))

    def phase(w, count):
        me = lax.axis_index("worker")
        slow = emulated.slowed(step, me) if emulated else step
        steps = lax.pcast(jnp.int32(0), "worker", to="varying")
        w, steps = lax.fori_loop(0, count[0], slow, (w[0], steps))
        return w[None], steps[None]

    mapped = jax.shard_map(phase, mesh=mesh, in_specs=P("worker"), out_specs=P("worker"))
    w = np.linspace(0, 1, workers * 3).reshape(workers, 3).astype(np.float32)
    arguments = (w, np.array(counts, np.int32))
    compiled = jax.jit(mapped).lower(*arguments).compile()
    assert collectives_in_loops(mapped, *arguments) == []
    return jax.device_get(compiled(*arguments)), compiled.as_text()


def test_real_work_is_done_over_again_and_changes_nothing():
    (plain, taken), text = run_on(2, None, [3, 5])
    (slow, slow_taken), slow_text = run_on(2, emulate([1, 0.5]), [3, 5])
    assert np.array_equal(plain, slow)
    assert taken.tolist() == slow_taken.tolist() == [3, 5]
    # The loop of thrown-away work is still there after all of XLA's passes.
    assert (text.count(" while("), slow_text.count(" while(")) == (1, 2)


@pytest.mark.parametrize(
    ("speed", "extras"),
    [
        (1, [0] * 7),
        (0.5, [1] * 7),
        (0.25, [3] * 7),
        (0.7, [0, 0, 1, 0, 1, 0, 1]),
        (0.4, [1, 2, 1, 2, 1, 2, 1]),
    ],
)
def test_repeats_come_to_the_speed(speed, extras):
    slow = emulate([1, speed])
    assert [slow.extra(j, 1) for j in range(7)] == extras
    assert [slow.extra(j, 0) for j in range(7)] == [0] * 7
    assert sum(slow.extra(j, 1) for j in range(420)) == round(420 * (1 / speed - 1))


def test_the_program_repeats_as_often_as_it_says(monkeypatch):
    """Counted by a step that tells the host each time it is run."""
    ran, lock = [], threading.Lock()

    def told(i, worker):
        with lock:
            ran.append((int(worker), int(i)))
        return np.float32(0)

    def telling(i, carry):
        w, count = carry
        me = lax.axis_index("worker")
        nothing = jax.pure_callback(told, jax.ShapeDtypeStruct((), jnp.float32), i, me)
        return w + nothing + 1, count + 1

    monkeypatch.setitem(globals(), "step", telling)
    slow = emulate([1, 0.4])
    (_, taken), _ = run_on(2, slow, [4, 6])
    assert taken.tolist() == [4, 6]
    assert sorted(ran) == sorted(
        [(0, i) for i in range(4)] + [(1, i) for i in range(6) for _ in range(1 + slow.extra(i, 1))]
    )


def test_waiting_workers_sleep_at_the_same_time(monkeypatch):
    """All sleep their own time after each step, and overlap: nobody's sleep waits for another's to end."""
    naps, lock = [], threading.Lock()

    def nap(seconds):
        begin = time.monotonic()
        time.sleep_for_real(seconds)
        with lock:
            naps.append((round(seconds, 3), begin, time.monotonic()))

    class Clock:
        monotonic = staticmethod(time.monotonic)
        sleep = staticmethod(nap)

    monkeypatch.setattr(time, "sleep_for_real", time.sleep, raising=False)
    monkeypatch.setattr(emulation, "time", Clock)
    slow = emulate([1, 0.5, 0.25], waits=True, step_seconds=0.03)
    (w, taken), _ = run_on(3, slow, [4, 4, 2])
    (plain, _), _ = run_on(3, None, [4, 4, 2])
    assert np.array_equal(w, plain)
    assert taken.tolist() == [4, 4, 2]
    assert sorted(seconds for seconds, _, _ in naps) == [0.03] * 4 + [0.09] * 2
    short = [nap for nap in naps if nap[0] == 0.03]
    long = [nap for nap in naps if nap[0] == 0.09]
    assert any(a[1] < b[2] and b[1] < a[2] for a in short for b in long)


def test_what_cannot_be_emulated_is_said(monkeypatch):
    for speeds in ([], [1, 0], [1, 2], [0.001]):
        with pytest.raises(ValueError, match="speeds to emulate are between 1/60 and 1, one for each worker"):
            emulate(speeds)
    with pytest.raises(ValueError, match=r"emulate\(waits=True\) needs step_seconds"):
        emulate([1], waits=True)
    with pytest.raises(ValueError, match="takes step_seconds with waits=True only"):
        emulate([1], step_seconds=0.1)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(RuntimeError, match="works on CPU only, this is gpu: leave waits out"):
        emulate([1, 0.5], waits=True, step_seconds=0.1).slowed(step, jnp.int32(0))


def test_settings_go_into_a_record():
    assert emulate([1, 0.5]).describe() == {"speeds": [1.0, 0.5], "waits": False, "step_seconds": None}
