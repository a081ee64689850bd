"""The 2018 paper's three optimizations, each on and off: overlap, the exchange's form, preload with asynchronous copy."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cnnkit.experiments import loading, wait_free
from cnnkit.experiments.base import Experiment, Row, row

NAMES = {
    "off": "one after the other",
    "within": "hidden behind its own step",
    "across": "hidden behind the next step too",
}


def run(settings: Mapping[str, Any], folder: Path) -> list[Row]:
    """Time each exchange with overlap and without, then an epoch from disk in each setting."""
    rows: list[Row] = []
    for nodes in settings["nodes"]:
        cases = [
            {
                "label": f"{nodes} {how}",
                "how": how,
                **{key: settings[key] for key in ("net", "shape", "ratio", "piece", "steps", "n")},
            }
            for how in settings["exchanges"]
        ]
        if settings["link"] == "lab" and wait_free.possible():
            found = wait_free.over_links(cases, nodes, settings["rate"], folder / f"{nodes} nodes")
        else:
            found = wait_free.imagined(cases, nodes, settings["rate"])
        rows += [r for one in found for r in told(one)]
    return rows + loading.rows(settings)


def told(found: wait_free.Found) -> list[Row]:
    """The rows of one exchange: milliseconds of its parts, and each way's time over the longer part."""
    more = {"workers": found["workers"], "how": found["how"], "imagined": found["imagined"]}
    name = found["label"]
    rows = [
        row(name, f"{part}_ms", [1000 * s for s in found[part]], "ms", **more)
        for part in ("computing", "exchanging")
    ]
    for way, words in NAMES.items():
        case = f"{name}, {words}"
        rows.append(row(case, "step_ms", [1000 * s for s in found[way]], "ms", way=way, **more))
        rows.append(row(case, "of_max", wait_free.of_max(found, way), "×", way=way, **more))
    hidden = [100 * part for part in wait_free.hidden(found, "across")]
    return [*rows, row(f"{name}, {NAMES['across']}", "hidden", hidden, "%", way="across", **more)]


def figure(rows: list[Row]) -> Any:
    """A step's time by exchange and way, beside its computing and exchanging; below, what preloading saves."""
    from cnnkit.notebook import style

    workers = sorted({r["workers"] for r in rows if "workers" in r})
    picture, axes = style.figure(7.0, 5.2, rows=2, columns=len(workers), height_ratios=[2.7, 2.2])
    for ax, count in zip(axes, workers):
        steps(ax, [r for r in rows if r.get("workers") == count], f"{count} workers")
    handles, labels = axes[0].get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside upper left", ncols=2, fontsize=8, frameon=False)
    below = axes[len(workers) :]
    loads(below[0], rows)
    for ax in below[1:]:
        ax.set_visible(False)
    return picture


def steps(ax: Any, rows: list[Row], title: str) -> None:
    """A group of bars an exchange: one after the other, and hidden; marks show the longer of the two parts."""
    import numpy as np

    from cnnkit.notebook import style

    hows = list(dict.fromkeys(r["how"] for r in rows))
    at = np.arange(len(hows))
    for i, (way, words) in enumerate(NAMES.items()):
        found = [r for r in rows if r["figure"] == "step_ms" and r["way"] == way]
        ax.bar(
            at + 0.27 * (i - 1), [r["value"] for r in found], 0.25, yerr=[r["spread"] for r in found],
            color=style.COLORS[i], label=words, capsize=2, error_kw={"linewidth": 0.8},
        )  # fmt: skip
    parts = [
        [r["value"] for r in rows if r["figure"] == f"{part}_ms"] for part in ("computing", "exchanging")
    ]
    longer = [max(both) for both in zip(*parts, strict=True)]
    ax.hlines(
        longer, at - 0.42, at + 0.42, color="black", linewidth=1.2, label="longer of computing, exchanging"
    )
    ax.set_xticks(at, hows)
    style.label(ax, "exchange", "a step (ms)", title)


def loads(ax: Any, rows: list[Row]) -> None:
    """The share of the time that the device waits for data in each setting."""
    from cnnkit.notebook import style

    found = [r for r in rows if r["figure"] == "waiting"]
    names = [r["case"] for r in found]
    values, spread = [r["value"] for r in found], [r["spread"] for r in found]
    ax.barh(range(len(found)), values, 0.6, xerr=spread, color=style.COLORS[5], capsize=2)
    ax.set_yticks(range(len(found)), names, fontsize=8)
    ax.invert_yaxis()
    ax.set_xlim(0, max(5.0, 1.1 * max(v + s for v, s in zip(values, spread))))
    style.label(ax, "share of the time waiting for data (%)")


def best(rows: list[Row], workers: int) -> tuple[str, float]:
    """The exchange whose hidden step is the shortest, and its milliseconds."""
    found = [r for r in rows if r["figure"] == "step_ms" and r["workers"] == workers and r["way"] == "across"]
    first = min(found, key=lambda r: r["value"])
    return first["how"], first["value"]


EXCHANGES = ["server", "tree", "redundant", "ring", "psum"]
COMMON = {"net": "lenet", "shape": (28, 28, 1), "ratio": 1.0, "rate": "100mbit", "piece": 2**15}

EXPERIMENT = Experiment(
    name="overlap",
    title="Overlap, exchanges, preload and asynchronous copy",
    source="Li et al. 2018",
    presets={
        "smoke": {
            **COMMON, "net": "linear", "nodes": [2], "exchanges": ["server", "psum"], "link": "imagined", "steps": 2, "n": 1,
            "images": 16, "pixels": 32, "load_batch": 4,
        },
        "small": {
            **COMMON, "nodes": [2], "exchanges": EXCHANGES, "link": "lab", "steps": 4, "n": 3,
            "images": 256, "pixels": 224, "load_batch": 16,
        },
        "full": {
            **COMMON, "nodes": [2, 4], "exchanges": EXCHANGES, "link": "lab", "steps": 6, "n": 5,
            "images": 1024, "pixels": 224, "load_batch": 32,
        },
    },
    run=run,
    figure=figure,
    shown=("step_ms", "of_max", "hidden", "waiting"),
    note=(
        "A step is forward, backward and the exchange of every parameter, over links of the rate set between real "
        "processes, or, where the system has no network namespaces, over one that is imagined: an exchange then takes as "
        "long as its bytes would need. So that several workers share the cores, computing waits until it is as long as "
        "exchanging, times the ratio set. of_max is a step over the longer of the two: 1 where everything is hidden. "
        "waiting: images are decoded by the CPU, and the device's step, a quarter longer than reading a batch, is waiting."
    ),
)  # fmt: skip
