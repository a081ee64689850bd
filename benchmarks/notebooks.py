"""Run notebooks from their scripts, from top to bottom, and keep what they show.

    python -m benchmarks.notebooks 00_start 01_layers
    python -m benchmarks.notebooks --kept 03_fetch

Each ``notebooks/NAME.py`` becomes ``notebooks/NAME.ipynb``; what differs from run to run by itself, such as
cells' identities and timings, is left out. What its experiments measured replaces their files under
``benchmarks/results/reproduced``, so that both say the same. With ``--kept`` it is the other way round: of experiments
that have a file there, the notebook shows that, as on a machine too busy to measure anything.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import jupytext
import nbclient
import nbformat

FOLDER = Path(__file__).parents[1] / "notebooks"
REPRODUCED = Path(__file__).parent / "results" / "reproduced"
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def run(name: str, kept: bool = False) -> Path:
    """Run one and write it.

    Args:
        name: of the script, without ending.
        kept: whether experiments that were measured before are shown as they were.

    Raises:
        CellExecutionError: a cell failed; the notebook stays as it was.
    """
    begin = time.time()
    notebook = jupytext.read(FOLDER / f"{name}.py")
    notebook.metadata["kernelspec"] = KERNEL
    if kept:
        first = f"import sys\nsys.path.insert(0, {str(FOLDER.parent)!r})\n"
        first += "from benchmarks import notebooks\nnotebooks.show_kept()"
        notebook.cells.insert(0, nbformat.v4.new_code_cell(first))
    where = {"metadata": {"path": str(FOLDER)}}
    done = nbclient.NotebookClient(notebook, timeout=3600, resources=where, record_timing=False).execute()
    done.metadata = {"jupytext": {"formats": "ipynb,py:percent"}, "kernelspec": KERNEL}
    done.nbformat_minor = 4  # the last one whose cells need no identity
    if kept:
        del done.cells[0]
    for cell in done.cells:
        cell.pop("id", None)
        cell.metadata = {}
        if kept and cell.cell_type == "code":
            cell.execution_count -= 1
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count -= 1
    path = FOLDER / f"{name}.ipynb"
    nbformat.write(done, path)
    keep(begin)
    return path


def keep(begin: float, made: Path = FOLDER / "runs" / "reproduced", into: Path = REPRODUCED) -> list[str]:
    """Results of experiments in small size that were written since then, kept among the project's.

    Args:
        begin: seconds since the epoch; what is older stays where it lies.
        made: where notebooks leave what they reproduce.
        into: where it is kept.

    Returns:
        the experiments' names.
    """
    kept = []
    for path in sorted(made.glob("*.json")):
        if path.stat().st_mtime >= begin and json.loads(path.read_bytes())["preset"] == "small":
            (into / path.name).write_bytes(path.read_bytes())
            kept.append(path.stem)
    return kept


def show_kept(runs: Path = FOLDER / "runs" / "reproduced") -> None:
    """Let `reproduce` give what lies among the project's results, where that is of the preset asked for.

    Args:
        runs: where the trainings of such an experiment lie, for cells that look at them.
    """
    from cnnkit import experiments
    from cnnkit.experiments import saved

    measure = experiments.reproduce

    def reproduce(name: str, preset: str = "small", **settings: Any) -> Any:
        found = saved.read(name, REPRODUCED)
        if settings or found is None or found.preset != preset:
            return measure(name, preset, **settings)
        return dataclasses.replace(found, folder=runs)

    experiments.reproduce = reproduce  # type: ignore[assignment]


def main() -> None:
    """Run those named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="+", help="of the scripts, without ending")
    parser.add_argument("--kept", action="store_true", help="measure nothing that was measured before")
    arguments = parser.parse_args()
    for name in arguments.names:
        begin = time.perf_counter()
        path = run(name, arguments.kept)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB in {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
