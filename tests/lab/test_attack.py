"""The attack on methods: a client that learns by heart, one that does not look at its data, and
what is written down.
"""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
import torch

from core.baselines.fedavg import FedAvg, Settings
from core.baselines.random_selection import RandomSelection
from core.baselines.random_selection import Settings as OneShot
from core.data import Dataset, Split
from core.errors import InputError
from core.federation import Client, Message, Runtime, Schedule, Task, rounds
from core.federation.tensors import put_each
from core.files import write_tensors
from core.privacy.membership import Evidence, LikelihoodRatio, Verdicts, confidence
from core.rng import Rng
from lab import Experiment, Record, run, running
from lab import attack as attacks
from lab.attack import Outcome, aimed, attack, shared_out, targets
from lab.profiles import apply

CPU = Runtime(torch.device("cpu"), "float32")


def noise_task(images: int) -> Task:
    """Images of noise with labels drawn at random: nothing can be learnt, except by heart."""

    def split(name: str) -> Split:
        draws = Rng(0).at(name).generator()
        pixels = torch.randint(256, (images, 1, 8, 8), generator=draws, dtype=torch.uint8)
        return Split(pixels, torch.randint(2, (images,), generator=draws))

    made = Dataset(
        "noise", split("train"), split("val"), split("test"), ("a", "b"), (0.5,), (0.3,), "0" * 64
    )
    return Task(made, "convnet", {"depth": 1, "width": 16, "norm": "none"}, CPU)


def clients_of(task: Task, number: int) -> list[Client]:
    parts = torch.arange(len(task.dataset.train)).chunk(number)
    train = task.dataset.train
    return [Client(k, task, train.images[p], train.labels[p]) for k, p in enumerate(parts)]


def fedavg(**settings) -> FedAvg:
    return FedAvg(Settings(**settings), Schedule(clients=1, rounds=1))


class Blind(FedAvg):
    """Its clients send the server's model with noise that does not depend on their data."""

    def client_update(self, client: Client, message: Message, rng: Rng) -> Message:
        draws = rng.at("noise").generator()
        noisy = {
            name: value + 0.3 * torch.randn(value.shape, generator=draws)
            for name, value in message.tensors.items()
        }
        return Message(noisy, {"samples": len(client)})


def test_a_model_that_learnt_by_heart_gives_its_data_away():
    task = noise_task(40)
    by_heart = fedavg(local_epochs=40, lr=0.3, batch_size=40)
    found = attack(by_heart, task, clients_of(task, 1), 0, LikelihoodRatio(shadows=4))
    assert found.clients[0].auc > 0.9
    # one client: the server's model is its upload
    assert (found.server.online == found.clients[0].online).all()
    assert found.metrics()["mia_tpr_0.1"] > 0.8


def test_each_upload_of_the_real_run_is_attacked_by_itself_and_the_servers_model_after_it():
    """What a client sends is the network that the attacker asks, and not the mean of all."""
    task = noise_task(24)
    method = FedAvg(Settings(local_steps=2), Schedule(clients=2, rounds=2))
    found = attack(method, task, clients_of(task, 2), 3, LikelihoodRatio(shadows=4))
    asked = aimed(clients_of(task, 2), Rng(3).at("attack"))
    state, here = method.initialise(task, Rng(3).at("initialise")), Rng(3).at("round", 1)
    for id_, one in asked.items():
        message = method.broadcast(state, id_)
        sent = method.client_update(one.client, message, here.at("client", id_))
        model = task.model_from(sent.tensors)
        sure = confidence(task.outputs(model, one.images), one.labels)
        torch.testing.assert_close(torch.from_numpy(found.clients[id_].evidence.target), sure)
    model = method.model(next(rounds(method, task, clients_of(task, 2), 3)).state)
    sure = [confidence(task.outputs(model, one.images), one.labels) for one in asked.values()]
    assert (found.server.evidence.target == torch.cat(sure).numpy()).all()


def test_what_a_record_keeps_of_the_server_is_of_the_server():
    member = np.array([True, True, False, False])

    def said(*scores):
        seen = Evidence(np.zeros(4), np.zeros((4, 4)), np.zeros((4, 4), bool), member)
        return Verdicts(seen, np.array(scores), -np.array(scores))

    found = Outcome({7: said(4.0, 1.0, 3.0, 0.0)}, said(1.0, 0.0, 3.0, 2.0)).metrics()
    assert (found["mia_auc"], found["mia_auc/7"], found["mia_auc_max"]) == (0.75, 0.75, 0.75)
    assert (found["mia_server_auc"], found["mia_offline_auc_mean"]) == (0.0, 0.25)
    assert (found["mia_tpr_0.1"], found["mia_server_tpr_0.1"]) == (0.5, 0.0)
    assert found["mia_members/7"] == 2


def test_a_method_that_does_not_look_at_the_data_gives_nothing_away():
    task = noise_task(120)
    blind = Blind(Settings(), Schedule(clients=4, rounds=1))
    found = attack(blind, task, clients_of(task, 4), 0, LikelihoodRatio(shadows=4))
    each = found.together()
    n = int(each.member.sum())
    assert abs(each.auc - 0.5) < 3 * math.sqrt((2 * n + 1) / (12 * n**2))
    # shadow runs have draws of their own: the attacker does not know those of the clients
    seen = found.server.evidence
    runs = np.vstack([seen.target, seen.shadows])
    assert all((a != b).all() for a, b in itertools.combinations(runs, 2))


def test_targets_are_balanced_in_every_class_and_the_rest_is_known():
    task = noise_task(60)
    (client,) = clients_of(task, 1)
    found = targets(client, Rng(0))
    own, test = (
        torch.bincount(each, minlength=2) for each in (client.labels, task.dataset.test.labels)
    )
    assert torch.equal(torch.bincount(found.labels[found.member]), torch.minimum(own, test))
    assert torch.equal(torch.bincount(found.labels[~found.member]), torch.minimum(own, test))
    rows = {image.numpy().tobytes() for image in client.images}
    assert [image.numpy().tobytes() in rows for image in found.images] == found.member.tolist()
    # a shadow with all members is the client again, in another order
    shadow = found.shadow(found.member)
    assert sorted(image.numpy().tobytes() for image in shadow.images) == sorted(
        image.numpy().tobytes() for image in client.images
    )


@pytest.mark.parametrize("number", [2, 5])
def test_no_image_of_the_test_set_is_for_two_clients(number):
    """Or a shadow of the server's model that counts as without it might have it from another."""
    task = noise_task(60)
    clients = clients_of(task, number)
    rows = shared_out(clients, Rng(0))
    assert len(torch.cat(rows).unique()) == len(torch.cat(rows)) > 30
    test = task.dataset.test.labels
    supply = torch.bincount(test, minlength=2)
    demand = torch.stack([client.class_counts for client in clients])
    for client, mine in zip(clients, rows, strict=True):
        share = (supply / demand.sum(0)).clamp(max=1) * client.class_counts
        given = torch.bincount(test[mine], minlength=2)
        assert ((share - given >= 0) & (share - given < 1)).all()


class Broken(FedAvg):
    """One of its clients sends numbers that the server refuses."""

    def client_update(self, client: Client, message: Message, rng: Rng) -> Message:
        answer = super().client_update(client, message, rng)
        if client.id == 1:
            answer.tensors["parameters/classifier.bias"] = torch.full((2,), torch.nan)
        return answer


def test_an_upload_that_was_refused_cannot_be_attacked():
    task = noise_task(24)
    broken = Broken(Settings(), Schedule(clients=3, rounds=1, refused="leave_out"))
    with pytest.raises(InputError, match="that of client 1 was refused"):
        attack(broken, task, clients_of(task, 3), 0, LikelihoodRatio(shadows=4))


@pytest.fixture
def threads():
    """A function that sets PyTorch's threads, until the test ends."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_an_attack_that_was_cut_goes_on(tmp_path, threads):
    class Cut(FedAvg):
        left = 5

        def client_update(self, client: Client, message: Message, rng: Rng) -> Message:
            if not Cut.left:
                raise KeyboardInterrupt
            Cut.left -= 1
            return super().client_update(client, message, rng)

    task, plan, kept = noise_task(24), LikelihoodRatio(shadows=4), tmp_path / "kept.safetensors"
    settings, schedule = Settings(local_steps=2), Schedule(clients=2, rounds=1)
    threads(1)  # so that what is cut is known
    whole = attack(FedAvg(settings, schedule), task, clients_of(task, 2), 0, plan).metrics()
    cut = Cut(settings, schedule)
    with pytest.raises(KeyboardInterrupt):
        attack(cut, task, clients_of(task, 2), 0, plan, file=kept, key="a")
    # two runs of two clients are kept, three are left
    Cut.left = 6
    found = attack(cut, task, clients_of(task, 2), 0, plan, file=kept, key="a")
    assert found.metrics() == whole and not Cut.left
    # what another program left, or is damaged, does not count
    torn = {"1": {"0": torch.zeros(2)}}
    for damage in (
        lambda: None,
        lambda: kept.write_bytes(kept.read_bytes()[:100]),
        lambda: write_tensors(kept, put_each("", torn), {"key": "b"}),
    ):
        damage()
        Cut.left = 10
        found = attack(cut, task, clients_of(task, 2), 0, plan, file=kept, key="b")
        assert found.metrics() == whole and not Cut.left


def test_images_that_are_sent_as_they_are_can_be_told():
    """A method with a round of its own: clients are asked for numbers, then send real images."""
    task = noise_task(32)
    settings = OneShot(images_per_class=20, server_epochs=40, server_lr=0.3, server_batch=32)
    sends = RandomSelection(settings, Schedule(clients=1, rounds=1))
    found = attack(sends, task, clients_of(task, 1), 0, LikelihoodRatio(shadows=4))
    assert found.clients[0].auc > 0.75
    # all images that it has are sent, so none of its members is further than 0 from an upload
    seen, member = found.metrics(), found.clients[0].member
    assert (found.nearest["pixels"][0] == 0).tolist() == member.tolist()
    assert seen["mia_nearest_pixels_auc_mean"] == seen["mia_nearest_pixels_tpr_0.01"] == 1
    assert seen["mia_nearest_features_auc_mean"] == seen["mia_nearest_features_tpr_0.01"] == 1


def test_an_upload_of_weights_is_near_no_image():
    task = noise_task(24)
    found = attack(fedavg(), task, clients_of(task, 1), 0, LikelihoodRatio(shadows=4))
    assert not any("nearest" in name for name in found.metrics())


def test_a_method_with_a_round_of_its_own_is_attacked(threads):
    """And what shadow runs say does not depend on how many are under way."""
    asked = {"algorithm": "gddfl", "dataset": "digits", "clients": 2, "rounds": 1}
    few = {"iterations": 3, "encoder_width": 4, "server_steps": 10}
    small = {"train_fraction": 0.05, "model_options": {"width": 4}, "settings": few}
    run = apply("quick", asked | small)
    task = running.make_task(run, CPU)
    clients = running.make_clients(run, task)
    found = []
    for number in (1, 3):
        threads(number)
        found.append(attack(run.new_algorithm(), task, clients, 0, LikelihoodRatio(shadows=4)))
    assert set(found[0].clients) == {0, 1}
    assert 0 <= found[0].metrics()["mia_server_auc"] <= 1
    one, three = (each.together().evidence.shadows for each in found)
    assert (one == three).all() and one.std(0).min() > 0


@pytest.fixture
def digits() -> Experiment:
    return Experiment(
        algorithm="fedvck",
        dataset="digits",
        clients=2,
        rounds=2,
        model_options={"width": 4},
        train_fraction=0.05,
        settings={"iterations": 2, "estimator": "expectation", "real_batch": 16, "pool": 2}
        | {"server_steps": 2},
        attack={"shadows": 4},
    )


@pytest.mark.parametrize("name", ["scaffold", "blind"])
def test_the_attack_on_a_run_is_on_its_algorithm_and_on_clients_that_remember_nothing(digits, name):
    """Those of SCAFFOLD keep a control from round to round."""
    settings = {"local_steps": 2} if name == "scaffold" else {}
    stated = attrs.evolve(digits, algorithm="scaffold", settings=settings)
    algorithm = Blind(Settings(), stated.schedule) if name == "blind" else stated.new_algorithm()
    task = running.make_task(stated, CPU)
    *_, last = running.rounds(stated, task=task, algorithm=algorithm)
    clients, plan = running.make_clients(stated, task), LikelihoodRatio(**stated.attack)
    found = attack(algorithm, task, clients, stated.seed, plan)
    assert found.metrics().items() <= last.metrics.items()


def test_an_attack_keeps_to_its_time_and_goes_on(digits, tmp_path, threads, monkeypatch):
    """On a clock on which nothing takes time but a run of the attack, a minute."""
    threads(1)
    stated = attrs.evolve(digits, algorithm="fedavg", settings={"local_steps": 2})
    whole = run(stated, runtime=CPU)
    now, minute = 0.0, attacks.scores

    def later(*given):
        nonlocal now
        now += 60
        return minute(*given)

    clock = SimpleNamespace(monotonic=lambda: now, perf_counter=lambda: now)
    monkeypatch.setattr(attacks, "scores", later)
    for module in (attacks, running):
        monkeypatch.setattr(module, "time", clock, raising=False)
    files = {"record": tmp_path / "r.json", "checkpoint": tmp_path / "c.safetensors"}
    cut = run(stated, runtime=CPU, deadline=200, **files)
    assert (cut.status, len(cut.rounds), now) == ("running", 1, 180)
    assert Record.load(files["record"]).status == "running"
    found = run(stated, runtime=CPU, deadline=now + 200, **files)
    assert (found.status, now) == ("complete", 300)  # the real run and four shadows, once each
    assert found.metrics == whole.metrics and found.rounds[-1]["seconds"]["attack"] == 300
    assert list(tmp_path.iterdir()) == [files["record"]]


def test_what_an_attack_finds_stands_in_the_last_round_and_comes_again(digits, tmp_path):
    record = run(digits, runtime=CPU, record=tmp_path / "one.json")
    found = Record.load(tmp_path / "one.json").metrics
    assert found == record.metrics
    assert {"accuracy", "mia_auc_max", "mia_auc_mean", "mia_defense_rate", "mia_auc/0"} <= set(
        found
    )
    assert not any(name.startswith("mia") for name in record.rounds[0]["metrics"])
    assert "attack" in record.rounds[-1]["seconds"]
    # the attack changes nothing of the run that it looks at
    plain = run(attrs.evolve(digits, attack={}), runtime=CPU).metrics
    assert plain == {key: value for key, value in found.items() if not key.startswith("mia")}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shadow": 4}, "did you mean 'shadows'"),
        ({"shadows": 7}, "even"),
    ],
)
def test_a_bad_attack_is_met_with_a_sentence(given, message):
    with pytest.raises(InputError, match=message):
        Experiment(algorithm="fedavg", dataset="digits", rounds=2, attack=given)


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        *(({"algorithm": name}, "one upload") for name in ("standalone", "fediod", "fedad")),
        # images of all clients reach the server before the upload that would be looked at
        *(({"algorithm": name}, "it asks for .* and client_update") for name in ("desa", "fedmix")),
        (
            {"algorithm": "fedavg", "dataset": "nuclei_drawn", "model": "unet"}
            | {"partition": {"name": "natural"}},
            "nuclei_drawn is a data set for segmentation",
        ),
    ],
)
def test_what_cannot_be_attacked_is_refused(stated, said):
    asked = {"dataset": "digits", "train_fraction": 0.05} | stated
    with pytest.raises(InputError, match=said):
        list(running.rounds(apply("quick", asked | {"clients": 2, "attack": {"shadows": 4}})))
