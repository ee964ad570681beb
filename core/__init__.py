"""Federated learning by condensation and distillation: the methods.

Floors, from the ground up: `data`, `models`, `metrics`; then `condensation`, `distillation`,
`privacy`; `server`; `federation`; `families`; `baselines`; `algorithms`. A floor imports only from
floors below it.
"""

__version__ = "0.1.0"
