"""Networks that classify images, and what federation needs of them: tensors by name, and a way to set them.

Every network is an encoder followed by one linear layer, `classifier`; `embed` gives what enters that layer.
"""

from core.models.classifier import Classifier
from core.models.initialisation import initialise
from core.models.registry import build, names
from core.models.tensors import count_parameters, load, parameters_and_buffers

__all__ = ["Classifier", "build", "count_parameters", "initialise", "load", "names", "parameters_and_buffers"]
