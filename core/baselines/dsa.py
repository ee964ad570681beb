"""DSA: condensation by gradient matching under siamese augmentation, in one communication.

Zhao, Bilen. Dataset Condensation with Differentiable Siamese Augmentation. ICML 2021. It is DC,
where real and condensed images of a class get the same random transform before their gradients are
compared.
"""

from __future__ import annotations

from typing import Self

import attrs

from core.baselines import dc
from core.condensation.engine import strategy


@attrs.frozen(kw_only=True)
class Settings(dc.Settings):
    """Hyper-parameters of DSA: those of DC."""

    augmentation: str = attrs.field(
        default="color_crop_cutout_flip_scale_rotate", validator=strategy
    )

    @classmethod
    def released(cls) -> Self:
        """The authors' commands: real starts, batches without replacement. They do not flip digits, and
        augment what the server trains on, which here does as GDD-FL's.
        """
        return cls(init="real", replacement=False)


class DSA(dc.DC):
    """Gradient matching of augmented images."""

    Settings = Settings
