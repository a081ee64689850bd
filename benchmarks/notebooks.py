"""Run notebooks from their scripts, from top to bottom, and keep what they show.

    python -m benchmarks.notebooks 00_start 01_layers

Each ``notebooks/NAME.py`` becomes ``notebooks/NAME.ipynb``; what differs from run to run by itself, such as
cells' identities and timings, is left out.
"""

import argparse
import time
from pathlib import Path

import jupytext
import nbclient
import nbformat

FOLDER = Path(__file__).parents[1] / "notebooks"
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def run(name: str) -> Path:
    """Run one and write it.

    Args:
        name: of the script, without ending.

    Raises:
        CellExecutionError: a cell failed; the notebook stays as it was.
    """
    notebook = jupytext.read(FOLDER / f"{name}.py")
    notebook.metadata["kernelspec"] = KERNEL
    where = {"metadata": {"path": str(FOLDER)}}
    done = nbclient.NotebookClient(notebook, timeout=3600, resources=where, record_timing=False).execute()
    done.metadata = {"jupytext": {"formats": "ipynb,py:percent"}, "kernelspec": KERNEL}
    done.nbformat_minor = 4  # the last one whose cells need no identity
    for cell in done.cells:
        cell.pop("id", None)
        cell.metadata = {}
    path = FOLDER / f"{name}.ipynb"
    nbformat.write(done, path)
    return path


def main() -> None:
    """Run those named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="+", help="of the scripts, without ending")
    for name in parser.parse_args().names:
        begin = time.perf_counter()
        path = run(name)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB in {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
