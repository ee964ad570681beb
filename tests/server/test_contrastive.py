"""The relational contrastive loss (FedVCK, Eq. 15) and its projector."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import InputError
from core.rng import Rng
from core.server import Projector, hard_negatives, relational_contrastive_loss

CLASSES, WIDTH = 4, 3
quick = settings(max_examples=40)


def example(
    seed: int, samples: int = 6, k: int = 2
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """z, labels, prototypes and negatives, all in float64."""
    draw = np.random.default_rng(seed)
    z, labels = draw.normal(size=(samples, WIDTH)), draw.integers(0, CLASSES, samples)
    prototypes, logits = draw.normal(size=(CLASSES, WIDTH)), draw.normal(size=(CLASSES, CLASSES))
    return (
        torch.tensor(z),
        torch.tensor(labels),
        torch.tensor(prototypes),
        hard_negatives(torch.tensor(logits), k),
    )


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


@quick
@given(
    seed=st.integers(0, 10_000),
    form=st.sampled_from(["printed", "released"]),
    similarity=st.sampled_from(["dot", "cosine"]),
    held=st.lists(st.booleans(), min_size=CLASSES, max_size=CLASSES),
    k=st.integers(1, 5),
    tau=st.sampled_from([0.1, 0.5, 1.0]),
)
def test_loss_equals_float64_loops(seed, form, similarity, held, k, tau):
    z, labels, prototypes, negatives = example(seed, k=k)
    terms = terms_by_hand(
        z.numpy(),
        labels.tolist(),
        prototypes.numpy(),
        negatives.tolist(),
        tau,
        form,
        similarity,
        held,
    )
    counted = [term for term in terms if term is not None]
    loss = relational_contrastive_loss(
        z, labels, prototypes, negatives, tau, form, similarity, torch.tensor(held)
    )
    mean = sum(counted) / max(len(counted), 1)
    assert loss.item() == pytest.approx(mean, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("form", ["printed", "released"])
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_gradient_equals_finite_differences(form, similarity):
    z, labels, prototypes, negatives = example(1)
    present = torch.tensor([True, True, False, True])
    prototypes.requires_grad_()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return relational_contrastive_loss(
            x, labels, prototypes, negatives, 0.7, form, similarity, present
        )

    variable = z.clone().requires_grad_()
    loss(variable).backward()
    step = 1e-6
    for i in range(len(z)):
        for d in range(WIDTH):
            shift = torch.zeros_like(z)
            shift[i, d] = step
            numeric = (loss(z + shift) - loss(z - shift)).item() / (2 * step)
            assert variable.grad[i, d].item() == pytest.approx(numeric, rel=1e-6, abs=1e-8)
    assert prototypes.grad is None, "prototypes are targets: no gradient flows into them"


@pytest.mark.parametrize("form", ["printed", "released"])
def test_own_class_among_the_negatives_is_counted_once(form):
    """With all classes in the denominator both forms are a cross-entropy; the released one with
    weights n_j.
    """
    z, labels, prototypes, _ = example(2, samples=8)
    everything = hard_negatives(
        torch.randn(CLASSES, CLASSES, dtype=torch.float64), CLASSES, own="forced"
    )
    loss = relational_contrastive_loss(z, labels, prototypes, everything, 1.0, form, "dot")
    logits = z @ prototypes.T
    if form == "released":
        logits = logits + torch.bincount(labels, minlength=CLASSES).double().log()
    assert loss.item() == pytest.approx(
        torch.nn.functional.cross_entropy(logits, labels).item(), rel=1e-12
    )


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


@pytest.mark.parametrize(
    "bad",
    [{"temperature": 0.0}, {"temperature": math.nan}, {"form": "print"}, {"similarity": "l2"}],
)
def test_bad_arguments(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        relational_contrastive_loss(*example(0), **{"temperature": 1.0, **bad})


def test_projector_equals_float64_numpy_and_leaves_the_global_random_numbers_alone():
    before = torch.random.get_rng_state()
    projector = Projector(6, Rng(4), hidden=5)
    assert torch.equal(torch.random.get_rng_state(), before)
    x = np.random.default_rng(0).normal(size=(7, 6))
    w = {name: value.detach().double().numpy() for name, value in projector.named_parameters()}
    hidden = x @ w["first.weight"].T + w["first.bias"]
    hidden = (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5)
    expected = np.maximum(hidden, 0) @ w["last.weight"].T + w["last.bias"]
    np.testing.assert_allclose(
        projector(torch.tensor(x).float()).detach().numpy(), expected, rtol=1e-4, atol=1e-5
    )


def test_projector_repeats_with_its_seed_and_takes_a_batch_of_one():
    one, same, other = Projector(6, Rng(4)), Projector(6, Rng(4)), Projector(6, Rng(5))
    x = torch.randn(1, 6)
    assert torch.equal(one(x), same(x)) and not torch.equal(one(x), other(x))
    # statistics of a fresh projector are those of no data, mean 0 and variance 1
    expected = one.last((one.first(x) / math.sqrt(1 + 1e-5)).relu())
    torch.testing.assert_close(one(x), expected)
