"""`cnnkit train`: train, record, resume; every setting of `Run` as an option with the same default."""

import argparse
import contextlib
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnnkit.command import words

if TYPE_CHECKING:
    from cnnkit.data import Dataset
    from cnnkit.train.run import Run

EPILOG = """
examples:
  cnnkit train                                          the bundled digits, in seconds
  cnnkit train lenet --data mnist --epochs 20 --lr 'one_cycle(0.1)' --augment 'rotate(12), elastic(3.4)'
  cnnkit train lenet --data mnist --workers 4 --fetch 'balanced(warm_start(1, 16, epochs=5))' --delay 1
  cnnkit lab --nodes 4 --rate 100mbit -- cnnkit train lenet --data mnist --fetch 'hide(0.95)'

The same command goes on with a run that was stopped. In the background: nohup cnnkit train … &
"""


def add_parser(commands: Any) -> None:
    """Add `train` to what argparse's ``add_subparsers`` returned."""
    parser = commands.add_parser(
        "train",
        usage="cnnkit train [NET] [options]",
        help="train a network, or go on with a run",
        description="Train a network, or go on with a run that was stopped; Ctrl-C saves and ends.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "net", nargs="?", default="tiny", metavar="NET", help="a network's name, or FILE.py:FUNCTION (tiny)"
    )
    _add_what(parser.add_argument_group("what"))
    _add_how(parser.add_argument_group("how"))
    _add_together(parser.add_argument_group("several workers"))
    _add_books(parser.add_argument_group("books"))
    parser.set_defaults(handler=run)


def _add_what(group: Any) -> None:
    words.add_data(group)
    group.add_argument(
        "--batch", type=words.whole, default=128, metavar="N", help="examples a worker takes in a step (128)"
    )
    group.add_argument(
        "--epochs", type=words.whole, default=10, metavar="N", help="times through the training set (10)"
    )
    group.add_argument(
        "--seed", type=int, default=0, metavar="N", help="equal seeds, equal numbers on CPU (0)"
    )
    group.add_argument(
        "--folder",
        type=Path,
        help="where record and checkpoints lie (runs/DATA-NET-SEED); the same again goes on",
    )


def _add_how(group: Any) -> None:
    group.add_argument(
        "--optimizer",
        default="sgd",
        metavar="NAME",
        help="sgd, adamw or muon, or with settings: 'sgd(momentum=0.95)' (sgd)",
    )
    group.add_argument(
        "--lr",
        metavar="RATE",
        help="learning rate: 0.05, 'one_cycle(0.1)', 'cosine(0.1, warmup=1)', 'stages((0.05, 10), (0.01, 10))' "
        "(the optimizer's own)",
    )
    group.add_argument(
        "--augment", metavar="LIST", help="of training images, e.g. 'flip(), crop(32, pad=4)' (none)"
    )
    group.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="subtract the mean and divide by the deviation, by channel (yes)",
    )
    group.add_argument(
        "--loss",
        default="cross_entropy",
        metavar="NAME",
        help="cross_entropy or squared_error (cross_entropy)",
    )
    group.add_argument(
        "--smoothing", type=float, default=0.0, metavar="S", help="label smoothing, 0 to below 1 (0)"
    )
    group.add_argument(
        "--freeze",
        type=words.frozen,
        default=(),
        metavar="EPOCH:LAYERS,…",
        help="from that epoch on, counted from 0, so many of the first layers learn no more, e.g. 5:1,10:4 (none)",
    )
    group.add_argument(
        "--dtype", default="float32", metavar="NAME", help="float32, tf32 or bfloat16 (float32)"
    )
    group.add_argument(
        "--dispatch",
        default="time",
        metavar="NAME",
        help="what is trained between two looks from outside: a moment's worth, time, or an epoch (time)",
    )


def _add_together(group: Any) -> None:
    group.add_argument(
        "--workers", type=words.whole, metavar="N", help="devices that train together (1; in a job all)"
    )
    group.add_argument("--mode", default="local", metavar="NAME", help="local or accumulate (local)")
    group.add_argument(
        "--fetch",
        default=1,
        metavar="POLICY",
        help="local steps between two exchanges: a number or a policy, e.g. 'warm_start(1, 16, epochs=5)' (1)",
    )
    group.add_argument(
        "--delay", type=int, default=0, metavar="0|1", help="1: exchange while the next round computes (0)"
    )
    group.add_argument(
        "--exchange", default="psum", metavar="NAME", help="psum, ring, tree, redundant or server (psum)"
    )
    group.add_argument(
        "--payload", default="float32", metavar="NAME", help="float32, bfloat16 or int8 (float32)"
    )
    group.add_argument(
        "--momentum",
        type=_rule,
        default="keep",
        metavar="RULE",
        help="what an exchange makes of the workers' momenta: keep, average or reset (keep)",
    )
    group.add_argument(
        "--outer", default="plain", metavar="NAME", help="outer step: plain or nesterov (plain)"
    )
    group.add_argument("--outer-lr", type=float, default=0.7, metavar="LR", help="of the Nesterov step (0.7)")
    group.add_argument(
        "--outer-momentum", type=float, default=0.9, metavar="M", help="of the Nesterov step (0.9)"
    )
    group.add_argument(
        "--emulate",
        type=_speeds,
        metavar="SPEEDS",
        help="slow workers down, e.g. 1,0.5 for the second at half speed",
    )


def _add_books(group: Any) -> None:
    group.add_argument(
        "--judge",
        type=_names,
        metavar="PARTS",
        help="parts evaluated: test, held_out, train (those there are)",
    )
    group.add_argument(
        "--views",
        metavar="VIEWS",
        help="of each image that evaluation averages over, e.g. 'views(mirror=True, shift=1)' (the image alone)",
    )
    group.add_argument(
        "--evaluate-every",
        type=words.whole,
        default=1,
        metavar="N",
        help="epochs between two evaluations (1)",
    )
    group.add_argument(
        "--checkpoint-every",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds between two checkpoints (30)",
    )


def run(arguments: argparse.Namespace) -> int:
    """`cnnkit train`."""
    import jax

    from cnnkit.parallel import workers
    from cnnkit.record.folder import read_config
    from cnnkit.train.diverge import Diverged

    _prepare_devices(arguments.workers)
    workers.join()
    data = words.dataset(arguments)
    training = make(arguments, data)
    if training.epoch >= training.epochs:
        print(
            f"{training.folder} is done, and nothing is trained; for more give a larger --epochs, to begin anew "
            "another --folder"
        )
        if jax.process_count() == 1 and training.history:  # of several, one may not have the folder
            print(told(training))
            return 0
    elif shared := _shared(arguments.workers):
        print(shared)
    try:
        training.fit()
    except Diverged as error:
        # Where nothing came of it, any other run may take its place.
        if not training.folder or read_config(training.folder) is None:
            raise
        raise Diverged(f"{error}. With other settings it begins anew, in another --folder") from None
    except KeyboardInterrupt:
        again = shlex.join(["cnnkit", *arguments.argv])
        raise KeyboardInterrupt(f"stopped; {_saved(training)}. To go on: {again}") from None
    if jax.process_index() == 0:
        print(told(training))
    return 0


def make(arguments: argparse.Namespace, data: "Dataset") -> "Run":
    """The run that the options describe."""
    from cnnkit import Run
    from cnnkit.train.arguments import optimizer

    # The options that need no translation are called as Run's arguments are.
    same = (
        "batch epochs seed normalize loss smoothing dtype workers mode fetch delay exchange payload momentum "
        "outer outer_lr outer_momentum emulate judge views augment freeze evaluate_every checkpoint_every dispatch"
    )
    return Run(
        words.network(arguments.net, len(data.classes)),
        data,
        folder=arguments.folder or default_folder(arguments),
        optimizer=optimizer(arguments.optimizer, arguments.lr),
        **{name: getattr(arguments, name) for name in same.split()},
    )


def default_folder(arguments: argparse.Namespace) -> Path:
    """Where a run lies that was given no folder: runs/DATA-NET-SEED."""
    net = arguments.net.rpartition(":")[2]
    return Path("runs", f"{Path(arguments.data).name}-{net}-{arguments.seed}")


def told(training: "Run") -> str:
    """How a training ended, in two lines."""
    row = training.history[-1]
    lines = []
    for part in training.judge:
        count = len(training.data.split(part).labels)
        accuracy = row[f"{part}_accuracy"]
        lines.append(
            f"{part.replace('_', ' ')} accuracy {100 * accuracy:.2f} % ({round(count * (1 - accuracy))} of {count:,} wrong)"
        )
    seconds = f"{row['train_total']:.1f} s of training, {row['compile_total']:.1f} s of compiling"
    return f"{', '.join(lines)}; {seconds}\nrecord, settings and checkpoint: {training.folder}"


def _saved(training: "Run") -> str:
    """What lies on disk: after a second Ctrl-C, which ends at once, it is an earlier checkpoint or none."""
    facts = training.keeper.facts()
    if facts is None:
        return f"no checkpoint is in {training.folder} yet"
    epoch = facts["epoch"] + facts["position"] / training.mini_batches
    return f"{training.folder} holds the checkpoint of epoch {epoch:.2f} of {training.epochs}"


def _prepare_devices(wanted: int | None) -> None:
    """On a machine without accelerators, as many CPU devices as workers; others are left as they are."""
    alone = "CNNKIT_COORDINATOR" not in os.environ
    if wanted and wanted > 1 and alone and "JAX_NUM_CPU_DEVICES" not in os.environ:
        import jax

        # Where devices are there already, whether they are enough is said when they are dealt out.
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", wanted)


def _shared(wanted: int | None) -> str:
    """What several workers on a machine without accelerators have in common, in words."""
    import jax

    if not wanted or wanted < 2 or jax.process_count() > 1 or jax.default_backend() != "cpu":
        return ""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return (
        f"{wanted} workers, each a CPU device that JAX makes up, share this machine's {cores} "
        f"core{'s' * (cores != 1)}: rounds are as on {wanted} devices, the time is not"
    )


def _rule(text: str) -> str:
    try:
        float(text)
    except ValueError:
        return text
    raise argparse.ArgumentTypeError(
        f"keep, average or reset; the strength goes with the optimizer: --optimizer 'sgd(momentum={text})'"
    )


def _speeds(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(speed) for speed in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of speeds, as 1,0.5") from None


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))
