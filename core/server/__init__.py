"""Computations of the server on the uploads of clients."""

from core.server.aggregation import Aggregation, combined, weighted_average
from core.server.generator import (
    GeneratorTraining,
    Heads,
    diversity,
    draw_labels,
    draw_noise,
    ensemble_cross_entropy,
    label_shares,
    train_generator,
)
from core.server.update import (
    Contrast,
    Projector,
    ServerTraining,
    aggregate_prototypes,
    feature_prototypes,
    hard_negatives,
    logit_prototypes,
    relational_contrastive_loss,
    update_by_epochs,
    update_model,
)

__all__ = [
    "Aggregation",
    "Contrast",
    "GeneratorTraining",
    "Heads",
    "Projector",
    "ServerTraining",
    "aggregate_prototypes",
    "combined",
    "diversity",
    "draw_labels",
    "draw_noise",
    "ensemble_cross_entropy",
    "feature_prototypes",
    "hard_negatives",
    "label_shares",
    "logit_prototypes",
    "relational_contrastive_loss",
    "train_generator",
    "update_by_epochs",
    "update_model",
    "weighted_average",
]
