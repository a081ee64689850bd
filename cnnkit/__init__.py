"""cnnkit: training convolutional networks on one device, several, and several machines."""

__version__ = "0.1.0"
