"""Tables and figures, computed from records: what a paper prints beside what was measured here."""

import pandas as pd

from lab.report.charts import (
    curve_frame,
    curves,
    dots,
    lines,
    method_name,
    partition_plot,
    scatter,
)
from lab.report.figures import condensed_images, image_rows, show
from lab.report.frames import metrics_frame, table_frame
from lab.report.intervals import expected_verdicts
from lab.report.listing import source
from lab.report.tables import progress, table
from lab.report.totals import by_paper, directions, orders

__all__ = [
    "by_paper",
    "condensed_images",
    "curve_frame",
    "curves",
    "directions",
    "dots",
    "expected_verdicts",
    "image_rows",
    "lines",
    "method_name",
    "metrics_frame",
    "orders",
    "partition_plot",
    "progress",
    "scatter",
    "show",
    "source",
    "table",
    "table_frame",
]

# a page shows its tables whole: no words are cut off, and no rows left out of the middle
pd.set_option("display.max_colwidth", None, "display.max_rows", 200)
