"""What the server computes from what clients send."""

from core.server.aggregation import weighted_average
from core.server.contrastive import Projector, relational_contrastive_loss
from core.server.prototypes import aggregate_prototypes, feature_prototypes, hard_negatives, logit_prototypes
from core.server.update import Contrast, ServerTraining, update_model

__all__ = ["Contrast", "Projector", "ServerTraining", "aggregate_prototypes", "feature_prototypes", "hard_negatives",
           "logit_prototypes", "relational_contrastive_loss", "update_model", "weighted_average"]
