"""Networks by name: function(classes) -> Layer."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from cnnkit.layers import Layer
from cnnkit.names import lacking
from cnnkit.nets.alexnet import alexnet
from cnnkit.nets.cuda_cnn import cuda_cnn_cifar10, cuda_cnn_mnist
from cnnkit.nets.cuda_cnn_file import Configuration, from_cuda_cnn
from cnnkit.nets.fast import fast94, fast96
from cnnkit.nets.googlenet import googlenet
from cnnkit.nets.lenet import lenet
from cnnkit.nets.purine import inception_cifar10, nin_cifar10
from cnnkit.nets.resnet import resnet18, resnet18_cifar
from cnnkit.nets.tiny import tiny
from cnnkit.nets.unpooled import unpooled
from cnnkit.nets.vgg import vgg16

NAMES: dict[str, Callable[[int], Layer]] = {
    "alexnet": alexnet,
    "cuda_cnn_cifar10": cuda_cnn_cifar10,
    "cuda_cnn_mnist": cuda_cnn_mnist,
    "fast94": fast94,
    "fast96": fast96,
    "googlenet": googlenet,
    "inception_cifar10": inception_cifar10,
    "lenet": lenet,
    "nin_cifar10": nin_cifar10,
    "resnet18": resnet18,
    "resnet18_cifar": resnet18_cifar,
    "tiny": tiny,
    "unpooled": unpooled,
    "vgg16": vgg16,
}

__all__ = ["NAMES", "Configuration", "from_cuda_cnn", *NAMES]

if not TYPE_CHECKING:  # or type checkers would take any name for one of these
    __getattr__ = lacking(__name__, __all__)
