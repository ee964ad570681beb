"""HAM10000 as melanoma against the rest: a stand-in for ISIC 2020 where that is not at hand.

Tschandl, Rosendahl, Kittler 2018, doi:10.7910/DVN/DBW86T. 1,113 of 10,015 images, 11%, are melanoma
(ISIC 2020: 1.8%); they come from four centres, which are kept.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import torch

from core.data.dataset import Dataset, Split, fingerprint_of
from core.errors import InputError

CLASSES = ("other", "melanoma")
#: the name of melanoma among the classes of HAM10000
MELANOMA = "mel"


def melanoma_or_not(ham10000: Dataset, name: str, path: Path) -> Dataset:
    """The same images and centres with class 1 for melanoma and 0 for all else.

    Raises InputError, naming the file that was read, when it has no class "mel".
    """
    if MELANOMA not in ham10000.classes:
        raise InputError(f"{path} has no class {MELANOMA!r}; it has: {', '.join(ham10000.classes)}")
    label = ham10000.classes.index(MELANOMA)

    def two(split: Split) -> Split:
        return attrs.evolve(split, labels=(split.labels == label).to(torch.int64))

    train, val, test = two(ham10000.train), two(ham10000.val), two(ham10000.test)
    return attrs.evolve(
        ham10000,
        name=name,
        train=train,
        val=val,
        test=test,
        classes=CLASSES,
        fingerprint=fingerprint_of(train, val, test),
    )
