"""A mistake is answered by one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from core.errors import InputError


def refused(words: str | None, call: Callable[..., Any], *given: Any, **named: Any) -> str:
    """The sentence that a call ends with; `words` is a pattern of it."""
    with pytest.raises(InputError, match=words) as caught:
        call(*given, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)
