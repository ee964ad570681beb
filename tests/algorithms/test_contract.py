"""Every registered algorithm keeps every promise, and every promise can be broken."""

from __future__ import annotations

import attrs
import pytest
import torch

from core import algorithms
from core.algorithms import fedvck
from core.baselines import fedavg, fedprox, moon
from core.errors import InputError
from core.federation import Ledger, Message, loop, validate_uploads

pytest.register_assert_rewrite("tests.algorithms.contract")

from tests.algorithms.contract import PROMISES  # noqa: E402
from tests.algorithms.subjects import Subject, subjects, tiny  # noqa: E402

SUBJECTS = subjects()


@pytest.mark.parametrize("promise", PROMISES.values(), ids=PROMISES)
@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
def test_it_keeps_its_promise(subject, promise):
    promise(subject)


def test_every_registered_algorithm_is_a_subject():
    assert {subject.name for subject in SUBJECTS.values()} == set(algorithms.names())


# algorithms that break a promise


class Forgetful(fedavg.FedAvg):
    """Keeps on itself what belongs into the state."""

    rounds_so_far = 0

    def server_update(self, state, uploads, rng):
        self.rounds_so_far += 1
        new = super().server_update(state, uploads, rng)
        return attrs.evolve(new, meta={"rounds": self.rounds_so_far})


class Amnesiac(moon.MOON):
    """Keeps what a client remembers where no checkpoint finds it."""

    def client_update(self, client, message, rng):
        self.kept = getattr(self, "kept", {})
        client.memory = self.kept.get(client.id, {})
        answer = super().client_update(client, message, rng)
        self.kept[client.id], client.memory = client.memory, {}
        return answer


class Global(fedavg.FedAvg):
    """Draws from torch's global generator."""

    def server_update(self, state, uploads, rng):
        new = super().server_update(state, uploads, rng)
        return attrs.evolve(new, meta={"luck": float(torch.rand(()))})


class Seedless(fedavg.FedAvg):
    """Draws the same whatever the seed is."""

    def initialise(self, task, rng):
        return super().initialise(task, type(rng)(0))

    def client_update(self, client, message, rng):
        return super().client_update(client, message, type(rng)(0))


class Preset(fedavg.FedAvg):
    """Begins with the same network whatever the seed is."""

    def initialise(self, task, rng):
        return super().initialise(task, type(rng)(0))


class Quiet(fedavg.FedAvg):
    """Leaves every client with the model that it was sent, so that no loop runs."""

    def client_updates(self, clients, messages, rngs):
        started = {client: self.start(client, messages[client.id]) for client in clients}
        return {client.id: self.answer(client, model) for client, model in started.items()}


class Sociable(fedavg.FedAvg):
    """A client's answer depends on who else is there."""

    def client_updates(self, clients, messages, rngs):
        answers = super().client_updates(clients, messages, rngs)
        for answer in answers.values():
            answer.tensors["parameters/classifier.bias"].add_(len(clients))
        return answers


class Disorderly(fedavg.FedAvg):
    """A client's answer depends on who answered before it."""

    answered = 0

    def client_update(self, client, message, rng):
        self.answered += 1
        return super().client_update(client, message, rng.at(self.answered))


class Reckless(fedavg.FedAvg):
    """Divides by the number of samples of a class."""

    def server_update(self, state, uploads, rng):
        new = super().server_update(state, uploads, rng)
        return attrs.evolve(new, tensors=new.tensors | {"share": torch.ones(10) / torch.arange(10)})


class Boastful(fedvck.FedVCK):
    """Calls its images what nobody has."""

    def client_updates(self, clients, messages, rngs):
        answers = super().client_updates(clients, messages, rngs)
        for answer in answers.values():
            answer.tensors["labels"].fill_(9)
        return answers


class InPlace(fedavg.FedAvg):
    """Averages into the tensors of the state that it was given."""

    def server_update(self, state, uploads, rng):
        new = super().server_update(state, uploads, rng)
        for name, value in new.tensors.items():
            state.tensors[name].copy_(value)
        return state


class InMessage(fedavg.FedAvg):
    """Trains in the tensors that the server sent to all."""

    def client_update(self, client, message, rng):
        answer = super().client_update(client, message, rng)
        message.tensors["parameters/classifier.bias"].add_(1)
        return answer


class Secretive(fedavg.FedAvg):
    """Sends the model past the ledger."""

    def round(self, state, clients, ledger, rng):
        messages = {client.id: self.broadcast(state, client.id) for client in clients}
        form = self.upload_format(state)
        answers = self.at_clients("client_update", clients, messages, rng, form)
        for id_, answer in answers.items():
            known = {client.id: len(client) for client in clients}
            ledger.count("up", validate_uploads([(id_, answer)], form, known, Ledger.aside())[id_])
        return self.server_update(state, answers, rng)


class Thrifty(fedavg.FedAvg):
    """Enters a half of what crosses."""

    def round(self, state, clients, ledger, rng):
        new = super().round(state, clients, ledger, rng)
        for entry in ledger.rounds[-1]["up"], ledger.rounds[-1]["down"]:
            entry["parameters"] //= 2
        return new


class Gossip(moon.MOON):
    """Tells everybody what one client remembers of itself."""

    def client_update(self, client, message, rng):
        answer = super().client_update(client, message, rng)
        client.memory["secret"] = client.memory["previous/parameters/classifier.weight"] * 2
        self.heard = client.memory["secret"]
        return answer

    def broadcast(self, state, client_id):
        message = super().broadcast(state, client_id)
        heard = {"heard": self.heard} if hasattr(self, "heard") else {}
        return Message(message.tensors | heard)


class Naive(fedvck.FedVCK):
    """Sends real images for condensed ones."""

    def client_updates(self, clients, messages, rngs):
        answers = super().client_updates(clients, messages, rngs)
        for client in clients:
            images = answers[client.id].tensors["images"]
            images[:1] = client.images[:1]
        return answers


class Heedless(fedavg.FedAvg):
    """Averages by samples, whatever rule is set."""

    def server_update(self, state, uploads, rng):
        mean = fedavg.FedAvg(attrs.evolve(self.settings, aggregation="mean"), self.schedule)
        return mean.server_update(state, uploads, rng)


class Trusting(fedavg.FedAvg):
    """Takes what comes."""

    def round(self, state, clients, ledger, rng):
        messages = {c.id: ledger.count("down", self.broadcast(state, c.id)) for c in clients}
        answers = self.at_clients("client_update", clients, messages, rng, ({}, {}))
        uploads = {id_: ledger.count("up", answer) for id_, answer in answers.items()}
        return self.server_update(state, uploads, rng)


class Lenient(fedvck.FedVCK):
    """Asks for labels without a bound."""

    def upload_format(self, state):
        tensors, meta = super().upload_format(state)
        return tensors | {"labels": attrs.evolve(tensors["labels"], high=255)}, meta


class Unchecked(fedprox.FedProx):
    """Takes any value of mu."""

    @attrs.frozen(kw_only=True)
    class Settings(fedavg.Settings):
        mu: float = 0.01


BROKEN = {
    Forgetful: "resumes_bit_for_bit",
    Amnesiac: "resumes_bit_for_bit",
    Global: "one_seed_is_one_result",
    Seedless: "one_seed_is_one_result",
    Preset: "one_seed_is_one_result",
    Quiet: "a_listener_hears_of_loops",
    Reckless: "hard_clients_are_served",
    Boastful: "hard_clients_are_served",
    Sociable: "alone_equals_batched",
    Disorderly: "alone_equals_batched",
    InPlace: "nothing_given_is_changed",
    InMessage: "nothing_given_is_changed",
    Secretive: "bytes_are_those_of_the_tensors",
    Thrifty: "bytes_are_those_of_the_tensors",
    Gossip: "nothing_private_is_sent",
    Naive: "nothing_private_is_sent",
    Heedless: "shared_settings_are_heeded",
    Trusting: "hostile_uploads_are_refused",
    Lenient: "hostile_uploads_are_refused",
    Unchecked: "bad_settings_are_answered",
}


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_promise_is_found(kind):
    with pytest.raises((AssertionError, InputError)):
        PROMISES[BROKEN[kind]](Subject(kind.__name__, kind, tiny(kind, {})))


def test_an_empty_client_that_takes_part_is_found(monkeypatch):
    monkeypatch.setattr(loop, "select", lambda clients, active, rng: list(clients))
    with pytest.raises((AssertionError, InputError)):
        PROMISES["an_empty_client_takes_no_part"](
            Subject("fedavg", fedavg.FedAvg, tiny(fedavg.FedAvg, {}))
        )


#: what no setting of these may be, beside what the promise tries on all of them
REFUSED = [
    ("dc", {"matches": None, "images_per_class": 7}, {"matches": 0}),
    ("desa", {"ipc": 0}, {"learn_anchors": 1}, {"estimator": "all"}, {"kd_temperature": 0}),
    ("dfrd", {"ema": 1.5}, {"distance": "l3"}, {"server_batch": 1}, {"generator_momentum": 1}),
    ("dfrd", {"draws": "twice"}, {"moments": "new"}, {"output": "tanh"}, {"temperature": 0}),
    ("dfrd", {"transferability_form": "eq4"}, {"ema_start": "ones"}, {"embedding_bound": -1}),
    ("dm", {"images_per_class": 0}, {"init": "noisy"}, {"augmentation": "colour"}),
    ("dm", {"image_momentum": 1}),
    ("dsa", {"network_lr": 0}),
    ("fedavg", {"learning_rate": 0.1}, {"lr": "fast"}),
    ("fedavgm", {"server_momentum": 1.5}),
    ("feddf", {"auxiliary": ""}, {"auxiliary": 3}, {"kept_apart": 1}, {"clip_norm": 0}),
    ("feddf", {"kept_apart": 0}, {"pool": 1}),
    ("feddistill", {"sharing": "all"}, {"absent": "none"}, {"tracking": "epoch"}),
    ("feddistill", {"sharing": "logits", "aggregation": "median"}),
    ("feddm", {"rho": "far"}, {"server_epochs": 0}, {"server_decay": 0.0}, {"image_lr": 0}),
    ("feddm", {"image_momentum": 1}),
    ("fedgan", {"warm_up": 0}, {"generator_width": 0}, {"gan_lr": 0}, {"gan_momentum": 1}),
    ("fedgen", {"decay": 0.0}, {"generator_batch": 1}, {"noise": "gauss"}, {"labels": "all"}),
    ("fedgen", {"ensemble": "logit"}, {"ensemble_weights": "none"}),
    ("fediod", {"gan": 0, "confidence": 0, "uniqueness": 0, "mimic": 0}, {"private": True}),
    ("fediod", {"gan": 0, "pretrain_steps": 5}, {"tau": 0}, {"importance": "eq8"}, {"epsilon": 0}),
    ("fediod", {"teacher_models": ["resnet8"]}, {"teacher_models": [{"width": 4}]}, {"delta": 1.5}),
    ("fediod", {"gan_loss": "hinge"}, {"class_ratio": "sizes"}, {"student_steps": 0}),
    ("fedkd", {"levels": 128}, {"epsilon": 0}, {"epsilon": 11.0}, {"delta": 1}, {"pool": 0}),
    ("fedkd", {"protects": "all"}),
    ("fedmd", {"alignment": 0}, {"tested": "server"}, {"lr": 0}, {"initial_steps": 0}),
    ("fedmix", {"mixup": 1.5}, {"mean_batch": 1}, {"mean_batch": 2.5}),
    ("fedmk", {"tau": 0.0}, {"weights": "focal"}, {"sharing": "yes"}, {"classes": "some"}),
    ("fedmk", {"images_per_class": 0}, {"compare_size": 0}),
    ("fedvck", {"augmentation": 3}, {"server_augmentation": "color_turn"}, {"alpha": 1.5}),
    ("fedvck", {"candidates": 0}, {"negatives": 0}, {"temperature": 0}, {"warm_start": "yes"}),
    ("fedvck", {"keep_rounds": 0}, {"wire": "float16"}, {"first_model": "mine"}, {"b": 110}),
    ("gddfl", {"shift": "printed"}, {"shift_probability": 1.5}, {"shift_layer": 4}),
    ("moon", {"temperature": 0.0}, {"projection": 2.5}),
    ("random_selection", {"iterations": 3}),
]


@pytest.mark.parametrize(
    ("name", "settings"), [(name, settings) for name, *all_ in REFUSED for settings in all_]
)
def test_a_value_out_of_bounds_is_refused(name, settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        algorithms.create(name, settings)


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(InputError, match="did you mean 'fedavg'"):
        algorithms.create("fedavgg")
