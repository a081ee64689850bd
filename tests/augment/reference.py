"""Plain NumPy that augmentations are compared with: one image, one pixel, one formula at a time."""

import numpy as np


def bilinear(image, row, column, background=0.0):
    """image [H, W, C] at real positions row, column [H', W']: a tent over each pixel, the rest background."""
    height, width, _ = image.shape
    down = np.maximum(0, 1 - np.abs(np.asarray(row, np.float64)[..., None] - np.arange(height)))
    right = np.maximum(0, 1 - np.abs(np.asarray(column, np.float64)[..., None] - np.arange(width)))
    weight = down[..., :, None] * right[..., None, :]
    covered = weight.sum((-1, -2))[..., None]
    return np.einsum("ijyx,yxc->ijc", weight, image) + (1 - covered) * background


def affine(image, matrix, field=None, background=0.0):
    """image seen through a 3×3 matrix on homogeneous (row, column, 1), plus a displacement [2, H, W]."""
    height, width, _ = image.shape
    rows, columns = np.mgrid[:height, :width]
    places = np.stack([rows, columns, np.ones_like(rows)]).reshape(3, -1)
    row, column, _ = (np.asarray(matrix, np.float64) @ places).reshape(3, height, width)
    if field is not None:
        row, column = row + field[0], column + field[1]
    return bilinear(image, row, column, background)


def about_middle(linear, shift, height, width):
    """The 3×3 matrix of p -> c + linear·(p − c) + shift, c the middle of the image."""
    to, back, change = np.eye(3), np.eye(3), np.eye(3)
    to[:2, 2] = (height - 1) / 2, (width - 1) / 2
    back[:2, 2] = -to[:2, 2]
    change[:2, :2], change[:2, 2] = linear, shift
    return to @ change @ back


def gaussian(sigma=4.0, radius=10):
    """The kernel exp(−r²/2σ²) / (2πσ) on a square."""
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    return np.exp(-(x**2 + y**2) / (2 * sigma**2)) / (2 * np.pi * sigma)


def smoothed(field, kernel):
    """field [H, W] convolved with a square kernel, zeros outside."""
    radius = len(kernel) // 2
    padded = np.pad(np.asarray(field, np.float64), radius)
    out = np.zeros(field.shape)
    for i, j in np.ndindex(field.shape):
        out[i, j] = (padded[i : i + len(kernel), j : j + len(kernel)] * kernel).sum()
    return out
