"""The statistics behind the verdicts: what measured values, one per seed, say about a printed one.

Everything is an interval, so that noise never counts in favour of a claim: seeds that differ much
make a comparison *inconclusive*, not a number reproduced.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import attrs
import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit  # `scipy.stats` takes a second to import

from core.errors import InputError

OUTCOMES = ("equivalent", "consistent", "different", "inconclusive")
#: runs behind a printed deviation; the papers that say it say three
PRINTED_SEEDS = 3
#: a comparison that could miss a difference of so many margins is inconclusive
RESOLUTION = 2.5
#: power at which a difference counts as detectable
POWER = 0.8
#: seeds beyond which no experiment is proposed
MOST_SEEDS = 100


@attrs.frozen
class Comparison:
    """Measured means beside one printed value, all in its unit; numbers or arrays of one shape.

    Args:
        mean, std: of the values of `seeds` runs (at least two), the deviation with n - 1.
        printed, printed_std: the number and its deviation, both over `printed_seeds` runs; None: these
            runs spread as ours do.
        margin: differences up to this do not matter.
        looks: how often the values were compared, this time included, before the number of seeds was final.
    """

    mean: np.ndarray | float
    std: np.ndarray | float
    seeds: int
    printed: float
    printed_std: float | None
    margin: float
    printed_seeds: int = PRINTED_SEEDS
    looks: int = 1

    @property
    def level(self) -> float:
        """The level of each test: 5% are shared evenly by the looks at the values, each with more seeds than
        the last (Bonferroni's bound: it holds however they depend on each other).
        """
        return 0.05 / self.looks

    def __attrs_post_init__(self) -> None:
        if self.seeds < 2:
            raise InputError(f"a comparison needs at least two seeds, not {self.seeds}")

    @property
    def error(self) -> tuple[np.ndarray, np.ndarray]:
        """Standard error of measured minus printed, and its degrees of freedom (Welch 1947)."""
        ours, own = np.square(self.std) / self.seeds, self.seeds - 1
        if self.printed_std is None:
            both = self.std * np.sqrt(1 / self.seeds + 1 / self.printed_seeds)
            return np.asarray(both), np.asarray(float(own))
        theirs = self.printed_std**2 / self.printed_seeds
        both = ours + theirs
        parts = np.square(ours) / own + theirs**2 / (self.printed_seeds - 1)
        freedom = np.where(parts > 0, np.square(both) / np.where(parts > 0, parts, 1), own)
        return np.sqrt(both), freedom

    @property
    def detectable(self) -> np.ndarray:
        """The smallest true difference that a two-sided test would find with about `POWER`: with
        three seeds 77%, and where the paper has a deviation as large as ours 69 to 76%, as the sum of two
        quantiles of t falls short of the noncentral one.
        """
        error, freedom = self.error
        return (stdtrit(freedom, 1 - self.level / 2) + stdtrit(freedom, POWER)) * error

    @property
    def outcome(self) -> np.ndarray:
        """One of `OUTCOMES`, as text. Both verdicts take the noise of both sides, by `error`.

        *equivalent*: the 90% interval of measured minus printed lies within the margin: two one-sided
        tests at 5% (Schuirmann 1987). *different*: the two are farther apart than the margin, and the
        95% interval of their difference leaves out 0. *inconclusive*: neither, and a difference of
        `RESOLUTION` margins could have been missed. *consistent*: the rest.
        """
        away = np.abs(self.mean - self.printed)
        error, freedom = self.error
        beyond = np.maximum(stdtrit(freedom, 1 - self.level / 2) * error, self.margin)
        slack = 1e-9  # the last digits of a float must not decide
        return np.select(
            [
                away + stdtrit(freedom, 1 - self.level) * error <= self.margin + slack,
                ~(away <= beyond + slack),  # also where the mean is not a number
                self.detectable > RESOLUTION * self.margin + slack,
            ],
            ["equivalent", "different", "inconclusive"],
            "consistent",
        )

    def seeds_to_decide(self) -> int | None:
        """The fewest seeds beyond those at hand with which this mean and this spread would have another
        outcome than *inconclusive*; None where none up to `MOST_SEEDS` would.
        """
        for seeds in range(int(np.max(self.seeds)) + 1, MOST_SEEDS + 1):
            if attrs.evolve(self, seeds=seeds).outcome != "inconclusive":
                return seeds
        return None


def interval(
    differences: Sequence[float], confidence: float = 0.9, exact: bool = False
) -> tuple[float, float, float]:
    """The mean of paired differences, one for each seed, and the two ends of its t interval.

    Runs with the same seed share partition and initial network, so their differences spread less
    than their values. One seed, or the same difference in all, says nothing of their spread: then the
    interval is the whole line. Raises InputError for no seed.

    Args:
        exact: whether the values follow from shapes and counts, as bytes do, so that the same
            difference in several seeds is the true one.
    """
    if not len(differences):
        raise InputError("paired differences need at least one seed that both sides have")
    gaps = np.asarray(differences, dtype=float)
    mean, half = float(gaps.mean()), math.inf
    if _varied(gaps):
        half = float(
            stdtrit(len(gaps) - 1, (1 + confidence) / 2) * gaps.std(ddof=1) / len(gaps) ** 0.5
        )
    elif exact and len(gaps) > 1:
        half = 0.0
    return mean, mean - half, mean + half


def probability(gaps: Sequence[float], true: float = 0.0, exact: bool = False) -> float:
    """Probability that paired differences with a mean of `true` are as low as these (t test); 1 where they
    say nothing of their spread. `exact` as in `interval`.
    """
    below = np.mean(gaps) - true
    if not _varied(gaps):
        return float(not (exact and len(gaps) > 1 and below < 0))
    return float(stdtr(len(gaps) - 1, below / np.std(gaps, ddof=1) * len(gaps) ** 0.5))


def _varied(gaps: Sequence[float] | np.ndarray) -> bool:
    """Return whether differences spread by more than the last digits of a float."""
    return bool(np.ptp(gaps) > 1e-9 * np.abs(gaps).max())


def kendall(
    printed: Sequence[float], measured: np.ndarray, noise: float = 0.0
) -> tuple[float, float, float]:
    """Kendall's tau between a printed and a measured order of rows: its mean over seeds and the
    ends of its 95% t interval. It ends at -1 and 1 at most, and does so where `interval` knows of no
    spread: with one seed, or the same tau in all.

    Args:
        printed: (R,); measured: (seeds, R), paired by seed.
        noise: pairs of rows that are printed at most so far apart do not count.

    Returns nan where no pair counts.
    """
    gaps = np.subtract.outer(printed, printed)
    first, second = np.nonzero(np.triu(np.abs(gaps) > noise, 1))
    if not len(first):
        return math.nan, math.nan, math.nan
    signs = np.sign(measured[:, first] - measured[:, second]) * np.sign(gaps[first, second])
    taus = signs.mean(1)
    mean, low, high = interval(taus, 0.95)
    return mean, max(low, -1.0), min(high, 1.0)


def expected_verdicts(
    rng: np.random.Generator,
    stds: Sequence[float] = (0.5, 2.0, 5.0, 10.0),
    gaps: Sequence[float] = (0.0, 2.0, 5.0, 15.0),
    draws: int = 4000,
) -> pd.DataFrame:
    """Simulate how often the rule gives each of `OUTCOMES`: a share per `deviation`, `true gap` between
    the means, number of `seeds`, and for the paper's number `with its deviation` and without.

    Both sides are normal with the same deviation, the paper's over `PRINTED_SEEDS` runs. The margin is 2;
    with another one everything scales.
    """
    rows = []
    for std, gap, n, stated in itertools.product(stds, gaps, (3, 5, 10), (True, False)):
        ours = rng.normal(gap, std, (draws, n))
        theirs = rng.normal(0, std, (draws, PRINTED_SEEDS))
        # a comparison has one reported number; here each has its own, moved to 0, and its own deviation
        gap_seen, spread = ours.mean(1) - theirs.mean(1), theirs.std(1, ddof=1) if stated else None
        said = Comparison(gap_seen, ours.std(1, ddof=1), n, 0.0, spread, 2.0).outcome  # type: ignore[arg-type]
        shares = {name: float((said == name).mean()) for name in OUTCOMES}
        rows.append(
            {"deviation": std, "true gap": gap, "seeds": n, "with its deviation": stated, **shares}
        )
    return pd.DataFrame(rows)
