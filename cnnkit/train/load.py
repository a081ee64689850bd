"""A run built again from its folder: network, data, optimizer and augmentation from their descriptions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cnnkit.augment import Augment
from cnnkit.augment import rebuild as rebuild_augment
from cnnkit.data import Dataset, load
from cnnkit.layers import Layer
from cnnkit.layers import rebuild as rebuild_net
from cnnkit.names import choose
from cnnkit.parallel.emulate import emulate
from cnnkit.record.folder import settings_in
from cnnkit.train import arguments
from cnnkit.train.optim import OPTIMIZERS, Optimizer
from cnnkit.train.schedule import SCHEDULES
from cnnkit.train.views import Views

_AS_THEY_ARE: tuple[str, ...] = ("batch", "epochs", "seed", "normalize", "dtype", "workers", "fetch")
_AS_THEY_ARE += ("mode", "delay", "exchange", "payload", "momentum", "outer", "outer_lr", "outer_momentum")
_AS_THEY_ARE += ("judge", "freeze", "evaluate_every", "checkpoint_every", "dispatch")


def rebuild(
    make: Any,
    folder: Path,
    net: Layer | str | None,
    data: Dataset | str | Path | None,
    changes: Mapping[str, Any],
) -> Any:
    """``make(net, data, …)`` with the settings in a run's folder, and some others.

    Raises:
        FileNotFoundError: no run lies there.
        ValueError: the data set is not what the run saw, or a part must be given by hand.
    """
    config = settings_in(folder)
    if config is None:
        raise FileNotFoundError(
            f"{folder} holds no run: it has no config.json. Runs are folders that Run(…, folder=…) wrote; "
            "`cnnkit runs` lists them"
        )
    data = _data(config["data"], folder) if data is None else arguments.dataset(data)
    if net is None:
        net = rebuild_net(config["net"])
    if data.fingerprint() != config["data"]["fingerprint"]:
        raise ValueError(
            f"the run in {folder} saw another {config['data']['name']} (fingerprint "
            f"{config['data']['fingerprint']}, this one has {data.fingerprint()}); pass the same as data="
        )
    found = {
        "augment": augment(config["augment"]),
        "loss": config["loss"]["name"],
        "smoothing": config["loss"]["smoothing"],
        "emulate": None if config["emulated"] is None else emulate(**config["emulated"]),
        "views": None if config.get("views") is None else Views(**config["views"]),
        **{key: config[key] for key in _AS_THEY_ARE if key in config},
    }
    if "optimizer" not in changes:
        if (name := config["optimizer"]["name"]) not in OPTIMIZERS:
            raise ValueError(
                f"the run in {folder} had an optimizer of your own making, {name!r}; pass it as optimizer="
            )
        found["optimizer"] = optimizer(config["optimizer"])
    return make(net, data, folder=folder, **(found | dict(changes)))


def optimizer(description: dict[str, Any]) -> Optimizer:
    """An optimizer from what `Optimizer.describe` said of it."""
    options = dict(description)
    name, schedule = options.pop("name"), dict(options.pop("schedule"))
    make = choose(schedule.pop("name"), SCHEDULES, "schedule")
    parts = schedule.pop("stages", ())
    return choose(name, OPTIMIZERS, "optimizer")(make(*map(tuple, parts), **schedule), **options)


def augment(description: dict[str, Any] | None) -> Augment | None:
    """An augmentation from what `Augment.describe` said of it."""
    return None if description is None else rebuild_augment(description)


def _data(facts: dict[str, Any], folder: Path) -> Dataset:
    try:
        data = load(facts["name"])
    except ValueError:
        raise ValueError(
            f"the run in {folder} saw {facts['name']!r}, which is not a set known by name; pass it as data="
        ) from None
    held_out = facts["examples"].get("held_out")
    return data.hold_out(held_out) if held_out else data
