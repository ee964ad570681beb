"""How many images run through a network at once."""

import torch

from core.models import at_once


def test_as_many_pixels_whatever_the_size_of_an_image():
    assert [at_once(torch.empty(1, 3, side, side)) for side in (8, 16, 32, 64)] == [
        2048,
        512,
        128,
        32,
    ]


def test_large_images_are_not_taken_one_by_one_and_a_gpu_gets_more():
    assert at_once(torch.empty(1, 3, 512, 512)) == 16
    sides = {8: 1024, 32: 1024, 64: 256, 224: 20, 512: 16}
    on_a_gpu = {side: at_once(torch.empty(1, 3, side, side, device="meta")) for side in sides}
    assert on_a_gpu == sides
