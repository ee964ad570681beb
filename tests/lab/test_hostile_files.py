"""Specifications and printed numbers from others: bounded before they are read, one line for each
mistake.
"""

import os

import pytest

from core.errors import InputError
from lab.report.verdict import in_printed_unit
from lab.spec import LARGEST, UNITS, as_published, read_published, read_yaml

LAUGHS = "a: &a [x]\n" + "\n".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
YAML = {
    "aliases that explode": LAUGHS,
    "many aliases": "a: &a [1]\n" + "\n".join(f"k{i}: *a" for i in range(40_000)),
    "an alias to itself": "a: &a [*a]\n",
    "deep lists": "a: " + "[" * 50_000,
    "deep mappings": "a: " + "{a: " * 50_000,
    "a key twice among 20,000": "\n".join(f"k{i}: 1" for i in range(20_000)) + "\nk7: 2\n",
    "a list": "- 1\n",
    "nothing": "",
    "Python": "a: !!python/object/apply:os.system ['true']\n",
    "a key that is a list": "? [1]\n: 2\n",
    "a tab": "a:\n\t- 1\n",
}


@pytest.mark.parametrize("name", YAML)
def test_a_specification_that_is_none(tmp_path, name):
    path = tmp_path / "fedvck" / "3.yaml"
    path.parent.mkdir()
    path.write_text(YAML[name])
    with pytest.raises(InputError, match=r"3\.yaml") as error:
        read_yaml(path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300 + len(str(path))


@pytest.mark.timeout(30)
def test_many_keys_are_read_in_no_time(tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_text("\n".join(f"k{i}: 1" for i in range(20_000)))
    assert len(read_yaml(path)) == 20_000


def test_an_alias_and_a_merge_work(tmp_path):
    path = tmp_path / "alias.yaml"
    path.write_text("base: &base {lr: 1, steps: 2}\none: {<<: *base, lr: 3}\nother: *base\n")
    assert read_yaml(path)["one"] == {"lr": 3, "steps": 2}


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "loop", "bytes", "large"])
@pytest.mark.parametrize("read", [read_yaml, read_published])
def test_what_lies_in_the_place_of_a_file(tmp_path, read, kind):
    path = tmp_path / "file"
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "loop":
            path.symlink_to(path)
            if read is read_published:
                pytest.skip("a file that may be missing")
        case "bytes":
            path.write_bytes(b"a: \xff\xfe")
        case "large":
            with path.open("wb") as file:
                file.truncate(LARGEST + 1)
    with pytest.raises(InputError, match="file"):
        read(path)


HEADER = "table,metric,value,std,unit,better,note\n"
CSV = {
    "a short row": HEADER + "3,accuracy,97\n",
    "a long row": HEADER + "3,accuracy,97,,percent,higher,,more\n",
    "no column of values": "table,metric\n3,accuracy\n",
    "a field of a million letters": HEADER + f'3,accuracy,97,,percent,higher,"{"x" * 200_000}"\n',
    "a zero byte": HEADER + "3,accuracy,97\0,,percent,higher\n",
}


@pytest.mark.parametrize("name", CSV)
def test_printed_numbers_that_are_none(tmp_path, name):
    path = tmp_path / "published.csv"
    path.write_text(CSV[name])
    with pytest.raises(InputError, match=r"published\.csv"):
        read_published(path)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999", "", "97%", "<b>97</b>"])
def test_a_value_that_is_no_number(value):
    row = {"value": value, "std": "", "unit": "percent", "better": "higher", "note": ""}
    with pytest.raises(InputError, match="no number"):
        as_published(row, "here")
    with pytest.raises(InputError, match="no number"):
        as_published(row | {"value": "97", "std": value or "x"}, "here")
    with pytest.raises(InputError, match="no number"):
        as_published(row | {"value": "97", "std_elsewhere": value or "x"}, "here")


@pytest.mark.parametrize(("key", "value"), [("unit", "procent"), ("better", "lowr")])
def test_a_word_that_would_turn_a_verdict_round(key, value):
    row = {"value": "97", "std": "", "unit": "percent", "better": "higher", "note": ""}
    assert as_published(row, "here").value == 97
    with pytest.raises(InputError, match=f"no {key} in published.csv .* named '{value}'"):
        as_published(row | {key: value}, "here")


@pytest.mark.parametrize("unit", UNITS)
def test_each_unit_of_print_can_be_measured(unit):
    assert in_printed_unit(1.0, unit) > 0
