"""The README's tables: written from files of results, and stale when they differ from them."""

import json

import pytest

from benchmarks import tables

PAGE = """# cnnkit

<!-- results
core_cpu / * / train_images_per_s
loop_* / lenet / *
-->
old
<!-- end of results -->

the rest
"""


def result(name, rows, machine="AMD, 2 cores"):
    versions = {"python": "3.11.7", "jax": "0.10.2"}
    return {
        "name": name,
        "machine": machine,
        "versions": versions,
        "command": f"python -m benchmarks.{name}",
        "rows": rows,
    }


@pytest.fixture
def folder(tmp_path):
    speed = {
        "case": "lenet",
        "figure": "train_images_per_s",
        "value": 7654.3,
        "unit": "1/s",
        "n": 5,
        "spread": 12.3,
    }
    speed |= {"peer": "PyTorch", "peer_value": 7000.0, "peer_spread": 1.0, "ratio": 1.093}
    memory = {
        "case": "lenet",
        "figure": "peak_memory_mb",
        "value": 400.0,
        "unit": "MB",
        "n": 1,
        "spread": 0.0,
    }
    loop = {
        "case": "lenet",
        "figure": "over_hand_loop",
        "value": 1.002,
        "unit": "ratio",
        "n": 7,
        "spread": 0.0101,
    }
    (tmp_path / "core_cpu.json").write_text(json.dumps(result("core_cpu", [speed, memory])))
    (tmp_path / "loop_cpu.json").write_text(json.dumps(result("loop_cpu", [loop], "Xeon, 8 cores")))
    return tmp_path


def test_a_table_holds_the_rows_picked_their_machines_and_commands(folder):
    made = tables.filled(PAGE, tables.read(folder))
    assert "| training speed | lenet | 7,654 ± 12/s | 5 | PyTorch: 7,000/s | 1.09 | a |\n" in made
    assert "| time over a loop written by hand | lenet | 1.00 ± 0.01 | 7 |  |  | b |\n" in made
    assert "peak memory" not in made
    assert "a: AMD, 2 cores; Python 3.11.7, JAX 0.10.2. b: Xeon, 8 cores; Python 3.11.7, JAX 0.10.2." in made
    assert "Measured by `python -m benchmarks.core_cpu`, `python -m benchmarks.loop_cpu`." in made
    assert "\nold\n" not in made
    assert made.endswith("<!-- end of results -->\n\nthe rest\n")
    assert tables.filled(made, tables.read(folder)) == made


def test_a_row_measured_apart_from_its_file_has_a_letter_and_a_command_of_its_own(folder):
    file = json.loads((folder / "core_cpu.json").read_text())
    file["rows"][0]["measured"] = result("x", [], "Arm, 4 cores")
    (folder / "core_cpu.json").write_text(json.dumps(file))
    made = tables.table(tables.pick(["core_cpu / * / *"], tables.read(folder)))
    assert "| 1.09 | a |\n| peak memory | lenet | 400 MB | 1 |  |  | b |\n" in made
    assert "a: Arm, 4 cores; Python 3.11.7, JAX 0.10.2. b: AMD, 2 cores; Python" in made
    assert "Measured by `python -m benchmarks.x`, `python -m benchmarks.core_cpu`." in made


def test_accuracies_are_told_to_a_hundredth_of_a_point(folder):
    row = {"case": "lenet", "figure": "accuracy", "value": 99.812, "unit": "%", "n": 3, "spread": 0.0301}
    made = tables.table([tables.Entry(result("mnist_accuracy", [row]), row)])
    assert "| test accuracy, last epoch | lenet | 99.81 ± 0.03 % | 3 | a |" in made


def test_a_time_measured_beside_others_is_told_as_a_bound():
    row = {"value": 67.4, "unit": "s", "n": 3, "spread": 8.1}
    assert [tables._measured(row | more) for more in ({}, {"at_most": True})] == [
        "67.4 ± 8.1 s",
        "≤ 67.4 ± 8.1 s",
    ]


def test_a_changed_figure_makes_a_page_stale(folder):
    page = folder / "README.md"
    page.write_text(tables.filled(PAGE, tables.read(folder)))
    assert tables.stale([page], folder) == []
    file = json.loads((folder / "core_cpu.json").read_text())
    file["rows"][0]["value"] = 7000.0
    (folder / "core_cpu.json").write_text(json.dumps(file))
    assert tables.stale([page], folder) == [page]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "core_gpu / * / *",
            "'core_gpu / [*] / [*]' picks no row of benchmarks/results; the files are core_cpu, loop_cpu",
        ),
        ("core_cpu", "'core_cpu' is not of the form file / case / figure"),
    ],
)
def test_a_selection_that_picks_nothing_is_an_error(folder, line, text):
    with pytest.raises(ValueError, match=text):
        tables.pick([line], tables.read(folder))


def test_the_pages_agree_with_the_files_of_results():
    assert [page.name for page in tables.stale()] == [], "run: make results"
