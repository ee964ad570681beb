"""Bi-level condensation against closed forms, finite differences and other normalisation."""

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from core import models
from core.condensation import (
    Extraction,
    ExtractionProblem,
    KnowledgeNetwork,
    LatentEncoder,
    bilevel,
    bilevel_step,
    descend,
    extract,
    network_losses,
)
from core.condensation.bilevel import draw_batches
from core.rng import Rng

SHORT = Extraction(iterations=3, image_lr=5.0, inner_batch=6, real_batch=5)


def lenet(seed=0, dtype=torch.float64):
    return models.build("lenet", 1, 8, 3, Rng(seed)).to(dtype)


def data_of(dtype=torch.float64, knowledge=6, real=5):
    """Knowledge (1, M, 1, 8, 8) and what the losses look at, of one client."""
    draw = torch.Generator().manual_seed(0)
    images = torch.rand(1, knowledge, 1, 8, 8, generator=draw, dtype=dtype) * 2 - 1
    return images, {
        "knowledge_labels": torch.arange(knowledge)[None] % 3,
        "images": torch.randn(1, real, 1, 8, 8, generator=draw, dtype=dtype),
        "labels": torch.randint(0, 3, (1, real), generator=draw),
        "weights": torch.rand(1, real, generator=draw, dtype=dtype),
    }


@given(
    eta=st.floats(0.01, 1.5),
    steps=st.sampled_from([1, 2, 3]),
    w=st.floats(-3, 3),
    target=st.floats(-3, 3),
)
def test_a_quadratic_in_closed_form(eta, steps, w, target):
    """L(w, x) = mean_i (w - x_i)^2 / 2 moves w to (1 - eta) w + eta m_s in step s, m_s the mean of
    its part of x; with the outer loss (w* - t)^2 / 2 the gradient with respect to an image of step
    s of S is (w* - t) eta (1 - eta)^(S - s) / (M / S).
    """
    x = torch.tensor([[0.5, -1.0, 2.0, 0.25, 1.5, -3.0]], dtype=torch.float64)
    given_ = {"t": torch.tensor([target], dtype=torch.float64)}
    step = bilevel_step(
        lambda weights, knowledge, _: (weights["w"] - knowledge).square().mean() / 2,
        lambda weights, _, data: (weights["w"] - data["t"]).square().sum() / 2,
        {"w": torch.tensor([w], dtype=torch.float64)},
        x,
        given_,
        lr=eta,
        steps=steps,
    )
    end, size = w, 6 // steps
    for part in x[0].split(size):
        end = (1 - eta) * end + eta * float(part.mean())
    assert float(step.weights["w"]) == pytest.approx(end, abs=1e-9)
    assert float(step.loss) == pytest.approx((end - target) ** 2 / 2, abs=1e-9)
    powers = [(1 - eta) ** (steps - 1 - image // size) for image in range(6)]
    wanted = [(end - target) * eta * power / size for power in powers]
    assert step.gradient.flatten().tolist() == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("statistics", ["knowledge", "batch"])
@pytest.mark.parametrize("steps", [1, 2])
def test_the_gradient_through_a_network_is_that_of_finite_differences(statistics, steps):
    """The outer loss is 1/N sum_i phi_i l_i (Eq. 8)."""
    network = KnowledgeNetwork(lenet())
    inner, outer = network_losses(network, statistics)
    knowledge, data = data_of()
    mine = {name: value[0] for name, value in data.items()}

    def loss(images):
        adapted = descend(inner, network.weights(), images, mine, 0.5, steps)
        last = 6 // steps  # the images of the last step give the statistics
        return float(outer(adapted, images[-last:], mine).detach())

    step = bilevel_step(
        inner, outer, network.weights(), knowledge, data, lr=0.5, steps=steps, shared=True
    )
    assert float(step.loss) == pytest.approx(loss(knowledge[0]), rel=1e-12)
    direction = torch.randn(knowledge[0].shape, generator=Rng(5).generator(), dtype=torch.float64)
    for probe in (direction, *torch.eye(64, dtype=torch.float64)[[9, 30]].view(2, 1, 1, 8, 8)):
        ahead, behind = (loss(knowledge[0] + sign * 1e-5 * probe) for sign in (1, -1))
        slope = float((step.gradient[0] * probe).sum())
        assert slope == pytest.approx((ahead - behind) / 2e-5, rel=1e-4, abs=1e-9)
    if statistics == "batch":
        logits = network.logits(network.weights(), mine["images"])
        each = F.cross_entropy(logits, mine["labels"], reduction="none")
        weighed = (mine["weights"] * each).sum() / 5
        torch.testing.assert_close(outer(network.weights(), knowledge[0], mine), weighed)


def test_real_images_are_normalised_by_the_knowledge():
    """The same from the encoder of distribution matching, given the statistics of the knowledge."""
    model = lenet(dtype=torch.float32)
    knowledge, data = data_of(torch.float32)
    both, group = torch.cat([knowledge[0], data["images"][0]]), torch.zeros(11, dtype=torch.int64)
    network, encoder = KnowledgeNetwork(model), LatentEncoder(model)
    ours = network.logits(network.weights(), both, lead=6)
    _, statistics = encoder(both[:6], group[:6])
    expected = model.classifier(encoder(both, group, statistics)[0])
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    alone = model.train()(data["images"][0])
    by_itself = network.logits(network.weights(), data["images"][0])
    torch.testing.assert_close(by_itself, alone, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(ours[6:], alone, atol=1e-3)


def test_every_pass_over_the_images_has_a_new_order():
    plan = Extraction(iterations=5, inner_batch=6, real_batch=24)
    for rows, count in zip(draw_batches([problem(0)], plan), (20, 6), strict=True):
        passes = rows.flatten()[: 2 * count].view(2, count)
        assert all(torch.equal(one.sort().values, torch.arange(count)) for one in passes)
        assert not torch.equal(passes[0], passes[1])
        assert not torch.equal(passes[0], torch.arange(count))


def problem(seed, real=20, knowledge=6, classes=3):
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (real,), generator=draw)
    # a bright stripe says which class an image has
    images = torch.randint(0, 60, (real, 1, 8, 8), generator=draw, dtype=torch.uint8)
    images[torch.arange(real), :, 2 * labels] = 255
    return ExtractionProblem(
        images,
        labels,
        torch.ones(real),
        torch.rand(knowledge, 1, 8, 8, generator=draw) * 2 - 1,
        torch.arange(knowledge) % classes,
        Rng(seed),
    )


def prepare(images):
    return images.float() / 128 - 1


@pytest.mark.parametrize("inner_steps", [1, 2])
def test_a_client_extracts_the_same_alone_and_in_company(monkeypatch, inner_steps):
    """Also with fewer images than a batch, one image only, or more clients than run at once."""
    monkeypatch.setattr(bilevel, "CLIENTS", 2)
    model, plan = lenet(dtype=torch.float32), attrs.evolve(SHORT, inner_steps=inner_steps)
    problems = [problem(0), problem(2, real=1, knowledge=1), problem(3, real=40, knowledge=12)]
    together, losses = extract(model, problems, plan, prepare)
    for one, mine, loss in zip(problems, together, losses.unbind(1), strict=True):
        (alone,), apart = extract(model, [one], plan, prepare)
        torch.testing.assert_close(alone, mine, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(apart[:, 0], loss, rtol=1e-4, atol=1e-5)
        assert not torch.equal(mine, one.knowledge)


def test_an_image_that_stands_twice_in_a_batch_moves_by_both_gradients():
    """As in the loss in which all four images of an inner batch are the same image."""
    model, one = lenet(), problem(4, real=3, knowledge=1)
    one = attrs.evolve(one, knowledge=one.knowledge.double(), weights=one.weights.double())
    plan = Extraction(iterations=1, image_lr=2.0, inner_batch=4, real_batch=3, inner_lr=0.5)
    (moved,), _ = extract(model, [one], plan, lambda images: prepare(images).double())
    network = KnowledgeNetwork(model)
    inner, outer = network_losses(network)
    data = {"knowledge_labels": one.knowledge_labels.repeat(4), "labels": one.labels}
    data |= {"weights": one.weights, "images": prepare(one.images).double()}
    image = one.knowledge.clone().requires_grad_()
    tied = image.repeat(4, 1, 1, 1)
    loss = outer(descend(inner, network.weights(), tied, data, 0.5, 1), tied, data)
    torch.testing.assert_close(moved, one.knowledge - 2.0 * torch.autograd.grad(loss, image)[0])


def test_inner_steps_go_on_until_the_horizon():
    """Without a step of the knowledge, t iterations of one inner step are one of t steps."""
    model, one = lenet(dtype=torch.float32), problem(0)
    still = Extraction(iterations=4, image_lr=1e-30, inner_batch=6, real_batch=20)
    single = attrs.evolve(still, iterations=1)
    plans = [attrs.evolve(single, inner_steps=steps) for steps in (1, 2, 3, 4)]
    deep = [float(extract(model, [one], plan, prepare)[1]) for plan in plans]
    assert len({round(loss, 4) for loss in deep}) == 4
    for horizon, wanted in ((1, [0, 0, 0, 0]), (3, [0, 1, 2, 0]), (9, [0, 1, 2, 3])):
        _, losses = extract(model, [one], attrs.evolve(still, horizon=horizon), prepare)
        assert losses[:, 0].tolist() == pytest.approx([deep[steps] for steps in wanted], rel=1e-5)
