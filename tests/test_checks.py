"""Settings as parts of others."""

from __future__ import annotations

import attrs
import pytest

from core.checks import check_kinds, number, part, whole
from core.errors import InputError


@attrs.frozen(kw_only=True)
class Descent:
    lr: float = attrs.field(default=0.1, validator=number(0))
    batch_size: int = 8
    decay: float = 0.5


@attrs.frozen(kw_only=True)
class Whole:
    lr: float = 7.0
    server_lr: float = 0.3
    server_batch: int = 32


def test_a_part_takes_values_by_prefix_then_what_is_given_then_its_own_defaults():
    whole = Whole()
    assert part(whole, Descent, "server_", batch_size=whole.server_batch) == Descent(
        lr=0.3, batch_size=32, decay=0.5
    )
    assert part(whole, Descent) == Descent(lr=7.0)
    assert part(whole, Descent, "server_", lr=1.0).lr == 1.0


def test_a_part_checks_its_values():
    with pytest.raises(InputError, match="lr must be"):
        part(Whole(server_lr=-1.0), Descent, "server_")


@pytest.mark.parametrize("value", [3.5e38, 1e300, 10**400, float("inf"), float("nan")])
def test_a_number_fits_a_float32(value):
    with pytest.raises(InputError, match="lr must be a number of at least 0"):
        Descent(lr=value)
    assert Descent(lr=3.4e38).lr == 3.4e38


@attrs.frozen(kw_only=True)
class Bare:
    mu: float = 0.1
    steps: int = 5
    on: bool = True
    form: str = "mean"
    either: int | None = None


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("mu", "abc", "a number"),
        ("mu", True, "a number"),
        ("mu", float("nan"), "a number"),
        ("mu", [0.1], "a number"),
        ("steps", 2.5, "a whole number"),
        ("steps", True, "a whole number"),
        ("on", 1, "true or false"),
        ("on", "yes", "true or false"),
        ("form", 3, "a text"),
    ],
)
def test_a_setting_without_a_validator_is_what_its_annotation_says(name, value, wanted):
    with pytest.raises(InputError, match=f"^{name} must be {wanted}, not"):
        check_kinds(Bare(**{name: value}))


@pytest.mark.parametrize("kind", [float, "float"], ids=["a type", "its name"])
def test_an_annotation_counts_as_a_type_and_as_its_name(kind):
    made = attrs.make_class("Made", {"mu": attrs.field(default=0.1, type=kind)})
    check_kinds(made(mu=2))
    with pytest.raises(InputError, match="mu must be a number"):
        check_kinds(made(mu="2"))


def test_values_of_other_annotations_are_left_to_their_class():
    check_kinds(Bare(mu=-1, steps=-5, on=False, form="", either="anything"))


def test_a_validator_has_the_say_where_there_is_one():
    mu = attrs.field(type=float, validator=whole(0, optional=True))
    check_kinds(attrs.make_class("Own", {"mu": mu})(mu=None))
