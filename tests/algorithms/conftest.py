"""What the tests of one algorithm start from: the module's `TINY` experiment."""

import pytest

from core.federation import Runtime
from lab import make_clients, make_task


@pytest.fixture(scope="module")
def task(request):
    """Its data and its network."""
    return make_task(request.module.TINY, Runtime())


@pytest.fixture
def clients(request, task):
    """Its clients, with empty memories."""
    return make_clients(request.module.TINY, task)
