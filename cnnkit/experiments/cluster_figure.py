"""The cluster experiment's figure: throughput by link, predictions to a thousand nodes, accuracy against time."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cnnkit.experiments.base import Row


def figure(rows: list[Row]) -> Any:
    """Throughput of the most nodes by link; the model's curves with what was measured; accuracy against seconds."""
    from cnnkit.notebook import style

    trained = [r for r in rows if r["figure"] == "accuracy"]
    links = list(dict.fromkeys(link(r) for r in rows if r["figure"] == "predicted_of_ideal"))
    if not links:  # of a job on machines of one's own, where nothing is predicted
        picture, axes = style.figure(4.0, 3.0)
        bars(axes[0], rows, ["link"])
        return picture
    chosen = [*[name for name in links if not name.startswith("sync")], *links][0]
    picture, axes = style.figure(7.0, 5.8 if trained else 5.2, rows=2, columns=2, height_ratios=[1, 1.15])
    bars(axes[0], rows, links)
    accuracies(axes[1], trained)
    curves(axes[2], rows, links[-1])
    if chosen != links[-1]:
        curves(axes[3], rows, chosen, legend=False)
    else:
        axes[3].set_visible(False)
    return picture


def link(r: Row) -> str:
    """The link in a case such as ``4 1gbit hide``."""
    return r["case"].split(" ")[1]


def policy(r: Row) -> str:
    """The policy in such a case."""
    return r["case"].split(" ", 2)[2]


def bars(ax: Any, rows: Sequence[Row], links: Sequence[str]) -> None:
    """Throughput of the most nodes over that of one, a group of bars a link."""
    from cnnkit.notebook import style

    found = [r for r in rows if r["figure"] == "of_one_node" and link(r) in links]
    most = max(int(r["case"].split(" ")[0]) for r in found)
    found = [r for r in found if r["case"].startswith(f"{most} ")]
    policies = list(dict.fromkeys(map(policy, found)))
    width = 0.8 / len(policies)
    for i, name in enumerate(policies):
        mine = {link(r): r for r in found if policy(r) == name}
        at = [links.index(rate) + (i - (len(policies) - 1) / 2) * width for rate in mine]
        ax.bar(
            at, [r["value"] for r in mine.values()], 0.92 * width, yerr=[r["spread"] for r in mine.values()],
            color=style.COLORS[i], label=name, error_kw={"linewidth": 0.8, "ecolor": style.TEXT},
        )  # fmt: skip
    ax.axhline(most, color=style.TEXT, linewidth=0.8, linestyle=":")
    ax.axhline(1, color=style.TEXT, linewidth=0.8, linestyle=":")
    ax.set_xticks(range(len(links)), links)
    ax.set_ylim(0, 1.45 * most)
    ax.grid(False, axis="x")
    style.label(ax, "link", "throughput over one node's", f"{most} nodes, n = {found[0]['n']} windows")
    ax.legend(fontsize=7, frameon=False, labelcolor=style.TEXT, ncols=2, loc="upper left")


def curves(ax: Any, rows: Sequence[Row], rate: str, legend: bool = True) -> None:
    """Predicted throughput against nodes: a colour an exchange, a line style a period; measured as marks."""
    from cnnkit.notebook import style

    found = [r for r in rows if r["figure"] == "predicted_of_ideal" and link(r) == rate]
    names = [policy(r).rpartition(" ") for r in found]
    policies = list(dict.fromkeys(name[0] for name in names))
    kept = [p for p in ("sync", "every(8)", "hide") if p in policies]
    exchanges = list(dict.fromkeys(name[2] for name in names))
    for r, (period, _, how) in zip(found, names):
        if period in kept:
            color, line = style.COLORS[exchanges.index(how)], style.LINES[kept.index(period)]
            ax.plot(
                r["curve"]["nodes"], r["curve"]["images_per_s"], color=color, linestyle=line, linewidth=1.1
            )
    for r in rows:
        if r["figure"] == "images_per_s" and r["case"] != "1 node" and link(r) == rate and policy(r) in kept:
            count = int(r["case"].split(" ")[0])
            ax.plot([count], [r["value"]], color="black", marker="o", markersize=4, linestyle="none")
    ax.set_xscale("log")
    ax.set_yscale("log")
    style.label(ax, "nodes", "images/s", f"predicted, link {rate}; measured as dots")
    if not legend:
        return
    low, high = ax.get_ylim()
    for i, how in enumerate(exchanges):
        ax.plot([], [], color=style.COLORS[i], label=how)
    for i, name in enumerate(kept):
        ax.plot([], [], color=style.TEXT, linestyle=style.LINES[i], label=name)
    ax.legend(fontsize=7, frameon=False, labelcolor=style.TEXT, loc="upper left", ncols=2)
    ax.set_ylim(low, high * 20)


def accuracies(ax: Any, trained: Sequence[Row]) -> None:
    """Test accuracy against seconds of training."""
    from cnnkit.notebook import style

    if not trained:
        ax.set_visible(False)
        return
    for i, r in enumerate(trained):
        seconds = [point["seconds"] for point in r["curve"]]
        accuracy = 100 * np.array([point["accuracy"] for point in r["curve"]])
        ax.plot(
            seconds, accuracy, color=style.COLORS[i], linestyle=style.LINES[i % len(style.LINES)],
            marker="o", markersize=2.5, linewidth=1.3, label=policy(r),
        )  # fmt: skip
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_ylim(80, 100)
    style.label(
        ax,
        "seconds of training",
        "test accuracy (%)",
        "{} nodes, link {}".format(*trained[0]["case"].split(" ")),
    )
    style.legend(ax, loc="lower right")
