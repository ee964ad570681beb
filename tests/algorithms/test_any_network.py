"""Every method serves any network, or says before anything trains which part it lacks."""

import attrs
import pytest
from torch import nn

from core.errors import InputError
from core.federation import check_serves, rounds
from tests.algorithms.subjects import crowd, subjects, task

SUBJECTS = {
    subject.name: subject
    for subject in subjects().values()
    if subject.task_kind == "classification"
}


class Bare(nn.Module):
    """Layers and names that no network of the package has."""

    def __init__(self, channels, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, 4, 4, 4), nn.Flatten(), nn.LayerNorm(16))
        self.last = nn.Linear(16, classes)

    def forward(self, images):
        return self.last(self.body(images))


class WithParts(Bare):
    def __init__(self, channels, classes):
        super().__init__(channels, classes)
        self.embed, self.classifier = self.body, self.last
        del self.body, self.last

    def forward(self, images):
        return self.classifier(self.embed(images))


class TwoNames(Bare):
    def __init__(self, channels, classes):
        super().__init__(channels, classes)
        self.embed, self.classifier = self.body, self.last


class NoBias(WithParts):
    def __init__(self, channels, classes):
        super().__init__(channels, classes)
        self.classifier.bias = None


@pytest.mark.parametrize("name", ["fedgen", "fedmk"])
@pytest.mark.parametrize(
    ("network", "lacks"), [(TwoNames, "weight and no classifier.bias"), (NoBias, "bias")]
)
def test_a_last_layer_whose_weights_have_other_names_is_refused(name, network, lacks):
    with pytest.raises(InputError, match=f"no classifier.{lacks}: it needs"):
        check_serves(SUBJECTS[name].new(), attrs.evolve(task(), model=network, model_options={}))


@pytest.mark.parametrize("name", SUBJECTS)
def test_any_network(name):
    algorithm = SUBJECTS[name].new()
    algorithm.schedule = attrs.evolve(algorithm.schedule, rounds=2)
    network = WithParts if algorithm.network_parts else Bare
    own = attrs.evolve(task(), model=network, model_options={})
    clients = [attrs.evolve(client, task=own) for client in crowd()]
    assert list(rounds(algorithm, own, clients, 0))[-1].metrics
    if algorithm.network_parts:
        with pytest.raises(InputError, match=f"has no {algorithm.network_parts[0]}"):
            check_serves(algorithm, attrs.evolve(own, model=Bare))
