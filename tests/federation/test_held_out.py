"""Hyper-parameters are chosen on data that neither the clients nor the test see."""

import attrs
import pytest
import torch

from core.data import Split, load, with_validation
from core.errors import InputError
from core.federation import Runtime
from core.rng import Rng
from lab import Experiment, make_clients, make_task, rounds
from lab.running import task_on

TINY = Experiment(
    algorithm="fedavg",
    dataset="digits",
    model_options={"width": 8},
    clients=3,
    rounds=1,
    partition={"name": "dirichlet", "alpha": 0.5},
    settings={"local_steps": 2, "batch_size": 16},
)


def digits_without_validation():
    data = load("digits")
    none = Split(data.val.images[:0], data.val.labels[:0])
    return attrs.evolve(data, val=none)


def test_a_tenth_of_the_training_set_is_held_out_where_there_is_no_validation_split():
    data = digits_without_validation()
    held = with_validation(data, Rng(0))
    assert len(held.val) == -(-len(data.train) // 10) and len(held.train) == len(data.train)
    assert len(held.held_out.unique()) == len(held.val)
    assert torch.equal(held.val.images, data.train.images[held.held_out])
    assert not torch.equal(held.held_out, with_validation(data, Rng(1)).held_out)


def test_a_split_of_its_own_is_kept():
    data = attrs.evolve(load("digits"), val=load("digits").test)
    assert with_validation(data, Rng(0)) is data


def test_no_client_gets_what_is_held_out():
    task = make_task(TINY, Runtime())
    data = with_validation(digits_without_validation(), Rng(0))
    # a training set whose first pixel numbers the rows, in base 256
    rows = torch.arange(len(data.train))
    images = data.train.images.clone()
    images[:, 0, 0, 0], images[:, 0, 0, 1] = (rows // 256).byte(), (rows % 256).byte()
    numbered = attrs.evolve(
        task, dataset=attrs.evolve(data, train=Split(images, data.train.labels))
    )
    clients = make_clients(TINY, numbered)
    handed = torch.cat(
        [c.images[:, 0, 0, 0].long() * 256 + c.images[:, 0, 0, 1].long() for c in clients]
    )
    assert sorted(handed.tolist()) == sorted(set(rows.tolist()) - set(data.held_out.tolist()))


def test_every_seed_holds_out_the_same_images():
    """Tries of a hyper-parameter with several seeds are compared on one validation set."""
    data, on_val = digits_without_validation(), attrs.evolve(TINY, evaluate_on="val")
    held = [task_on(data, attrs.evolve(on_val, seed=seed), Runtime()).dataset for seed in (0, 1)]
    assert torch.equal(held[0].held_out, held[1].held_out)
    assert task_on(data, TINY, Runtime()).dataset.held_out is None


def test_an_experiment_says_what_it_is_evaluated_on():
    on_val = attrs.evolve(TINY, evaluate_on="val")
    assert on_val.id != TINY.id
    task = make_task(on_val, Runtime())
    (last,) = rounds(on_val, task=task)
    (on_test,) = rounds(TINY, task=task, clients=make_clients(on_val, task))
    # the same model, judged on two sets
    measured = task.evaluate(on_val.new_algorithm().model(on_test.state), "val")
    assert last.metrics == measured != on_test.metrics


def test_patches_of_the_pictures_that_are_trained_on_are_no_validation_data():
    data = load("nuclei_drawn")
    assert data.task_kind == "segmentation" and not len(data.val)
    with pytest.raises(InputError, match="has no validation split"):
        with_validation(data, Rng(0))
