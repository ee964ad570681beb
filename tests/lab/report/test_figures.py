"""Figures: the numbers they draw, their words, and their inks on light and dark pages."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from core.errors import InputError
from lab import Experiment, Record
from lab.report import style
from lab.report.charts import partition_plot
from lab.report.figures import condensed_images, image_rows, show, to_html
from lab.report.learning_curves import curve_frame, curves

MB = 2**20


def record(algorithm="fedavg", seed=0, accuracies=(0.25, 0.5), up=MB, down=MB):
    rounds = [
        {
            "round": r,
            "metrics": {} if a is None else {"accuracy": a, "cross_entropy": 1 - a},
            "up": up,
            "down": down,
            "seconds": {},
        }
        for r, a in enumerate(accuracies, start=1)
    ]
    return Record(
        experiment=Experiment(algorithm=algorithm, dataset="digits", seed=seed),
        settings={},
        fingerprint="f",
        environment={},
        code="c",
        status="complete",
        rounds=rounds,
    )


def test_a_curve_adds_up_what_was_sent_and_skips_rounds_without_a_test():
    frame = curve_frame(record(accuracies=(None, 0.5, None, 0.75)))
    assert frame["round"].tolist() == [2, 4]
    assert frame["megabytes"].tolist() == [4.0, 8.0]
    assert frame["value"].tolist() == [50.0, 75.0]
    assert set(frame["label"]) == {"FedAvg"}


def test_fractions_are_percentages_and_losses_are_not():
    assert curve_frame(record(), "cross_entropy")["value"].tolist() == [0.75, 0.5]


def test_series_may_be_named_by_any_field_or_function():
    assert set(curve_frame(record(seed=3), by="seed")["label"]) == {"3"}
    assert set(curve_frame(record(), by=lambda one: one.experiment.dataset.upper())["label"]) == {
        "DIGITS"
    }


def line(figure, index=0):
    return figure.axes[0].lines[index].get_xydata()


def test_the_line_is_the_mean_and_the_band_one_deviation_over_seeds():
    figure = curves([record(seed=0, accuracies=(0.2, 0.4)), record(seed=1, accuracies=(0.4, 0.8))])
    np.testing.assert_allclose(line(figure), [[1, 30], [2, 60]])
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    spread = np.std([40, 80], ddof=1)
    assert band[:, 1].max() == pytest.approx(60 + spread)
    assert "FedAvg ends at 60.0" in figure.get_label()


def test_seeds_that_send_different_amounts_share_a_position():
    figure = curves([record(seed=0, up=MB), record(seed=1, up=3 * MB)], x="megabytes")
    np.testing.assert_allclose(line(figure)[:, 0], [3, 6])


def test_who_sends_once_is_a_point_at_its_last_value():
    once = record("centralized", accuracies=(0.1, 0.2, 0.9))
    for row in once.rounds[1:]:
        row["up"] = row["down"] = 0
    np.testing.assert_allclose(line(curves(once, x="megabytes")), [[2, 90]])


def test_who_sends_nothing_is_a_level_line():
    figure = curves(
        [record(), record("standalone", accuracies=(0.1, 0.3), up=0, down=0)], x="megabytes"
    )
    level = figure.axes[0].lines[-1]
    assert set(level.get_ydata()) == {30.0}
    assert "Standalone (sends nothing)" in [text.get_text() for text in figure.axes[0].texts]


def test_ten_series_have_ten_colours_and_ten_markers():
    colours, markers, _ = style.series(range(10))
    assert len(set(colours)) == len(set(markers)) == 10


def test_an_eleventh_series_repeats_a_colour_with_another_marker_and_dash():
    colours, markers, dashes = style.series(range(20))
    assert colours[10:] == colours[:10]
    assert all(markers[i] != markers[i + 10] and dashes[i] != dashes[i + 10] for i in range(10))


def test_a_method_has_its_colour_in_every_figure():
    first, second = ["MOON", "FedVCK, 4 times", "FedAvg"], ["FedAvg", "DFRD", "FedVCK", "MOON"]
    drawn = [dict(zip(names, style.series(names)[0], strict=True)) for names in (first, second)]
    assert drawn[0]["FedVCK, 4 times"] == drawn[1]["FedVCK"] == style.PALETTE[0]
    assert drawn[0]["FedAvg"] == drawn[1]["FedAvg"] == style.PALETTE[1]
    # the second reading of a method takes another one, and nobody else's is taken twice
    several = style.series(["FedVCK", "FedVCK, 4 times", "FedAvg", "DM", "FedDM", "FedGen"])[0]
    assert len(set(several)) == 6 and several[2] == style.PALETTE[1]


def test_names_at_the_ends_of_lines_do_not_cover_each_other():
    heights = [0.5, 0.52, 0.51, 0.0, 1.0, 0.99]
    placed = style.spread(heights, 0.07)
    assert np.argsort(placed).tolist() == np.argsort(heights).tolist()
    assert np.diff(sorted(placed)).min() > 0.07 - 1e-9 and max(placed) <= 1
    assert style.spread([0.2, 0.6], 0.07) == [0.2, 0.6]
    # eleven names that end at the bottom stand above each other, from the bottom up
    assert style.spread([0.0] * 11, 0.07) == pytest.approx([0.07 * k for k in range(11)])


def test_series_differ_in_more_than_colour():
    for count in (2, 6, 30):
        colours, markers, dashes = style.series(range(count))
        assert len(set(zip(markers, map(str, dashes), strict=True))) >= min(count, 12)
        assert len(set(zip(colours, map(str, dashes), strict=True))) == count


@pytest.mark.parametrize(
    "call",
    [
        lambda: curves([]),
        lambda: curves(record(), x="hours"),
        lambda: curves(record(), metric="accurracy"),
        lambda: curves(record(), by="colour"),
        lambda: curves("0123456789ab"),
        lambda: curves(record(accuracies=(None,))),
    ],
)
def test_curves_refuse_what_they_cannot_draw(call):
    with pytest.raises(InputError):
        call()


def test_the_area_of_a_dot_is_the_number_of_samples():
    labels = np.array([0] * 8 + [1] * 2 + [2] * 4)
    figure = partition_plot(
        labels, [np.arange(8), np.arange(8, 14), np.array([], dtype=int)], ["a", "b", "c"]
    )
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
    canvas = figure.axes[0].images[0].get_array()
    assert canvas.shape == (4 + 2 + 4, 3 * 4 + 2 * 2, 4)
    assert (canvas[:4, 12:, :3] == 1).all() and canvas[..., :3].sum() == 4 * 4 * 3
    assert canvas[5, :, 3].max() == 0  # gaps are transparent
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["x", "z"]


def test_rows_of_images_have_names_and_lengths_of_their_own():
    rows = {"one": torch.zeros(1, 1, 4, 4), "two": torch.tensor([-1.0, 1]).view(2, 1, 1, 1)}
    rows["two"] = rows["two"].expand(2, 1, 4, 4)
    figure = image_rows(rows, title="A")
    canvas = figure.axes[0].images[0].get_array()
    assert canvas.shape == (4 + 2 + 4, 4 + 2 + 4, 4)
    # stretched together: 0 of the first row lies half way between -1 and 1 of the second
    assert canvas[0, 0, 0] == 0.5 and canvas[6, ::6, 0].tolist() == [0, 1]
    assert canvas[0, 6, 3] == 0  # no second image in the first row
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["one", "two"]
    assert figure.get_label() == "A. 3 images of 4 by 4 pixels, in rows: one, two."
    for wrong in ({}, rows | {"three": torch.zeros(1, 1, 5, 5)}, {"none": torch.zeros(0, 1, 4, 4)}):
        with pytest.raises(InputError):
            image_rows(wrong)


def test_rows_of_bytes_and_of_floats_are_as_bright():
    white = {
        "floats": torch.ones(1, 1, 2, 2),
        "bytes": torch.full((1, 1, 2, 2), 255, dtype=torch.uint8),
    }
    canvas = image_rows(white).axes[0].images[0].get_array()
    assert canvas[0, 0, 0] == canvas[4, 0, 0] == 1


def test_the_side_of_an_image_is_what_is_asked_for():
    images, labels = torch.zeros(12, 1, 8, 8), torch.arange(3).repeat(4)
    small, large = (
        condensed_images(images, labels, inches=inches).get_size_inches() for inches in (0.25, 0.75)
    )
    # four images across and three down, but for the gap behind the last one
    assert large - small == pytest.approx([0.5 * (4 - 0.2), 0.5 * (3 - 0.2)])


def test_floats_beyond_the_range_are_stretched_and_others_are_kept():
    def drawn(values):
        figure = condensed_images(np.array(values).reshape(-1, 1, 1, 1), [0] * len(values))
        return figure.axes[0].images[0].get_array()[0, ::3, 0].tolist()

    assert drawn([-2.0, 0.0, 2.0]) == [0, 0.5, 1]
    assert drawn([0.25, 0.5]) == [0.25, 0.5]


@pytest.mark.parametrize(
    "images", [np.zeros((2, 4, 4)), np.zeros((2, 2, 4, 4)), np.zeros((0, 1, 4, 4))]
)
def test_images_of_another_shape_are_refused(images):
    with pytest.raises(InputError):
        condensed_images(images, [0] * len(images))
    with pytest.raises(InputError):
        condensed_images(np.zeros((2, 1, 4, 4)), [0])


def test_one_drawing_has_words_no_background_and_the_inks_of_its_page():
    html = to_html(curves(record(), title="A & B"))
    assert html.count("<svg") == 1 and 'aria-label="A &amp; B.' in html
    for light, dark in style.DARK.items():
        name = f"--core-{light[1:]}"
        assert f"{name}:{dark}" in html
        uses = len(re.findall(rf"(?:fill|stroke): var\({name},{light}\)", html))
        assert uses == html.count(light), "a colour that no page can change"
    assert html.count(f"var(--core-{style.INK[1:]},") > 5
    assert "#ffffff" not in html and "\n" not in html
    assert to_html(curves(record(), title="A & B")) == html  # the same bytes every time


def test_drawings_on_one_page_do_not_share_names():
    """What a drawing refers to is its own, and all of it is there: it is a part of the page."""
    pixels = np.arange(32, dtype=np.uint8).reshape(2, 1, 4, 4)
    seen = set()
    for figure in (curves(record(), title="A"), condensed_images(pixels, [0, 1], title="A")):
        drawing = ElementTree.fromstring(re.search(r"<svg.*</svg>", to_html(figure))[0])
        names = [tag.get("id") for tag in drawing.iter() if tag.get("id")]
        text = ElementTree.tostring(drawing, encoding="unicode")
        used = {name.strip("()") for name in re.findall(r'(?:href="#|url\(#)([^")]+)', text)}
        assert used and used <= set(names) and len(set(names)) == len(names)
        assert not seen & set(names)
        seen |= set(names)
    assert text.count("data:image/png;base64,iVBOR") == 1


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_and_lines_stand_out_on_both_pages():
    """WCAG 2: 4.5 to 1 for text, 3 to 1 for the first lines of a figure; the theme's dark page is
    #14181e.
    """
    dark = "#14181e"
    assert contrast(style.INK, "#ffffff") > 4.5 and contrast(style.DARK[style.INK], dark) > 4.5
    for colour in (*style.PALETTE[:4], *style.PALETTE[6:]):
        assert contrast(colour, "#ffffff") > 2.9
    for colour in style.PALETTE:
        assert contrast(style.DARK.get(colour.lower(), colour), dark) > 3


def test_a_figure_without_words_is_refused():
    figure = curves(record())
    figure.set_label("")
    with pytest.raises(InputError, match="description"):
        to_html(figure)
    assert 'aria-label="two &lt; three"' in to_html(figure, alt="two < three")


def test_show_gives_html_and_words(monkeypatch):
    given = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: given.append(data))
    show(curves(record()))
    assert (
        given[0]["text/html"].count("<svg") == 1 and "FedAvg ends at 50.0" in given[0]["text/plain"]
    )


def test_figures_leave_pyplot_alone():
    import matplotlib.pyplot as plt

    before = dict(plt.rcParams)
    curves(record())
    partition_plot([0, 1], [[0], [1]])
    assert plt.get_fignums() == [] and dict(plt.rcParams) == before
