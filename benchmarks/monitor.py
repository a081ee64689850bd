"""The monitor's readings beside nvidia-smi's, sampled together while a known load runs: monitor_gpu.json.

    python -m benchmarks.monitor

The load keeps the first GPU busy with matrix products and leaves the others alone.
"""

import csv
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

SAMPLES = 15
QUERY = ["nvidia-smi", "--query-gpu=uuid,utilization.gpu,memory.used,power.draw,temperature.gpu"]
QUERY += ["--format=csv,noheader,nounits"]
LOAD = """
import jax, jax.numpy as jnp, time
x = jnp.ones((4096, 4096), jnp.bfloat16)
work = jax.jit(lambda x: jax.lax.fori_loop(0, 300, lambda i, y: (y @ x) * 1e-4, x))
end = time.time() + {seconds}
print("ready", flush=True)
while time.time() < end:
    work(x).block_until_ready()
"""


def smi() -> dict[str, list[float]]:
    """By UUID: utilization (%), memory (MB of 10⁶ bytes), power (W), temperature (°C), as nvidia-smi says."""
    lines = subprocess.run(QUERY, capture_output=True, text=True, check=True).stdout.splitlines()
    found = {}
    for uuid, use, memory, power, temperature in csv.reader(lines, skipinitialspace=True):
        found[uuid] = [float(use), float(memory) * 2**20 / 1e6, float(power), float(temperature)]
    return found


def main() -> None:
    from benchmarks.results import FOLDER, row, write
    from cnnkit.notebook.nvml import Nvml

    nvml = Nvml()
    gpus = nvml.all()
    uuids = list(smi())
    load = subprocess.Popen([sys.executable, "-c", LOAD.format(seconds=SAMPLES + 12)], stdout=subprocess.PIPE)
    assert load.stdout is not None
    load.stdout.readline()
    time.sleep(4)
    rows = []
    names = ("utilization", "memory_used", "power", "temperature")
    ours, theirs = [], []
    for _ in range(SAMPLES):
        samples = [gpu.sample() for gpu in gpus]
        beside = smi()
        ours.append([[s.values.get(n, np.nan) for n in names] for s in samples])
        theirs.append([beside[uuid] for uuid in uuids])
        time.sleep(0.5)
    load.wait()
    a, b = np.array(ours), np.array(theirs)
    for g in range(len(gpus)):
        case = f"GPU {g}, {'full load' if g == 0 else 'idle'}"
        for i, (name, unit) in enumerate(zip(names, ("points", "MB", "W", "°C"), strict=True)):
            differences = np.abs(a[:, g, i] - b[:, g, i])
            said = {"ours": float(np.median(a[:, g, i])), "nvidia_smi": float(np.median(b[:, g, i]))}
            rows.append(
                row(
                    case, f"{name}_difference", list(differences), unit, most=float(differences.max()), **said
                )
            )
            print(rows[-1])
    print(
        write(
            "monitor_gpu",
            rows,
            packages=["nvidia-ml-py"],
            folder=Path(os.environ.get("CNNKIT_RESULTS", FOLDER)),
        )
    )


if __name__ == "__main__":
    main()
