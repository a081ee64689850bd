"""How many local steps each worker takes in a round: policies, pure functions of what the run has measured.

A policy is called as ``policy(view)`` before every round and gives a whole number of at least 1 for
each worker. It depends on its view alone, so all processes of a run agree without talking. Policies
nest: ``balanced(warm_start(1, 16, epochs=5))``.
"""

import ast
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cnnkit.names import choose
from cnnkit.parallel import balance
from cnnkit.parallel.policy import (
    MOST,
    Growth,
    Policy,
    RoundView,
    alike,
    check_whole,
    frozen,
    is_number,
    smooth,
    steps,
)

__all__ = ["POLICIES", "Policy", "RoundView", "as_policy", "balanced", "every", "hide", "parse", "period"]
__all__ += ["post_local", "qsr", "smooth", "warm_start"]

Stages = Sequence[Sequence[float]]


# Policies are classes in lower case because they read as functions, like partial and count.


@dataclass(frozen=True)
class every(Policy):
    """k local steps at every worker.

        k_i = k

    >>> every(4)(RoundView(workers=2))
    array([4, 4])

    Args:
        k: whole number ≥ 1. With 1 a round is a step of plain synchronous SGD, the Purine baseline.
    """

    k: int

    def __post_init__(self):
        check_whole(self, k=self.k)

    def __call__(self, view):
        return alike(view, self.k)


@dataclass(frozen=True)
class warm_start(Policy):
    """Short periods early, longer ones later: the thesis's warm start (热启动).

        k_i = round(first · (last / first)^min(1, t / T))

    where t are the epochs (or rounds) done and T those over which k grows: it doubles at equal
    intervals. In place of first, last and a number, epochs or rounds may be a list of stages
    ``(from, k)``, each in force from that epoch or round on.

    Args:
        first, last: whole numbers ≥ 1.
        epochs, rounds: T, or stages; exactly one of the two.

    >>> grow = warm_start(1, 16, epochs=4)
    >>> [int(grow(RoundView(workers=1, epochs=t))[0]) for t in (0, 1, 2, 3, 4, 9)]
    [1, 2, 4, 8, 16, 16]
    >>> warm_start(rounds=[(0, 1), (100, 8)])(RoundView(workers=2, round=100))
    array([8, 8])
    """

    first: int | None = None
    last: int | None = None
    epochs: float | Stages | None = dataclasses.field(default=None, kw_only=True)
    rounds: float | Stages | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self):
        _freeze_stages(self)
        for k in self._growth.values:
            check_whole(self, k=k)

    @property
    def _growth(self) -> Growth:
        return Growth("warm_start", self.first, self.last, self.epochs, self.rounds)

    def __call__(self, view):
        return alike(view, math.floor(self._growth.at(view) + 0.5))


@dataclass(frozen=True)
class period(Policy):
    """A window of time: every worker takes as many mini-batches as fit, by its measured speed.

        k_i = max(1, ⌊seconds · v_i⌋)

    Before speeds are measured, 1. The window may grow as in `warm_start`: ``period(2.0, 3.0, epochs=5)``,
    or in stages, as Npurine had it: ``period(rounds=[(0, 2.0), (100, 2.5), (200, 3.0)])``.

    Args:
        seconds: length of the window, > 0; the first one where it grows.
        last: the last one where it grows.
        epochs, rounds: as in `warm_start`.

    The thesis's and Npurine's period; Anytime Minibatch (Ferdinand et al., ICLR 2019).

    >>> period(2.0)(RoundView(workers=2, speeds=(10.0, 4.9)))
    array([20,  9])
    """

    seconds: float | None = None
    last: float | None = None
    epochs: float | Stages | None = dataclasses.field(default=None, kw_only=True)
    rounds: float | Stages | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self):
        _freeze_stages(self)
        for seconds in self._growth.values if self._growth else [self.seconds]:
            if not is_number(seconds) or seconds <= 0:  # type: ignore[operator]
                raise ValueError(f"period: a window is a number of seconds above 0, got {seconds!r}")

    @property
    def _growth(self) -> Growth | None:
        if self.last is None and self.epochs is None and self.rounds is None:
            return None
        return Growth("period", self.seconds, self.last, self.epochs, self.rounds)

    def __call__(self, view):
        rates = view.rates()
        if rates is None:
            return alike(view, 1)
        seconds = self._growth.at(view) if self._growth else self.seconds
        return steps(np.floor(seconds * rates * (1 + 1e-9)))


@dataclass(frozen=True)
class balanced(Policy):
    """Another policy's steps, shared out in proportion to measured speed.

        Σ k_i ≥ Σ policy_i,   k_i / v_i nearly the same for all i

    Slow workers take fewer steps and fast ones more, so nobody waits long at the exchange; how whole
    numbers are found, and what they cost, is told at `cnnkit.parallel.balance.share`. Before speeds
    are measured, the policy's own.

    Args:
        policy: how many steps a round has, e.g. ``every(16)`` or ``warm_start(1, 16, epochs=5)``.
        busy: the fraction of a round that every worker should at least compute. A round is made longer,
            up to twice, until whole numbers reach it: with k steps at the slowest worker, rounding alone
            may cost 1/k.

    Load balancing by fetch_i in the thesis. DyLU (Liu et al. 2024, arXiv 2401.09135) gives the fastest
    worker the policy's k and the others ⌊k · v_i / v_max⌋, which makes rounds smaller on unequal
    workers and can leave the slow ones idle by up to one of their own steps.

    >>> balanced(every(16))(RoundView(workers=2, speeds=(1.0, 0.5)))
    array([22, 11])
    """

    policy: Policy
    busy: float = dataclasses.field(default=0.97, kw_only=True)

    def __post_init__(self):
        if not isinstance(self.policy, Policy):
            raise ValueError(f"balanced needs a policy, such as every(16), got {self.policy!r}")
        if not is_number(self.busy) or not 0 <= self.busy <= 1:
            raise ValueError(f"balanced: busy is a fraction of the round, 0 to 1, got {self.busy!r}")

    def __call__(self, view):
        asked = self.policy(view)
        rates = view.rates()
        return asked if rates is None else steps(balance.share(int(asked.sum()), rates, self.busy))


@dataclass(frozen=True)
class hide(Policy):
    """The smallest period whose computing hides the exchange on this link.

        delay 1:  k_i = ⌈target · x · v_i⌉            a round takes max(k_i / v_i, x)
        delay 0:  k_i = ⌈target / (1 − target) · x · v_i⌉   a round takes k_i / v_i + x

    with x the seconds of an exchange, as rounds that wait for it show it, and v_i the measured speed. Either
    way ``target`` is the throughput as a fraction of that without a link, and with delay 1 also the fraction
    of the exchange that is hidden.

    Args:
        target: above 0, at most 1; below 1 with delay 0, where an exchange can only be made small.
        first: steps before both are measured.
        most: no more steps than this.

    >>> hide()(RoundView(workers=2, speeds=(100.0, 100.0), exchange_seconds=0.209, delay=1))
    array([21, 21])
    >>> hide(0.95)(RoundView(workers=1, speeds=(100.0,), exchange_seconds=0.01, delay=0))
    array([19])
    """

    target: float = 1.0
    first: int = dataclasses.field(default=1, kw_only=True)
    most: int = dataclasses.field(default=MOST, kw_only=True)

    def __post_init__(self):
        if not is_number(self.target) or not 0 < self.target <= 1:
            raise ValueError(f"hide: target is a fraction above 0 and at most 1, got {self.target!r}")
        check_whole(self, first=self.first, most=self.most)

    def __call__(self, view):
        if not view.delay and self.target == 1:
            raise ValueError(
                "hide(1.0) cannot be reached with delay=0, where every exchange is waited for: "
                "take delay=1, or a target below 1, such as hide(0.95)"
            )
        rates = view.rates()
        if rates is None or view.exchange_seconds is None:
            return alike(view, min(self.first, self.most))
        wanted = self.target if view.delay else self.target / (1 - self.target)
        return steps(np.ceil(wanted * view.exchange_seconds * rates * (1 - 1e-9)), self.most)


@dataclass(frozen=True)
class qsr(Policy):
    """The quadratic synchronization rule: periods that grow as the learning rate falls.

        k_i = max(base, ⌊(alpha / lr)²⌋)

    Args:
        alpha: > 0, in the learning rate's unit: k is 1 at lr = alpha, 4 at lr = alpha / 2.
        base: the least k.

    Gu et al., A Quadratic Synchronization Rule for Distributed Deep Learning, ICLR 2024.

    >>> qsr(0.2, 4)(RoundView(workers=1, lr=0.025))
    array([64])
    """

    alpha: float
    base: int = 1

    def __post_init__(self):
        if not is_number(self.alpha) or self.alpha <= 0:
            raise ValueError(f"qsr needs alpha above 0, got {self.alpha!r}")
        check_whole(self, base=self.base)

    def __call__(self, view):
        if not view.lr >= 0:
            raise ValueError(f"qsr needs the round's learning rate, got lr={view.lr}")
        # The smallest lr that still gives a number below MOST; a schedule may end at 0.
        ratio = self.alpha / max(view.lr, self.alpha / math.sqrt(MOST))
        return alike(view, max(self.base, math.floor(ratio * ratio * (1 + 1e-9))))


@dataclass(frozen=True)
class post_local(Policy):
    """Plain synchronous steps up to an epoch, then k.

        k_i = 1 before ``epoch``, then k

    Args:
        k: whole number ≥ 1.
        epoch: when; may have a fraction.

    Lin et al., Don't Use Large Mini-Batches, Use Local SGD, ICLR 2020.

    >>> [int(post_local(8, epoch=2)(RoundView(workers=1, epochs=e))[0]) for e in (0, 1.9, 2)]
    [1, 1, 8]
    """

    k: int
    epoch: float

    def __post_init__(self):
        check_whole(self, k=self.k)
        if not is_number(self.epoch) or self.epoch < 0:
            raise ValueError(f"post_local needs an epoch of at least 0, got {self.epoch!r}")

    def __call__(self, view):
        return alike(view, self.k if view.epochs >= self.epoch else 1)


def _freeze_stages(policy: warm_start | period) -> None:
    object.__setattr__(policy, "epochs", frozen(policy.epochs))
    object.__setattr__(policy, "rounds", frozen(policy.rounds))


POLICIES: dict[str, type[Policy]] = {
    policy.__name__: policy for policy in (every, warm_start, period, balanced, hide, qsr, post_local)
}


def as_policy(fetch: Policy | int | str) -> Policy:
    """A policy from what users write: a policy itself, a whole number, or text.

    >>> as_policy(4), as_policy("qsr(0.2)")
    (every(k=4), qsr(alpha=0.2, base=1))
    """
    if isinstance(fetch, Policy):
        return fetch
    if callable(fetch):
        raise ValueError(
            f"fetch is {getattr(fetch, '__name__', fetch)}, which is no policy: derive a class from "
            "cnnkit.parallel.policy.Policy whose __call__(view) gives the steps of each worker, and give an object of it"
        )
    return parse(fetch) if isinstance(fetch, str) else every(fetch)


def parse(text: str) -> Policy:
    """The policy that a text names: what `Policy.describe` writes, or a whole number for ``every``.

    Nothing is evaluated: names are policies, arguments are literals or policies.

    Raises:
        ValueError: not of that form, an unknown policy, or arguments that it does not take.

    >>> parse("balanced(warm_start(1, 16, epochs=5))").describe()
    'balanced(warm_start(1, 16, epochs=5))'
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(f"fetch {text!r} is no policy: write, for instance, balanced(every(16))") from None
    if isinstance(tree, ast.Constant):
        return every(tree.value)  # type: ignore[arg-type]
    return _policy(tree, text)


def _policy(tree: ast.expr, text: str) -> Policy:
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
        if isinstance(tree, ast.Name):
            choose(tree.id, POLICIES, "fetch policy")
            raise ValueError(f"fetch {text!r}: {tree.id} is written with parentheses, as {tree.id}(…)")
        raise ValueError(f"fetch {text!r} is no policy: write, for instance, balanced(every(16))")
    policy = choose(tree.func.id, POLICIES, "fetch policy")
    if any(isinstance(node, ast.Starred) for node in tree.args) or any(w.arg is None for w in tree.keywords):
        raise ValueError(f"fetch {text!r}: write out each argument, without * or **")
    arguments = [_argument(node, text) for node in tree.args]
    settings = {str(word.arg): _argument(word.value, text) for word in tree.keywords}
    try:
        return policy(*arguments, **settings)  # type: ignore[arg-type]
    except TypeError:
        names = ", ".join(field.name for field in dataclasses.fields(policy))  # type: ignore[arg-type]
        raise ValueError(f"fetch {text!r}: {policy.__name__} takes {names}") from None


def _argument(node: ast.expr, text: str) -> object:
    if isinstance(node, ast.Call):
        return _policy(node, text)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        raise ValueError(
            f"fetch {text!r}: {ast.unparse(node)} is neither a policy nor a number or list"
        ) from None
