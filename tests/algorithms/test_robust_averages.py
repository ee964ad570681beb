"""Rules of averaging that hold out against single clients: every method with the setting heeds it."""

import attrs
import pytest
import torch

from core.server.aggregation import Aggregation
from tests.algorithms.subjects import crowd, subjects

SUBJECTS = subjects()
#: FedDistill that shares logits alone averages no models, and refuses the setting
METHODS = [
    name
    for name, subject in SUBJECTS.items()
    if isinstance(subject.settings, Aggregation) and "sharing=logits" not in name
]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_that_has_the_setting_heeds_it(name):
    """In the parameters of its model: buffers may go another way."""
    subject, learned = SUBJECTS[name], []
    for rule in ("mean", "median"):
        settings = attrs.evolve(subject.settings, aggregation=rule)
        changed = attrs.evolve(subject, settings=settings)
        *_, last = changed.run(crowd(subject.task_kind))
        model = changed.new().model(last.state)
        models = model if isinstance(model, list) else [model]
        learned.append([one.detach() for each in models for one in each.parameters()])
    assert any(not torch.equal(a, b) for a, b in zip(*learned, strict=True))
