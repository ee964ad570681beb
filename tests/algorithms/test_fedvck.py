"""FedVCK: batched and single clients, degenerate clients, switches, ablations, resuming, bytes."""

import attrs
import pytest
import torch

from core import algorithms
from core.experiments import Experiment
from core.federation import Runtime, make_clients, make_task, rounds
from core.rng import Rng

AUGMENTATION = "color_crop_cutout_flip_scale_rotate"
FAST = {"iterations": 3, "image_lr": 0.2, "real_batch": 8, "pool": 2, "server_steps": 4, "share": 0.05}
TINY = Experiment(algorithm="fedvck", dataset="digits", model_options={"width": 8}, clients=3, rounds=2,
                  partition={"name": "dirichlet", "alpha": 0.5}, settings=FAST)


@pytest.fixture(scope="module")
def task():
    return make_task(TINY, Runtime())


def fedvck(**settings):
    return algorithms.create("fedvck", FAST | settings)


def uploads(algorithm, task, clients, rng, batched):
    """What the clients answer to M_0 in one batch, or each by itself; the clients are fresh copies."""
    clients = [attrs.evolve(client, memory=dict(client.memory)) for client in clients]
    state = algorithm.initialise(task, Rng(0))
    messages = {client.id: algorithm.broadcast(state, client.id) for client in clients}
    if batched:
        return algorithm.clients_update(clients, messages, rng), clients
    return {client.id: algorithm.client_update(client, messages[client.id], rng.at("client", client.id))
            for client in clients}, clients


def assert_same_uploads(one, other):
    """Images within one grey level, and nearly all equal; the rest as close as float32 sums in another order are."""
    assert one.keys() == other.keys()
    for id_, upload in one.items():
        for name, value in upload.tensors.items():
            value, twin = value.cpu(), other[id_].tensors[name].cpu()
            assert value.dtype == twin.dtype and value.shape == twin.shape
            if value.dtype == torch.uint8 and name == "images":
                apart = (value.int() - twin.int()).abs()
                assert apart.max() <= 1 and (apart > 0).float().mean() < 0.01
            else:
                torch.testing.assert_close(value, twin, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("settings", [
    {"estimator": "minibatch"}, {"estimator": "feature_bank"}, {"estimator": "expectation"},
    {"estimator": "minibatch", "candidates": 7, "statistics": "running", "clip_norm": 0.5},
    {"estimator": "expectation", "candidates": 7, "batches": "sliding"},
    {"estimator": "feature_bank", "kernel": "gaussian", "wo_latent": True},
    {"first_model": "own", "wire": "float32"},
], ids=str)
def test_clients_upload_the_same_in_one_batch_and_one_by_one(task, settings):
    algorithm, clients = fedvck(**({"augmentation": AUGMENTATION} | settings)), make_clients(TINY, task)
    batched, _ = uploads(algorithm, task, clients, Rng(3), True)
    alone, _ = uploads(algorithm, task, clients, Rng(3), False)
    assert_same_uploads(batched, alone)


@pytest.mark.parametrize("settings", [{}, {"variant": "released"}], ids=str)
def test_two_rounds_run(task, settings):
    experiment = attrs.evolve(TINY, **settings)
    *_, last = rounds(experiment, task=task)
    assert all(value.isfinite().all() for value in last.state.tensors.values())
