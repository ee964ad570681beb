"""AsynDGAN: its losses, and what the server makes of the clients' gradients."""

from __future__ import annotations

import gc
import math
import weakref

import attrs
import pytest
import torch
from torch.nn.functional import softplus

from core.baselines.asyndgan import AsynDGAN, adversarial
from core.errors import InputError
from core.families import conditional
from core.federation import Client, Ledger, Message
from core.federation.tensors import unpack
from core.rng import Rng
from lab import make_clients, make_task, rounds
from tests.algorithms.on_drawings import on_nuclei

FAST = {
    "gan_steps": 3,
    "gan_batch": 2,
    "local_steps": 3,
    "batch_size": 4,
    "generator_width": 2,
    "discriminator_width": 2,
}
TINY = on_nuclei("asyndgan", FAST)


@pytest.mark.parametrize("real", [True, False])
def test_adversarial_losses_by_hand(real):
    logits = torch.tensor([[[[2.0, -1.0]]]])
    chance = [1 / (1 + math.exp(-z)) for z in (2.0, -1.0)]
    wrong = [-math.log(p if real else 1 - p) for p in chance]
    assert adversarial(logits, real, "vanilla").item() == pytest.approx(sum(wrong) / 2)
    squares = [(z - real) ** 2 for z in (2.0, -1.0)]
    assert adversarial(logits, real, "least_squares").item() == pytest.approx(sum(squares) / 2)
    with pytest.raises(InputError, match="did you mean"):
        adversarial(logits, real, "vanila")


def asked(task, client, settings, images, rows):
    algorithm = attrs.evolve(TINY, settings=FAST | settings).new_algorithm()
    message = Message({"images": images, "conditions/rows": rows})
    return algorithm.judge([client], {client.id: message}, [Rng(0)])[client.id].tensors


def test_a_client_answers_with_the_gradient_of_the_absolute_error(task):
    """With this term alone: lambda_1 sign(x - y) / count, times 1 / 0.5 for the normalisation."""
    client, rows = make_clients(TINY, task)[1], torch.tensor([3, 0])
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    only = {"gan": 0.0, "perceptual": 0.0, "l1": 7.0}
    found = asked(task, client, only, images, rows)["gradients/images"]
    difference = images - client.images[rows].float() / 255
    torch.testing.assert_close(found, 7.0 / 0.5 * difference.sign() / images.numel())


#: how wrong a judge is about real images and about made ones, patch by patch
WRONG = {
    "vanilla": (lambda z: softplus(-z), softplus),
    "least_squares": (lambda z: (z - 1).square(), torch.square),
}


@pytest.mark.parametrize("gan_loss", WRONG)
def test_the_judge_learns_before_it_says_what_it_thinks(task, gan_loss):
    """The adversarial gradient is that of the D_k that has taken its step, as in the authors' code."""
    client, rows = make_clients(TINY, task)[0], torch.tensor([1, 2])
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    only = {"gan": 0.3, "perceptual": 0.0, "l1": 0.0, "gan_loss": gan_loss}
    found = asked(task, client, only, images, rows)["gradients/images"]
    judge = conditional.judge(task, Rng(0), width=2, layers=3)
    unpack(judge, client.memory, "judge/")
    made = images.clone().requires_grad_()
    shown = conditional.beside(task, task.dataset.standardise(made), client.labels[rows])
    (0.3 * WRONG[gan_loss][0](judge(shown)).mean()).backward()
    torch.testing.assert_close(found, made.grad)


@pytest.mark.parametrize("gan_loss", WRONG)
def test_a_judge_learns_from_real_and_made_images(task, gan_loss):
    """Adam's mean after a step is 1 - beta of the gradient of -log D(y|x) - log(1 - D(G(x)|x)), or
    of (D(y|x) - 1)^2 + D(G(x)|x)^2.
    """
    client, rows = make_clients(TINY, task)[2], torch.tensor([0, 2])
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    judge = conditional.judge(task, Rng(0, ("asyndgan",)).at("judge", 2), width=2, layers=3)
    told = {"judging": 0.2, "gan_lr": 0.004, "gan_loss": gan_loss}
    asked(task, client, told, images, rows)
    made, real = (
        judge(conditional.beside(task, shown, client.labels[rows]))
        for shown in (task.dataset.standardise(images), task.inputs(client.images[rows]))
    )
    on_real, on_made = WRONG[gan_loss]
    loss = on_made(made).mean() + on_real(real).mean()
    (0.2 * loss).backward()
    for name, w in judge.named_parameters():
        found = client.memory[f"judge/adam/exp_avg/{name}"]
        torch.testing.assert_close(found, 0.5 * w.grad, rtol=1e-4, atol=1e-7)
        # the step itself is -lr g / (|g| + eps)
        moved, clear = client.memory[f"judge/parameters/{name}"] - w.detach(), w.grad.abs() > 1e-4
        torch.testing.assert_close(
            moved[clear], -0.004 * w.grad[clear].sign(), rtol=0.01, atol=1e-5
        )
    asked(task, client, told, images, rows)
    assert {int(v) for k, v in client.memory.items() if "/adam/step/" in k} == {2}


def test_the_perceptual_loss_has_its_factor(task):
    """With this term alone: its gradient at the network that all clients draw."""
    client, rows = make_clients(TINY, task)[1], torch.tensor([3, 0])
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(4))
    only = {"gan": 0.0, "perceptual": 0.3, "l1": 0.0}
    found = asked(task, client, only, images, rows)["gradients/images"]
    perception = task.new_model(Rng(0, ("asyndgan",)).at("perception")).eval()
    made, real = images.clone().requires_grad_(), task.inputs(client.images[rows])
    (0.3 * conditional.perceptual_loss(perception, task.dataset.standardise(made), real)).backward()
    torch.testing.assert_close(found, made.grad)


def test_the_server_trains_on_normalised_made_images(task):
    """Two steps of plain descent on pairs, drawn anew, against autograd on their loss."""
    plain = FAST | {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    algorithm = attrs.evolve(TINY, settings=plain).new_algorithm()
    state = algorithm.initialise(task, Rng(0))
    maps = [conditional.maps_of(client) for client in make_clients(TINY, task)]
    generator = algorithm.generator(state)
    found = algorithm._taught(task, state.tensors, generator, maps, range(2), Rng(4))
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


def test_each_client_is_sent_images_of_its_own_maps_and_of_others_in_every_step(task, monkeypatch):
    """A generator that no gradient moves paints what the rows say, of the one whose rows they are."""
    sent = []

    def judge(self, clients, messages, rng):
        sent.append({id_: message.tensors for id_, message in messages.items()})
        return {c.id: Message({"gradients/images": torch.zeros(2, 3, 32, 32)}) for c in clients}

    monkeypatch.setattr(AsynDGAN, "judge", judge)
    settings = FAST | {"gan_steps": 4, "local_steps": 1}
    *_, last = rounds(attrs.evolve(TINY, settings=settings), task=task)
    algorithm, drawn = TINY.new_algorithm(), set()
    for step in sent:
        for client in make_clients(TINY, task):
            rows = step[client.id]["conditions/rows"]
            wanted = algorithm.painted(last.state, conditional.maps_of(client)[rows])
            torch.testing.assert_close(step[client.id]["images"], wanted, rtol=1e-4, atol=1e-5)
        drawn.add(tuple(map(tuple, (one["conditions/rows"].tolist() for one in step.values()))))
    assert len(drawn) == 4  # other rows in every step
    assert all(len(set(step)) > 1 for step in drawn)  # and not the same for all clients


def test_passes_of_the_segmentation_network_are_over_the_maps_of_all(task):
    settings = {k: v for k, v in FAST.items() if k != "local_steps"} | {"local_epochs": 2}
    stated = attrs.evolve(TINY, settings=settings)
    *_, last = rounds(stated, task=task)
    maps = sum(map(len, make_clients(stated, task)))
    assert last.state.meta["step"] == 3 + 2 * -(-maps // 4)


def test_a_client_answers_the_same_alone_and_among_others(task):
    """One discriminator carries every client's weights in turn: nothing of one reaches the next."""
    images = torch.rand(3, 2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    algorithm, rows = TINY.new_algorithm(), torch.tensor([4, 1])
    together, alone = make_clients(TINY, task), make_clients(TINY, task)
    for step in range(3):
        message = Message({"images": images[step], "conditions/rows": rows})
        messages = {client.id: message for client in together}
        answers = algorithm.at_clients("judge", together, messages, Rng(0))
        for client in alone:
            (own,) = algorithm.judge([client], messages, [Rng(0)]).values()
            name = "gradients/images"
            assert torch.equal(own.tensors[name], answers[client.id].tensors[name])
    for one, other in zip(together, alone, strict=True):
        assert one.memory.keys() == other.memory.keys()
        assert all(torch.equal(value, other.memory[name]) for name, value in one.memory.items())


@pytest.mark.parametrize("refused", [None, 2])
def test_the_server_weighs_gradients_by_the_clients_sizes(task, refused):
    """One step of plain descent on sum_k pi_k g_k, against autograd on the same sum; what is
    refused adds nothing.
    """
    stated = attrs.evolve(TINY, refused="leave_out")
    algorithm, clients = stated.new_algorithm(), make_clients(TINY, task)
    clients = [
        attrs.evolve(clients[0], images=clients[0].images[:6], labels=clients[0].labels[:6]),
        *clients[1:],
    ]
    state, ledger = algorithm.initialise(task, Rng(0)), Ledger()
    ledger.open_round()
    generator, sent = algorithm.generator(state), {}

    def judge(clients, messages, rng):
        sent.update({id_: message.tensors for id_, message in messages.items()})
        slopes = {c.id: torch.full((2, 3, 32, 32), float(c.id + 1)) for c in clients}
        if refused is not None:
            slopes[refused].fill_(math.nan)
        return {id_: Message({"gradients/images": slope}) for id_, slope in slopes.items()}

    algorithm.judge = judge
    maps = [conditional.maps_of(client) for client in clients]
    descent = torch.optim.SGD(generator.parameters(), lr=1.0)
    before = [p.detach().clone() for p in generator.parameters()]
    algorithm._play(state, generator, descent, clients, maps, ledger, Rng(0))
    twin, total = algorithm.generator(state), sum(map(len, maps))
    loss = sum(
        len(own) / total * (client.id + 1) * twin(own[sent[client.id]["conditions/rows"]]).sum()
        for client, own in zip(clients, maps, strict=True)
        if client.id != refused
    )
    loss.backward()
    for old, new, other in zip(before, generator.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(new.detach(), old - other.grad, rtol=1e-3, atol=1e-3)


def test_rounds_only_cut_the_steps(task):
    """Three rounds, which cut those of both networks, give what one gives."""
    *_, one = rounds(TINY, task=task)
    *_, three = rounds(attrs.evolve(TINY, rounds=3), task=task)
    for name, value in one.state.tensors.items():
        assert torch.equal(value, three.state.tensors[name]), name
    assert one.ledger.total("up") == three.ledger.total("up")
    images = 3 * 4 * 2 * 3 * 32 * 32 * 4
    assert one.ledger.total("up")["gradients"] == one.ledger.total("down")["images"] == images


def test_what_is_built_for_a_run_goes_with_it():
    """What stays between the steps holds neither task nor data set once the run is over."""
    own = make_task(TINY)
    list(rounds(TINY, task=own))
    kept = weakref.ref(own)
    del own
    gc.collect()
    assert kept() is None


def test_it_learns_nothing_but_masks(task):
    experiment = attrs.evolve(
        TINY, dataset="digits", model="convnet", model_options={}, partition={"name": "iid"}
    )
    with pytest.raises(
        InputError, match=r"for segmentation, but digits .* takes nuclei_drawn with"
    ):
        list(rounds(experiment))


def test_a_round_goes_on_without_a_client_whose_maps_were_refused(task, monkeypatch):
    honest = AsynDGAN.introduce

    def introduce(self, clients, messages, rng):
        answers = honest(self, clients, messages, rng)
        wrong = answers[1].tensors["conditions"].clone()
        wrong[0, 0, 0] = 3  # there are 0, 1 and 2
        return answers | {1: Message({"conditions": wrong})}

    monkeypatch.setattr(AsynDGAN, "introduce", introduce)
    *_, last = rounds(attrs.evolve(TINY, refused="leave_out"), task=task)
    assert list(last.ledger.rounds[0]["refused"]) == ["1"] and 0 <= last.metrics["dice"] <= 1
    assert "conditions/0" in last.state.tensors and "conditions/1" not in last.state.tensors


def test_all_that_the_server_knows_teaches_also_where_clients_take_turns(task, monkeypatch):
    """One client takes part in a round; the maps of those before it are there, too."""
    heard = []
    honest = AsynDGAN._taught

    def taught(self, task, tensors, generator, maps, steps, root):
        heard.append([len(own) for own in maps])
        return honest(self, task, tensors, generator, maps, steps, root)

    monkeypatch.setattr(AsynDGAN, "_taught", taught)
    stated = attrs.evolve(TINY, settings=FAST | {"gan_steps": 1}, active=1, rounds=4)
    sizes = {one.id: len(one) for one in make_clients(stated, task) if len(one)}
    *_, last = rounds(stated, task=task)
    known = {int(name.split("/")[1]) for name in last.state.tensors if "conditions/" in name}
    assert len(known) > 1 and heard[-1] == [sizes[owner] for owner in sorted(known)]


def test_no_step_is_taken_twice_where_clients_take_turns(task):
    """Steps in epochs depend on who takes part: with fewer maps their number may fall."""
    settings = {key: value for key, value in FAST.items() if key != "local_steps"}
    stated = attrs.evolve(TINY, settings=settings | {"local_epochs": 2}, active=1, rounds=5)
    members = make_clients(TINY, task)
    small = Client(0, task, members[0].images[:2], members[0].labels[:2])
    steps = [
        result.state.meta["step"]
        for result in rounds(stated, task=task, clients=[small, members[1]])
    ]
    assert steps == sorted(steps)


def test_images_that_are_made_are_not_augmented(task):
    augmented = attrs.evolve(TINY, settings=FAST | {"local_augmentation": "crop_flip"})
    with pytest.raises(InputError, match="set local_augmentation to none"):
        list(rounds(augmented, task=task))


@pytest.mark.parametrize("layers", [4, 5])
def test_images_too_small_for_the_judges_are_refused_before_the_first_round(task, layers):
    deep = attrs.evolve(TINY, settings=FAST | {"discriminator_layers": layers})
    with pytest.raises(InputError, match="32x32 at most 3 times: it cannot have"):
        deep.new_algorithm().initialise(task, Rng(0))
