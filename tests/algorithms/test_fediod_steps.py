"""FedIOD's steps: their gradients against one objective written out, and what each setting does."""

import copy
import math

import pytest
import torch
from torch.nn import functional

from core import distillation
from core.algorithms.fediod import clients as clients_side
from core.federation.tensors import take
from core.models import Stacked
from core.rng import Rng
from tests.algorithms import fediod_on_digits
from tests.algorithms.fediod_on_digits import B, K, fediod, play, weights

TINY = fediod_on_digits.TINY
handed_out, clients = fediod_on_digits.handed_out, fediod_on_digits.clients


def entropy(q):
    return -(q * q.log()).sum(-1)


def written_out(server, side, settings):
    """-L_G of Alg. 1 and L_mimic for the images of step 0, in one graph, from the formulas of the
    paper.
    """
    task, images = server.task, server.images(0)
    inputs, real = task.dataset.standardise(images), side._real(0)
    pi = [len(client) / sum(map(len, side.clients)) for client in side.clients]
    z = torch.stack([teacher(inputs) for teacher in side.teachers.networks])
    d_fake, d_real = (
        torch.stack(
            [
                1 - judge(x).sigmoid().mean((1, 2, 3))
                for judge, x in zip(side.judges, those, strict=True)
            ]
        )
        for those in ([inputs] * K, real)
    )
    gan = [pi[k] * d_real[k].mean() + 1 - d_fake[k].mean() for k in range(K)]
    q = z.softmax(-1)
    conf = sum(pi[k] * entropy(q[k]).mean() for k in range(K))
    jsd = (
        entropy(sum(pi[k] * q[k] for k in range(K))) - sum(pi[k] * entropy(q[k]) for k in range(K))
    ).mean()
    weight = torch.stack([client.class_counts for client in side.clients])[:, None].float()
    if settings.importance == "class_and_input":
        weight = weight * (d_fake / d_real.mean(1, keepdim=True).detach())[..., None]
    present = weight.sum((0, 1)) > 0
    weight = torch.where(present, weight / weight.sum(0).clamp_min(1e-30), 1 / K)
    ensemble = (weight * z).sum(0)
    student = server.student(inputs)
    if settings.tau is None:
        mimic = (student - ensemble).square().sum(1).mean()
    else:
        mimic = settings.tau**2 * functional.kl_div(
            (student / settings.tau).log_softmax(1),
            (ensemble / settings.tau).softmax(1),
            reduction="batchmean",
        )
    objective = (
        settings.confidence * conf
        - settings.uniqueness * jsd
        - settings.mimic * mimic
        - settings.gan * sum(gan)
    )
    return objective, mimic, sum(gan)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"importance": "class_ratio"},
        {"tau": 2.0},
        {"mimic": 0.0},
        {"gan": 0.0, "uniqueness": 0.0},
        {"confidence": 0.0, "uniqueness": 3.0, "mimic": 0.5},
    ],
    ids=str,
)
def test_the_messages_carry_the_gradients_of_the_printed_objective(task, clients, settings):
    """Algorithm 1: the gradients that arrive at G, S and D_k are those of one objective in one
    graph.
    """
    algorithm = fediod(**settings)
    server, side = play(task, clients, algorithm, 0)
    objective, mimic, gan = written_out(server, side, algorithm.settings)
    judges = [parameter for judge in side.judges for parameter in judge.parameters()]
    wanted = [
        torch.autograd.grad(loss, list(parameters), retain_graph=True)
        for loss, parameters in (
            (objective, server.generator.parameters()),
            (mimic, server.student.parameters()),
            (gan, judges),
        )
    ]

    server, side = play(task, clients, algorithm, 0)
    list(algorithm.step(server, side, 0))
    judges = [parameter for judge in side.judges for parameter in judge.parameters()]
    for parameters, gradients in zip(
        (server.generator.parameters(), server.student.parameters(), judges), wanted, strict=True
    ):
        scale = max(float(gradient.abs().max()) for gradient in gradients)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-4 * scale)


def test_all_networks_go_down_their_gradients(task, clients):
    """Adam's first step moves every parameter by its learning rate against the sign of its
    gradient.
    """
    before, after = (play(task, clients, fediod(), steps) for steps in (0, 1))
    for was, is_ in zip(weights(*before), weights(*after), strict=True):
        clear = is_.grad.abs() > 1e-5
        torch.testing.assert_close(
            (is_ - was)[clear], -1e-3 * is_.grad.sign()[clear], rtol=0.02, atol=1e-6
        )


def test_teachers_stay_as_they_are_and_nothing_of_a_network_is_sent(task, clients):
    algorithm = fediod()
    before = [take("teacher/", client.memory) for client in clients]
    server, side = play(task, clients, algorithm, 2)
    sent = {
        (message.direction, name)
        for message in algorithm.step(server, side, 2)
        for name in message.of(0).tensors
    }
    assert sent == {
        ("down", "images"),
        ("up", "logits"),
        ("up", "discriminator/generated"),
        ("up", "discriminator/real"),
        ("down", "gradients/logits"),
        ("down", "gradients/generated"),
        ("up", "gradients/images"),
    }
    for client, tensors in zip(clients, before, strict=True):
        assert all(
            torch.equal(take("teacher/", client.memory)[name], value)
            for name, value in tensors.items()
        )


SWITCHES = [
    {"gan": 0.5},
    {"confidence": 0.0},
    {"uniqueness": 0.0},
    {"mimic": 0.0},
    {"balance": 1.0},
    {"gan_loss": "non_saturating"},
    {"gan_weighted": "generator"},
    {"gan_weights": "uniform"},
    {"uniqueness_form": "released"},
    {"tau": 1.0},
    {"tau": 10001.0},
    {"importance": "class_ratio"},
    {"class_ratio": "share"},
    {"input_ratio": "real"},
    {"student_steps": 2},
    {"student_optimiser": "sgd"},
    {"student_lr": 0.1},
    {"gan_lr": 0.1},
    {"gan_beta": 0.5},
    {"generator_width": 5},
    {"discriminator_width": 5},
    {"distill_batch": 4},
    {"noise": 5},
    {"student_weight_decay": 0.5},
    {"pretrain_steps": 1},
    {"generator_form": "released"},
    {"discriminator_norm": "batch"},
    {"discriminator_first": True},
]


@pytest.fixture(scope="module")
def plain(task, handed_out):
    return weights(*play(task, handed_out, fediod(), 2))


@pytest.mark.parametrize("settings", SWITCHES, ids=str)
def test_every_setting_of_stage_two_has_an_effect(task, clients, plain, settings):
    """After two steps at least one of the networks is another one."""
    changed = weights(*play(task, clients, fediod(**settings), 2))
    assert any(
        a.shape != b.shape or not torch.equal(a, b) for a, b in zip(plain, changed, strict=True)
    )


@pytest.mark.parametrize("first", [False, True])
def test_the_generator_hears_of_the_discriminator_before_or_after_its_step(task, clients, first):
    """The released step by hand, the discriminators one by one as theirs are: d / dx of the sum over
    patches of -log sigmoid(D_k(x)), weighted by pi_k, at the D_k of before or after its Adam step.
    """
    told = {"gan_loss": "non_saturating", "gan_weighted": "generator", "gan_beta": 0.5}
    only = {"mimic": 0.0, "confidence": 0.0, "uniqueness": 0.0, "importance": "class_ratio"}
    norm = {"discriminator_norm": "batch", "discriminator_first": first}
    algorithm = fediod(**told, **only, **norm)
    server, side = play(task, clients, algorithm, 1)
    judges = copy.deepcopy(side.judges)
    optimiser = torch.optim.Adam([p for j in judges for p in j.parameters()], betas=(0.5, 0.999))
    remembered = dict(zip(optimiser.param_groups[0]["params"], side._parameters(), strict=True))
    for mine, theirs in remembered.items():
        optimiser.state[mine] = copy.deepcopy(side.optimiser.state[theirs])
    for group, from_ in zip(optimiser.param_groups, side.optimiser.param_groups, strict=True):
        group["lr"] = from_["lr"]
    images = server.images(1).detach()
    real = side._real(1)

    def learn():
        fake = task.dataset.standardise(images)
        loss = sum(
            functional.softplus(judge(fake)).sum() + functional.softplus(-judge(real[k])).sum()
            for k, judge in enumerate(judges)
        )
        optimiser.zero_grad()
        (loss / B).backward()
        optimiser.step()

    def slopes():
        leaf = images.clone().requires_grad_()
        inputs = task.dataset.standardise(leaf)
        pi = [len(client) / sum(map(len, side.clients)) for client in side.clients]
        fooled = sum(
            pi[k] * functional.softplus(-judge(inputs)).sum() / B for k, judge in enumerate(judges)
        )
        return torch.autograd.grad(fooled, leaf)[0]

    order = (learn, slopes) if first else (slopes, learn)
    expected = {step.__name__: step() for step in order}["slopes"]
    _, graph = side.answer(images, 1)
    found = side.pull_back(graph, clients_side.AnswerGradients(), 1).sum(0)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
    for judge, by_hand in zip(side.judges, judges, strict=True):
        for (name, one), other in zip(judge.named_parameters(), by_hand.parameters(), strict=True):
            if name != "conv2.bias":  # the norm takes it out: its gradient is rounding
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_a_discriminator_rests_once_it_has_seen_its_clients_images(task, clients):
    """In an epoch of the largest client: the others' stand still after their last batch, until the
    next epoch begins.
    """
    sizes = [len(client) for client in clients]
    passes = [math.ceil(size / B) for size in sizes]
    algorithm = fediod(discriminator_rests=True)
    server, side = play(task, clients, algorithm, 0)
    assert side.epoch == max(passes) > min(passes)
    smallest = passes.index(min(passes))
    for step in (0, min(passes) - 1, min(passes), max(passes) - 1, max(passes)):
        before = [[p.clone() for p in judge.parameters()] for judge in side.judges]
        list(algorithm.step(server, side, step))
        moved = [
            any(not torch.equal(a, b) for a, b in zip(old, judge.parameters(), strict=True))
            for old, judge in zip(before, side.judges, strict=True)
        ]
        assert moved == [step % max(passes) < batches for batches in passes]
        assert moved[smallest] == (step % max(passes) < min(passes))


def test_a_discriminator_that_rests_at_a_node_of_its_own_stays_as_it_is(task, clients):
    """Across a network each client is served alone, so nobody may be awake."""
    small = min(clients, key=len)
    settings = fediod(discriminator_rests=True).settings
    weights = torch.ones(1)
    side = clients_side.ClientsHere([small], settings, weights, 0.0, Rng(0), 1000)
    rests = settings.passes(len(small))
    for step in (rests - 1, rests):
        before = [p.clone() for p in side.judges[0].parameters()]
        graph = side.judge_only(torch.rand(B, *small.images.shape[1:]), step)
        side.pull_back(graph, clients_side.AnswerGradients(), step)
        after = list(side.judges[0].parameters())
        assert all(map(torch.equal, before, after)) == (step == rests)


def test_clients_are_the_same_in_one_batched_program_and_one_by_one(task, clients, monkeypatch):
    found = []
    for batched in (True, False):
        monkeypatch.setattr(
            clients_side, "Stacked", lambda networks, batched=batched: Stacked(networks, batched)
        )
        found.append(weights(*play(task, clients, fediod(), 2)))
    apart = torch.cat([(a - b).abs().flatten() for a, b in zip(*found, strict=True)])
    assert (
        apart.quantile(0.99) < 1e-4
    )  # Adam makes a gradient of rounding errors as large as any other


def test_each_term_of_the_teachers_answers_has_its_factor(task, clients):
    factors = {"confidence": 2.0, "uniqueness": 3.0, "balance": 5.0}
    server, _ = play(task, clients, fediod(**factors), steps=0)
    z = torch.randn(3, 8, 10, generator=torch.Generator().manual_seed(0))
    q, pi = z.softmax(-1), server.weights
    wanted = (
        2 * distillation.confidence_loss(q, pi)
        - 3 * distillation.jensen_shannon(q, pi).mean()
        + 5 * distillation.balance_loss(q, pi)
    )
    torch.testing.assert_close(server.shaping(z), wanted)
