"""FedAD: attention, its loss, and the ensemble that the student learns."""

from __future__ import annotations

import attrs
import pytest
import torch

from core.baselines import fedad as module
from core.baselines.fedad import attention_loss, with_attention
from core.errors import InputError
from core.federation import Message, Runtime
from core.rng import Rng
from core.training import batches
from lab import make_clients, make_task, rounds
from tests.algorithms.on_drawings import on_heads, on_nuclei

R, NONE = Rng(0), torch.empty(0, dtype=torch.int64)

FAST = {"local_steps": 3, "batch_size": 4, "distill_steps": 6, "distill_batch": 4}
TINY = on_heads("fedad", FAST)


def test_attention_by_hand(task):
    network = task.model_from(TINY.new_algorithm().initialise(task, R).tensors, "student/").eval()
    inputs = task.inputs(task.dataset.val.images[:2])
    energy = (network.encode(inputs)[-1] ** 2).sum(1)
    outputs, found = with_attention(network, inputs)
    assert torch.equal(outputs, network(inputs))
    for one, raw in zip(found, energy, strict=True):
        torch.testing.assert_close(one, raw / raw.max())
    with pytest.raises(InputError, match="model 'unet'"):
        with_attention(torch.nn.Identity(), inputs)


def test_attention_loss_by_hand():
    maps = torch.tensor([[[[0.2, 0.5]]], [[[0.6, 0.5]]]])
    between = torch.tensor([[[0.4, 0.5]]])
    assert attention_loss(between, maps) == 0
    outside = torch.tensor([[[0.9, 0.1]]])  # 0.3 above the union, 0.4 below the intersection
    assert attention_loss(outside, maps).item() == pytest.approx((0.09 + 0.16) / 2)
    (slope,) = torch.autograd.grad(attention_loss(outside.requires_grad_(), maps), outside)
    torch.testing.assert_close(slope, torch.tensor([[[0.3, -0.4]]]))


def test_a_client_answers_with_a_network_of_its_own_that_has_trained_as_long_as_it_should(
    task, monkeypatch
):
    """Two passes over its images in batches of four; the public images are normalised as its own are."""
    trained = []

    def train(model, images, labels, local, objective, rng):
        trained.append((model, local.steps(len(images))))

    monkeypatch.setattr(module, "train", train)
    own = {k: v for k, v in FAST.items() if k != "local_steps"} | {"local_epochs": 2}
    algorithm, clients = attrs.evolve(TINY, settings=own).new_algorithm(), make_clients(TINY, task)
    images = algorithm.public(task)
    told = {client.id: Message({"images": images}) for client in clients}
    answers = algorithm.at_clients("teach", clients, told, R.at("client"))
    assert [steps for _, steps in trained] == [2 * -(-len(client) // 4) for client in clients]
    for client, (model, _), answer in zip(clients, trained, answers.values(), strict=True):
        assert answer.tensors["counts"].tolist() == [client.labels.numel()]  # pixels
        outputs, looks = with_attention(model, task.inputs(images))
        torch.testing.assert_close(answer.tensors["outputs"], outputs)
        torch.testing.assert_close(answer.tensors["attention"], looks)
    one, *others = (next(model.parameters()) for model, _ in trained)
    assert others and not any(torch.equal(one, other) for other in others)


#: how often each class occurs at two clients, and what they so weigh
SHARES = [
    (on_heads, ([3], [1]), ([0.75], [0.25])),
    (on_nuclei, ([3, 1, 0], [1, 1, 2]), ([0.75, 0.5, 0.0], [0.25, 0.5, 1.0])),
]


@pytest.mark.parametrize(("drawn", "counts", "shares"), SHARES, ids=["one map", "three maps"])
def test_the_students_loss_weighs_clients_and_attention(drawn, counts, shares):
    """Adam's mean after a step is a tenth of the gradient of |S - sum_k pi_k T_k|^2 + lambda L."""
    stated = drawn("fedad", FAST | {"attention": 30.0, "student_lr": 0.02})
    algorithm, task = stated.new_algorithm(), make_task(stated, Runtime())
    some = task.dataset.train.rows(torch.arange(6))
    task = attrs.evolve(task, dataset=attrs.evolve(task.dataset, val=some))
    state, inputs = algorithm.initialise(task, R), task.inputs(algorithm.public(task))
    said = [
        (*with_attention(task.new_model(Rng(k)), inputs), torch.tensor(count))
        for k, count in enumerate(counts, 1)
    ]
    told = {
        f"teachers/{k}/{name}": value.detach()
        for k, one in enumerate(said)
        for name, value in zip(("outputs", "attention", "counts"), one, strict=True)
    }
    found = algorithm._distilled(task, state.tensors | told, 0, 1, R)
    (rows,) = batches(len(inputs), 4, 1, R.at("batches"), inputs.device)
    student = task.model_from(state.tensors, "student/")
    outputs, own = with_attention(student, inputs[rows])
    wanted = sum(
        torch.tensor(share).view(-1, 1, 1) * told[f"teachers/{k}/outputs"][rows]
        for k, share in enumerate(shares)
    )
    looks = torch.stack([told[f"teachers/{k}/attention"][rows] for k in (0, 1)])
    ((outputs - wanted).square().sum(1).mean() + 30 * attention_loss(own, looks)).backward()
    for name, w in student.named_parameters():
        mean = found[f"student/adam/exp_avg/{name}"]
        torch.testing.assert_close(mean, 0.1 * w.grad, rtol=1e-3, atol=1e-6)
        # the step itself is -lr g / (|g| + eps)
        moved, clear = found[f"student/parameters/{name}"] - w.detach(), w.grad.abs() > 1e-4
        torch.testing.assert_close(moved[clear], -0.02 * w.grad[clear].sign(), rtol=0.01, atol=1e-5)


def test_public_images_go_down_once_and_answers_up_once(task):
    *_, one = rounds(TINY, task=task)
    *_, two = rounds(attrs.evolve(TINY, rounds=2), task=task)
    for name, value in one.state.tensors.items():
        assert torch.equal(value, two.state.tensors[name]), name
    images = task.dataset.val.images
    assert one.ledger.total("down") == two.ledger.total("down") == {"images": 3 * images.numel()}
    assert one.ledger.total("up")["outputs"] == 3 * images.numel() * 4
    assert set(one.metrics) >= {"ssim", "psnr", "ssim@ixi", "psnr@average"}


def test_without_public_images_it_says_so(task):
    bare = attrs.evolve(task, dataset=attrs.evolve(task.dataset, val=task.dataset.val.rows(NONE)))
    with pytest.raises(InputError, match="mri_drawn has no validation images"):
        TINY.new_algorithm().initialise(bare, R)
