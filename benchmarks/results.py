"""How measurements are taken in turn and written to results/: one JSON file a measurement."""

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

FOLDER = Path(__file__).parent / "results"
PACKAGES = ("cnnkit", "jax", "jaxlib", "optax", "numpy")


def row(
    case: str,
    figure: str,
    values: Sequence[float],
    unit: str,
    *,
    peer: str | None = None,
    peer_values: Sequence[float] = (),
    less_is_better: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """One figure: the median of the values, how many, and their standard deviation.

    Args:
        case: what was measured, e.g. the net.
        figure: which of its figures, e.g. ``"train_images_per_s"``.
        values: one a repetition.
        unit: of the values.
        peer: the other program's name and mode, e.g. ``"PyTorch, channels-last"``.
        peer_values: its values, taken in turn with ours.
        less_is_better: for seconds and bytes; then the ratio is peer / ours, else ours / peer, so that a
            ratio above 1 always means that we are ahead.
        more: further entries.

    >>> row("lenet", "seconds", [2.0, 4.0, 3.0], "s", peer="x", peer_values=[6.0], less_is_better=True)["ratio"]
    2.0
    """
    if not values:
        raise ValueError(f"{case} {figure}: at least one value is needed")
    made = {"case": case, "figure": figure, "value": _round(statistics.median(values)), "unit": unit}
    made |= {"n": len(values), "spread": _spread(values)}
    if peer is not None:
        ours, theirs = statistics.median(values), statistics.median(peer_values)
        made |= {"peer": peer, "peer_value": _round(theirs), "peer_spread": _spread(peer_values)}
        made["ratio"] = _round(theirs / ours if less_is_better else ours / theirs)
    return made | more


def write(
    name: str, rows: Iterable[Mapping[str, Any]], *, packages: Sequence[str] = (), folder: Path = FOLDER
) -> Path:
    """The rows as results/NAME.json, with machine, versions, commit and command.

    Args:
        name: of the file, without ending.
        rows: as `row` makes them.
        packages: the peers, whose versions are added to ours.
        folder: where to write.
    """
    path = folder / f"{name}.json"
    with _alone(path):
        return _write(path, {"name": name, **_circumstances(packages), "rows": list(rows)})


def update(
    name: str, rows: Iterable[Mapping[str, Any]], *, packages: Sequence[str] = (), folder: Path = FOLDER
) -> Path:
    """`write`, with what the file has of other cases and figures kept.

    A row that is kept and was measured otherwise says so under ``"measured"``, where a file's head speaks of the
    rows that do not. Processes may update one file at the same time.
    """
    path, now, rows = folder / f"{name}.json", _circumstances(packages), list(rows)
    with _alone(path):
        if path.exists():
            then = read(name, folder)
            new = {(row["case"], row["figure"]) for row in rows}
            kept = [row for row in then["rows"] if (row["case"], row["figure"]) not in new]
            rows = [_kept(row, then, now) for row in kept] + rows
        return _write(path, {"name": name, **now, "rows": rows})


def measured(file: Mapping[str, Any], row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The machine, versions, commit and command of a row of a file."""
    return row.get("measured", file)


def _circumstances(packages: Sequence[str]) -> dict[str, Any]:
    return {
        "machine": machine(),
        "versions": versions(packages),
        "commit": commit(),
        "command": command(),
    }


def _kept(row: Mapping[str, Any], then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    found = measured(then, row)
    was = {key: found[key] for key in now if key in found}
    bare = {key: value for key, value in row.items() if key != "measured"}
    return bare if was == now else bare | {"measured": was}


def _alone(path: Path) -> FileLock:
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(
        Path(tempfile.gettempdir()) / f"cnnkit-{hashlib.sha1(bytes(path.resolve())).hexdigest()[:16]}.lock"
    )


def _write(path: Path, written: Mapping[str, Any]) -> Path:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)
    return path


def read(name: str, folder: Path = FOLDER) -> dict[str, Any]:
    """What `write` wrote under that name."""
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def numbers(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """For ``argparse``: a type of numbers with commas between.

    >>> numbers(int)("1,2,4")
    [1, 2, 4]
    """

    def parse(text: str) -> list[Any]:
        try:
            return [kind(part) for part in text.split(",") if text]
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a list of numbers with commas between, as in 1,2"
            ) from None

    return parse


def in_turn(cases: Mapping[str, Callable[[], float]], n: int) -> dict[str, list[float]]:
    """The values of each case, taken round by round, the order turned about every other round.

    Args:
        cases: functions that each take one measurement and return its value.
        n: rounds.

    >>> in_turn({"a": lambda: 1.0, "b": lambda: 2.0}, 2)
    {'a': [1.0, 1.0], 'b': [2.0, 2.0]}
    """
    values: dict[str, list[float]] = {name: [] for name in cases}
    for i in range(n):
        for name in list(cases)[:: 1 if i % 2 == 0 else -1]:
            values[name].append(cases[name]())
    return values


def machine() -> str:
    """Processor, cores this process may use, memory and GPUs; no host names."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [_processor(), f"{cores} cores", f"{_memory_gb():.0f} GB memory"]
    gpus = _gpus()
    parts += [f"{gpus.count(g)} × {g}" for g in dict.fromkeys(gpus)] or ["no GPU"]
    return ", ".join(parts)


def versions(more: Sequence[str] = ()) -> dict[str, str]:
    """Python's version and those of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in (*PACKAGES, *more):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit checked out, with a + if the code differs from it; "unknown" outside a repository."""
    try:
        git = ["git", "-C", str(FOLDER.parent), "rev-parse", "--short=12", "HEAD"]
        name = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
        changed = [
            "git",
            "-C",
            str(FOLDER.parent),
            "diff",
            "--quiet",
            "HEAD",
            "--",
            ":/cnnkit",
            ":/benchmarks/*.py",
        ]
        return name + ("+" if subprocess.run(changed).returncode else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def command() -> str:
    """What was typed, with the interpreter as plain python."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    start = ["python", "-m", spec.name] if spec else ["python", Path(sys.argv[0]).name]
    return " ".join(start + sys.argv[1:])


def peak_memory_mb() -> float:
    """The most memory this process has held since its start, in MB of 10⁶ bytes (Linux: VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise OSError("no VmHWM in /proc/self/status; peak memory is measured on Linux only")


def _spread(values: Sequence[float]) -> float:
    return _round(statistics.stdev(values)) if len(values) > 1 else 0.0


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


def _gpus() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []
