"""Classes that are weighed in the loss of local training."""

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from sklearn.utils.class_weight import compute_class_weight

from core.errors import InputError
from core.federation import SupervisedTraining
from lab import make_task
from tests.algorithms.on_digits import on_digits
from tests.algorithms.on_drawings import on_nuclei

BALANCED = SupervisedTraining(class_weights="balanced")
TINY = on_digits("fedavg", model_options={"width": 4})


def few_of_the_first(task, few: int, many: int) -> torch.Tensor:
    """Labels (N,) with `few` of class 0 and `many` of every other."""
    classes = torch.arange(task.dataset.num_classes)
    return classes.repeat_interleave(torch.where(classes == 0, few, many))


def test_the_loss_is_that_of_scikit_learn_with_balanced_weights(task):
    labels = few_of_the_first(task, 3, 20)
    outputs = torch.randn(len(labels), 10, generator=torch.Generator().manual_seed(0))
    weights = compute_class_weight("balanced", classes=np.arange(10), y=labels.numpy())
    chances = outputs.double().softmax(1).numpy()
    wanted = log_loss(labels, chances, sample_weight=weights[labels])
    loss = BALANCED.data_loss(task, labels)
    assert loss(outputs, labels).item() == pytest.approx(wanted, rel=1e-6)
    # of a batch with another mixture the weights stay those of all images
    batch = torch.tensor([0, 1, 2, 30, 90])
    part = log_loss(
        labels[batch], chances[batch], sample_weight=weights[labels[batch]], labels=np.arange(10)
    )
    assert loss(outputs[batch], labels[batch]).item() == pytest.approx(part, rel=1e-6)
    assert part != pytest.approx(task.loss(outputs[batch], labels[batch]).item(), rel=1e-2)


def test_classes_of_one_size_weigh_alike_and_absent_ones_do_no_harm(task):
    labels = few_of_the_first(task, 0, 5)
    outputs = torch.randn(len(labels), 10, generator=torch.Generator().manual_seed(1))
    weighed = BALANCED.data_loss(task, labels)(outputs, labels)
    torch.testing.assert_close(weighed, task.loss(outputs, labels))
    assert SupervisedTraining().data_loss(task, labels) == task.loss


def test_shares_of_classes_weigh_as_the_classes_that_they_stand_for(task):
    """Half of the weight of two labels each, as two images of half the weight would."""
    labels = few_of_the_first(task, 3, 20)
    outputs = torch.randn(4, 10, generator=torch.Generator().manual_seed(2))
    loss = BALANCED.data_loss(task, labels)
    one, other = torch.tensor([0, 0, 4, 9]), torch.tensor([1, 5, 4, 0])
    halves = (torch.eye(10)[one] + torch.eye(10)[other]) / 2
    both = loss(outputs.repeat(2, 1), torch.cat([one, other]))
    torch.testing.assert_close(loss(outputs, halves), both)
    # a client of one class that is told of another one: n / (C n_c) = 0.1 of its own, 1 of the other
    alone = BALANCED.data_loss(task, torch.zeros(100, dtype=torch.int64))
    outputs = torch.tensor([[3.0] + 9 * [0.0], 10 * [0.0]])
    wanted = (0.1 * -outputs[0].log_softmax(0)[0] + np.log(10)) / 1.1
    assert alone(outputs, torch.tensor([0, 7])).item() == pytest.approx(wanted.item())


def test_what_is_no_classification_has_no_classes_to_weigh():
    dense = make_task(on_nuclei("fedavg", {}))
    with pytest.raises(InputError, match="class_weights must be none"):
        BALANCED.data_loss(dense, torch.zeros(1, dtype=torch.int64))
