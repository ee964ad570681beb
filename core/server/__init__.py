"""What the server computes from what clients send."""

from core.server.aggregation import weighted_average

__all__ = ["weighted_average"]
