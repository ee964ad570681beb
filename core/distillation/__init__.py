"""Distillation: divergences between teachers and student, ensembles of teachers, losses of a
generator.
"""

from core.distillation.adversarial import gan_losses, generated
from core.distillation.ensemble import class_input_importance, ensemble_logits
from core.distillation.losses import (
    balance_loss,
    confidence_loss,
    disagreement,
    entropy,
    jensen_shannon,
    kl_divergence,
    mimic_loss,
    reversed_divergence,
)

__all__ = [
    "balance_loss",
    "class_input_importance",
    "confidence_loss",
    "disagreement",
    "ensemble_logits",
    "entropy",
    "gan_losses",
    "generated",
    "jensen_shannon",
    "kl_divergence",
    "mimic_loss",
    "reversed_divergence",
]
