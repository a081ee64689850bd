"""What people type, made into what it names, where Python has another way to say it: networks, data, numbers."""

import argparse
import importlib.util
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnnkit.names import brief, choose

if TYPE_CHECKING:
    from cnnkit.data import Dataset
    from cnnkit.layers import Layer


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


def network(name: str, classes: int) -> "Layer":
    """A network by its name, or from ``FILE.py:FUNCTION``, which is called with the number of classes.

    Raises:
        ValueError: no such network or function.
        TypeError: the function does not take the number of classes, or returns no network.
        FileNotFoundError: no such file.
    """
    from cnnkit.layers import Layer
    from cnnkit.train import arguments

    path, colon, function = name.rpartition(":")
    if not colon:
        return arguments.network(name, classes)
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file; a network of your own is written FILE.py:FUNCTION")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file; a network of your own is written FILE.py:FUNCTION")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    functions = {key: value for key, value in vars(module).items() if callable(value)}
    make = choose(function, functions, f"function of {path}")
    try:
        inspect.signature(make).bind(classes)
    except TypeError:
        takes = f"it is {function}{inspect.signature(make)}"
        raise TypeError(
            f"{name} is called with one argument, the number of classes, but {takes}; write def {function}(classes): …"
        ) from None
    net = make(classes)
    if not isinstance(net, Layer):
        raise TypeError(f"{name} returned {brief(net)}, not a network; end it with return serial(…)")
    return net


def dataset(arguments: argparse.Namespace) -> "Dataset":
    """The data set that the options of `add_data` name.

    Raises:
        ValueError, FileNotFoundError, ConnectionError: it cannot be had; the text says why.
    """
    from cnnkit.train import arguments as meant

    size = arguments.size
    if size is not None and arguments.data in meant.SETS and not Path(arguments.data).is_dir():
        raise ValueError(f"--size goes with a folder of images, and {arguments.data} is no folder")
    data = meant.dataset(arguments.data, size)
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
