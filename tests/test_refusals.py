"""Bad input of what computes is answered by one sentence that says what is wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from core import condensation as c
from core import metrics, models, server
from core.condensation.engine import Condensation
from core.distillation import class_input_importance, gan_losses
from core.metrics import image_quality
from core.models import FeatureGenerator, ImageGenerator, PatchDiscriminator
from core.privacy import audit, differential, leakage, membership
from core.rng import Rng
from tests.sentences import refused

ZEROS, LABELS, DRAWS = torch.zeros(2, 2), torch.tensor([0, 1]), torch.Generator()
MAPS, IMAGES = torch.zeros(6, 3, 5, 5), torch.rand(5, 1, 8, 8)
WEIGHT = {"w": torch.ones(1)}
SQUARE, WIDER = np.zeros((8, 8), int), np.zeros((8, 9), int)
PADDED = np.array([[-1, -1], [0, 1]])


def built(name, channels, size, classes, **options):
    return lambda: models.build(name, channels, size, classes, Rng(0), **options)


def fresh(kind, *sizes, **options):
    return lambda: models.fresh(kind, *sizes, **options, rng=Rng(0))


def contrastive(temperature=1.0, **names):
    negatives = torch.tensor([[1], [0]])
    return lambda: server.relational_contrastive_loss(
        ZEROS, LABELS, ZEROS, negatives, temperature, **names
    )


def initial(kind, counts):
    group = torch.arange(2)
    return lambda: c.initial_images(kind, IMAGES[:2], group, torch.tensor(counts), float, DRAWS)


def measured(logits, labels):
    return lambda: metrics.classification(logits, torch.tensor(labels, dtype=torch.int64))


def noised(rows, norm=1.0, multiplier=1.0):
    return lambda: differential.clip_and_noise(rows, norm, multiplier, DRAWS)


def audited(canaries, factor=1.0):
    return lambda: audit.audited_epsilon(
        lambda answer, draws: answer * factor, canaries, 1, 40, 1e-5, Rng(0)
    )


def shapes(measure):
    return lambda: measure(SQUARE, WIDER)


REFUSED = [
    # networks
    ("did you mean 'convnet'", built("convnt", 1, 28, 2)),
    ("did you mean 'width'", built("convnet", 1, 28, 2, widht=3)),
    ("no option of lenet named 'width'", built("lenet", 1, 28, 2, width=3)),
    ("classes", built("convnet", 1, 28, 1)),
    ("at least 8x8, not 7x7", built("convnet", 1, 7, 2)),
    ("at most 16", built("convnet", 1, 28, 2, depth=20_000)),
    ("width", built("convnet", 1, 28, 2, width=-1)),
    ("did you mean 'batch'", built("convnet", 1, 28, 2, norm="batchnorm")),
    ("first", built("lenet", 1, 8, 2, first=0)),
    ("1x1 cells", built("resnet8", 1, 4, 2)),
    ("5x5 cells", built("resnet8", 1, 20, 2, grid=4)),
    ("pool", built("resnet18", 1, 28, 2, pool="big")),
    ("leave 2x2", built("resnet18", 1, 64, 2, pool="released")),
    ("multiple of 8 and at least 16, not 20", built("unet", 3, 20, 2)),
    ("direct must be true or false", built("unet", 3, 32, 2, direct=1)),
    ("", fresh(ImageGenerator, 1, 7)),
    ("", fresh(ImageGenerator, 1, 8, first=0)),
    ("", fresh(FeatureGenerator, 3, 5, noise=0)),
    ("", fresh(PatchDiscriminator, 1, norm="layer")),
    ("no network", lambda: models.Stacked([])),
    # condensation
    ("share", lambda: Condensation(share=1.5)),
    ("must be a text", lambda: Condensation(augmentation=3)),
    ("there is no augmentation named", lambda: c.draw_augmentation("color-flip", 1, 8, DRAWS)),
    ("there is no augmentation named", lambda: c.draw_augmentation("None", 1, 8, DRAWS)),
    ("did you mean 'real'", initial("reall", [1, 1])),
    ("without real images", initial("real", [1, 1, 1])),
    ("known: share, softmax", lambda: c.selection_probabilities(ZEROS[0], LABELS, 2, "shares")),
    ("", lambda: c.smoothed_error(ZEROS, ZEROS, LABELS, math.nan)),
    ("", lambda: c.smoothed_error(ZEROS, ZEROS, LABELS, 0.5, "logit")),
    ("has the shape", lambda: c.uncertain_shift(MAPS[0], 0.5, Rng(0))),
    ("must lie in", lambda: c.uncertain_shift(MAPS, math.nan, Rng(0))),
    ("did you mean 'as_printed'", lambda: c.uncertain_shift(MAPS, 0.5, Rng(0), "printed")),
    # distillation
    ("did you mean 'share'", lambda: class_input_importance(ZEROS, class_ratio="shares")),
    ("hinge", lambda: gan_losses(MAPS, MAPS, torch.ones(6), "hinge", "real")),
    ("both", lambda: gan_losses(MAPS, MAPS, torch.ones(6), "linear", "both")),
    # the server
    ("", lambda: server.weighted_average([WEIGHT], [0])),
    ("negative", lambda: server.weighted_average([WEIGHT, WEIGHT], [3, -1])),
    ("", lambda: server.weighted_average([WEIGHT], [1, 2])),
    ("", lambda: server.weighted_average([WEIGHT, {"v": torch.ones(1)}], [1, 1])),
    ("temperature", contrastive(math.nan)),
    ("form", contrastive(form="print")),
    ("similarity", contrastive(similarity="l2")),
    ("shape", lambda: server.aggregate_prototypes(torch.zeros(2, 3, 3), ZEROS)),
    ("negative", lambda: server.aggregate_prototypes(ZEROS[None], torch.tensor([[1, -1]]))),
    ("labels", lambda: server.logit_prototypes(torch.zeros(3, 2), LABELS, 2)),
    ("", lambda: server.hard_negatives(torch.zeros(2, 3), 1)),
    ("", lambda: server.hard_negatives(ZEROS, True)),
    ("", lambda: server.hard_negatives(ZEROS, 1, own="sometimes")),
    ("logits", lambda: server.ensemble_cross_entropy(ZEROS[None], LABELS, "logit")),
    ("normal", lambda: server.draw_noise("gaussian", (1,), DRAWS)),
    # measures
    ("needs logits", measured(torch.zeros(3), [0, 0, 0])),
    ("needs logits", measured(torch.zeros(3, 2), [0, 0])),
    ("no samples", measured(torch.zeros(0, 2), [])),
    ("0 .. 1", measured(ZEROS, [0, -1])),
    ("not finite", measured(ZEROS * math.nan, [0, 1])),
    ("no models", lambda: metrics.mean_and_std([])),
    ("", lambda: image_quality.inception_score(torch.zeros(0, 4))),
    ("", lambda: image_quality.inception_score(torch.tensor([[1.5, -0.5]]))),
    ("", lambda: image_quality.adapted_inception_score(torch.eye(4))),
    ("", lambda: image_quality.fid(IMAGES[:1], IMAGES, lambda images: images.flatten(1))),
    ("", lambda: image_quality.fid(IMAGES, IMAGES, lambda images: images.flatten(1) * math.nan)),
    (r"have shapes \(8, 8\) and \(8, 9\)", shapes(metrics.regions)),
    (r"have shapes \(8, 8\) and \(8, 9\)", shapes(metrics.objects)),
    (r"have shapes \(8, 8\) and \(8, 9\)", shapes(metrics.reconstruction)),
    ("marks padding", lambda: metrics.objects(PADDED, PADDED + 1)),
    # privacy
    ("delta", lambda: audit.gaussian_epsilon(1.0, 0.0)),
    ("", lambda: audit.least_distance(3, 2, 0, 1)),
    ("not finite", audited((ZEROS, ZEROS + 1), math.nan)),
    ("differ", audited((ZEROS, ZEROS * math.nan))),
    ("", lambda: differential.noise_multiplier(1e-8, 1e-9, 1.0, 10**6)),  # no noise meets it
    ("", lambda: differential.noise_multiplier(1.0, 1e-5, 1.5, 10)),
    ("", lambda: differential.noise_multiplier(1.0, 1e-5, 0.1, 0)),
    ("", lambda: differential.spent_epsilon(-1.0, 0.1, 10, 1e-5)),
    ("", noised(ZEROS, multiplier=-1.0)),
    ("", noised(ZEROS * math.nan)),
    ("", lambda: differential.noisy_votes(ZEROS, math.inf, DRAWS)),
    ("", lambda: leakage.best_matches(IMAGES[:0], IMAGES)),
    ("one kind is missing", lambda: membership.auc(np.zeros(10), np.ones(10, dtype=bool))),
]


@pytest.mark.parametrize(("words", "call"), REFUSED)
def test_bad_input_is_refused_in_one_sentence(words, call):
    refused(words or None, call)
