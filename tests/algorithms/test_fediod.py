"""FedIOD: the exchange of messages against one objective written out, resuming, bytes, what can go
wrong.
"""

import copy
import math

import attrs
import numpy as np
import pytest
import torch
from torch.nn import functional

from core import algorithms
from core.algorithms.fediod import clients as clients_side
from core.algorithms.fediod import scores
from core.algorithms.fediod.scores import ensemble_accuracy
from core.algorithms.fediod.server import generator_from
from core.algorithms.fediod.teachers import teachers, train_teacher
from core.errors import InputError
from core.experiments import make_clients, rounds
from core.federation import Ledger, Message, Schedule, UploadError
from core.federation.tensors import take
from core.models import Stacked
from core.rng import Rng
from tests.algorithms.on_digits import on_digits

FAST = {
    "local_steps": 2,
    "distill_steps": 6,
    "distill_batch": 8,
    "noise": 7,
    "generator_width": 4,
    "discriminator_width": 4,
    "scored_images": 20,
}
TINY = on_digits("fediod", FAST, model_options={"width": 4}, rounds=3, evaluate_every=9)
K, B, CLASSES, PIXELS = 3, 8, 10, 64


@pytest.fixture(scope="module")
def handed_out(task):
    """Clients that have trained their teachers."""
    clients = make_clients(TINY, task)
    for client in clients:
        train_teacher(client, fediod().settings, Rng(4).at(client.id))
    return clients


@pytest.fixture
def clients(handed_out):
    return [client.copy() for client in handed_out]


def fediod(**settings):
    return algorithms.create("fediod", FAST | settings, schedule=Schedule(rounds=1))


def play(task, clients, algorithm, steps=1):
    """Server's and clients' side after some steps from the same start."""
    state = algorithm.initialise(task, Rng(0))
    state.tensors.update({f"counts/{client.id}": client.class_counts for client in clients})
    server, side = algorithm.sides(state, clients, Rng(1))
    for step in range(steps):
        list(algorithm.step(server, side, step))
    return server, side


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
#: of the authors' code: who learns first, when, and what with
RELEASED = {
    "generator_form": "released",
    "discriminator_norm": "batch",
    "discriminator_first": True,
    "discriminator_rests": True,
}


@pytest.fixture(scope="module")
def plain(task, handed_out):
    return weights(*play(task, handed_out, fediod(), 2))


def weights(server, side):
    return [
        parameter
        for network in (server.generator, server.student, *side.judges)
        for parameter in network.parameters()
    ]


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


def test_two_architectures_of_teachers(task):
    """Convolutional and residual teachers, dealt out in turn; the student is the task's network."""
    experiment = attrs.evolve(
        TINY,
        rounds=1,
        settings=FAST
        | {
            "teacher_models": [
                {"model": "resnet8", "width": 4, "grid": 1},
                {"model": "convnet", "width": 4},
            ]
        },
    )
    clients = make_clients(experiment, task)
    (result,) = rounds(experiment, task=task, clients=clients)
    settings = experiment.new_algorithm().settings
    assert Stacked(teachers(clients, settings)).groups == [[0, 2], [1]]
    kinds = [type(network).__name__ for network in teachers(clients, settings)]
    assert kinds == ["ResNet8", "ConvNet", "ResNet8"]
    assert type(experiment.new_algorithm().model(result.state)).__name__ == "ConvNet"
    assert math.isfinite(result.metrics["accuracy"])


def row(result):
    return {key: value for key, value in result.row().items() if key != "seconds"}


def test_the_number_of_rounds_only_cuts_the_same_distillation(task):
    (once,) = rounds(attrs.evolve(TINY, rounds=1), task=task)
    *_, parts = rounds(attrs.evolve(TINY, rounds=4), task=task)  # 6 steps in 1 + 2 + 1 + 2
    for name, value in once.state.tensors.items():
        assert torch.equal(value, parts.state.tensors[name]), name
    assert once.metrics["accuracy"] == parts.metrics["accuracy"]
    for direction in ("up", "down"):
        assert (
            once.ledger.total(direction)["gradients"] == parts.ledger.total(direction)["gradients"]
        )


@pytest.mark.parametrize(
    ("settings", "up", "down"),
    [
        ({}, B * CLASSES + B + 1 + B * PIXELS, B * PIXELS + B * CLASSES + B),
        ({"importance": "class_ratio"}, B * CLASSES + B * PIXELS, B * PIXELS + B * CLASSES),
        (
            {"confidence": 0.0, "uniqueness": 0.0, "mimic": 0.0},
            B * CLASSES + B + 1 + B * PIXELS,
            B * PIXELS,
        ),
        (
            {"gan": 0.0, "importance": "class_ratio"},
            B * CLASSES + B * PIXELS,
            B * PIXELS + B * CLASSES,
        ),
        (
            {"student_steps": 3, "importance": "class_ratio"},
            4 * B * CLASSES + B * PIXELS,
            4 * B * PIXELS + B * CLASSES,
        ),
    ],
    ids=str,
)
def test_bytes_by_arithmetic(task, settings, up, down):
    """Numbers of 4 bytes in a step, for each of 3 clients and 6 steps; class counts once, weights
    as JSON.
    """
    results = list(rounds(attrs.evolve(TINY, settings=FAST | settings), task=task))
    ledger = results[-1].ledger
    assert [result.up for result in results] == [
        2 * K * 4 * up + (K * CLASSES * 8 if n == 0 else 0) for n in range(3)
    ]
    assert sum(v for kind, v in ledger.total("down").items() if kind != "meta") == 6 * K * 4 * down
    assert ledger.total("up").get("counts") == K * CLASSES * 8 and set(ledger.total("up")) <= {
        "counts",
        "logits",
        "discriminator",
        "gradients",
    }


def test_pretraining_sends_no_logits_and_can_be_cut_anywhere(task, tmp_path):
    """4 steps of pretraining and 6 of distillation in rounds of 3, 3 and 4; the second round has
    both kinds.
    """
    experiment = attrs.evolve(TINY, settings=FAST | {"pretrain_steps": 4})
    whole = list(rounds(experiment, task=task))
    pretraining, distilling = 4 * B * PIXELS, 4 * (B * CLASSES + B + 1 + B * PIXELS)
    assert [result.up - (K * CLASSES * 8 if n == 0 else 0) for n, result in enumerate(whole)] == [
        K * 3 * pretraining,
        K * (pretraining + 2 * distilling),
        K * 4 * distilling,
    ]
    (once,) = rounds(attrs.evolve(experiment, rounds=1), task=task)
    assert all(
        torch.equal(value, whole[-1].state.tensors[name])
        for name, value in once.state.tensors.items()
    )
    student = {
        name: value
        for name, value in experiment.new_algorithm()
        .initialise(task, Rng(TINY.seed).at("initialise"))
        .tensors.items()
        if name.startswith("student/")
    }
    assert all(torch.equal(value, whole[0].state.tensors[name]) for name, value in student.items())


@pytest.mark.parametrize(
    "name", ["teacher/parameters/classifier.bias", "teacher/buffers/norms.0.running_var"]
)
def test_a_teacher_that_answers_with_nan_is_named(task, clients, name):
    known = [key for key in clients[1].memory if key.startswith(name.rsplit("/", 1)[0])]
    name = name if name in known else known[0]
    clients[1].memory[name] = torch.full_like(clients[1].memory[name], float("nan"))
    with pytest.raises(UploadError, match="client 1 was refused"):
        list(rounds(TINY, task=task, clients=clients))


def test_nan_in_the_middle_of_a_round_is_found_at_its_end(task, clients):
    """The first step is sound, then the learning rate throws everything out of range."""
    with pytest.raises(InputError, match="not finite"):
        list(
            rounds(
                attrs.evolve(
                    TINY, settings=FAST | {"gan_lr": 1e30, "student_lr": 1e30, "distill_steps": 30}
                ),
                task=task,
                clients=clients,
            )
        )


def test_a_student_that_diverges_alone_is_found(task, clients):
    """The clients' answers are sound: nothing of the student reaches them."""
    settings = FAST | {"student_lr": 1e30, "mimic": 0.0, "student_optimiser": "sgd"}
    with pytest.raises(InputError, match=r"round 1 left 'student/.*not finite"):
        list(rounds(attrs.evolve(TINY, settings=settings), task=task, clients=clients))


def test_a_generator_that_makes_one_image_only_is_an_error(task, clients):
    algorithm = fediod()
    state = algorithm.initialise(task, Rng(0))
    state.tensors["generator/parameters/out.weight"].zero_()
    state.tensors["generator/parameters/out.bias"].fill_(-200.0)
    ledger = Ledger()
    ledger.open_round()
    with pytest.raises(InputError, match="collapsed before step 6"):
        algorithm.round(state, clients, ledger, Rng(0))


def test_measures_say_how_the_last_step_stood(task):
    *_, last = rounds(TINY, task=task)
    assert 0 <= last.metrics["teacher_entropy"] <= math.log(CLASSES)
    assert 0 <= last.metrics["teacher_jsd"] <= math.log(K)
    assert 1 <= last.metrics["synthetic_classes"] <= CLASSES
    assert 1 <= last.metrics["adapted_inception_score"] <= CLASSES
    assert 0 < last.metrics["synthetic_spread"] <= 0.5 and last.metrics["student_gap"] > 0


def test_the_ensemble_is_tested_on_real_images(task, clients, monkeypatch):
    server, side = play(task, clients, fediod(), 0)
    test, draw = task.dataset.test, np.random.default_rng(0)
    n = np.array([client.class_counts.numpy() for client in clients], dtype=float)
    # teachers that know the classes of which they have 50 images, and guess at others
    known = np.eye(CLASSES)[test.labels.numpy()] * (n[:, None] > 50)
    z = known + draw.normal(size=(K, len(test), CLASSES))

    class ClientsSide:
        def logits(self, images: torch.Tensor, part: int) -> torch.Tensor:
            first = 100 * (part - 1)
            assert torch.equal(images * 255, test.images[first : first + 100].float())
            return torch.tensor(z[:, first : first + 100]).float()

    def right(weights: np.ndarray) -> float:
        said = np.einsum("kc,kmc->mc", weights, z).argmax(1)
        return float((said == test.labels.numpy()).mean())

    monkeypatch.setattr(scores, "PART", 100)
    found = ensemble_accuracy(ClientsSide(), server, test)
    assert found == pytest.approx(right(n / n.sum(0)), abs=2 / len(test))
    assert found > right(np.ones_like(n) / K) + 4 / len(test)
    # the teachers themselves are asked in the same way
    asked = side.logits(test.images.float() / 255)
    theirs = [task.outputs(one, test.images) for one in side.teachers.networks]
    torch.testing.assert_close(asked, torch.stack(theirs), rtol=1e-3, atol=1e-3)
    *_, last = rounds(TINY, task=task)
    assert 0 <= last.metrics["ensemble_accuracy"] <= 1


def test_measures_say_what_the_discriminators_said(task, clients):
    server, side = play(task, clients, fediod(), 0)
    with torch.no_grad():
        fake, real = (
            torch.stack(
                [1 - judge(x).sigmoid().mean() for judge, x in zip(side.judges, those, strict=True)]
            )
            .mean()
            .item()
            for those in ([task.dataset.standardise(server.images(0))] * K, side._real(0))
        )
    found = play(task, clients, fediod(), 1)[0].measures()
    assert found["judged_generated"] == pytest.approx(fake, rel=1e-4)
    assert found["judged_real"] == pytest.approx(real, rel=1e-4)
    assert not any(
        name.startswith("judged")
        for name in play(task, clients, fediod(importance="class_ratio"), 1)[0].measures()
    )


def test_synthetic_images(task):
    *_, last = rounds(TINY, task=task)
    algorithm = TINY.new_algorithm()
    images = algorithm.synthetic(last.state, 5, Rng(0))
    assert images.shape == (5, 1, 8, 8) and images.min() >= 0 and images.max() <= 1
    assert torch.equal(images[:2], algorithm.synthetic(last.state, 5, Rng(0))[:2])
    # by the running statistics
    generator = generator_from(task, algorithm.settings, last.state.tensors).eval()
    noise = torch.randn(5, 7, generator=Rng(0).generator())
    torch.testing.assert_close(images, generator(noise).detach())


@pytest.mark.parametrize(
    ("samples", "settings", "steps"),
    [
        ([130, 5], {}, 3 * 300),
        ([130, 5], {"epoch_of": "smallest"}, 300),
        ([130, 5], {"distill_steps": 7}, 7),
        ([1], {"distill_batch": 4, "distill_epochs": 2}, 2),
    ],
)
def test_an_epoch_is_a_pass_over_one_clients_data(samples, settings, steps):
    assert algorithms.create("fediod", settings).settings.all_steps(samples) == steps


def test_the_rates_fall_along_a_cosine_over_all_rounds(task, monkeypatch):
    """8 steps in 3 rounds, 2 of them pretraining; (1 + cos 2x) / 2 = cos^2 x. G and D_k fall from
    the first step on, the student from the first of its own.
    """
    rates = {"gan_lr": 0.04, "gan_last_lr": 0.01, "student_lr": 0.5, "student_last_lr": 0.1}
    experiment = attrs.evolve(TINY, settings=FAST | rates | {"pretrain_steps": 2})
    kind, found = algorithms.find("fediod"), []
    plain = kind.step

    def step(self, server, side, now):
        optimisers = server.generator_optimiser, side.optimiser
        before = [one.param_groups[0]["lr"] for one in optimisers]
        found.append([*before, server.student_optimiser.param_groups[0]["lr"]])
        return plain(self, server, side, now)

    monkeypatch.setattr(kind, "step", step)
    list(rounds(experiment, task=task))
    n = np.arange(8)
    gan = 0.01 + 0.03 * np.cos(np.pi / 2 * n / 8) ** 2
    student = 0.1 + 0.4 * np.cos(np.pi / 2 * np.maximum(n - 2, 0) / 6) ** 2
    np.testing.assert_allclose(found, np.stack([gan, gan, student], 1), rtol=1e-12)


def test_printed_and_released_values():
    printed, released = (
        algorithms.create("fediod", variant=variant).settings for variant in ("printed", "released")
    )
    assert (printed.lr, printed.batch_size, printed.local_epochs) == (0.0025, 16, 500)
    assert (
        printed.gan_lr,
        printed.student_lr,
        printed.gan_last_lr,
        printed.distill_batch,
        printed.distill_epochs,
        printed.noise,
    ) == (1e-3, 1e-3, 0, 64, 300, 100)
    differing = {
        field.name
        for field in attrs.fields(type(printed))
        if getattr(printed, field.name) != getattr(released, field.name)
    }
    assert differing == {
        "gan_lr",
        "gan_beta",
        "student_optimiser",
        "student_lr",
        "student_last_lr",
        "student_weight_decay",
        "student_steps",
        "distill_epochs",
        "uniqueness",
        "mimic",
        "balance",
        "gan_loss",
        "gan_weighted",
        "uniqueness_form",
        "tau",
        "importance",
        "discriminator_width",
        *RELEASED,
    }


def asked(experiment, task, answers=None):
    """The results where every step goes by questions, as to clients that are elsewhere."""
    algorithm = experiment.new_algorithm()
    algorithm.elsewhere = True
    if answers:
        algorithm.answers = answers(algorithm)
    return list(rounds(experiment, task=task, algorithm=algorithm))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"pretrain_steps": 2, "student_steps": 2},
        {"gan": 0.0, "gan_weights": "uniform"},
        RELEASED,
    ],
    ids=str,
)
def test_questions_at_every_step_give_what_the_batched_program_gives(task, settings):
    """Clients that keep nothing between two questions but their memory, bit for bit."""
    experiment = attrs.evolve(TINY, settings=FAST | settings)
    *_, batched = rounds(experiment, task=task)
    *_, by_questions = asked(experiment, task)
    for name, value in batched.state.tensors.items():
        assert torch.equal(value, by_questions.state.tensors[name]), name
    assert row(batched) == row(by_questions)
    assert [entry["up"] for entry in batched.ledger.rounds] == [
        entry["up"] for entry in by_questions.ledger.rounds
    ]


def test_a_client_that_falls_out_of_the_conversation_is_named(task):
    def deaf(algorithm):
        def answers(question, clients, messages, form, rng):
            found = getattr(algorithm, question)(clients, messages, rng)
            return {k: v for k, v in found.items() if k != 2 or question != "pull_back"}

        return answers

    with pytest.raises(UploadError, match="client 2 did not answer in step 0"):
        asked(attrs.evolve(TINY, refused="leave_out"), task, deaf)


# answers of every step


def spoilt_later(monkeypatch, spoil, after=3):
    """Client 1 answers as `spoil` says, from its fourth answer on."""
    kind, seen = algorithms.find("fediod"), []
    true = kind.admit

    def hostile(self, answers, form, clients, ledger):
        if 1 in answers and "logits" in form[0]:
            seen.append(1)
            if len(seen) > after:
                answers = answers | {1: spoil(answers)}
        return true(self, answers, form, clients, ledger)

    monkeypatch.setattr(kind, "admit", hostile)


def with_logits(answer: Message, logits: torch.Tensor) -> Message:
    return Message(answer.tensors | {"logits": logits})


LATER = {
    "a row less": (lambda a: with_logits(a[1], a[1].tensors["logits"][1:]), "shape"),
    "values beyond any": (
        lambda a: with_logits(a[1], 1e30 * torch.ones_like(a[1].tensors["logits"])),
        "out of range",
    ),
    "another client's": (lambda a: a[0], "that of client 0"),
    "nothing": (lambda a: Message({}), "'discriminator/generated' is missing"),
}


@pytest.mark.parametrize("refused", ["end", "leave_out"])
@pytest.mark.parametrize("name", LATER)
def test_every_answer_is_admitted_not_only_the_first(task, clients, monkeypatch, name, refused):
    spoil, words = LATER[name]
    spoilt_later(monkeypatch, spoil)
    with pytest.raises(UploadError, match=f"client 1 was refused: .*{words}"):
        list(rounds(attrs.evolve(TINY, rounds=1, refused=refused), task=task, clients=clients))


def test_a_client_that_cannot_say_its_counts_is_left_out(task, clients, monkeypatch):
    """The round goes on with the others, as the schedule says."""
    kind = algorithms.find("fediod")
    true = kind.introduce

    def introduce(self, clients, messages, rng):
        return true(self, clients, messages, rng) | {1: Message({})}

    monkeypatch.setattr(kind, "introduce", introduce)
    lenient = attrs.evolve(TINY, rounds=1, refused="leave_out")
    (result,) = rounds(lenient, task=task, clients=clients)
    assert list(result.refused) == ["1"] and "'counts' is missing" in result.refused["1"]
    assert {name for name in result.state.tensors if name.startswith("counts/")} == {
        "counts/0",
        "counts/2",
    }
