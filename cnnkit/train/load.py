"""A run built again from its folder: network, data, optimizer and augmentation from their descriptions."""

from pathlib import Path
from typing import Any

from cnnkit.augment import Augment
from cnnkit.augment import rebuild as rebuild_augment
from cnnkit.data import Dataset, load
from cnnkit.layers import Layer
from cnnkit.layers import rebuild as rebuild_net
from cnnkit.names import choose
from cnnkit.record.folder import read_config
from cnnkit.train.optim import OPTIMIZERS, Optimizer
from cnnkit.train.schedule import SCHEDULES


def rebuild(make: Any, folder: Path, net: Layer | None, data: Dataset | None) -> Any:
    """``make(net, data, …)`` with the settings in a run's folder.

    Raises:
        FileNotFoundError: no run lies there.
        ValueError: the data set is not what the run saw, or a part must be given by hand.
    """
    config = read_config(folder)
    if config is None:
        raise FileNotFoundError(
            f"{folder} holds no run: it has no config.json. Runs are folders that Run(…, folder=…) wrote; "
            "`cnnkit runs` lists them"
        )
    data = data or _data(config["data"], folder)
    if data.fingerprint() != config["data"]["fingerprint"]:
        raise ValueError(
            f"the run in {folder} saw another {config['data']['name']} (fingerprint "
            f"{config['data']['fingerprint']}, this one has {data.fingerprint()}); pass the same as data="
        )
    options = {key: config[key] for key in config if key in ("batch", "epochs", "seed", "normalize", "dtype")}
    return make(
        net or rebuild_net(config["net"]),
        data,
        folder=folder,
        optimizer=optimizer(config["optimizer"]),
        augment=augment(config["augment"]),
        loss=config["loss"]["name"],
        smoothing=config["loss"]["smoothing"],
        **options,
    )


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
    data = load(facts["name"])
    if facts.get("held_out"):
        data = data.hold_out(facts["held_out"])
    return data
