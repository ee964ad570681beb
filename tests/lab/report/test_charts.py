"""Charts and images: what they draw, what their words say, and their inks on light and dark pages."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import attrs
import numpy as np
import pandas as pd
import pytest
import torch

from core.errors import InputError
from lab import Experiment, records, run
from lab.report import charts, style, table
from lab.report.figures import condensed_images, image_rows, show, to_html
from tests.lab.report import made

MB = 2**20
LONG = pd.DataFrame(
    {"x": [1, 1, 2, 2, 1, 2], "y": [1.0, 3.0, 5.0, 6.0, 7.0, 8.0], "label": list("aaaabb")}
)


def record(seed=0, accuracies=(0.25, 0.5)):
    """A run with these accuracies, None where a round is not tested, that sends 1 MB each way in a round."""
    experiment = Experiment(algorithm="fedavg", dataset="digits", seed=seed)
    rounds = [
        {"round": r, "metrics": {"accuracy": a, "cross_entropy": 1 - a} if a else {}}
        | {"up": MB, "down": MB, "seconds": {}}
        for r, a in enumerate(accuracies, start=1)
    ]
    return attrs.evolve(made.record(experiment), rounds=rounds)


def test_curves_of_a_folder_are_named_by_what_differs(tmp_path):
    for lr in (0.1, 0.3):
        settings = {"lr": lr, "local_steps": 1}
        one = Experiment(algorithm="fedavg", dataset="digits", rounds=1, settings=settings)
        run(one, record=tmp_path / "adhoc" / f"{one.id}.json")
    for runs, by, names in (
        (str(tmp_path), None, {"lr 0.1", "lr 0.3"}),
        (tmp_path, "lr", {"0.1", "0.3"}),
        (records(tmp_path).values(), "split", {"iid"}),
    ):
        assert set(charts.curve_frame(runs, by=by)["label"]) == names
    assert table(tmp_path)._repr_html_().count("<tr>") == 2
    with pytest.raises(InputError, match="records below /"):
        charts.curves("~/no")


def drawn(figure):
    """The lines of a figure as lists of points."""
    return [line.get_xydata().tolist() for line in figure.axes[0].lines if len(line.get_xydata())]


def test_lines_are_means_with_a_band_of_one_deviation():
    figure = charts.lines(LONG, "x", "y", ylabel="loss", title="Two")
    assert [[1, 2], [2, 5.5]] in drawn(figure) and [[1, 7], [2, 8]] in drawn(figure)
    band = next(one for one in figure.axes[0].collections if one.get_paths())
    assert band.get_paths()[0].vertices[:, 1].min() == pytest.approx(2 - np.sqrt(2))
    assert figure.get_label() == "Two. loss against x: a goes from 2 to 5.5; b goes from 7 to 8."
    assert figure.get_supxlabel() == "Band: ± one standard deviation."
    # the legend has the order in which lines end
    assert [text.get_text() for text in figure.axes[0].get_legend().texts] == ["b", "a"]
    assert charts.lines(LONG.iloc[[0, 2, 4, 5]], "x", "y").get_supxlabel() == ""


def test_many_lines_have_a_panel_each_before_the_others():
    many = pd.concat([LONG.assign(label=LONG["label"] + str(n)) for n in range(5)])
    figure = charts.lines(many, "x", "y", title="Ten")
    assert len(figure.axes) == 10 and figure.get_suptitle() == "Ten: y against x"
    panel = next(axes for axes in figure.axes if axes.get_title("left") == "a3")
    assert len(panel.lines) == 11 and panel.lines[0].get_xydata().tolist() == [[1, 2], [2, 5.5]]
    assert figure.get_label().startswith("Ten. y against x: a0 goes from 2 to 5.5; b0 goes")


def test_dots_have_their_intervals_and_what_a_paper_reports():
    frame = pd.DataFrame(
        {"name": ["A", "B"], "value": [1.0, 3.0], "low": [0.5, -np.inf], "high": [1.5, np.inf]}
    )
    figure = charts.dots(frame.assign(paper=[2.0, np.nan]), "points")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["A", "B"]
    at = [[x for x in line.get_xdata() if np.isfinite(x)] for line in axes.lines]
    # dots, the line of A, and the diamond; of the spread of B nothing is known
    assert [row for row in at if row] == [[1, 3], [0.5, 1.5], [2]]
    assert figure.get_label() == "points: A 1, 0.5 to 1.5, paper 2; B 3."
    assert charts.dots(frame[["name", "value"]], "points").get_label() == "points: A 1; B 3."
    assert charts.dots(frame.assign(seeds=[3, 5]), "").get_supxlabel() == "n = 3 to 5 seeds"


def test_a_heat_map_says_every_difference_and_hatches_what_says_less():
    cells = [
        ("A", "x", 1.5, 3, "paper"),
        ("A", "y", -2.0, 2, "paper"),
        ("B", "x", 4.0, 3, "laptop"),
    ]
    frame = pd.DataFrame(cells, columns=["row", "column", "difference", "seeds", "profile"])
    figure = charts.heat_map(frame.assign(substitute=""), "Two")
    assert "A: x +1.5, y -2.0; B: x +4.0." in figure.get_label()
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["+1.5", "-2.0", "+4.0"]  # and nothing where a method has no number
    hatched = [patch.get_xy() for patch in figure.axes[0].patches if patch.get_hatch()]
    assert hatched == [(1, 0), (0, 1)]


@pytest.mark.parametrize(
    "draw",
    [
        lambda: charts.curves([]),
        lambda: charts.curves(record(), metric="accurracy"),
        lambda: charts.curves(record(accuracies=(None,))),
        lambda: condensed_images(np.zeros((2, 2, 4, 4)), [0, 0]),
        lambda: condensed_images(np.zeros((2, 1, 4, 4)), [0]),
        lambda: image_rows({"a": torch.zeros(1, 1, 4, 4), "b": torch.zeros(1, 1, 5, 5)}),
        lambda: image_rows({"none": torch.zeros(0, 1, 4, 4)}),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw):
    with pytest.raises(InputError):
        draw()


def test_a_curve_adds_up_what_was_sent_and_skips_rounds_without_a_test():
    frame = charts.curve_frame(record(accuracies=(None, 0.5, None, 0.75)))
    assert frame["round"].tolist() == [2, 4] and frame["megabytes"].tolist() == [4.0, 8.0]
    assert frame["value"].tolist() == [50.0, 75.0] and set(frame["label"]) == {"FedAvg"}
    assert charts.curve_frame(record(), "cross_entropy")["value"].tolist() == [0.75, 0.5]
    named = charts.curve_frame([record(seed=3)], by=lambda one: one.experiment.dataset.upper())
    assert set(named["label"]) == {"DIGITS"} and set(named["seed"]) == {3}


def test_a_method_has_its_colour_in_every_figure():
    first, second = ["MOON", "FedVCK, 4 times", "FedAvg"], ["FedAvg", "DFRD", "FedVCK", "MOON"]
    one, other = (style.palette(names) for names in (first, second))
    assert one["FedVCK, 4 times"] == other["FedVCK"] == style.PALETTE[0]
    assert one["FedAvg"] == other["FedAvg"] == style.PALETTE[1]
    # the second variant of a method takes another one, and nobody else's is taken twice
    several = ["FedVCK", "FedVCK, 4 times", "FedAvg", "DM", "FedDM", "FedGen"]
    assert len({*style.palette(several).values()}) == 6


def test_the_area_of_a_dot_is_the_number_of_samples():
    labels = np.array([0] * 8 + [1] * 2 + [2] * 4)
    parts = [np.arange(8), np.arange(8, 14), np.array([], dtype=int)]
    figure = charts.partition_plot(labels, parts, ["a", "b", "c"])
    dots = figure.axes[0].collections[0]
    np.testing.assert_array_equal(dots.get_offsets(), [[0, 0], [1, 1], [2, 1]])
    np.testing.assert_allclose(dots.get_sizes() / dots.get_sizes().max(), [1, 2 / 8, 4 / 8])
    ticks = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert ticks == ["client 0 (8)", "client 1 (6)", "client 2 (0)"]
    assert "3 clients" in figure.get_label() and "0 to 8 samples" in figure.get_label()


def test_images_stand_in_rows_of_their_class():
    images = torch.zeros(5, 1, 4, 4, dtype=torch.uint8)
    images[4] = 255
    figure = condensed_images(images, torch.tensor([2, 0, 0, 2, 0]), ["x", "y", "z"])
    pixels = figure.axes[0].images[0].get_array()
    assert (pixels[:4, 12:16, :3] == 1).all() and pixels[..., :3].sum() == 4 * 4 * 3
    assert pixels[5, :, 3].max() == 0  # gaps are transparent
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["x", "z"]
    assert figure.get_label() == "5 images of 4 by 4 pixels, in rows: x, z."


def test_one_drawing_has_words_no_background_and_the_inks_of_its_page():
    html = to_html(charts.curves(record(), title="A & B"))
    assert html.count("<svg") == 1 and 'aria-label="A &amp; B.' in html
    drawing = html[html.index("<svg") :]
    for light, dark in style.DARK.items():
        name = f"--core-{light[1:]}"
        assert f"{name}: {dark}" in style.CSS
        uses = len(re.findall(rf"(?:fill|stroke): var\({name},{light}\)", drawing))
        assert uses == drawing.count(light), "a colour that no page can change"
    assert drawing.count(f"var(--core-{style.INK[1:]},") > 5
    assert "#ffffff" not in drawing and "\n" not in drawing
    assert to_html(charts.curves(record(), title="A & B")) == html  # the same bytes every time


def test_drawings_on_one_page_do_not_share_names():
    """What a drawing refers to is its own, and all of it is there: it is a part of the page."""
    pixels, seen = np.arange(32, dtype=np.uint8).reshape(2, 1, 4, 4), set()
    for figure in (charts.curves(record(), title="A"), condensed_images(pixels, [0, 1], title="A")):
        drawing = ElementTree.fromstring(re.search(r"<svg.*</svg>", to_html(figure))[0])
        names = [tag.get("id") for tag in drawing.iter() if tag.get("id")]
        text = ElementTree.tostring(drawing, encoding="unicode")
        used = {name.strip("()") for name in re.findall(r'(?:href="#|url\(#)([^")]+)', text)}
        assert used and used <= set(names) and len(set(names)) == len(names)
        assert not seen & set(names)
        seen |= set(names)
    assert text.count("data:image/png;base64,iVBOR") == 1


def contrast(*colours):
    """The ratio of the relative luminances of two colours, by WCAG 2."""
    channels = np.array([[int(one[i : i + 2], 16) / 255 for i in (1, 3, 5)] for one in colours])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    low, high = sorted(linear @ [0.2126, 0.7152, 0.0722])
    return (high + 0.05) / (low + 0.05)


def test_text_and_lines_stand_out_on_both_pages():
    """4.5 to 1 for text, 3 to 1 for the first lines of a figure; the theme's dark page is #14181e."""
    dark = "#14181e"
    assert contrast(style.INK, "#ffffff") > 4.5 and contrast(style.DARK[style.INK], dark) > 4.5
    for colour in (*style.PALETTE[:4], *style.PALETTE[6:]):
        assert contrast(colour, "#ffffff") > 2.9
    for colour in style.PALETTE:
        assert contrast(style.DARK.get(colour.lower(), colour), dark) > 3


def test_a_figure_is_shown_with_words_or_not_at_all(monkeypatch):
    given, figure = [], charts.curves(record())
    monkeypatch.setattr("IPython.display.display", lambda data, raw: given.append(data))
    show(figure)
    assert given[0]["text/html"].count("<svg") == 1 and "25 to 50" in given[0]["text/plain"]
    assert 'aria-label="two &lt; three"' in to_html(figure, alt="two < three")
    figure.set_label("")
    with pytest.raises(InputError, match="description"):
        to_html(figure)
