"""The experiments' notebooks: scripts and notebooks hold the same cells, outputs are there and small."""

import json
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


@pytest.mark.parametrize("name", ["03_fetch", "04_balance", "05_warm_start"])
def test_a_notebook_and_its_script_are_the_same_and_its_outputs_are_kept(name):
    jupytext = pytest.importorskip("jupytext")
    path = NOTEBOOKS / f"{name}.ipynb"
    cells = json.loads(path.read_text())["cells"]
    script = jupytext.read(NOTEBOOKS / f"{name}.py").cells
    assert [(c["cell_type"], "".join(c["source"])) for c in cells] == [
        (c.cell_type, c.source) for c in script
    ]
    assert path.stat().st_size < 300_000
    code = [c for c in cells if c["cell_type"] == "code"]
    assert all(c["outputs"] for c in code)
    first = next(c for c in code if any("image/png" in o.get("data", {}) for o in c["outputs"]))
    assert first is code[0]
    assert "EXPECTED" not in "".join(script[0].source)
