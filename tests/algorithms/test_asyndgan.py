"""AsynDGAN: its losses, and what the server makes of the clients' gradients."""

from __future__ import annotations

import math

import attrs
import pytest
import torch
from torch.nn.functional import softplus

from core.baselines.asyndgan import AsynDGAN
from core.families import conditional
from core.federation import Client, Ledger, Message
from core.federation.tensors import unpack
from core.rng import Rng
from lab import make_clients, rounds
from tests.algorithms.on_digits import last_round
from tests.algorithms.on_drawings import on_nuclei
from tests.algorithms.watching import differences

FAST = {
    "gan_steps": 3,
    "gan_batch": 2,
    "local_steps": 3,
    "batch_size": 4,
    "generator_width": 2,
    "discriminator_width": 2,
}
TINY = on_nuclei("asyndgan", FAST, evaluate_every=9)


PIXELS = (2, 3, 32, 32)
ROWS = torch.tensor([3, 0])


def drawn(seed=0):
    return torch.rand(PIXELS, generator=torch.Generator().manual_seed(seed))


def asked(task, client, images, settings):
    """The gradient with respect to made images that a client answers."""
    algorithm = attrs.evolve(TINY, settings=FAST | settings).new_algorithm()
    message = Message({"images": images, "conditions/rows": ROWS})
    answers = algorithm.judge([client], {client.id: message}, [Rng(0)])
    return answers[client.id].tensors["gradients/images"]


#: how wrong a judge is about real images and about made ones, patch by patch
WRONG = {
    "vanilla": (lambda z: softplus(-z), softplus),
    "least_squares": (lambda z: (z - 1).square(), torch.square),
}


@pytest.mark.parametrize("gan_loss", WRONG)
@pytest.mark.parametrize("factors", [(0.3, 0.0, 0.0), (0.0, 7.0, 0.0), (0.1, 2.0, 0.3)])
def test_a_client_answers_with_the_gradient_of_its_terms(task, factors, gan_loss):
    """At the D_k after its step, as in the authors' code, and at a network that all draw."""
    client, images = make_clients(TINY, task)[1], drawn()
    stated = dict(zip(("gan", "l1", "perceptual"), factors, strict=True))
    answer = asked(task, client, images, stated | {"gan_loss": gan_loss})
    judge = conditional.judge(task, Rng(0), width=2, layers=3)
    unpack(judge, client.memory, "judge/")
    perception = task.new_model(Rng(0, ("asyndgan",)).at("perception")).eval()
    leaf, real = images.clone().requires_grad_(), task.inputs(client.images[ROWS])
    made = task.dataset.standardise(leaf)
    terms = (
        WRONG[gan_loss][0](judge(conditional.with_planes(task, made, client.labels[ROWS]))).mean(),
        (made - real).abs().mean(),
        conditional.perceptual_loss(perception, made, real),
    )
    sum(factor * term for factor, term in zip(factors, terms, strict=True)).backward()
    torch.testing.assert_close(answer, leaf.grad)


@pytest.mark.parametrize("gan_loss", WRONG)
def test_a_judge_learns_from_real_and_made_images(task, gan_loss):
    """Adam's mean after a step is 1 - beta of the gradient of -log D(y|x) - log(1 - D(G(x)|x)), or
    of (D(y|x) - 1)^2 + D(G(x)|x)^2.
    """
    client, images = make_clients(TINY, task)[2], drawn()
    judge = conditional.judge(task, Rng(0, ("asyndgan",)).at("judge", 2), width=2, layers=3)
    settings = {"judging": 0.2, "gan_lr": 0.004, "gan_loss": gan_loss}
    asked(task, client, images, settings)
    made, real = (
        judge(conditional.with_planes(task, shown, client.labels[ROWS]))
        for shown in (task.dataset.standardise(images), task.inputs(client.images[ROWS]))
    )
    on_real, on_made = WRONG[gan_loss]
    (0.2 * (on_made(made).mean() + on_real(real).mean())).backward()
    for name, w in judge.named_parameters():
        mean = client.memory[f"judge/adam/exp_avg/{name}"]
        torch.testing.assert_close(mean, 0.5 * w.grad, rtol=1e-4, atol=1e-7)
        # the step itself is -lr g / (|g| + eps)
        moved, clear = client.memory[f"judge/parameters/{name}"] - w.detach(), w.grad.abs() > 1e-4
        wanted = -0.004 * w.grad.sign()
        torch.testing.assert_close(moved[clear], wanted[clear], rtol=0.01, atol=1e-5)
    asked(task, client, images, settings)
    assert {int(v) for k, v in client.memory.items() if "/adam/step/" in k} == {2}


def test_the_server_trains_on_normalised_made_images(task):
    """Two steps of plain descent on pairs, drawn anew, against autograd on their loss."""
    plain = FAST | {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    algorithm = attrs.evolve(TINY, settings=plain).new_algorithm()
    state = algorithm.initialise(task, Rng(0))
    maps = [conditional.maps_of(client) for client in make_clients(TINY, task)]
    generator = algorithm.generator(state)
    found = algorithm._train_student(task, state.tensors, generator, maps, range(2), Rng(4))
    student = task.model_from(state.tensors, "student/").train()
    for step in range(2):
        told = conditional.draw(maps, 4, Rng(4).at("pairs", step))
        images = algorithm.painted(state, told.labels)
        loss = task.loss(student(task.dataset.standardise(images)), told.labels)
        slopes = torch.autograd.grad(loss, list(student.parameters()))
        with torch.no_grad():
            for w, slope in zip(student.parameters(), slopes, strict=True):
                w -= 0.1 * slope
    for name, w in student.named_parameters():
        torch.testing.assert_close(found[f"student/parameters/{name}"], w.detach())


EPOCHS = {key: value for key, value in FAST.items() if key != "local_steps"} | {"local_epochs": 2}


def test_passes_of_the_segmentation_network_are_over_the_maps_of_all(task):
    few = [
        attrs.evolve(one, images=one.images[:5], labels=one.labels[:5])
        for one in make_clients(TINY, task)
    ]
    *_, last = rounds(attrs.evolve(TINY, settings=EPOCHS), task=task, clients=few)
    assert last.state.meta["step"] == 3 + 2 * -(-4 * 5 // 4)


def test_no_step_is_taken_twice_where_clients_take_turns(task):
    """Steps in epochs depend on who takes part: with fewer maps their number may fall."""
    stated, members = (
        attrs.evolve(TINY, settings=EPOCHS, active=1, rounds=5),
        make_clients(TINY, task),
    )
    small = Client(0, task, members[0].images[:2], members[0].labels[:2])
    results = rounds(stated, task=task, clients=[small, members[1]])
    steps = [result.state.meta["step"] for result in results]
    assert steps == sorted(steps)


@pytest.mark.parametrize("refused", [None, 2])
def test_the_server_weighs_gradients_by_the_clients_sizes(task, refused):
    """A step of descent on sum_k pi_k g_k by autograd; what is refused adds nothing."""
    stated = attrs.evolve(TINY, refused="leave_out")
    algorithm, (first, *others) = stated.new_algorithm(), make_clients(stated, task)
    first = attrs.evolve(first, images=first.images[:6], labels=first.labels[:6])
    clients, ledger = [first, *others], Ledger()
    state = algorithm.initialise(task, Rng(0))
    ledger.open_round()
    generator, sent = algorithm.generator(state), {}

    def judge(clients, messages, rng):
        sent.update({id_: message.tensors for id_, message in messages.items()})
        values = {c.id: math.nan if c.id == refused else float(c.id + 1) for c in clients}
        return {
            id_: Message({"gradients/images": torch.full(PIXELS, value)})
            for id_, value in values.items()
        }

    algorithm.judge = judge
    maps = [conditional.maps_of(client) for client in clients]
    descent = torch.optim.SGD(generator.parameters(), lr=1.0)
    before = [p.detach().clone() for p in generator.parameters()]
    algorithm._play(state, generator, descent, clients, maps, ledger, Rng(0))
    twin, total = algorithm.generator(state), sum(map(len, maps))
    rows = [sent[client.id]["conditions/rows"] for client in clients]
    assert len(set(map(str, rows))) > 1  # drawn for each
    made = twin(torch.cat([own[drawn] for own, drawn in zip(maps, rows, strict=True)])).split(2)
    for client, images in zip(clients, made, strict=True):
        torch.testing.assert_close(sent[client.id]["images"], images.detach())
    loss = sum(
        len(own) / total * (client.id + 1) * images.sum()
        for client, own, images in zip(clients, maps, made, strict=True)
        if client.id != refused
    )
    loss.backward()
    for old, new, other in zip(before, generator.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(new.detach(), old - other.grad, rtol=1e-3, atol=1e-3)


def test_rounds_only_cut_the_steps(task):
    """Three rounds, which cut those of both networks, give what one gives."""
    one, three = last_round(TINY, task), last_round(attrs.evolve(TINY, rounds=3), task)
    assert not differences(one.state.tensors, three.state.tensors)
    assert one.ledger.total("up") == three.ledger.total("up")
    images = 3 * 4 * 2 * 3 * 32 * 32 * 4
    assert one.ledger.total("up")["gradients"] == one.ledger.total("down")["images"] == images


def test_all_that_the_server_knows_teaches_also_where_clients_take_turns(task, monkeypatch):
    """One client takes part in a round; the maps of those before it are there, too."""
    seen = []

    def noting(self, task, tensors, generator, maps, *rest):
        seen.append([len(own) for own in maps])
        return {}

    monkeypatch.setattr(AsynDGAN, "_train_student", noting)
    stated = attrs.evolve(TINY, settings=FAST | {"gan_steps": 1}, active=1, rounds=4)
    *_, last = rounds(stated, task=task)
    known = sorted(name for name in last.state.tensors if name.startswith("conditions/"))
    assert len(known) > 1 and seen[-1] == [len(last.state.tensors[name]) for name in known]
