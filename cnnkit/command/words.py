"""What people type, made into what it names: networks, optimizers, augmentations, data; nothing is evaluated."""

import argparse
import ast
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnnkit.names import choose

if TYPE_CHECKING:
    from cnnkit.augment import Augment
    from cnnkit.data import Dataset
    from cnnkit.layers import Layer
    from cnnkit.train.optim import Optimizer
    from cnnkit.train.views import Views

Makers = Mapping[str, Callable[..., Any]]


def made(text: str, makers: Makers, what: str) -> Any:
    """What a name, or a call with plain arguments, stands for.

    Args:
        text: ``"flip"`` or ``"crop(32, pad=4)"``.
        makers: known names.
        what: what is being named, for errors.

    Raises:
        ValueError: another form, an unknown name, or arguments that it does not take.

    >>> made("dict(a=1, b=(2, 3))", {"dict": dict}, "thing")
    {'a': 1, 'b': (2, 3)}
    """
    return _call(_parsed(text, what), text, makers, what)


def several(text: str, makers: Makers, what: str) -> list[Any]:
    """The same for calls with commas between them.

    >>> several("max(1, 2), min(1, 2)", {"max": max, "min": min}, "thing")
    [2, 1]
    """
    node = _parsed(text, what)
    nodes = node.elts if isinstance(node, ast.Tuple) else [node]
    return [_call(node, text, makers, what) for node in nodes]


def optimizer(name: str, lr: str | None) -> "Optimizer":
    """An optimizer from ``"sgd(momentum=0.95)"`` and a rate such as ``"0.1"`` or ``"cosine(0.1, warmup=1)"``.

    Raises:
        ValueError: text that names none, or settings that cannot work.
    """
    from cnnkit.train.optim import OPTIMIZERS
    from cnnkit.train.schedule import SCHEDULES

    if lr is None:
        return made(name, OPTIMIZERS, "optimizer")
    try:
        rate: Any = float(lr)
    except ValueError:
        rate = made(lr, SCHEDULES, "schedule")
    with_rate = {
        key: lambda _make=make, **options: _make(rate, **options) for key, make in OPTIMIZERS.items()
    }
    return made(name, with_rate, "optimizer")


def augmentation(text: str | None) -> "Augment | None":
    """Augmentations one after another, from ``"flip(), crop(32, pad=4)"``.

    Raises:
        ValueError: text that names none, or settings that cannot work.
    """
    from cnnkit import augment

    if text is None:
        return None
    parts = several(text, augment.MAKERS, "augmentation")
    return parts[0] if len(parts) == 1 else augment.chain(*parts)


def frozen(text: str) -> tuple[tuple[int, int], ...]:
    """(epoch, layers) pairs, as `Run` takes them for freeze.

    >>> frozen("5:1, 10:4")
    ((5, 1), (10, 4))
    """
    try:
        pairs = [tuple(map(int, pair.split(":"))) for pair in text.split(",")]
        return tuple((epoch, layers) for epoch, layers in pairs)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not of the form EPOCH:LAYERS,…, such as 5:1,10:4"
        ) from None


def views(text: str | None) -> "Views | None":
    """What evaluation averages over, from ``"views(mirror=True, shift=1)"``.

    Raises:
        ValueError: text of another form, or settings that cannot be.
    """
    from cnnkit.train.views import Views

    return None if text is None else made(text, {"views": Views}, "views")


def network(name: str, classes: int) -> "Layer":
    """A network by its name, or from ``FILE.py:FUNCTION``, which is called with the number of classes.

    Raises:
        ValueError: no such network or function.
        FileNotFoundError: no such file.
    """
    from cnnkit.nets import NAMES

    path, colon, function = name.rpartition(":")
    if not colon:
        return choose(name, NAMES, "network")(classes)
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file; a network of your own is written FILE.py:FUNCTION")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file; a network of your own is written FILE.py:FUNCTION")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    functions = {key: value for key, value in vars(module).items() if callable(value)}
    return choose(function, functions, f"function of {path}")(classes)


def dataset(arguments: argparse.Namespace) -> "Dataset":
    """The data set that the options of `add_data` name.

    Raises:
        ValueError, FileNotFoundError, ConnectionError: it cannot be had; the text says why.
    """
    from cnnkit.data import from_folder, load

    size = arguments.size
    if Path(arguments.data).is_dir():
        data = from_folder(arguments.data, size=size)
    elif size is not None:
        raise ValueError(f"--size goes with a folder of images, and {arguments.data} is no folder")
    else:
        data = load(arguments.data)
    if arguments.take is not None:
        data = data.take(train=arguments.take)
    return data if arguments.hold_out is None else data.hold_out(arguments.hold_out)


def add_data(parser: Any) -> None:
    """Options that say which data set, and how much of it."""
    parser.add_argument(
        "--data",
        default="digits",
        metavar="NAME",
        help="digits, mnist, fashion_mnist, cifar10, cifar100, or a folder with a folder of images for each "
        "class (digits)",
    )
    parser.add_argument(
        "--size", type=whole, metavar="PIXELS", help="scale and crop a folder's images to this side"
    )
    parser.add_argument(
        "--hold-out",
        type=amount,
        metavar="PART",
        help="set a part of the training examples aside for choices: 0.1, or a number of them",
    )
    parser.add_argument(
        "--take", type=amount, metavar="PART", help="train on a part only: 0.1, or a number of examples"
    )


def amount(text: str) -> float | int:
    """A fraction, or a whole number of examples.

    >>> amount("0.1"), amount("500")
    (0.1, 500)
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a fraction nor a whole number") from None


def whole(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _parsed(text: str, what: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(_form(text, what)) from None


def _call(node: ast.expr, text: str, makers: Makers, what: str) -> Any:
    call = ast.Call(node, [], []) if isinstance(node, ast.Name) else node
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(_form(text, what))
    make = choose(call.func.id, makers, what)
    try:
        placed = [ast.literal_eval(argument) for argument in call.args]
        named = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (ValueError, TypeError):
        raise ValueError(
            f"{what} {text!r}: arguments are plain numbers, words in quotes, and lists"
        ) from None
    try:
        return make(*placed, **named)
    except TypeError as error:
        raise ValueError(f"{what} {text!r}: {error}") from None


def _form(text: str, what: str) -> str:
    return f"{what} {text!r} is not of the form name or name(settings), as crop(32, pad=4)"
