"""A round: fetch_i local steps on every worker, no communication between them, then one exchange.

Everything here is a function of one worker's view and runs inside ``jax.shard_map`` (or ``jax.pmap``) over
the axis ``"worker"``. What all workers share is `Common`; what each has for itself is `Own`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from cnnkit.parallel.exchange import (
    Weighed,
    lay_out_weighted,
    no_error,
    read_mean,
    send_weighted,
    weighted_mean,
)
from cnnkit.parallel.means import mean_of_sums
from cnnkit.parallel.payload import PAYLOADS
from cnnkit.parallel.stamp import after, stamp
from cnnkit.train.rules import Rules
from cnnkit.train.step import Plan, Progress, Source, gradient_step, local_step, mini_batch
from cnnkit.train.task import Model, Sums, Task

AXIS = "worker"
_MESSAGES, _MESSAGE = 4, 1 << 20  # of gradients, at most; and for each, so many values


class Common(NamedTuple):
    """What all workers agree on between rounds: the model (opt only where shared), the outer velocity."""

    model: Model
    velocity: Any


class Own(NamedTuple):
    """What one worker has for itself.

    Args:
        opt: its optimizer's state, where workers keep their own.
        change: with delay, what it did in the last round and has not had exchanged.
        examples: how many that change was made of.
        error: what rounding took from the payloads it sent.
        sums, bad: its books of the epoch, as in `Progress`.
    """

    opt: Any
    change: Any
    examples: Any
    error: Any
    sums: Sums
    bad: Any


class Carry(NamedTuple):
    """One worker's view between two rounds."""

    common: Common
    own: Own


def fresh(task: Task, rules: Rules, model: Model) -> Carry:
    """A worker's view before the first round."""
    shared = model if rules.shares_opt else model._replace(opt=())
    change = jax.tree.map(_zero, changed(rules, model)) if rules.delay else ()
    own_opt = model.opt if rules.mode == "local" and rules.momentum == "keep" else ()
    velocity = jax.tree.map(jnp.zeros_like, model.params) if rules.outer == "nesterov" else ()
    error = () if PAYLOADS[rules.payload].exact else no_error(changed(rules, model))
    own = Own(own_opt, change, jnp.zeros(()), error, Sums.zero(), jnp.int32(-1))
    return Carry(Common(shared, velocity), own)


def changed(rules: Rules, model: Model) -> Model:
    """The parts of a model that an exchange carries."""
    return model if rules.mode == "local" and rules.momentum == "average" else model._replace(opt=())


def _zero(leaf: Any) -> jax.Array:
    return jnp.zeros(jnp.shape(leaf), jnp.float32)


def varying(tree: Any) -> Any:
    """The tree, marked as differing between workers, so that no collective is put in on its behalf."""

    def mark(leaf):
        try:
            return lax.pcast(jnp.asarray(leaf), AXIS, to="varying")
        except (ValueError, NameError):  # it differs already, or there is no mesh
            return leaf

    return jax.tree.map(mark, tree)


def local_phase(
    task: Task, rules: Rules, carry: Carry, source: Source, plan: Plan, first: Any, count: Any
) -> tuple[Model, Own]:
    """One worker's part of a round: ``count`` mini-batches from ``first`` on, without communication.

    Returns:
        (what it changed, its own things with ``examples`` set to the number it saw).
    """
    start = _start(task, rules, carry)
    before = carry.own.sums.examples
    progress = varying(Progress(start, carry.own.sums, carry.own.bad))
    work = _accumulate if rules.mode == "accumulate" else _local
    progress, change = work(task, rules, progress, start, source, plan, first, count)
    seen = progress.sums.examples - before
    opt = progress.model.opt if rules.mode == "local" and rules.momentum == "keep" else ()
    return change, carry.own._replace(opt=opt, examples=seen, sums=progress.sums, bad=progress.bad)


def _start(task: Task, rules: Rules, carry: Carry) -> Model:
    """Where this worker's round begins: what is common, plus its own change that is still on its way."""
    common, own = carry
    model = common.model
    if rules.delay and rules.mode == "accumulate":
        model = model._replace(state=_plus(model.state, own.change.state))
    elif rules.delay:
        model = _plus(model._replace(opt=()), own.change._replace(opt=()))._replace(opt=model.opt)
    if rules.mode == "local" and rules.momentum == "keep":
        model = model._replace(opt=own.opt)
    if rules.mode == "local" and rules.momentum == "reset":
        model = model._replace(opt=task.optimizer.init(model.params))
    return model


def _plus(base: Any, change: Any) -> Any:
    """base + change; whole numbers stay whole."""

    return jax.tree.map(lambda b, c: b + _like(b, c), base, change)


def _like(leaf: Any, value: Any) -> Any:
    """A float as a value of the leaf's type."""
    return (value if jnp.issubdtype(leaf.dtype, jnp.floating) else jnp.round(value)).astype(leaf.dtype)


def _minus(end: Any, start: Any) -> Any:
    return jax.tree.map(lambda e, s: (e - s).astype(jnp.float32), end, start)


def _local(task, rules, progress, start, source, plan, first, count):
    step = lambda i, p: local_step(task, p, source, plan, i)
    progress = _loop(rules, step, first, count, progress)
    end, start = changed(rules, progress.model), changed(rules, start)
    # Optimizer states as they are and not what changed: they forget, so that with delay the difference to an
    # average of the round before would grow instead of vanishing; and their beginning need not be kept.
    opt = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), end.opt)
    return progress, _minus(end._replace(opt=()), start._replace(opt=()))._replace(opt=opt)


def _accumulate(task, rules, progress, start, source, plan, first, count):
    gather = _one_gradient if rules.single and rules.emulated is None else _sum_of_gradients
    before = progress.sums.examples
    total, progress = gather(task, rules, progress, start, source, plan, first, count)
    seen = jnp.maximum(progress.sums.examples - before, 1)
    mean = jax.tree.map(lambda g: g / seen, total)
    return progress, Model(mean, _minus(progress.model.state, start.state), ())


def _sum_of_gradients(task, rules, progress, start, source, plan, first, count):
    def step(i, at):
        total, progress = at
        grads, _, progress = gradient_step(task, progress, source, plan, i)
        return jax.tree.map(jnp.add, total, grads), progress

    zero = varying(jax.tree.map(_zero, start.params))
    return _loop(rules, step, first, count, (zero, progress))


def _one_gradient(task, rules, progress, start, source, plan, first, count):
    # Without sums that begin at 0 and grow, each a kernel for every parameter; a worker that has no mini-batch
    # left takes one for nothing.
    grads, _, after = gradient_step(task, progress, source, plan, first)
    kept = lambda new, old: jnp.where(count > 0, new, old)
    books = jax.tree.map(kept, (after.sums, after.bad), (progress.sums, progress.bad))
    state = jax.tree.map(kept, after.model.state, progress.model.state)
    grads = jax.tree.map(lambda g: jnp.where(count > 0, g, 0), grads)
    return grads, Progress(progress.model._replace(state=state), *books)


def _loop(rules: Rules, step: Any, first: Any, count: Any, start: Any) -> Any:
    if rules.emulated is not None:
        step = rules.emulated.slowed(step, lax.axis_index(AXIS))
    return lax.fori_loop(first, first + count, step, start)


def exchanged(rules: Rules, change: Model, own: Own) -> tuple[Model, jax.Array, Own]:
    """The exchange: the mean of all workers' changes, each counted by the examples it was made of.

    Returns:
        (mean change; Σ n_i; own with the new residuals). Where nobody had seen an example the mean is zero, and
        the residuals stay for the next exchange.
    """
    return _heard(own, *weighted_mean(change, own.examples, AXIS, rules.exchange, rules.payload, _error(own)))


def _heard(own: Own, mean: Model, total: jax.Array, error: Any) -> tuple[Model, jax.Array, Own]:
    mean = _if_any(total, mean, jax.tree.map(jnp.zeros_like, mean))
    return mean, total, own._replace(error=() if error is None else _if_any(total, error, own.error))


def _if_any(total: Any, new: Any, old: Any) -> Any:
    """new, or old where nobody had seen an example: with delay nothing arrives in a first round."""
    return jax.tree.map(lambda n, o: jnp.where(total > 0, n, o), new, old)


def _error(own: Own) -> Any:
    return own.error if own.error != () else None


def merge(
    task: Task, rules: Rules, common: Common, mean: Model, total: Any, lr: Any, momentum: Any
) -> Common:
    """What all workers agree on after an exchange."""
    model, velocity = common
    state = _plus(model.state, mean.state)
    if rules.mode == "accumulate":
        stepped = task.descend(model, mean.params, jnp.ones(()), lr, momentum)
        return Common(_if_any(total, stepped, model)._replace(state=state), velocity)
    if rules.outer == "nesterov":
        velocity = jax.tree.map(lambda v, d: rules.outer_momentum * v + d, velocity, mean.params)
        ahead = lambda w, d, v: w + rules.outer_lr * (d + rules.outer_momentum * v)
        params = jax.tree.map(ahead, model.params, mean.params, velocity)
        if rules.delay:  # a velocity from before would move them without a change
            params, velocity = _if_any(total, (params, velocity), (model.params, common.velocity))
    else:
        params = _plus(model.params, mean.params)
    # Their velocity, and what rounding took from them before, would move frozen layers on.
    params, opt = task.held(model.params, params), model.opt
    if rules.momentum == "average":
        opt = jax.tree.map(_like, model.opt, mean.opt)
        if rules.delay:
            opt = _if_any(total, opt, model.opt)
    return Common(Model(params, state, opt), velocity)


def one_round(
    task: Task, rules: Rules, carry: Carry, source: Source, plan: Plan, firsts: Any, counts: Any
) -> Carry:
    """A whole round as one worker sees it; with delay the exchange depends on nothing computed here.

    Args:
        firsts, counts: int32 [workers], everyone's share of the epoch's mini-batches.
    """
    me = lax.axis_index(AXIS)
    plainly = rules.exchange == "psum" and PAYLOADS[rules.payload].exact
    if rules.single and plainly and not rules.delay and rules.emulated is None:
        return _synchronous(task, rules, carry, source, plan, firsts, (firsts[me], counts[me]))
    message, first = _before(rules, carry.own, firsts[me])
    phase = local_phase(task, rules, carry, source, plan, first, counts[me])
    return around(task, rules, carry, plan, firsts, phase, message)


def _synchronous(task, rules, carry, source, plan, firsts, share):
    """A round of at most one mini-batch a worker, in as few kernels as it takes: what synchronous training is.

    The same as other rounds, but that a worker whose loss is not finite does not count in the mean.
    """
    (common, own), (first, count) = carry, share
    model = varying(common.model)
    grads, state, sums = task.gradient(model, mini_batch(source, plan, first))
    sums = jax.tree.map(lambda s: jnp.where(count > 0, s, 0), sums)
    fails = (own.bad < 0) & ~jnp.isfinite(sums.loss)
    bad = jnp.where(fails, jnp.int32(first), own.bad)
    examples = jnp.where(bad < 0, sums.examples, 0)
    mean, moved, total = mean_of_sums(grads, _minus(state, model.state), examples, AXIS, _messages(grads))
    lr, momentum = plan.lr[firsts[0]], plan.momentum[firsts[0]]
    common = merge(task, rules, common, Model(mean, moved, ()), total, lr, momentum)
    own = own._replace(examples=examples, sums=jax.tree.map(jnp.add, own.sums, sums), bad=bad)
    return Carry(common, own)


def _messages(grads: Any) -> int:
    """In how many messages gradients are best sent: on a GPU the first are on their way while the rest is computed."""
    if jax.default_backend() == "cpu":  # where a program computes or communicates
        return 1
    values = sum(leaf.size for leaf in jax.tree.leaves(grads))
    return min(max(values // _MESSAGE, 1), _MESSAGES)


def timed_round(
    task: Task, rules: Rules, carry: Carry, source: Source, plan: Plan, firsts: Any, counts: Any
) -> tuple[Carry, tuple[jax.Array, ...]]:
    """`one_round`, and stamps.

    Returns:
        (carry, (two stamps one after the other when the local phase began, which tell what a look at the clock
        costs; when it ended; when the exchange did, 0 with delay)).
    """
    me = lax.axis_index(AXIS)
    message, first = _before(rules, carry.own, firsts[me])
    looked = stamp((carry, first))
    begin = stamp(after(looked, first))
    change, own = local_phase(task, rules, carry, source, plan, after(begin, first), counts[me])
    computed = stamp((change, own))
    # The books are gathered from all: before the stamp, that would count waiting for slow workers as computing.
    sums, bad = jax.tree.map(lambda leaf: after(computed, leaf), (own.sums, own.bad))
    own = own._replace(sums=sums, bad=bad)
    if rules.delay:
        carry = around(task, rules, carry, plan, firsts, (change, own), message)
        return carry, (looked, begin, computed, jnp.int32(0))
    own = own._replace(examples=after(computed, own.examples))
    carry = around(task, rules, carry, plan, firsts, (change, own), message)
    return carry, (looked, begin, computed, stamp(carry.common))


def _before(rules: Rules, own: Own, first: Any) -> tuple[Any, Any]:
    """With delay the message of the round before, laid out before this round's first mini-batch is known.

    In what order a program does what does not depend on each other is the compiler's choice, by memory: so a GPU
    would begin to exchange when it has computed.
    """
    if not rules.delay:
        return None, first
    message = lay_out_weighted(own.change, own.examples, AXIS, rules.payload, _error(own))
    return lax.optimization_barrier((message, first))


def around(
    task: Task,
    rules: Rules,
    carry: Carry,
    plan: Plan,
    firsts: Any,
    phase: tuple[Model, Own],
    message: Weighed | None = None,
) -> Carry:
    """What belongs to a round besides its local phase: the exchange, this round's or the one before, and the merge."""
    change, own = phase
    if message is not None:
        # Read only when the phase has ended: what follows would wait for the exchange, and the phase with it.
        summed = send_weighted(message, AXIS, rules.exchange, rules.payload)
        summed, examples = lax.optimization_barrier((summed, own.examples))
        before = carry.own
        mean, total, heard = _heard(before, *read_mean(summed, before.change, rules.payload, _error(before)))
        own = own._replace(change=change, examples=examples, error=heard.error)
    else:
        mean, total, own = exchanged(rules, change, own)
    lr, momentum = plan.lr[firsts[0]], plan.momentum[firsts[0]]
    return Carry(merge(task, rules, carry.common, mean, total, lr, momentum), own)


def rounds(
    task: Task, rules: Rules, carry: Carry, source: Source, plan: Plan, firsts: Any, counts: Any, number: Any
) -> Carry:
    """Many rounds, one after another, in one program.

    Args:
        firsts, counts: int32 [most rounds, workers].
        number: how many of them to run; may be traced.
    """
    body = lambda r, c: varying(one_round(task, rules, c, source, plan, firsts[r], counts[r]))
    return lax.fori_loop(0, number, body, varying(carry))


def settled(task: Task, rules: Rules, carry: Carry, lr: Any, momentum: Any) -> Common:
    """What is common once the change still on its way has arrived: the model to evaluate and to keep."""
    if not rules.delay:
        return carry.common
    mean, total, _ = exchanged(rules, carry.own.change, carry.own._replace(error=()))
    return merge(task, rules, carry.common, mean, total, lr, momentum)


def arrived(
    task: Task, rules: Rules, carry: Carry, lr: Any, momentum: Any, layers: Any
) -> tuple[tuple[Any, ...], Model]:
    """What is still on its way arrives at so many of the first layers, before they are frozen.

    Args:
        task: as it was when that was made.
        layers: int32.

    Returns:
        (what is common of all layers' parameters, the worker's change without those of the first layers).
    """
    model, change = carry.common.model, carry.own.change
    params = settled(task, rules, carry, lr, momentum).model.params

    def first(new, old):
        pick = lambda i: lambda n, o: jnp.where(i < layers, n, o)
        return tuple(jax.tree.map(pick(i), *layer) for i, layer in enumerate(zip(new, old, strict=True)))

    nothing = jax.tree.map(jnp.zeros_like, change.params)
    return first(params, model.params), change._replace(params=first(nothing, change.params))
