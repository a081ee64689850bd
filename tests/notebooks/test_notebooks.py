"""Every notebook runs from top to bottom in smoke size, is saved as its script says, and shows it all as HTML."""

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))

jupytext = pytest.importorskip("jupytext", reason="jupytext comes with the extra dev")
HTMLExporter = pytest.importorskip("nbconvert", reason="nbconvert comes with the extra dev").HTMLExporter
papermill = pytest.importorskip("papermill", reason="papermill comes with the extra dev")

LONG = ("02_single_gpu", "04_balance", "08_cluster")
PANELS = {"00_start": 1, "01_layers": 1}


def test_every_script_has_its_notebook_and_the_other_way_round():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES
    assert NAMES[:2] == ["00_start", "01_layers"]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_saved_as_its_script_says_with_outputs_and_without_what_changes_by_itself(name):
    path = FOLDER / f"{name}.ipynb"
    saved = json.loads(path.read_text(encoding="utf-8"))
    script = jupytext.read(FOLDER / f"{name}.py").cells
    assert [(c["cell_type"], "".join(c["source"])) for c in saved["cells"]] == [
        (c.cell_type, c.source) for c in script
    ]
    code = [c for c in saved["cells"] if c["cell_type"] == "code"]
    pictures = [i for i, c in enumerate(code) if any("image/png" in o.get("data", {}) for o in c["outputs"])]
    assert pictures[0] <= 1, "a screen of code at most before the first picture"
    assert all(not c["metadata"] for c in saved["cells"])
    assert path.stat().st_size < 300_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in NAMES]
)
def test_it_runs_from_top_to_bottom_and_needs_neither_kernel_nor_widgets_to_be_read(
    name, tmp_path, monkeypatch, compiling_once
):
    for variable, value in {"CNNKIT_SMOKE": "1", **compiling_once}.items():
        monkeypatch.setenv(variable, value)
    notebook = jupytext.read(FOLDER / f"{name}.py")
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    jupytext.write(notebook, tmp_path / "in.ipynb")
    into = {"cwd": str(tmp_path), "progress_bar": False, "log_output": False}
    done = papermill.execute_notebook(str(tmp_path / "in.ipynb"), str(tmp_path / "out.ipynb"), **into)
    outputs = [o for c in done.cells if c.cell_type == "code" for o in c.outputs]
    pictures = [o for o in outputs if "image/png" in o.get("data", {})]
    assert pictures
    done.metadata.pop("widgets", None)
    html, _ = HTMLExporter().from_notebook_node(done)
    # An output that has both is shown by its HTML, with the pictures in it.
    shown = [o.data["text/html"].count("<img") if "text/html" in o.data else 1 for o in pictures]
    others = [o.data["text/html"].count("<img") for o in outputs if "text/html" in o.get("data", {})]
    assert min(shown) >= 1
    assert html.count("<img") == sum(others) + sum("text/html" not in o.data for o in pictures)
    panels = [
        o.data["text/html"] for o in pictures if "curves of the training" in o.data.get("text/html", "")
    ]
    assert all(", done</b>" in panel for panel in panels)
    assert html.count('alt="curves of the training"') == len(panels) == PANELS.get(name, len(panels))
    assert "widget-view" not in html
