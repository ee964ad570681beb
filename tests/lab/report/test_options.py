"""What the command line says of algorithms and their settings."""

from __future__ import annotations

import attrs
import pytest

from core import algorithms
from core.errors import InputError
from lab.report import options


@attrs.frozen
class Base:
    #: how far
    #: it goes
    step: float = 0.1
    # a remark for programmers
    plain: int = 3


@attrs.frozen
class Derived(Base):
    step: float = 0.2
    #: who
    name: str = "x"


def test_the_comments_above_fields_are_their_meanings():
    assert options.meanings(Derived) == {"step": "how far it goes", "plain": "", "name": "who"}


def test_every_algorithm_is_listed_with_its_name():
    lines = options.overview().splitlines()
    assert [line.split()[0] for line in lines] == list(algorithms.names())
    assert all(len(line.split(None, 1)[1]) > 10 and ". " not in line for line in lines)


def test_a_file_that_is_being_written_hides_no_algorithm(monkeypatch):
    find = algorithms.find
    monkeypatch.setattr(algorithms, "find", lambda name: find(name) if name != "fedprox" else 1 / 0)
    said = dict(line.split(None, 1) for line in options.overview().splitlines())
    assert said["fedprox"].startswith("cannot be used yet: ZeroDivisionError")
    assert said.keys() == set(algorithms.names()) and said["fedavg"].startswith("FedAvg")


def test_what_is_not_for_classification_alone_says_what_it_is_for():
    said = dict(line.split(None, 1) for line in options.overview().splitlines())
    assert said["asyndgan"].endswith(" (segmentation)") and "(" not in said["fedmd"]
    assert "for segmentation, such as the data set nuclei_drawn" in options.settings("asyndgan")


@pytest.mark.parametrize("name", algorithms.names())
def test_every_setting_is_listed_as_set_takes_it(name):
    """`--set` with what is listed gives the printed settings again."""
    from lab.cli.app import pairs

    text = options.settings(name)
    rows = [
        line.split()[0]
        for line in text.splitlines()[3:]
        if line.startswith("  ") and line[2:3].strip()
    ]
    assert [row.partition("=")[0] for row in rows] == [
        field.name for field in attrs.fields(algorithms.find(name).Settings)
    ]
    assert algorithms.create(name, pairs(rows)).settings == algorithms.find(name).Settings()


def test_a_released_value_stands_beside_the_printed_one():
    assert "  iterations=1000 (10000)\n" in options.settings("fedvck")
    with pytest.raises(InputError, match="did you mean 'fedvck'"):
        options.settings("fedvk")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("None", None), ("null", None), ("True", True), ("false", False), ("none", "none")],
        *[(".05", 0.05), ("+5e-2", 0.05), ("1e3", 1000.0), ("7", 7), ("1.2.3", "1.2.3")],
    ],
)
def test_values_may_be_written_as_help_texts_write_them(text, value):
    from lab.cli.app import value_of

    found = value_of("x", text)
    assert found == value and type(found) is type(value)
