"""FedDM: batched and single clients."""

import pytest

from core import algorithms
from core.experiments import Experiment
from core.federation import Runtime, make_clients, make_task
from core.rng import Rng

AUGMENTATION = "color_crop_cutout_flip_scale_rotate"
FAST = {"iterations": 3, "real_batch": 8, "pool": 2, "server_steps": 4, "share": 0.05}
TINY = Experiment(algorithm="feddm", dataset="digits", model_options={"width": 8}, clients=3, rounds=2,
                  partition={"name": "dirichlet", "alpha": 0.5}, settings=FAST)


@pytest.fixture(scope="module")
def task():
    return make_task(TINY, Runtime())


@pytest.mark.parametrize("estimator", ["minibatch", "feature_bank", "expectation"])
def test_clients_upload_the_same_in_one_batch_and_one_by_one(task, estimator):
    feddm = algorithms.create("feddm", FAST | {"estimator": estimator, "augmentation": AUGMENTATION})
    clients, state, rng = make_clients(TINY, task), feddm.initialise(task, Rng(0)), Rng(3)
    messages = {client.id: feddm.broadcast(state, client.id) for client in clients}
    batched = feddm.clients_update(clients, messages, rng)
    for client in clients:
        alone = feddm.client_update(client, messages[client.id], rng.at("client", client.id)).tensors
        together = batched[client.id].tensors
        assert alone["labels"].equal(together["labels"])
        apart = (alone["images"].int() - together["images"].int()).abs()
        assert apart.max() <= 1 and (apart > 0).float().mean() < 0.01
