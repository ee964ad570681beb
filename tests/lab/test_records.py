"""The book's records: each is what the program as it is now would run under the same name."""

from __future__ import annotations

import attrs
import pytest

from lab import records

#: settings that came after records, by the value that means what those did: an entry here is the
#: author's word that a default changes nothing
AS_BEFORE: dict[str, object] = {
    # the server of FedVCK and FedMK
    "server_draws": "batch",
    "plain_pass": "contrast",
    "round_decay": 1.0,
    "last_lr": 0.0,
    # condensation to convergence
    "image_optimiser": "sgd",
    "stop_factor": None,
    "refresh": None,
    "tell_loss": False,
    # what official code does to batches
    "local_augmentation": "none",
    "class_weights": "none",
    "replacement": True,
    "order": "random",
    "counted": "images",
    # what the code of GDD-FL does
    "augmentation_draws": "fresh",
    "networks": "fresh",
    "encoders": "one",
    "choice": "random",
    "server_cosine": False,
    "last_client_chooses": False,
    # robust averages
    "aggregation": "mean",
    "trim": 0.1,
    # the networks of FedIOD's game, and its order
    "generator_form": "plain",
    "discriminator_norm": "instance",
    "discriminator_first": False,
    "discriminator_rests": False,
    # what condensed images start from
    "init": "noise",
    # FedGen's bound, whose statistics FedDM takes, what DESA matches anchors at
    "generated_steps": None,
    "statistics": "own",
    "encoder": "task",
    "encoder_width": 128,
    "encoder_depth": 3,
    # what a public copy of DFRD's code does
    "transferability_form": "printed",
    "temperature": 1.0,
    "embedding_bound": 0.0,
    "output": "pixels",
    "draws": "once",
    "moments": "kept",
    "ema_start": "generator",
    # masks and images: no part of classification
    "perceptual": 1.0,
}


@pytest.fixture(scope="module")
def known():
    """All records, each read with the check that its id is that of its experiment."""
    return records()


def drift(then: dict, now: dict) -> dict[str, tuple]:
    """Settings that a record and the program of today disagree about: (then, now)."""
    then = {key: value for key, value in AS_BEFORE.items() if key in now} | then
    pairs = {key: (then.get(key, "not stated"), now.get(key, "gone")) for key in then | now}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def test_every_record_has_the_settings_that_its_experiment_has_today(known):
    """A default that changes would let an old record stand for a new experiment of the same id."""
    assert len(known) > 800
    found = {}
    for name, record in known.items():
        run = record.experiment
        now = attrs.asdict(run.new_algorithm().settings)
        if wrong := drift(record.settings, now):
            found[name] = wrong
    assert found == {}


def test_drift_is_seen_in_every_form(monkeypatch):
    assert drift({"lr": 0.1}, {"lr": 0.1}) == {}
    assert drift({"lr": 0.1}, {"lr": 0.2}) == {"lr": (0.1, 0.2)}
    assert drift({"lr": 0.1}, {}) == {"lr": (0.1, "gone")}
    assert drift({}, {"own": False}) == {"own": ("not stated", False)}
    monkeypatch.setitem(AS_BEFORE, "own", False)
    assert drift({}, {"own": False}) == {}
    assert drift({}, {"own": True}) == {"own": (False, True)}
    assert drift({"own": True}, {"own": True}) == drift({}, {}) == {}
