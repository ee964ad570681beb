"""What condensed images start from."""

import itertools

import torch
from scipy import stats

from core.condensation import initial_images

SIZES = torch.tensor([6, 1, 3])
GROUP = torch.repeat_interleave(torch.arange(3), SIZES)
#: every real image has one grey level of its own
IMAGES = (torch.arange(10, dtype=torch.uint8) * 10).view(10, 1, 1, 1).expand(10, 2, 4, 4)
LEVELS = [{0, 10, 20, 30, 40, 50}, {60}, {70, 80, 90}]


def start(kind, counts, seed=0, images=IMAGES, group=GROUP):
    draws = torch.Generator().manual_seed(seed)
    numbers = torch.tensor(counts)
    return initial_images(kind, images, group, numbers, lambda x: x.float() + 0.5, draws)


def split(images, counts):
    """Grey levels of each group's images, after checking that each image has one."""
    assert images.dtype == torch.float32 and images.shape == (sum(counts), 2, 4, 4)
    levels = images.flatten(1) - 0.5
    assert (levels == levels[:, :1]).all()
    return [part.tolist() for part in levels[:, 0].split(counts)]


def test_noise_is_standard_normal_and_seeded():
    noise = start("noise", [40, 5, 5])
    assert noise.shape == (50, 2, 4, 4) and noise.dtype == torch.float32
    assert stats.kstest(noise.flatten().numpy(), "norm").pvalue > 1e-3
    assert torch.equal(noise, start("noise", [40, 5, 5]))
    assert not torch.equal(noise, start("noise", [40, 5, 5], seed=1))


def test_noise_needs_no_real_images():
    assert start("noise", [2, 2], images=IMAGES[:0], group=GROUP[:0]).shape == (4, 2, 4, 4)


def test_real_images_are_of_the_group_and_not_repeated_before_all_were_used():
    counts = [5, 3, 8]
    found = split(start("real", counts), counts)
    for levels, known in zip(found, LEVELS, strict=True):
        assert set(levels) <= known
        uses = [levels.count(level) for level in known]
        assert max(uses) - min(uses) <= 1


def test_every_real_image_is_as_likely():
    counts = [1, 1, 1]
    first = [split(start("real", counts, seed), counts)[0][0] for seed in range(600)]
    assert stats.chisquare([first.count(level) for level in sorted(LEVELS[0])]).pvalue > 1e-3


def test_averages_are_of_five_different_images():
    counts = [300, 2, 40]
    found = split(start("real_average", counts), counts)
    possible = sorted(sum(five) / 5 for five in itertools.combinations(sorted(LEVELS[0]), 5))

    each = [sum(abs(level - value) < 1e-3 for level in found[0]) for value in possible]
    assert stats.chisquare(each).pvalue > 1e-3
    assert found[1] == [60, 60]
    assert all(70 <= level <= 90 for level in found[2]) and len(set(found[2])) > 3


def test_a_group_may_get_no_condensed_images_and_then_needs_no_real_ones():
    counts, without = [2, 0, 1], GROUP.ne(1)
    assert split(start("real", counts), counts)[1] == []
    made = start("real_average", counts, images=IMAGES[without], group=GROUP[without])
    assert split(made, counts)[1] == []
