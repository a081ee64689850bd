"""What a notebook holds after it was run without anybody looking: one output a panel, its final state."""

import re

import pytest

nbformat = pytest.importorskip("nbformat")
HTMLExporter = pytest.importorskip("nbconvert").HTMLExporter
execute_notebook = pytest.importorskip("papermill").execute_notebook

SETUP = """
import cnnkit as ck
run = lambda **more: ck.Run(ck.dense(10), ck.load("digits").take(200, 100), batch=20, **more)
"""
CELLS = [
    SETUP,
    "fitted = run(epochs=3); fitted.fit(); print('after')",
    "started = run(epochs=40); started.start(); print('at once', started.epoch < 40)",
    "second = run(epochs=4, seed=1); second.start(); 1 + 1",
    "print('elsewhere')",
    "started.wait(); second.wait(); print(started.epoch, second.epoch)",
    """
import threading
import ipywidgets.widgets.widget as w
print(len(w._instances) <= 5, [t.name for t in threading.enumerate() if 'panel' in t.name or 'monitor' in t.name])
""",
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The notebook after papermill has run it."""
    folder = tmp_path_factory.mktemp("notebook")
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    made.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(made, folder / "in.ipynb")
    execute_notebook(
        str(folder / "in.ipynb"), str(folder / "out.ipynb"), progress_bar=False, log_output=False
    )
    return nbformat.read(folder / "out.ipynb", 4)


def displays(cell):
    return [output for output in cell.outputs if output.output_type == "display_data"]


def printed(cell):
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def test_each_panel_leaves_one_output_with_its_final_state_in_three_forms(saved):
    for cell, last in (
        (1, "epoch 3.0 of 3, done"),
        (2, "epoch 40.0 of 40, done"),
        (3, "epoch 4.0 of 4, done"),
    ):
        (output,) = displays(saved.cells[cell])
        assert set(output.data) == {"text/plain", "text/html", "image/png"}
        assert last in output.data["text/plain"]
        assert last in output.data["text/html"]


def test_nothing_else_is_said_and_cells_keep_to_themselves(saved):
    assert [printed(cell) for cell in saved.cells[:6]] == [
        "",
        "after\n",
        "at once True\n",
        "",
        "elsewhere\n",
        "40 4\n",
    ]
    assert [len(displays(cell)) for cell in saved.cells] == [0, 1, 1, 1, 0, 0, 0]
    assert not [
        o for cell in saved.cells for o in cell.outputs if o.output_type == "stream" and o.name == "stderr"
    ]


def test_threads_are_gone_and_no_more_widgets_than_one_face(saved):
    assert printed(saved.cells[6]) == "True []\n"


def test_the_state_survives_nbconvert_and_widgets_stripped(saved):
    stripped = nbformat.from_dict(saved)
    stripped.metadata.pop("widgets", None)
    html, _ = HTMLExporter().from_notebook_node(stripped)
    for last in ("epoch 3.0 of 3, done", "epoch 40.0 of 40, done", "epoch 4.0 of 4, done"):
        assert html.count(last) == 1
    assert html.count('alt="curves of the training"') == 3
    assert "widget-view" not in html


def test_a_panel_costs_a_saved_notebook_less_than_100_kb(saved):
    for cell in (1, 2, 3):
        (output,) = displays(saved.cells[cell])
        assert sum(map(len, output.data.values())) < 100_000


def test_the_final_html_needs_neither_scripts_nor_styles_nor_files(saved):
    html = displays(saved.cells[1])[0].data["text/html"]
    assert not re.search(r"<script|<style|<link|src=\"(?!data:image/png)", html)
