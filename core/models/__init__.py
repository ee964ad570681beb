"""Networks that classify images or make them, and what federation needs: tensors by name, and a way
to set them.

Every classifier is an encoder followed by one linear layer, `classifier`; `embed` gives what enters
that layer.
"""

from core.models.blocks import at_once, replace_layers
from core.models.classifier import Classifier
from core.models.dense import DensePatchDiscriminator, LabelToImage, UNet, planes
from core.models.generative import FeatureGenerator, ImageGenerator, PatchDiscriminator, fresh
from core.models.initialisation import initialise
from core.models.registry import build, check_options, every_name, is_dense, names, register
from core.models.stacked import Stacked
from core.models.tensors import count_parameters, load, parameters_and_buffers

__all__ = [
    "Classifier",
    "DensePatchDiscriminator",
    "FeatureGenerator",
    "ImageGenerator",
    "LabelToImage",
    "PatchDiscriminator",
    "Stacked",
    "UNet",
    "at_once",
    "build",
    "check_options",
    "count_parameters",
    "every_name",
    "fresh",
    "initialise",
    "is_dense",
    "load",
    "names",
    "parameters_and_buffers",
    "planes",
    "register",
    "replace_layers",
]
