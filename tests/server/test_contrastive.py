"""The relational contrastive loss (FedVCK, Eq. 15) and its projector."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.rng import Rng
from core.server import Projector, hard_negatives, relational_contrastive_loss

CLASSES, WIDTH = 4, 3


def example(seed: int, samples: int = 6, k: int = 2) -> tuple[torch.Tensor, ...]:
    """z, labels, prototypes and negatives, all in float64."""
    draw = np.random.default_rng(seed)
    z, labels = draw.normal(size=(samples, WIDTH)), draw.integers(0, CLASSES, samples)
    prototypes, logits = draw.normal(size=(CLASSES, WIDTH)), draw.normal(size=(CLASSES, CLASSES))
    negatives = hard_negatives(torch.tensor(logits), k)
    return torch.tensor(z), torch.tensor(labels), torch.tensor(prototypes), negatives


def terms_by_hand(z, labels, prototypes, negatives, tau, form, similarity, present):
    """Every sample's term in float64, by loops; None for a sample that does not count."""
    unit = (lambda v: v / np.linalg.norm(v)) if similarity == "cosine" else (lambda v: v)
    e = [[math.exp(float(unit(row) @ unit(f)) / tau) for f in prototypes] for row in z]
    terms = []
    for i, c in enumerate(labels):
        below = {j for j in negatives[c] if j >= 0 and present[j]}
        if form == "released":
            # the prototype of every sample in the batch, one after the other
            up = sum(e[i][y] for y in labels if y == c)
            down = sum(e[i][y] for y in labels if y in below | {c})
        else:
            up, down = e[i][c], sum(e[i][j] for j in below)
        terms.append(-math.log(up / down) if down and present[c] else None)
    return terms


@given(
    seed=st.integers(0, 10_000),
    form=st.sampled_from(["printed", "released"]),
    similarity=st.sampled_from(["dot", "cosine"]),
    held=st.lists(st.booleans(), min_size=CLASSES, max_size=CLASSES),
    k=st.integers(1, 5),
    tau=st.sampled_from([0.1, 0.5, 1.0]),
)
def test_loss_equals_float64_loops(seed, form, similarity, held, k, tau):
    given_ = example(seed, k=k)
    arrays = [given_[0].numpy(), given_[1].tolist(), given_[2].numpy(), given_[3].tolist()]
    terms = terms_by_hand(*arrays, tau, form, similarity, held)
    counted = [term for term in terms if term is not None]
    loss = relational_contrastive_loss(*given_, tau, form, similarity, torch.tensor(held))
    mean = sum(counted) / max(len(counted), 1)
    assert loss.item() == pytest.approx(mean, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("form", ["printed", "released"])
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_gradient_equals_finite_differences(form, similarity):
    """Prototypes are targets: no gradient flows into them."""
    z, labels, prototypes, negatives = example(1)
    present = torch.tensor([True, True, False, True])
    rest = (negatives, 0.7, form, similarity, present)
    torch.autograd.gradcheck(
        lambda x: relational_contrastive_loss(x, labels, prototypes, *rest), z.requires_grad_()
    )
    prototypes.requires_grad_()
    relational_contrastive_loss(z, labels, prototypes, *rest).backward()
    assert prototypes.grad is None


@pytest.mark.parametrize("form", ["printed", "released"])
def test_own_class_among_the_negatives_is_counted_once(form):
    """With all classes below, both forms are a cross-entropy, the released with weights n_j."""
    z, labels, prototypes, _ = example(2, samples=8)
    everything = hard_negatives(torch.randn(CLASSES, CLASSES), CLASSES, own="forced")
    loss = relational_contrastive_loss(z, labels, prototypes, everything, 1.0, form, "dot")
    logits = z @ prototypes.T
    if form == "released":
        logits = logits + torch.bincount(labels, minlength=CLASSES).double().log()
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits, labels))


def test_large_products_neither_overflow_nor_lose_the_gradient():
    z = torch.tensor([[1e4, 0.0]], requires_grad=True)
    prototypes = torch.tensor([[1.0, 0.0], [0.5, 0.0]])
    loss = relational_contrastive_loss(
        z, torch.tensor([1]), prototypes, torch.tensor([[1], [0]]), 0.1
    )
    loss.backward()
    assert loss.item() == pytest.approx(5e4) and z.grad.tolist() == [[pytest.approx(5.0), 0.0]]


@pytest.mark.parametrize(
    ("negatives", "present"),
    [
        (torch.tensor([[-1], [-1]]), None),
        (torch.zeros(2, 0, dtype=torch.int64), None),
        (torch.tensor([[1], [0]]), torch.tensor([True, False])),
        (torch.tensor([[1], [0]]), torch.tensor([False, True])),
    ],
)
def test_without_anything_to_compare_the_loss_is_zero_and_so_is_the_gradient(negatives, present):
    z = torch.randn(3, WIDTH, requires_grad=True)
    labels, prototypes = torch.tensor([0, 0, 0]), torch.randn(2, WIDTH)
    loss = relational_contrastive_loss(z, labels, prototypes, negatives, 1.0, present=present)
    loss.backward()
    assert loss.item() == 0 and z.grad.abs().sum() == 0


def test_the_loss_is_float32_under_autocast():
    z, labels, prototypes, negatives = example(3)
    z = z.bfloat16()
    expected = relational_contrastive_loss(z.float(), labels, prototypes.float(), negatives, 1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = relational_contrastive_loss(z, labels, prototypes.float(), negatives, 1.0)
    assert loss.dtype == torch.float32 and loss == expected


def test_a_projector_takes_one_sample_and_is_drawn_from_its_stream():
    """Alone it has statistics of no data, mean 0 and variance 1."""
    projector = Projector(6, Rng(4), hidden=5)
    x = torch.randn(1, 6, generator=Rng(0).generator())
    hidden = projector.first(x) / math.sqrt(1 + 1e-5)
    torch.testing.assert_close(projector(x), projector.last(hidden.relu()))
    same, other = (Projector(6, Rng(seed), hidden=5) for seed in (4, 5))
    assert torch.equal(projector.last.weight, same.last.weight)
    assert not torch.equal(projector.last.weight, other.last.weight)
