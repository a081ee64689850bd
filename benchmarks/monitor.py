"""The monitor's readings beside nvidia-smi's, sampled together while a known load runs: monitor_gpu.json.

    python -m benchmarks.monitor

The load keeps the first GPU busy with matrix products and leaves the others alone. A difference is at most
5 points, of 100 for utilization and otherwise of what the GPU has: its memory, its power limit, 100 °C.
"""

import argparse
import csv
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

LIMIT = 5.0  # points
UNITS = {"utilization": "points", "memory": "MiB", "power": "W", "temperature": "°C"}
OURS = {"utilization": "utilization", "memory": "memory_used", "power": "power", "temperature": "temperature"}
SCALE = {"memory": 1 / 2**20}  # bytes, which nvidia-smi tells as MiB
ASKED = "uuid,utilization.gpu,memory.used,power.draw,temperature.gpu,memory.total,power.limit"
LOAD = """
import jax, jax.numpy as jnp, time
x = jnp.ones((4096, 4096), jnp.bfloat16)
work = jax.jit(lambda x: jax.lax.fori_loop(0, 300, lambda i, y: (y @ x) * 1e-4, x))
work(x).block_until_ready()
print("ready", flush=True)
end = time.time() + {seconds}
while time.time() < end:
    work(x).block_until_ready()
"""


def smi(text: str) -> dict[str, dict[str, float]]:
    """By UUID what nvidia-smi printed for `ASKED`, in `UNITS`; nan where it says [N/A].

    >>> smi("GPU-1, 97, 1024, 310.5, 44, 143771, 700.00")["GPU-1"]["memory"]
    1024.0
    """
    names = (*UNITS, "memory_total", "power_limit")
    lines = csv.reader(text.splitlines(), skipinitialspace=True)
    return {uuid: dict(zip(names, map(_number, values), strict=True)) for uuid, *values in lines}


def ask_smi() -> dict[str, dict[str, float]]:
    """The same of now."""
    query = ["nvidia-smi", f"--query-gpu={ASKED}", "--format=csv,noheader,nounits"]
    return smi(subprocess.run(query, capture_output=True, text=True, check=True).stdout)


def rows_of(
    case: str, ours: Sequence[Mapping[str, float]], theirs: Sequence[Mapping[str, float]]
) -> list[Any]:
    """One row for each reading: how far the two are apart, and in points of the whole.

    Args:
        case: which GPU, under which load.
        ours: the monitor's values, a mapping for each moment.
        theirs: nvidia-smi's at the same moments.
    """
    from benchmarks.results import row

    rows = []
    for name, unit in UNITS.items():
        mine = np.array([values.get(OURS[name], np.nan) * SCALE.get(name, 1) for values in ours])
        other = np.array([values[name] for values in theirs])
        both = np.isfinite(mine) & np.isfinite(other)
        if not both.any():
            continue
        apart = np.abs(mine - other)[both]
        wholes = {"memory": theirs[0]["memory_total"], "power": theirs[0]["power_limit"]}
        whole = wholes.get(name, 100.0)
        points = 100 * float(np.median(apart)) / (whole if whole > 0 else float(np.median(other[both])))
        said = {"ours": float(np.median(mine[both])), "nvidia_smi": float(np.median(other[both]))}
        figure = f"{name}_difference"
        more = {"most": float(apart.max()), "points": round(points, 3), "limit_points": LIMIT}
        rows.append(row(case, figure, apart.tolist(), unit, **said, **more))
    return rows


def measure(samples: int, most: int | None = None) -> list[Any]:
    """The rows of every GPU, or of so many, the first one under load."""
    from cnnkit.notebook.nvml import Nvml

    nvml = Nvml()
    if nvml.why_none:
        raise SystemExit(f"no GPU can be read here: {nvml.why_none}")
    gpus, uuids = nvml.all()[:most], list(ask_smi())[:most]
    command = [sys.executable, "-c", LOAD.format(seconds=2 * samples + 10)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as load:
        assert load.stdout is not None
        load.stdout.readline()
        time.sleep(4)  # utilization is a mean over the last second or so
        ours: list[list[dict[str, float]]] = []
        theirs: list[list[dict[str, float]]] = []
        for _ in range(samples):
            ours.append([gpu.sample().values for gpu in gpus])
            beside = ask_smi()
            theirs.append([beside[uuid] for uuid in uuids])
            time.sleep(0.5)
        load.terminate()
    nvml.close()
    rows = []
    for g in range(len(gpus)):
        case = f"GPU {g}, {'full load' if g == 0 else 'idle'}"
        rows += rows_of(case, [moment[g] for moment in ours], [moment[g] for moment in theirs])
    return rows


def main() -> None:
    """Measure, write, and fail where a reading is further off than the limit."""
    from benchmarks.results import FOLDER, write

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--gpus", type=int, help="only the first so many")
    options = parser.parse_args()
    rows = measure(options.samples, options.gpus)
    folder = Path(os.environ.get("CNNKIT_RESULTS", FOLDER))
    print(write("monitor_gpu", rows, packages=["nvidia-ml-py"], folder=folder))
    for row in rows:
        print(f"{row['case']:<18} {row['figure']:<24} {row['value']} {row['unit']}, {row['points']} points")
    far = [f"{row['case']} {row['figure']}" for row in rows if row["points"] > LIMIT]
    if far:
        raise SystemExit(f"further than {LIMIT} points from nvidia-smi: {', '.join(far)}")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


if __name__ == "__main__":
    main()
