"""Intervals behind the verdicts, against SciPy and by simulation."""

import math

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from core.errors import InputError
from lab.report.intervals import (
    OUTCOMES,
    PRINTED_SEEDS,
    Comparison,
    expected_verdicts,
    interval,
    kendall,
    probability,
)


def compared(found, printed, printed_std=None, margin=2.0):
    return Comparison(
        np.mean(found), np.std(found, ddof=1), len(found), printed, printed_std, margin
    )


_found = st.lists(st.floats(0, 100).map(lambda x: round(x, 3)), min_size=2, max_size=8)


@given(_found, st.lists(st.floats(0, 100), min_size=3, max_size=3))
def test_with_a_printed_deviation_verdicts_are_welchs_tests(found, theirs):
    """A reported number with three runs behind it is the second sample: *equivalent* by two one-sided tests,
    *different* by the two-sided one, beyond the margin.
    """
    both = np.std(found, ddof=1), np.std(theirs, ddof=1)
    if min(both) < 1e-3 or len(theirs) != PRINTED_SEEDS:
        return

    def p(shift, side):
        moved = np.add(theirs, shift)
        return stats.ttest_ind(found, moved, equal_var=False, alternative=side).pvalue

    said = compared(found, float(np.mean(theirs)), float(both[1])).outcome
    gap, worst = abs(np.mean(found) - np.mean(theirs)), max(p(-2, "greater"), p(2, "less"))
    if min(abs(worst - 0.05), abs(p(0, "two-sided") - 0.05), abs(gap - 2)) > 1e-6:
        assert (said == "equivalent") == (worst < 0.05)
        assert (said == "different") == (p(0, "two-sided") < 0.05 and gap > 2)


def test_without_a_printed_deviation_print_is_three_runs_that_spread_as_ours():
    """After 60, 61, 62 the standard error is sqrt(1/3 + 1/3), with two degrees of freedom."""
    half = 4.30265 * math.sqrt(2 / 3)
    for printed, said in ((61 + half - 0.01, "consistent"), (61 + half + 0.01, "different")):
        assert compared([60, 61, 62], printed).outcome == said


@pytest.mark.parametrize(
    ("found", "printed", "std", "said"),
    [
        ([60, 60, 60], 62.0, None, "equivalent"),
        ([60, 60, 60], 62.01, None, "different"),
        ([60.2, 61, 61.8], 61.0, None, "equivalent"),  # 2.920 * 0.8 * sqrt(2/3) = 1.91
        ([60.2, 61, 61.8], 61.1, None, "consistent"),
        ([59, 61, 63], 61.5, None, "inconclusive"),  # to miss 8.8 points is likely
        ([60.2, 60.5, 60.8, 60.5, 60.5], 62.4, 0.5, "consistent"),
        ([50, 60, 70], 61.0, 5.0, "inconclusive"),
        ([50, 60, 70], 99.0, 1.0, "different"),
        ([math.nan, 60, 60], 60.0, None, "different"),
    ],
)
def test_outcomes_by_hand(found, printed, std, said):
    assert compared(found, printed, std).outcome == said


@given(_found, st.floats(0, 100), st.sampled_from([None, 0.0, 1.0, 5.0]), st.integers(-50, 50))
def test_outcomes_do_not_change_when_everything_moves(found, printed, std, shift):
    here = compared(found, printed, std)
    moved = compared(np.add(found, shift), printed + shift, std)
    near = abs(here.mean - printed)
    assert here.outcome in OUTCOMES
    if here.std > 1e-3 and abs(near - 2) > 1e-3:
        mirrored = compared([2 * printed - x for x in found], printed, std)
        assert mirrored.outcome == here.outcome == moved.outcome


def test_a_wider_spread_never_makes_a_number_equivalent():
    order = {"equivalent": 2, "consistent": 1, "inconclusive": 0}
    for gap in (0.0, 0.5, 1.0, 1.9):
        said = [Comparison(gap, std, 5, 0.0, None, 2.0).outcome for std in np.linspace(0, 9, 60)]
        ranks = [order[str(one)] for one in said if one != "different"]
        assert ranks == sorted(ranks, reverse=True) and "inconclusive" in said


@pytest.mark.parametrize(("seeds", "spread", "power"), [(10, None, 0.8), (3, 1.0, 0.69)])
def test_the_detectable_difference_is_detected_as_often_as_it_says(seeds, spread, power):
    """Each experiment has its own spreads, and so its own limit."""
    rng, draws = np.random.default_rng(0), 20000
    gap = float(Comparison(0.0, 1.0, seeds, 0.0, spread, 2.0).detectable)
    ours, theirs = rng.normal(gap, 1, (draws, seeds)), rng.normal(0, 1, (draws, PRINTED_SEEDS))
    found = stats.ttest_ind(ours, theirs, axis=1, equal_var=False).pvalue < 0.05
    if spread is None:
        error = ours.std(1, ddof=1) * math.sqrt(1 / seeds + 1 / PRINTED_SEEDS)
        away = np.abs(ours.mean(1) - theirs.mean(1))
        found = away > stats.t.ppf(0.975, seeds - 1) * error
    assert found.mean() == pytest.approx(power, abs=0.03)


@pytest.mark.parametrize(
    ("mean", "std", "printed", "printed_std", "outcome"),
    [
        (91.6, 2.0, 91.9, None, "consistent"),
        (31.6, 3.0, 38.5, None, "different"),
        (24.6, 2.0, 26.0, 0.5, "consistent"),
    ],
)
def test_seeds_to_decide(mean, std, printed, printed_std, outcome):
    """The fewest with which this mean and spread are inconclusive no more, whatever they are then."""
    now = Comparison(mean, std, 3, printed, printed_std, 2.0)
    seeds = range(3, now.seeds_to_decide() + 1)
    found = [str(attrs.evolve(now, seeds=each).outcome) for each in seeds]
    assert set(found[:-1]) == {"inconclusive"} and found[-1] == outcome


def test_where_print_spreads_much_no_number_of_seeds_decides():
    assert Comparison(2.5, 4.0, 3, 0.0, 9.0, 2.0).seeds_to_decide() is None


def test_one_seed_is_refused():
    with pytest.raises(InputError, match="two seeds"):
        Comparison(1.0, 0.0, 1, 1.0, None, 2.0)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=2, max_size=9))
def test_paired_differences_as_scipy_has_them(pairs):
    a, b = map(list, zip(*pairs, strict=True))
    if np.std(np.subtract(a, b)) < 1e-2:
        return
    theirs = stats.ttest_rel(a, b).confidence_interval(0.9)
    np.testing.assert_allclose(interval(np.subtract(a, b))[1:], theirs, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("gaps", [[2.0], [2.0] * 3, [0.0] * 3, [0.4 - 0.1, 0.5 - 0.2]])
def test_one_pair_and_equal_ones_say_nothing(gaps):
    """By hand 0.4 - 0.1 = 0.5 - 0.2, but not in the last digit of a float."""
    assert interval(gaps) == (pytest.approx(gaps[0]), -math.inf, math.inf)
    assert probability(gaps, 2.5) == probability(gaps, -2.5) == 1
    assert probability(gaps, 2.5, exact=True) == (len(gaps) == 1)
    # unless it is exact, of two seeds or more
    exact = 0 if len(gaps) > 1 else math.inf
    assert interval(gaps, exact=True)[2] == pytest.approx(gaps[0] + exact)


@given(_found, st.floats(0, 100))
def test_the_chance_of_differences_so_low_as_scipy_has_it(gaps, true):
    if np.std(gaps) < 1e-2:
        return
    theirs = stats.ttest_1samp(gaps, true, alternative="less").pvalue
    assert probability(gaps, true) == pytest.approx(theirs, abs=1e-9)


@given(st.permutations(range(6)), st.permutations(range(6)), st.permutations(range(6)))
def test_tau_as_scipy_has_it(printed, first, second):
    tau, low, high = kendall(printed, np.array([first, second]))
    each = [stats.kendalltau(printed, one).statistic for one in (first, second)]
    assert tau == pytest.approx(np.mean(each)) and -1 <= low <= tau + 1e-9 and tau <= high + 1e-9


def test_pairs_within_the_noise_of_print_do_not_count():
    for near in (1.5, 2.0):  # also as far apart as the noise
        assert kendall([1.0, near, 9.0], np.array([[2.0, 1.0, 3.0]]), noise=1.0)[0] == 1.0
    assert kendall([1.0, 1.5, 9.0], np.array([[2.0, 1.0, 3.0]]))[0] == pytest.approx(1 / 3)
    assert math.isnan(kendall([1.0, 1.5], np.array([[2.0, 1.0]]), noise=1.0)[0])


def test_false_verdicts_are_rare():
    """Noise is not rewarded: a true gap of 15 points with a deviation of 10 is hardly ever called
    equivalent or consistent, and a true replication is called different in about one of twenty.
    """
    shares = expected_verdicts(np.random.default_rng(1), draws=2000)
    assert np.allclose(shares[list(OUTCOMES)].sum(axis=1), 1)
    same, far = shares[shares["true gap"] == 0], shares[shares["true gap"] == 15]
    assert (same["different"] < 0.08).all()
    noisy = far[far["deviation"] == 10]
    assert (noisy["equivalent"] + noisy["consistent"] < 0.01).all()
    assert (far[far["deviation"] == 0.5]["different"] > 0.99).all()
    assert (same[same["deviation"] == 0.5]["equivalent"] > 0.8).all()
    assert (shares[shares["true gap"] == 5]["equivalent"] < 0.06).all()


def test_the_interval_of_tau_is_over_seeds_and_has_95_percent():
    """Of three rows: four seeds as printed, four with one pair the other way round: 2/3 ± 0.298."""
    found = np.array([[1.0, 2.0, 3.0], [1.0, 3.0, 2.0]] * 4)
    taus = [1.0, 1 / 3] * 4
    ends = stats.t.interval(0.95, 7, np.mean(taus), stats.sem(taus))
    assert kendall([1.0, 2.0, 3.0], found) == pytest.approx((2 / 3, *ends))


def test_each_look_at_growing_seeds_takes_its_share_of_five_percent():
    """At a gap of one margin *equivalent* is false: with three seeds, and a fourth where they decide not."""
    rng, draws = np.random.default_rng(0), 20000
    for std in (0.3, 0.6, 1.0):
        ours, theirs = rng.normal(2, std, (draws, 4)), rng.normal(0, std, (draws, PRINTED_SEEDS))
        gap = theirs.mean(1)

        def said(seeds, looks, gap=gap, ours=ours):
            of = ours[:, :seeds]
            return Comparison(
                of.mean(1) - gap, of.std(1, ddof=1), seeds, 0.0, None, 2.0, looks=looks
            ).outcome

        first = said(3, 2)
        false = (first == "equivalent") | (first != "different") & (said(4, 2) == "equivalent")
        assert false.mean() < 0.05
    assert Comparison(0.0, 1.0, 3, 0.0, None, 2.0, looks=2).level == 0.025
