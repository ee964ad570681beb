"""The server's training epoch by epoch: its rates, and which epoch is kept."""

import attrs
import pytest
import torch

from core.rng import Rng
from core.server import ServerTraining, update_by_epochs
from core.training import cosine


def linear():
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.0)
    return model


def slope(model, images, labels):
    """Its gradient is -1 wherever the weight is, so a weight is the sum of all rates so far."""
    return -model.weight.sum()


PLAN = ServerTraining(lr=0.5, momentum=0.0, weight_decay=0.0, batch_size=2, epochs=4, decay=1.0)
DATA = torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64)


def test_a_cosine_goes_from_one_to_a_hundredth():
    """As the released line: ((1 + cos(x pi / E)) / 2) (1 - 0.01) + 0.01."""
    assert [cosine(1, 0.01, e, 2) for e in (0, 1, 2)] == pytest.approx([1.0, 0.505, 0.01])
    assert cosine(1, 0.01, 1, 4) == pytest.approx(0.01 + 0.99 * (1 + 0.5**0.5) / 2)


@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize("decay", [1.0, 0.1])
def test_every_epoch_has_its_rate(falling, decay):
    """Two batches an epoch (of 2 and of 1), four epochs, the second half at the decayed rate."""
    model = linear()
    plan = attrs.evolve(PLAN, decay=decay)
    update_by_epochs(model, *DATA, plan, slope, Rng(0), falling=falling)
    shares = [cosine(1, 0.01, e, 4) if falling else 1.0 for e in range(4)]
    total = sum(2 * 0.5 * share * (decay if e >= 2 else 1) for e, share in enumerate(shares))
    assert model.weight.item() == pytest.approx(total)


def test_the_last_of_the_best_epochs_is_kept():
    seen, scores = [], iter([0.2, 0.7, 0.7, 0.1])

    def score(model):
        seen.append(model.weight.item())
        return next(scores)

    model = linear()
    update_by_epochs(model, *DATA, PLAN, slope, Rng(0), score=score)
    assert seen == pytest.approx([1, 2, 3, 4])
    assert model.weight.item() == pytest.approx(3)


def test_steps_take_the_place_of_epochs():
    model = linear()
    update_by_epochs(model, *DATA, attrs.evolve(PLAN, steps=3), slope, Rng(0))
    assert model.weight.item() == pytest.approx(2)  # two whole epochs hold three steps
