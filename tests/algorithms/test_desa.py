"""DESA: the contrastive loss, the exchange of anchors, the objective and the mutual teachers."""

import attrs
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from core import algorithms
from core.baselines import desa as module
from core.baselines.desa import anchors, anchors_format, collect, supervised_contrastive
from core.condensation.latent import Separate
from core.families import condensing
from core.federation import Ledger, Message, UploadError, pack, validate_uploads
from core.rng import Rng
from tests.algorithms.on_digits import on_digits

ANCHORS = {"ipc": 2, "iterations": 3, "real_batch": 8, "pool": 2, "estimator": "expectation"}
LOCAL = {"local_steps": 2, "batch_size": 16}
VARIANTS = ("printed", "released")
TINY = on_digits("desa", LOCAL | ANCHORS, alpha=0.3, rounds=3, evaluate_every=9)


def desa(**settings):
    return algorithms.create("desa", TINY.settings | settings)


def test_the_contrastive_loss_is_that_of_khosla():
    features = torch.randn(9, 4, generator=torch.Generator().manual_seed(0)).double()
    labels = torch.tensor([0, 0, 1, 1, 1, 2, 0, 1, 0])  # the only one of class 2 has no positive
    z, tau, total = F.normalize(features).numpy(), 0.07, 0.0
    for i in range(9):
        positives = [p for p in range(9) if p != i and labels[p] == labels[i]]
        below = sum(np.exp(z[i] @ z[a] / tau) for a in range(9) if a != i)
        terms = [np.log(np.exp(z[i] @ z[p] / tau) / below) for p in positives]
        total -= sum(terms) / max(len(positives), 1)
    found = supervised_contrastive(features, labels, tau)
    assert float(found) == pytest.approx(total / 9, rel=1e-10)
    assert float(supervised_contrastive(features[:1], labels[:1], tau)) == 0


@pytest.mark.parametrize("encoder", ["task", "convnet"])
def test_anchors_are_matched_at_another_random_network_in_every_iteration(
    task, clients, monkeypatch, encoder
):
    """By the statistics of their own batch; the code's ConvNet normalises by instance."""
    seen, condense = [], module.condense
    monkeypatch.setattr(
        module, "condense", lambda *given: seen.append(given[0]) or condense(*given)
    )
    form = {"encoder": encoder, "encoder_width": 6, "encoder_depth": 2}
    desa(candidates=3, **form).at_clients("anchors", clients, {}, Rng(3))
    (objective,) = seen
    assert isinstance(objective.normalisation, Separate)
    counts = torch.cat([client.class_counts for client in clients])
    assert objective.real.group.bincount().equal(counts[counts > 0].clamp(max=3))
    for number in (0, 1, 5):
        objective.resample(number)
        rng = Rng(3).at("network", number)
        fresh = task.new_model(rng)
        if encoder == "convnet":
            fresh = condensing.instance_convnet(task, rng, 6, 2)
        for name, value in objective.encoder.model.state_dict().items():
            assert torch.equal(value, fresh.state_dict()[name])


def given(classes, value, shape=(2, 1, 8, 8)):
    images = torch.full((len(classes), *shape), value, dtype=torch.uint8)
    return Message(
        {"anchors/images": images, "anchors/classes": torch.tensor(classes, dtype=torch.uint8)}
    )


def test_anchors_are_averaged_over_the_clients_that_have_the_class(task):
    state = desa().initialise(task, Rng(0))

    def images(state):
        return anchors(state)["anchors/images"].flatten(1).float().mean(1).tolist()

    state = attrs.evolve(
        state, tensors=collect(state, {0: given([1, 4], 10), 1: given([4, 9], 200)})
    )
    assert anchors(state)["anchors/labels"].tolist() == [1, 1, 4, 4, 9, 9]
    assert images(state) == [10, 10, 105, 105, 200, 200]
    again = attrs.evolve(state, tensors=collect(state, {2: given([1], 40)}))
    assert images(again)[0] == 25
    third = attrs.evolve(state, tensors=collect(again, {3: given([1], 6)}))
    assert images(third)[0] == 19  # 56 / 3, to the nearest


def test_two_anchors_of_one_class_are_refused(task):
    algorithm = desa()
    with pytest.raises(UploadError, match="client 7"):
        validate_uploads(
            [(7, given([1, 1], 0))],
            (anchors_format(algorithm.initialise(task, Rng(0))), {}),
            {7: 9},
            Ledger.aside(),
            fault_of=algorithm.upload_fault,
        )


def test_a_client_that_comes_later_gives_and_gets_anchors(task, clients):
    algorithm, ledger = desa(kd=0.0), Ledger()
    state = algorithm.initialise(task, Rng(0))
    for number, those in enumerate((clients[:2], clients[2:], clients)):
        ledger.open_round()
        state = algorithm.round(state, those, ledger, Rng(number))
    assert [entry["up"].get("anchors", 0) > 0 for entry in ledger.rounds] == [True, True, False]
    # clients 0 and 1 get what has changed while they were away; client 2 has it
    size = sum(value.numel() for value in anchors(state).values())
    assert [entry["down"].get("anchors", 0) for entry in ledger.rounds][1:] == [size, 2 * size]
    assert ledger.rounds[0]["up"]["anchors"] == (2 * 64 + 1) * sum(
        len(client.labels.unique()) for client in clients[:2]
    )
    for client in clients:
        assert client.memory["anchors/images"].equal(anchors(state)["anchors/images"])


@pytest.fixture
def exchanged(task, clients):
    """DESA, and its state when the anchors have been exchanged."""
    algorithm, ledger = desa(), Ledger()
    ledger.open_round()
    state = algorithm.exchange(algorithm.initialise(task, Rng(0)), clients, ledger, Rng(0))
    return algorithm, state


def models(task, *ids):
    """Uploads of other models by these clients."""
    return {k: Message(pack(task.new_model(Rng(k))), {"samples": 9}) for k in ids}


def test_the_teacher_is_the_mean_of_the_other_models(task, exchanged):
    algorithm, state = exchanged
    uploads = models(task, 0, 1, 2)
    assert "logits/others" not in algorithm.broadcast(state, 0).tensors
    new = algorithm.server_update(state, uploads, Rng(0))
    outputs = {
        id_: task.outputs(task.model_from(upload.tensors), anchors(state)["anchors/images"])
        for id_, upload in uploads.items()
    }
    for id_ in outputs:
        mean = torch.stack([value for other, value in outputs.items() if other != id_]).mean(0)
        torch.testing.assert_close(algorithm.broadcast(new, id_).tensors["logits/others"], mean)
    # only those of the last round, on the anchors of today
    alone = algorithm.server_update(new, {0: uploads[0]}, Rng(0))
    other = attrs.evolve(new, tensors=collect(new, {5: given([1, 4], 10)}))
    for state in (alone, other):
        assert "logits/others" not in algorithm.broadcast(state, 0).tensors


@pytest.mark.parametrize(("reg", "kd"), [(0.7, 0.0), (0.0, 1.3), (0.7, 1.3)])
def test_the_objective_is_the_sum_of_the_three_losses(task, clients, reg, kd):
    """L_REG moves the features of the batch only: those of anchors carry no gradient."""
    algorithm, client = desa(reg=reg, kd=kd, kd_temperature=4.0, reg_temperature=0.5), clients[0]
    images, labels = task.dataset.test.images[:6], task.dataset.test.labels[:6]
    client.memory = {"anchors/images": images, "anchors/labels": labels.to(torch.uint8)}
    teacher = torch.randn(6, 10, generator=torch.Generator().manual_seed(1))
    model, batch, y = task.new_model(Rng(0)), client.images[:5], client.labels[:5]
    received = Message({"logits/others": teacher})
    objective, draws = algorithm.objective(client, received, Rng(2)), Rng(2).generator()
    for _ in range(2):  # a batch and the next, which has other anchors
        found = objective(model, batch, y)
        rows = torch.randint(6, (16,), generator=draws)
        features = model.embed(task.inputs(torch.cat([batch, images[rows]])))
        logits = model.classifier(features).double()
        ce = F.cross_entropy(logits[:5], y)
        fixed = torch.cat([features[:5], features[5:].detach()]).double()
        contrast = supervised_contrastive(fixed, torch.cat([y, labels[rows]]), 0.5)
        p, q = ((each / 4).softmax(1) for each in (teacher[rows].double(), logits[5:]))
        expected = ce + reg * contrast + kd * 16 * (p * (p / q).log()).sum(1).mean()
        assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-4)
        pairs = (torch.autograd.grad(loss, list(model.parameters())) for loss in (found, expected))
        for slope, wanted in zip(*pairs, strict=True):
            torch.testing.assert_close(slope, wanted, rtol=1e-3, atol=1e-5)


def test_a_step_is_down_the_mean_over_the_clients_images_and_all_anchors(task, clients):
    """With every image in one batch."""
    plain = {"lr": 0.5, "momentum": 0.0, "weight_decay": 0.0, "local_steps": 1, "reg": 0.0}
    algorithm, client = desa(**plain, kd=0.0, batch_size=10_000), clients[0]
    images, model = task.dataset.test.images[:12], task.new_model(Rng(0))
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 4, 4, 5, 5, 9, 9])
    given = {"anchors/images": images, "anchors/labels": labels.to(torch.uint8)}
    found = algorithm.client_update(client, Message(pack(model) | given), Rng(1)).tensors
    outputs = model(task.inputs(torch.cat([client.images, images])))
    F.cross_entropy(outputs, torch.cat([client.labels, labels])).backward()
    for name, w in model.named_parameters():
        wanted = w.detach() - 0.5 * w.grad
        torch.testing.assert_close(found[f"parameters/{name}"], wanted, rtol=1e-3, atol=1e-5)
