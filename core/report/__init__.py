"""Tables and figures, computed from records: what a paper prints beside what was measured here."""

from core.report.figures import condensed_images, curve_frame, curves, partition_plot, show
from core.report.listing import source
from core.report.status import (
    coverage,
    headline,
    progress,
    records_apart,
    records_summary,
    versions,
)
from core.report.tables import metrics_frame, table, table_frame

__all__ = [
    "condensed_images",
    "coverage",
    "curve_frame",
    "curves",
    "headline",
    "metrics_frame",
    "partition_plot",
    "progress",
    "records_apart",
    "records_summary",
    "show",
    "source",
    "table",
    "table_frame",
    "versions",
]
