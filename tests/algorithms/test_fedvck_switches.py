"""FedVCK: switches of the released code, ablations, resuming, bytes on the wire."""

from functools import cache

import attrs
import pytest
import torch

from core import algorithms
from core.algorithms import fedvck as module
from core.condensation.engine import condensed_counts
from core.condensation.problem import Condensation
from core.data import Dataset, Split
from core.errors import InputError
from core.families import condensing
from core.families.condensing import Knowledge
from core.federation import Client, Ledger, Message, Runtime, Task, pack
from core.rng import Rng
from lab import rounds
from tests.algorithms.on_digits import on_digits

AUGMENTATION = "color_crop_cutout_flip_scale_rotate"
FAST = {
    "iterations": 2,
    "image_lr": 1.0,
    "real_batch": 16,
    "pool": 2,
    "server_steps": 4,
    "share": 0.05,
}
#: enough for the tiny network to be wrong on some images more than on others, which selection needs
TRAINED = {"server_steps": 40, "server_lr": 0.1}
TINY = on_digits("fedvck", FAST, evaluate_every=9)


def fedvck(**settings):
    return algorithms.create("fedvck", FAST | settings)


def messages_of(algorithm, state, clients):
    return {client.id: algorithm.broadcast(state, client.id) for client in clients}


# switches and ablations

#: a value for every setting that is FedVCK's own, other than its default
SWITCHES = {
    "b": 3.0,
    "alpha": 0.9,
    "negatives": 2,
    "temperature": 1.0,
    "contrast": 0.1,
    "wo_lrc": True,
    "wo_pw": True,
    "wo_latent": True,
    "statistics": "running",
    "blend": "logits",
    "selection": "softmax",
    "batches": "sliding",
    "first_model": "own",
    "warm_start": True,
    "own_negative": "forced",
    "contrast_form": "released",
    "similarity": "dot",
    "projector": "fresh",
    "projector_training": "accumulated",
    "fading_contrast": True,
    "keep_rounds": 10,
    "server_augmentation": AUGMENTATION,
    "server_draws": "image",
    "plain_pass": "always",
    "wire": "float32",
}
#: settings of the server's augmentation
AUGMENTED = {"server_draws", "plain_pass"}
SELECTION = {"b", "alpha", "blend", "selection", "wo_pw"}
#: round 1 has no contrastive term, so the projector of round 2 is new in any case: only round 3 can
#: tell
SEEN_IN_ROUND_3 = {"projector"}


@cache
def weights_after(task, number=2, **settings):
    experiment = attrs.evolve(TINY, rounds=number, settings=FAST | settings)
    *_, last = rounds(experiment, task=task)
    return torch.cat(
        [value.flatten() for value in pack(experiment.new_algorithm().model(last.state)).values()]
    )


def test_every_setting_has_a_test_and_released_changes_every_difference():
    own = set(attrs.fields_dict(module.Settings))
    own -= set(attrs.fields_dict(Condensation)) | set(attrs.fields_dict(condensing.ServerSide))
    own.remove("tell_loss")  # what a client says beside its images; it changes none of them
    assert own == set(SWITCHES)
    printed, released = module.Settings(), module.Settings.released()
    same = {name for name in own if getattr(printed, name) == getattr(released, name)}
    # the ablations; what both have; the cosine, which the printed form needs too (see `similarity`)
    assert same == {
        "wo_lrc",
        "wo_pw",
        "wo_latent",
        "b",
        "alpha",
        "negatives",
        "temperature",
        "similarity",
    }


@pytest.mark.parametrize("name", sorted(SWITCHES))
def test_each_switch_alone_changes_the_result(task, name):
    more = TRAINED if name in SELECTION else {}
    if name in AUGMENTED:
        more = {"server_augmentation": AUGMENTATION}
    plain, changed = (
        weights_after(task, **more),
        weights_after(task, **more, **{name: SWITCHES[name]}),
    )
    assert changed.isfinite().all()
    if name in SEEN_IN_ROUND_3:
        assert torch.equal(changed, plain)
        assert not torch.equal(
            weights_after(task, 3, **{name: SWITCHES[name]}), weights_after(task, 3)
        )
    else:
        assert not torch.allclose(changed, plain, rtol=1e-6, atol=1e-7)


def test_the_weight_of_the_contrast_fades_from_round_to_round(task):
    """con_beta is multiplied by 0.1 half way through every round and never restored; as printed it
    stays.
    """
    for fading, factor in ((True, 0.1), (False, 1.0)):
        experiment = attrs.evolve(
            TINY, rounds=3, settings=FAST | {"fading_contrast": fading, "contrast": 0.5}
        )
        weights = [result.state.meta["contrast"] for result in rounds(experiment, task=task)]
        assert weights == pytest.approx([0.5 * factor**r for r in (1, 2, 3)])


def test_each_step_of_the_ablation_changes_the_result(task):
    """The rows of Tables 4 and 14, and the two unions that the paper leaves out."""
    steps = [
        (),
        ("wo_lrc",),
        ("wo_lrc", "wo_pw"),
        ("wo_lrc", "wo_pw", "wo_latent"),
        ("wo_pw", "wo_latent"),
        ("wo_lrc", "wo_latent"),
    ]
    results = [weights_after(task, **TRAINED, **dict.fromkeys(off, True)) for off in steps]
    for i, one in enumerate(results):
        assert one.isfinite().all()
        assert not any(torch.allclose(one, other, rtol=1e-6, atol=1e-7) for other in results[:i])


def without_all(**more):
    return fedvck(wo_lrc=True, wo_pw=True, wo_latent=True, **more)


@pytest.mark.parametrize("estimator", ["minibatch", "expectation"])
def test_without_all_and_feddm_differ_in_the_logits_and_the_disturbance_only(
    task, clients, estimator
):
    """In the paper "w.o. all" equals FedDM to the digit (Tables 4 and 14). Here FedDM follows its
    own paper.

    It matches logits beside features, and disturbs the weights. With a classifier of weight 0 all
    logits are alike, so their mismatch is 0: without disturbance both then condense the same
    images, and differ with either of the two.
    """
    vck = without_all(estimator=estimator)
    dm, disturbed = (
        algorithms.create("feddm", FAST | {"estimator": estimator, "rho": rho})
        for rho in (0.0, 5.0)
    )

    def images(algorithm, factor=0.0):
        state = algorithm.initialise(task, Rng(0))
        state.tensors["parameters/classifier.weight"] *= factor
        upload = algorithm.client_update(
            attrs.evolve(clients[0], memory={}), algorithm.broadcast(state, 0), Rng(3)
        )
        return upload.tensors["images"].int()

    assert (images(vck) - images(dm)).abs().max() <= 1
    assert (images(vck) - images(disturbed)).abs().max() > 1
    assert (images(vck, 50.0) - images(dm, 50.0)).abs().max() > 1
    assert torch.equal(images(vck), images(vck, 50.0))  # features alone do not see the classifier


def test_without_contrast_the_server_learns_as_that_of_feddm(task, clients):
    """With equal settings of the server; the defaults differ (learning rate, decay, passes)."""
    shared = {"server_lr": 0.01, "server_weight_decay": 0.0, "server_decay": 1.0}
    vck, dm = without_all(**shared), algorithms.create("feddm", FAST | shared)
    state = vck.initialise(task, Rng(0))
    uploads = vck.at_clients(
        "client_update", clients, messages_of(vck, state, clients), Rng(3).at("client")
    )
    bare = {
        id_: Message({name: upload.tensors[name] for name in ("images", "labels")})
        for id_, upload in uploads.items()
    }
    ours = vck.server_update(state, uploads, Rng(4))
    theirs = dm.server_update(dm.initialise(task, Rng(0)), bare, Rng(4))
    for name, value in theirs.tensors.items():
        assert torch.equal(ours.tensors[name], value)


def test_the_projector_is_kept(task):
    after = [result.state.tensors for result in rounds(attrs.evolve(TINY, rounds=3), task=task)]
    names = [name for name in after[2] if name.startswith("projector/")]
    assert not any(name.startswith("projector/") for name in after[0]) and names
    # round 3 goes on from round 2: its few steps move the weights less than another draw would
    weight = "projector/parameters/first.weight"
    fresh = [
        result.state.tensors
        for result in rounds(
            attrs.evolve(TINY, rounds=3, settings=FAST | {"projector": "fresh"}), task=task
        )
    ]
    assert (after[2][weight] - after[1][weight]).norm() < 0.5 * (
        fresh[2][weight] - fresh[1][weight]
    ).norm()


# bytes


@pytest.mark.parametrize(
    ("name", "share", "pixel_bytes", "groups", "images", "printed"),
    [
        (
            "CIFAR10",
            0.02,
            32 * 32 * 3,
            [
                3593,
                4999,
                175,
                4958,
                242,
                847,
                1094,
                4152,
                307,
                4999,
                4365,
                3914,
                4605,
                4999,
                364,
                135,
                4727,
                120,
                192,
                1075,
            ],
            1012,
            2.96,
        ),
        (
            "ImageNette",
            0.01,
            64 * 64 * 3,
            [856, 87, 919, 302, 932, 882, 227, 626, 930, 865, 65, 311, 952, 185, 625, 278, 69, 270],
            126,
            1.48,
        ),
    ],
)
def test_table_9_to_the_digit_from_the_authors_splits(
    name, share, pixel_bytes, groups, images, printed
):
    """Upload in MB of 2^20 bytes: 10 clients, alpha 0.05, images of the classes that the split
    files list.
    """
    counts = condensed_counts(torch.tensor(groups), Condensation(share=share))
    assert int(counts.sum()) == images
    assert round(images * pixel_bytes / 2**20, 2) == printed


@pytest.mark.parametrize(
    ("name", "share", "pixel_bytes", "classes", "printed"),
    [
        (
            "PathMNIST",
            0.01,
            28 * 28 * 3,
            [9366, 9509, 10360, 10401, 8006, 12182, 7886, 9401, 12885],
            2.04,
        ),
        ("OCTMNIST", 0.01, 28 * 28, [33484, 10213, 7754, 46026], 0.74),
        (
            "OrganSMNIST",
            0.05,
            28 * 28,
            [1148, 630, 614, 721, 1132, 1119, 3464, 741, 803, 2004, 1556],
            0.52,
        ),
        ("PneumoniaMNIST", 0.05, 224 * 224, [1214, 3494], 11.77),
    ],
)
def test_tables_5_and_9_are_a_share_of_the_pixels(name, share, pixel_bytes, classes, printed):
    """One client per class: within 5% of print, where rounding up and the least number of 5 depend
    on the split.
    """
    counts = condensed_counts(torch.tensor(classes), Condensation(share=share))
    assert int(counts.sum()) * pixel_bytes / 2**20 == pytest.approx(printed, rel=0.05)


def test_the_printed_upload_of_stl10_is_about_one_channel_of_three():
    """0.25 MB is printed; 5% of 5,000 images of 32x32 pixels are 0.73 MB in three channels."""
    counts = condensed_counts(torch.tensor([500] * 10), Condensation(share=0.05))
    megabytes = int(counts.sum()) * 32 * 32 / 2**20
    assert round(3 * megabytes, 2) == 0.73 and megabytes == pytest.approx(0.25, abs=0.01)


def test_the_ledger_counts_images_labels_and_prototypes(task, clients):
    result = next(rounds(TINY, task=task))
    sizes = torch.stack([client.class_counts for client in clients])
    images = int(condensed_counts(sizes[sizes > 0], Condensation(share=0.05)).sum())
    up, classes = result.ledger.total("up"), 10
    assert up == {
        "images": images * 64,
        "labels": images,
        "prototypes": 3 * (classes * classes * 4 + classes * 8),
    }
    assert result.up == sum(up.values())
    assert "meta" not in result.ledger.total("down")
    wide = next(
        rounds(attrs.evolve(TINY, settings=FAST | {"wire": "float32"}), task=task)
    ).ledger.total("up")
    assert wide["images"] == 4 * images * 64


def test_the_server_decodes_within_half_a_grey_level(task, clients):
    """The same client condenses once for each wire: float32 is what it has, uint8 what the server
    sees of it.
    """
    exact, sent = (
        algorithm.client_update(
            attrs.evolve(clients[0], memory={}),
            algorithm.broadcast(algorithm.initialise(task, Rng(0)), 0),
            Rng(3),
        ).tensors["images"]
        for algorithm in (fedvck(wire="float32"), fedvck())
    )
    decoded, data = condensing.inputs(task, sent), task.dataset
    level = 1 / 255 / data.std[0]
    black, white = (0 - data.mean[0]) / data.std[0], (1 - data.mean[0]) / data.std[0]
    inside = (exact >= black) & (exact <= white)
    assert 0.2 < inside.float().mean() < 1
    assert (decoded - exact)[inside].abs().max() <= 0.5 * level * 1.0001
    torch.testing.assert_close(decoded[~inside], exact[~inside].clamp(black, white))


def test_many_images_per_class_are_not_refused():
    """The server's bound on the size of an upload follows `min_images`."""
    draw = Rng(0).generator()
    split = Split(
        torch.randint(0, 256, (4, 1, 8, 8), generator=draw, dtype=torch.uint8),
        torch.tensor([0, 0, 1, 1]),
    )
    data = Dataset(
        name="few",
        train=split,
        val=split,
        test=split,
        classes=("a", "b"),
        mean=(0.5,),
        std=(0.5,),
        fingerprint="",
    )
    task = Task(data, "convnet", {"width": 4}, Runtime())
    algorithm, ledger = fedvck(min_images=150, iterations=1), Ledger()
    ledger.open_round()
    state = algorithm.initialise(task, Rng(0))
    algorithm.round(state, [Client(0, task, split.images, split.labels)], ledger, Rng(0))
    assert ledger.total("up")["images"] == 300 * 64


@pytest.mark.parametrize("estimator", ["expectation", "minibatch", "feature_bank"])
def test_without_replacement_selection_is_refused_as_it_plays_no_part(estimator):
    with pytest.raises(InputError, match="wo_pw too"):
        algorithms.create("fedvck", {"estimator": estimator, "replacement": False})
    both = {"estimator": estimator, "replacement": False, "wo_pw": True}
    assert algorithms.create("fedvck", both).settings.wo_pw
    with pytest.raises(InputError, match="take 'fresh' ones"):
        algorithms.create("fedvck", both | {"batches": "sliding"})


@pytest.mark.parametrize(("fading", "weight", "fade"), [(True, 0.05, 0.1), (False, 0.5, 1.0)])
def test_the_contrast_of_a_round_has_the_weight_that_is_left(task, clients, fading, weight, fade):
    """con_beta of 0.5: the second round begins with 0.05, where it fades."""
    algorithm, ledger = fedvck(fading_contrast=fading, contrast=0.5), Ledger()
    ledger.open_round()
    state = algorithm.round(algorithm.initialise(task, Rng(0)), clients, ledger, Rng(0))
    uploads = algorithm.at_clients(
        "client_update", clients, messages_of(algorithm, state, clients), Rng(5).at("client")
    )
    found = algorithm._contrast(state, Knowledge.of(state), uploads, Rng(5))
    assert (found.weight, found.fade) == (pytest.approx(weight), fade)
