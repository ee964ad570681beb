"""What the server computes from what clients send."""

from core.server.aggregation import weighted_average
from core.server.contrastive import Projector, relational_contrastive_loss
from core.server.prototypes import aggregate_prototypes, feature_prototypes, hard_negatives, logit_prototypes

__all__ = ["Projector", "aggregate_prototypes", "feature_prototypes", "hard_negatives", "logit_prototypes",
           "relational_contrastive_loss", "weighted_average"]
