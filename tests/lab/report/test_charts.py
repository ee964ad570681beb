"""Charts: what they draw, and what their words say."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

from core.errors import InputError
from lab.report import charts, dots

LONG = pd.DataFrame(
    {"x": [1, 1, 2, 2, 1, 2], "y": [1.0, 3.0, 5.0, 5.0, 7.0, 8.0], "label": list("aaaabb")}
)


def test_lines_are_means_with_a_band():
    pytest.importorskip("matplotlib")
    figure = charts.lines(LONG, "x", "y", ylabel="loss", title="Two")
    first, second = figure.axes[0].get_lines()
    assert first.get_xydata().tolist() == [[1, 2], [2, 5]] and second.get_xydata().tolist() == [
        [1, 7],
        [2, 8],
    ]
    (band,) = figure.axes[0].collections  # b has one value per x, so it has no band
    assert band.get_paths()[0].vertices[:, 1].min() == pytest.approx(2 - np.sqrt(2))
    assert figure.get_label() == "Two. loss against x: a goes from 2 to 5; b goes from 7 to 8."
    assert all(tick == int(tick) for tick in figure.axes[0].get_xticks())  # x holds whole numbers
    assert charts.lines(LONG, "x", "y", log="y").axes[0].get_yscale() == "log"


def test_a_line_is_the_mean_of_values_that_are_not_even():
    pytest.importorskip("matplotlib")
    frame = pd.DataFrame({"x": [1, 1, 1, 2], "y": [0.0, 0.0, 3.0, 4.0], "label": "a"})
    assert charts.lines(frame, "x", "y").get_label() == "y against x: a goes from 1 to 4."


def test_lines_refuse_what_they_cannot_draw():
    with pytest.raises(InputError, match="no column 'z': x, y, label"):
        charts.lines(LONG, "x", "z")
    with pytest.raises(InputError, match="empty"):
        charts.lines(LONG[:0], "x", "y")


def test_a_scatter_shows_every_point_and_says_where_each_cloud_lies():
    pytest.importorskip("matplotlib")
    points = pd.DataFrame({"x": [1.0, 3.0, 10.0], "y": [2.0, 2.0, -4.0], "label": ["a", "a", "b"]})
    figure = charts.scatter(points, "x", "y", ylabel="height", title="Two")
    a, b = figure.axes[0].collections
    assert a.get_offsets().tolist() == [[1, 2], [3, 2]] and b.get_offsets().tolist() == [[10, -4]]
    assert not np.array_equal(a.get_facecolor(), b.get_facecolor())
    assert not np.array_equal(
        a.get_paths()[0].vertices, b.get_paths()[0].vertices
    )  # told apart without colour
    assert figure.get_label() == (
        "Two. Points of height against x, mean ± standard deviation of each cloud: a lies at 2 "
        "± 1 across and 2 ± 0 "
        "up; b lies at 10 ± 0 across and -4 ± 0 up."
    )
    with pytest.raises(InputError, match="no column 'z'"):
        charts.scatter(points, "x", "z")
    with pytest.raises(InputError, match="empty"):
        charts.scatter(points[:0], "x", "y")


def test_a_forest_has_a_dot_for_each_seed_and_an_interval_of_their_mean():
    pytest.importorskip("matplotlib")
    figure = dots.forest({"FedGen": [1.0, 2.0, 3.0], "MOON": [-4.0]}, "lead", title="Two")
    axes = figure.axes[0]
    assert [dots.get_offsets()[:, 0].tolist() for dots in axes.collections] == [[1, 2, 3], [-4]]
    zero, first, first_mean, second_mean = axes.get_lines()
    assert list(zero.get_xdata()) == [0, 0]
    # t(0.95, 2 degrees of freedom) = 2.92, standard error 1 / sqrt(3)
    assert list(first.get_xdata()) == pytest.approx([2 - 1.6859, 2 + 1.6859], abs=1e-3)
    assert [*first_mean.get_xdata(), *second_mean.get_xdata()] == [2, -4]
    assert figure.get_label() == (
        "Two. lead, mean and 90% interval: FedGen +2.0, from +0.3 to +3.7 (3 seeds); "
        "MOON -4.0 (1 seed)."
    )
    same = dots.forest({"FedGen": [2.0, 2.0]}, "lead")
    assert len(same.axes[0].get_lines()) == 2 and "FedGen +2.0 (2 seeds)" in same.get_label()
    with pytest.raises(InputError, match="nothing to draw"):
        dots.forest({}, "lead")


def test_a_heat_map_says_what_it_shows():
    pytest.importorskip("matplotlib")
    figure = charts.heat_map(
        torch.tensor([[2.0, 1.0], [3.0, 0.0]]),
        ["cat", "dog"],
        marked=torch.tensor([[1, -1], [0, -1]]),
        title="Logits",
    )
    assert len(figure.axes[0].patches) == 2
    assert [text.get_text() for text in figure.axes[0].texts] == ["2.0", "1.0", "3.0", "0.0"]
    assert "from 0.00 to 3.00" in figure.get_label() and "in 1 of 2 rows" in figure.get_label()
    with pytest.raises(InputError, match="as many rows"):
        charts.heat_map(np.zeros((2, 3)), ["cat", "dog"])


def test_bars_are_as_long_as_their_means_and_say_their_numbers():
    pytest.importorskip("matplotlib")
    figure = charts.bars({"few": (67.0, 2.0), "all": (96.25, 0.0)}, "accuracy (%)", "Taught by")
    assert [bar.get_width() for bar in figure.axes[0].patches] == [67.0, 96.25]
    assert figure.axes[0].yaxis_inverted() and figure.axes[0].get_xlim()[1] > 98
    assert figure.get_label() == "Taught by. accuracy (%): few 67.0; all 96.2."
    with pytest.raises(InputError, match="nothing to draw"):
        charts.bars({}, "x")


@pytest.mark.parametrize("means", [(-3.0, -1.0), (-3.0, 1.0), (0.0, 0.0)], ids=str)
def test_bars_to_both_sides_of_zero_are_seen_whole(means):
    pytest.importorskip("matplotlib")
    drawn = charts.bars({f"row {k}": (mean, 0.5) for k, mean in enumerate(means)}, "x")
    low, high = drawn.axes[0].get_xlim()
    assert low <= min(0, min(means) - 0.5) <= max(0, max(means) + 0.5) <= high and low < high


def test_a_mean_that_is_no_number_has_no_bar():
    with pytest.raises(InputError, match="no mean to draw for lost"):
        charts.bars({"here": (1.0, 0.0), "lost": (math.nan, 0.0)}, "x")


def test_a_class_without_numbers_is_left_out_of_a_heat_map():
    pytest.importorskip("matplotlib")
    figure = charts.heat_map(np.array([[2.0, 1.0], [math.nan, math.nan]]), ["cat", "dog"])
    assert [text.get_text() for text in figure.axes[0].texts] == ["2.0", "1.0", "–", "–"]
    assert "from 1.00 to 2.00" in figure.get_label() and "in 1 of 1 rows" in figure.get_label()
    with pytest.raises(InputError, match="holds no number"):
        charts.heat_map(np.full((2, 2), math.nan), ["cat", "dog"])


def test_the_bar_of_one_run_is_pale_and_said_to_be():
    pytest.importorskip("matplotlib")
    figure = charts.bars({"one": (3.0, math.nan), "many": (2.0, 0.5)}, "x")
    alone, several = (bar.get_facecolor() for bar in figure.axes[0].patches)
    assert alone[:3] == several[:3] and alone[3] < several[3] == 1
    assert "one 3.0 (one run); many 2.0." in figure.get_label()
    assert figure.get_supxlabel() == "Pale: one run." and figure.axes[0].get_xlim()[1] > 3


def test_what_a_band_and_a_dot_stand_for_is_written_below_the_axes():
    band = charts.lines(LONG, "x", "y").get_supxlabel()
    assert band == "Band: ± one standard deviation."
    assert charts.lines(LONG.iloc[[0, 2, 4, 5]], "x", "y").get_supxlabel() == ""
    figure = charts.partition_plot(np.array([0, 1, 1]), [np.array([0, 1]), np.array([2])])
    said = " ".join(figure.get_supxlabel().split())
    assert said.startswith("Area of a dot: number") and "In brackets: all samples" in said


def test_a_long_title_is_broken_before_the_names_of_the_series():
    figure = charts.lines(LONG, "x", "y", title="a word " * 20)
    titles = figure.axes[0].get_title(loc="left").splitlines()
    assert len(titles) > 1 and max(map(len, titles)) <= 58


def test_bars_that_begin_alike_share_a_colour_and_print_is_hatched():
    pytest.importorskip("matplotlib")
    names = ("A, long", "A, print", "B, long")
    bars = charts.bars(dict.fromkeys(names, (1.0, 0.0)), "x").axes[0].patches
    colours = [bar.get_facecolor() for bar in bars]
    assert colours[0] == colours[1] != colours[2]
    assert [bool(bar.get_hatch()) for bar in bars] == [False, True, False]
    alone = charts.bars(dict.fromkeys("ABC", (1.0, 0.0)), "x").axes[0].patches
    assert len({bar.get_facecolor() for bar in alone}) == 1


@pytest.mark.parametrize(
    ("values", "ticks"),
    [([60, 300, 1000], ["60", "300", "1000"]), ([40, 41, 43, 380], ["50", "100", "200"])],
)
def test_a_logarithmic_axis_has_plain_numbers(values, ticks):
    """At the values, or, where these lie close together, at 1, 2 and 5 of each power."""
    pytest.importorskip("matplotlib")
    frame = pd.DataFrame({"x": values, "y": 1.0, "label": "a"})
    for draw in (charts.lines, charts.scatter):
        axes = draw(frame, "x", "y", log="x").axes[0]
        low, high = axes.get_xlim()
        shown = [one for one in axes.get_xticks() if low <= one <= high]
        assert axes.xaxis.get_major_formatter().format_ticks(shown) == ticks
        assert not any(axes.xaxis.get_minor_formatter().format_ticks(axes.get_xticks(minor=True)))


def test_dots_stand_in_the_lines_of_their_names():
    frame = pd.DataFrame(
        {
            "group": ["one", "two", "one"],
            "name": ["A", "B", "C"],
            "mean": [1.0, np.nan, 3.0],
            "std": [0.5, np.nan, np.nan],
            "printed": [2.0, 4.0, np.nan],
        }
    )
    figure = dots.dots(frame, "accuracy")
    (axes,) = figure.axes
    lines = [label.get_text() for label in axes.get_yticklabels()]
    assert lines == ["one", "A", "C", "two", "B"]
    printed = dict(zip(*axes.lines[-1].get_data()[::-1], strict=True))
    assert printed[1] == 2 and np.isnan(printed[2]) and printed[4] == 4
    assert figure.get_label() == (
        "accuracy: one, A: 1.0 ± 0.5, printed 2.0; one, C: 3.0; two, B: printed 4.0."
    )
