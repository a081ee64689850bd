"""Every notebook runs from top to bottom in smoke size, is saved as its script says, and shows it all as HTML."""

import json
import os
import re
from pathlib import Path

import pytest

from cnnkit.experiments import base

FOLDER = Path(__file__).parents[2] / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))

jupytext = pytest.importorskip("jupytext", reason="jupytext comes with the extra dev")
HTMLExporter = pytest.importorskip("nbconvert", reason="nbconvert comes with the extra dev").HTMLExporter
papermill = pytest.importorskip("papermill", reason="papermill comes with the extra dev")

RESULTS = FOLDER.parent / "benchmarks" / "results"
# What each measures, where that is kept among the project's results.
MEASURED = {
    "00_start": "start_cpu",
    "02_single_gpu": "reproduced/conv_algorithms",
    "03_fetch": "reproduced/fetch_period",
    "04_balance": "reproduced/load_balance",
    "05_warm_start": "reproduced/warm_start",
    "06_graph": "reproduced/scheduler",
    "07_overlap": "reproduced/overlap",
    "08_cluster": "cluster_cpu",
    "10_mnist": "reproduced/mnist_accuracy",
    "11_cifar10": "reproduced/cifar10_accuracy",
}
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


def printed(name):
    cells = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(o.get("text", "")) for c in cells for o in c.get("outputs", ()))


def results(name):
    return json.loads((RESULTS / f"{MEASURED[name]}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "name", ["03_fetch", "04_balance", "05_warm_start", "06_graph", "07_overlap", "08_cluster"]
)
def test_its_table_is_that_of_the_projects_results(name):
    experiment = base.find("cluster" if name == "08_cluster" else results(name)["name"])
    table = base.table(experiment, results(name)["rows"], "").partition("\non ")[0]
    assert len(table.splitlines()) > 5
    assert table in printed(name), f"write it anew: python -m benchmarks.notebooks --kept {name}"


@pytest.mark.parametrize("name", MEASURED)
def test_what_it_expects_was_measured(name):
    first = jupytext.read(FOLDER / f"{name}.py").cells[0].source
    expected = " ".join(first.partition("Expected")[2].partition("\n|")[0].split())
    pairs = re.compile(r"([\d,]+\.?\d*) ± ([\d,]+\.?\d*)")
    found = [(float(a), float(b)) for a, b in pairs.findall(printed(name).replace(",", ""))]
    found += [(r["value"], r["spread"]) for r in results(name)["rows"]]
    found += [(100 * a, 100 * b) for a, b in found]  # a fraction may be told in percent
    for pair in pairs.findall(expected.replace(",", "")):
        # Half of the last digit told; what lies between two may be rounded either way.
        off = [0.5000001 * 10.0 ** -len(text.partition(".")[2]) for text in pair]
        assert any(
            all(abs(float(text) - value) <= most for text, value, most in zip(pair, values, off))
            for values in found
        ), f"{name} expects {' ± '.join(pair)}, which neither it nor {MEASURED[name]}.json holds"


def test_small_results_that_a_notebook_wrote_become_the_projects(tmp_path):
    from benchmarks import notebooks

    made, into = tmp_path / "made", tmp_path / "into"
    made.mkdir(), into.mkdir()
    for at, (name, preset) in enumerate([("old", "small"), ("smoked", "smoke"), ("new", "small")]):
        path = made / f"{name}.json"
        path.write_text(json.dumps({"preset": preset, "rows": []}))
        os.utime(path, (100 + at, 100 + at))
    assert notebooks.keep(101, made, into) == ["new"]
    assert [path.name for path in into.iterdir()] == ["new.json"]
    assert (into / "new.json").read_bytes() == (made / "new.json").read_bytes()


def test_what_was_kept_is_shown_in_place_of_measuring_it(monkeypatch, tmp_path):
    from benchmarks import notebooks
    from cnnkit import experiments

    monkeypatch.setattr(experiments, "reproduce", lambda *asked, **settings: (asked, settings))
    notebooks.show_kept(tmp_path)
    found = experiments.reproduce("scheduler", "small")
    assert (found.preset, found.rows, found.folder) == ("small", results("06_graph")["rows"], tmp_path)
    assert experiments.reproduce("scheduler", "smoke") == (("scheduler", "smoke"), {})
    assert experiments.reproduce("scheduler", "small", n=2) == (("scheduler", "small"), {"n": 2})


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
