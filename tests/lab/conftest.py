"""What tests of tables start from: all of their cells."""

from __future__ import annotations

import pytest

from lab.experiment import PROFILES
from lab.table import TableSpec


@pytest.fixture(scope="session")
def cells():
    """All cells of all tables, by profile."""
    return {
        profile: [cell for spec in TableSpec.all() for cell in spec.cells(profile)]
        for profile in PROFILES
    }
