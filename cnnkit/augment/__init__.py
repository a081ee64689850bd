"""Augmentation on the device: ``augment(key, images) -> images``, every image by its own fresh draw."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cnnkit.augment.base import Augment, chain
from cnnkit.augment.move import crop, flip
from cnnkit.augment.pixels import brightness, contrast, cutout, noise, normalize
from cnnkit.augment.stages import stages
from cnnkit.augment.warp import affine, elastic, rotate, scale, translate, view
from cnnkit.names import choose, lacking

__all__ = [
    "Augment",
    "affine",
    "brightness",
    "chain",
    "contrast",
    "crop",
    "cutout",
    "elastic",
    "flip",
    "noise",
    "normalize",
    "rebuild",
    "rotate",
    "scale",
    "stages",
    "translate",
    "view",
]


MAKERS: dict[str, Callable[..., Augment]] = {
    make.__name__: make
    for make in (
        brightness,
        contrast,
        crop,
        cutout,
        elastic,
        flip,
        noise,
        normalize,
        rotate,
        scale,
        translate,
    )
}


def rebuild(description: Mapping[str, Any]) -> Augment:
    """The augmentation that ``Augment.describe`` described.

    Raises:
        ValueError: an unknown name, or a mean image, of which the description holds the checksum alone.

    >>> print(rebuild({"name": "chain", "parts": [rotate(12).describe(), elastic(3.4).describe()]}))
    rotate(12) → elastic(3.4)
    """
    settings = dict(description)
    name = settings.pop("name")
    if name == "chain":
        return chain(*map(rebuild, settings.get("parts", ())))
    if name == "stages":
        return stages(*zip(map(rebuild, settings["parts"]), settings["epochs"], strict=True))
    make = choose(name, MAKERS, "augmentation")
    for key, value in settings.items():
        if isinstance(value, dict):
            raise ValueError(
                f"{name}: of {key}, an image, only the checksum {value['sha256']} was recorded; "
                f"make this augmentation again with {name}(…) and pass it"
            )
    return make(**settings)


if not TYPE_CHECKING:  # or type checkers would take any name for one of these
    __getattr__ = lacking(__name__, __all__)
