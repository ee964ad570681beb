"""Settings of all tests."""

from hypothesis import settings

# a busy machine is slow, not wrong
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
