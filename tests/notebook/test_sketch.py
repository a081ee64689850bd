"""Small charts: points land where they belong, whatever the numbers."""

import re

import numpy as np
import pytest

from cnnkit.notebook import sketch, strips
from cnnkit.notebook.sketch import Line


def points(svg):
    found = re.search(r'polyline points="([^"]+)"', svg)[1]
    return np.array([pair.split(",") for pair in found.split()], float)


def test_a_line_spans_its_chart_and_up_is_more():
    drawn = points(sketch.chart([Line([0, 5, 10], [1, 2, 3])], "epochs", "loss", width=300, height=170))
    np.testing.assert_allclose(drawn[:, 0], [40, 165, 290])
    assert drawn[0, 1] > drawn[1, 1] > drawn[2, 1]
    np.testing.assert_allclose(drawn[0, 1] - drawn[1, 1], drawn[1, 1] - drawn[2, 1], atol=0.11)


def test_values_that_are_no_numbers_are_left_out():
    line = sketch.thin(Line([1, 2, 3], [0.5, float("nan"), float("inf")]))
    assert (line.x, line.y) == ([1], [0.5])
    assert "nothing yet" in sketch.chart([Line([1], [float("nan")])], "epochs", "loss")


def test_a_long_line_is_thinned_and_its_ends_stay():
    line = sketch.thin(Line(range(100_000), np.arange(100_000.0)))
    assert len(line.x) == sketch.MOST_POINTS
    assert (line.x[0], line.x[-1]) == (0, 99_999)


@pytest.mark.parametrize("value", [0.0, 0.3, -2.0, 1e9])
def test_a_constant_line_has_ticks_around_it(value):
    svg = sketch.chart([Line([1, 2], [value, value])], "epochs", "loss")
    assert len(set(points(svg)[:, 1])) == 1
    assert 20 < points(svg)[0, 1] < 138


def test_counts_have_whole_ticks_from_0():
    assert sketch.ticks(0.0, 1.05, 4, 1.0) == [0, 1]
    svg = sketch.chart([Line([0, 1], [1, 1])], "epochs", "fetch", counts=True)
    assert "0.5" not in re.findall(r">([\d.]+)</text>", svg)[:3]


def test_text_is_escaped():
    assert "<b>" not in sketch.chart([Line([1], [1], "<b>")], "<b>", "<b>")
    assert "&lt;i&gt;" in strips.others_html([strips.Other("<i>", [], 0.0)])


def test_a_spark_breaks_where_a_reading_is_missing():
    svg = sketch.spark([10, 20, float("nan"), 30, 40], 100, "red")
    assert svg.count("<polyline") == 2


def test_shares_are_as_wide_as_they_are_large():
    widths = re.findall(
        r'<rect x="([\d.]+)" width="([\d.]+)"', sketch.shares([(0.5, "a"), (0.25, "b")], width=100)
    )
    assert widths == [("0.0", "50.0"), ("50.0", "25.0")]
