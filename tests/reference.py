"""Layers and losses in plain NumPy, float64, written for clarity: what the real ones are held against."""

import math

import numpy as np


def windows(shape, size, stride, pads, dilation=(1, 1)):
    """For each place of the output (i, j): the pixels (y, x, index in the window) inside the image."""
    rows, cols = (
        (n + sum(p) - (k - 1) * d - 1) // s + 1
        for n, k, s, p, d in zip(shape, size, stride, pads, dilation, strict=True)
    )
    for i in range(rows):
        for j in range(cols):
            pixels = []
            for u in range(size[0]):
                for v in range(size[1]):
                    y = i * stride[0] + u * dilation[0] - pads[0][0]
                    x = j * stride[1] + v * dilation[1] - pads[1][0]
                    if 0 <= y < shape[0] and 0 <= x < shape[1]:
                        pixels.append((y, x, u, v))
            yield i, j, pixels


def out_shape(shape, size, stride, pads, dilation=(1, 1)):
    """Height and width of what `windows` visits."""
    places = [(i, j) for i, j, _ in windows(shape, size, stride, pads, dilation)]
    return places[-1][0] + 1, places[-1][1] + 1


def conv(x, w, stride=(1, 1), pads=((0, 0), (0, 0)), dilation=(1, 1), groups=1):
    """x [B, H, W, C], w [h, w, C / groups, F] -> [B, H', W', F]."""
    size, features = w.shape[:2], w.shape[3]
    y = np.zeros((len(x), *out_shape(x.shape[1:3], size, stride, pads, dilation), features))
    c, f = x.shape[3] // groups, features // groups
    for i, j, pixels in windows(x.shape[1:3], size, stride, pads, dilation):
        for a, b, u, v in pixels:
            for g in range(groups):
                part = x[:, a, b, g * c : (g + 1) * c] @ w[u, v, :, g * f : (g + 1) * f]
                y[:, i, j, g * f : (g + 1) * f] += part
    return y


def local(x, w, size, stride=(1, 1), pads=((0, 0), (0, 0))):
    """x [B, H, W, C], w [H', W', h·w·C, F] -> [B, H', W', F]."""
    c = x.shape[3]
    y = np.zeros((len(x), *w.shape[:2], w.shape[3]))
    for i, j, pixels in windows(x.shape[1:3], size, stride, pads):
        kernel = w[i, j].reshape(*size, c, -1)
        for a, b, u, v in pixels:
            y[:, i, j] += x[:, a, b] @ kernel[u, v]
    return y


def pool(x, size, stride, pads, function):
    """function (np.max or np.mean) of the pixels of each window that are inside the image."""
    y = np.zeros((len(x), *out_shape(x.shape[1:3], size, stride, pads), x.shape[3]))
    for i, j, pixels in windows(x.shape[1:3], size, stride, pads):
        y[:, i, j] = function(np.stack([x[:, a, b] for a, b, _, _ in pixels]), axis=0)
    return y


def max_pool_gradient(x, dy, size, stride, pads):
    """dy given to the first largest pixel of each window, in the order of rows and columns."""
    dx = np.zeros_like(x)
    for i, j, pixels in windows(x.shape[1:3], size, stride, pads):
        values = np.stack([x[:, a, b] for a, b, _, _ in pixels])
        first = values.argmax(0)
        for b, c in np.ndindex(first.shape):
            y, z, _, _ = pixels[first[b, c]]
            dx[b, y, z, c] += dy[b, i, j, c]
    return dx


def batch_norm(x, scale, shift, eps):
    """Normalized by the batch's mean and variance; also returns the mean and the unbiased variance."""
    flat = x.reshape(-1, x.shape[-1])
    mean, var = flat.mean(0), flat.var(0)
    y = scale * (x - mean) / np.sqrt(var + eps) + shift
    return y, mean, flat.var(0, ddof=1)


def lrn(x, size, k, alpha, beta):
    """x_c / (k + alpha · Σ x²)^beta over the size channels around c."""
    y = np.zeros_like(x)
    for c in range(x.shape[-1]):
        near = x[..., max(0, c - size // 2) : c + size // 2 + 1]
        y[..., c] = x[..., c] / (k + alpha * (near**2).sum(-1)) ** beta
    return y


ACTIVATIONS = {
    "relu": lambda x: np.where(x > 0, x, 0),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.1 * x),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "scaled_tanh": lambda x: 1.7159 * np.tanh(2 / 3 * x),
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
}


def cross_entropy(logits, labels, smoothing=0.0):
    """−Σ t · log softmax of each example, t the smoothed one-hot row."""
    probabilities = ACTIVATIONS["softmax"](logits)
    classes = logits.shape[-1]
    target = (1 - smoothing) * np.eye(classes)[labels] + smoothing / classes
    return -(target * np.log(probabilities)).sum(-1)


def gradient(function, x, dy, step=1e-5):
    """Σ dy · ∂function/∂x by central differences."""
    out = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[place] += step
        down[place] -= step
        out[place] = (dy * (function(up) - function(down))).sum() / (2 * step)
    return out
