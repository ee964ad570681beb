"""Every registered algorithm keeps every promise, and every promise can be broken."""

from __future__ import annotations

import attrs
import pytest
import torch

from core import algorithms
from core.algorithms import fedvck
from core.baselines import fedavg, fedprox, moon
from core.errors import InputError
from core.federation import Message, loop
from core.rng import Rng
from lab import make_task

pytest.register_assert_rewrite("tests.algorithms.contract")

from tests.algorithms.contract import PROMISES  # noqa: E402
from tests.algorithms.on_digits import on_digits  # noqa: E402
from tests.algorithms.on_drawings import on_heads, on_nuclei  # noqa: E402
from tests.algorithms.subjects import Subject, needs, subjects, tiny  # noqa: E402

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
    """Begins with clients that remember nothing, also where a run goes on."""

    met = ()

    def client_update(self, client, message, rng):
        client.memory = client.memory if client.id in self.met else {}
        self.met = (*self.met, client.id)
        return super().client_update(client, message, rng)


class Global(fedavg.FedAvg):
    """Draws from torch's global generator."""

    def server_update(self, state, uploads, rng):
        new = super().server_update(state, uploads, rng)
        return attrs.evolve(new, meta={"luck": float(torch.rand(()))})


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


class Reckless(fedavg.FedAvg):
    """Divides by the number of samples of a class."""

    def server_update(self, state, uploads, rng):
        new = super().server_update(state, uploads, rng)
        return attrs.evolve(new, tensors=new.tensors | {"share": torch.ones(10) / torch.arange(10)})


class InPlace(fedavg.FedAvg):
    """Averages into the tensors of the state that it was given."""

    def server_update(self, state, uploads, rng):
        new = super().server_update(state, uploads, rng)
        for name, value in new.tensors.items():
            state.tensors[name].copy_(value)
        return state


class Secretive(fedavg.FedAvg):
    """Sends the model past the ledger, and takes any upload."""

    def round(self, state, clients, ledger, rng):
        messages = {client.id: self.broadcast(state, client.id) for client in clients}
        answers = self.at_clients("client_update", clients, messages, rng, ({}, {}))
        uploads = {id_: ledger.count("up", answer) for id_, answer in answers.items()}
        return self.server_update(state, uploads, rng)


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
    """Sends a real image among condensed ones."""

    def client_updates(self, clients, messages, rngs):
        answers = super().client_updates(clients, messages, rngs)
        for client in clients:
            answers[client.id].tensors["images"][:1] = client.images[:1]
        return answers


class Heedless(fedavg.FedAvg):
    """Averages by samples, whatever rule is set."""

    def server_update(self, state, uploads, rng):
        mean = fedavg.FedAvg(attrs.evolve(self.settings, aggregation="mean"), self.schedule)
        return mean.server_update(state, uploads, rng)


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
    "resumes_bit_for_bit": (Forgetful, Amnesiac),
    "one_seed_is_one_result": (Global, Preset),
    "a_listener_hears_of_loops": (Quiet,),
    "hard_clients_are_served": (Reckless,),
    "alone_equals_batched": (Sociable,),
    "nothing_given_is_changed": (InPlace,),
    "bytes_are_those_of_the_tensors": (Secretive,),
    "nothing_private_is_sent": (Gossip, Naive),
    "shared_settings_are_heeded": (Heedless,),
    "hostile_uploads_are_refused": (Lenient, Secretive),
    "bad_settings_are_answered": (Unchecked,),
}


@pytest.mark.parametrize(("promise", "kind"), [(p, kind) for p in BROKEN for kind in BROKEN[p]])
def test_a_broken_promise_is_found(promise, kind):
    with pytest.raises((AssertionError, InputError)):
        PROMISES[promise](Subject(kind.__name__, kind, tiny(kind, {})))


def test_an_empty_client_that_takes_part_is_found(monkeypatch):
    monkeypatch.setattr(loop, "select", lambda clients, active, rng: list(clients))
    with pytest.raises((AssertionError, InputError)):
        PROMISES["an_empty_client_takes_no_part"](attrs.evolve(SUBJECTS["fedavg"]))


#: what no setting of these may be, beside what the promise tries on all of them
REFUSED = [
    ("dc", {"matches": None, "images_per_class": 7}, {"matches": 0}),
    ("desa", {"ipc": 0}, {"kd_temperature": 0}),
    ("dfrd", {"ema": 1.5}, {"server_batch": 1}, {"generator_momentum": 1}, {"temperature": 0}),
    ("dm", {"images_per_class": 0}, {"image_momentum": 1}),
    ("dsa", {"network_steps": 0}),
    ("fedavg", {"learning_rate": 0.1}, {"lr": 3.5e38}, {"lr": 10**400}),  # beyond float32
    ("fedavgm", {"server_momentum": 1.5}),
    ("feddf", {"auxiliary": ""}, {"auxiliary": 3}, {"clip_norm": 0}, {"pool": 1}),
    ("feddistill", {"sharing": "logits", "aggregation": "median"}),
    ("feddm", {"server_epochs": 0}, {"server_decay": 0.0}, {"image_lr": 0}, {"image_momentum": 1}),
    ("fedgan", {"generator_width": 0}, {"gan_lr": 0}, {"gan_momentum": 1}),
    ("fedgen", {"decay": 0.0}, {"generator_batch": 1}),
    ("fediod", {"gan": 0, "confidence": 0, "uniqueness": 0, "mimic": 0}, {"private": True}),
    ("fediod", {"gan": 0, "pretrain_steps": 5}, {"tau": 0}, {"epsilon": 0}, {"student_steps": 0}),
    ("fediod", {"teacher_models": ["resnet8"]}, {"teacher_models": [{"width": 4}]}, {"delta": 1.5}),
    ("fedkd", {"levels": 128}, {"epsilon": 0}, {"epsilon": 11.0}, {"delta": 1}, {"pool": 0}),
    ("fedmd", {"alignment": 0}, {"lr": 0}, {"initial_steps": 0}),
    ("fedmix", {"mixup": 1.5}, {"mean_batch": 1}, {"mean_batch": 2.5}),
    ("fedmk", {"tau": 0.0}, {"images_per_class": 0}, {"compare_size": 0}),
    ("fedvck", {"alpha": 1.5}, {"b": 110}, {"candidates": 0}, {"negatives": 0}, {"temperature": 0}),
    ("fedvck", {"keep_rounds": 0}, {"replacement": False}),
    ("fedvck", {"replacement": False, "wo_pw": True, "batches": "sliding"}),
    ("gddfl", {"encoders": "two", "shift_layer": 1}, {"encoders": "two", "shift": "as_printed"}),
    ("gddfl", {"shift_probability": 1.5}, {"shift_layer": 4}),
    ("moon", {"temperature": 0.0}, {"projection": 2.5}),
    ("random_selection", {"iterations": 3}),
    # a control variate would be of another size
    ("scaffold", {"momentum": 0.9}),
]


@pytest.mark.parametrize(
    ("name", "settings"), [(name, settings) for name, *all_ in REFUSED for settings in all_]
)
def test_a_value_out_of_bounds_is_refused(name, settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        algorithms.create(name, settings)


NARROW, RESIDUAL, TYPO = {"width": 2}, {"model": "resnet8"}, {"model": "convnet", "widht": 4}
#: what an experiment cannot be, by its data or by its other settings
CANNOT = [
    (on_nuclei("asyndgan", {"local_augmentation": "crop_flip"}), "set local_augmentation to none"),
    (on_nuclei("asyndgan", {"discriminator_layers": 4}), "32x32 at most 3 times"),
    (on_heads("fedad", {}, evaluate_on="val"), "cannot test it"),
    (on_nuclei("fedavg", {"order": "by_class"}), "order must not be by_class: .* has no classes"),
    (on_digits("feddf", {"auxiliary": "digits"}), "another data set"),
    # maps would cross as they are
    (on_nuclei("fediod", {"private": True, "importance": "class_ratio"}), "private must be off"),
    (on_nuclei("fediod", {"teacher_models": [{"model": "unet"} | NARROW, RESIDUAL]}), "each pixel"),
    (on_digits("fediod", {"teacher_models": [{"model": "convnet"}, TYPO]}), "widht"),
    # of one channel the softmax is one: nothing would be learned
    (on_heads("fediod", {"tau": 4.0}), "tau must be null"),
    (
        on_heads("fediod", dict.fromkeys(("gan", "uniqueness", "mimic", "perceptual"), 0.0)),
        "one of gan, uniqueness",
    ),
    # no teacher would ever answer
    (on_digits("fedkd", {"local_rounds": 3}), "local_rounds must be at most 2"),
    *(
        [(on_digits("fedkd", {"private": True, "epsilon": 0.001}), "does not buy one answer")]
        if needs("opacus")
        else []
    ),
]


@pytest.mark.parametrize(("experiment", "reason"), CANNOT, ids=[reason for _, reason in CANNOT])
def test_what_cannot_be_is_refused_before_the_first_round(experiment, reason):
    with pytest.raises(InputError, match=reason):
        experiment.new_algorithm().initialise(make_task(experiment), Rng(0))


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(InputError, match="did you mean 'fedavg'"):
        algorithms.create("fedavgg")
