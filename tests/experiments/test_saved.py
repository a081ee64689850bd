"""Saved experiments: read back as they were, set beside the works' figures, and missing ones said to be missing."""

import json

import pytest

from cnnkit.experiments import saved

ROWS = [
    {"case": "4 sync47 sync", "figure": "of_one_node", "value": 0.5, "unit": "ratio", "n": 3, "spread": 0.01},
    {"case": "other", "figure": "of_one_node", "value": 9.0, "unit": "ratio", "n": 3, "spread": 0.01},
]


@pytest.fixture
def results(tmp_path):
    """A folder of results with one file of an experiment's and one benchmark's, of two machines."""
    (tmp_path / "reproduced").mkdir()
    for path, machine, value in (("reproduced/cluster", "one", 0.5), ("cluster_gpu", "another", 0.4)):
        kept = {
            "machine": machine,
            "preset": "small",
            "seconds": 1.0,
            "rows": [ROWS[0] | {"value": value}, ROWS[1]],
        }
        (tmp_path / f"{path}.json").write_text(json.dumps(kept))
    return tmp_path


def test_the_works_figures_stand_beside_ours_or_are_missing(results):
    found = saved.lines(results)
    mine = [line for line in found if line.experiment == "cluster"]
    assert [(line.original, line.ours and line.ours["value"], line.where) for line in mine] == [
        (0.47, 0.5, "one"),
        (0.47, 0.4, "another"),
        (12.34, None, ""),
    ]
    text = saved.table(found).splitlines()
    assert text[-2:] == ["a: one", "b: another"]
    row = next(line for line in text if "sync47" in line)
    assert row.split()[-6:] == ["0.5", "±", "0.01", "ratio", "3", "a"]
    assert next(line for line in text if "100mbit" in line).endswith(f"12.34     {saved.MISSING}")
    (ax,) = saved.figure(found).axes
    points = [container.lines[0].get_xdata()[0] for container in ax.containers]
    assert points == pytest.approx([0.5 / 0.47, 0.4 / 0.47])
    assert sum(t.get_text() == saved.MISSING for t in ax.texts) == len(found) - 2


def test_nothing_saved_is_no_error(tmp_path):
    assert saved.read("cluster", tmp_path) is None
    assert all(line.ours is None for line in saved.lines(tmp_path))
    saved.figure(saved.lines(tmp_path)).png()
    with pytest.raises(ValueError, match="did you mean 'cluster'"):
        saved.read("clutser", tmp_path)
