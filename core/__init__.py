"""Federated learning by condensation and distillation: the package behind the book.

Floors, from the ground up: `data`, `models`, `metrics`; then `condensation`, `distillation`,
`privacy`; `server`; `federation`; `families`; `algorithms`; `experiments`; `report`; `cli`. A floor
imports only from floors below it.
"""

__version__ = "0.1.0"
