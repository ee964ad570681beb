"""FedMD: heterogeneous federated learning via model distillation.

Li, Wang. FedMD: Heterogenous Federated Learning via Model Distillation. NeurIPS workshop on
federated learning 2019, Algorithm 1. Settings that the paper leaves open are those of the authors'
code (diogenes0319/FedMD_clean), but for its private batches of 5 images, which suit its 18 images
per client.

Two things follow FedIOD's Table 1, where this method is a row. The public images have no labels of
the task, so clients start from their own data alone; in the paper they first learn the public
labels. And the table has one accuracy per run, and says that such methods "train the central model
with aggregated locally-computed logits": a student on the server learns from the consensus and is
tested. How long it learns is not said. With `tested: clients` there is no student, and the clients'
models are tested as in the paper. In the code a client's first training ends early, by the test set, its
two optimisers go on from round to round, and the last layer has a penalty of its own; here none of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import attrs
import torch
from torch import nn
from torch.nn import functional as F

from core.checks import number, one_of, whole
from core.families import public_images as public
from core.families.own_models import OWN, OwnModels
from core.federation import (
    Client,
    Field,
    Format,
    LocalTraining,
    Message,
    State,
    Task,
    pack,
    supervised,
    train,
)
from core.federation.tensors import take
from core.rng import Rng


@attrs.frozen(kw_only=True)
class Settings(public.PublicData):
    """Hyper-parameters of FedMD; every network learns with Adam at a constant rate."""

    lr: float = attrs.field(default=1e-3, validator=number(0, above=True))
    #: private images in a batch
    batch_size: int = attrs.field(default=32, validator=whole(1))
    #: passes over the private data before the first answer
    initial_epochs: int = attrs.field(default=25, validator=whole(1))
    #: batches before the first answer; when given it takes the place of `initial_epochs`
    initial_steps: int | None = attrs.field(default=None, validator=whole(1, optional=True))
    #: passes over the private data in every later round ("revisit")
    local_epochs: int = attrs.field(default=4, validator=whole(1))
    #: batches in every later round; when given it takes the place of `local_epochs`
    local_steps: int | None = attrs.field(default=None, validator=whole(1, optional=True))
    #: public images that are answered in a round, drawn anew in each
    alignment: int = attrs.field(default=5_000, validator=whole(1))
    align_batch: int = attrs.field(default=256, validator=whole(1))
    #: a client's passes over the consensus ("digest")
    align_epochs: int = attrs.field(default=1, validator=whole(1))
    #: the student's passes over the consensus of a round; 20 of 5,000 images in 100 rounds are as
    #: many as FedKD's student sees
    student_epochs: int = attrs.field(default=20, validator=whole(1))
    #: "student": one network on the server; "clients": each client's, the mean over them
    tested: str = attrs.field(default="student", validator=one_of("tested", "student", "clients"))

    @classmethod
    def released(cls) -> Self:
        """The clients are tested, as in the authors' code; the other values are the defaults."""
        return cls(tested="clients")


class FedMD(OwnModels):
    """Clients answer public images, the server returns the mean answer, and clients learn to answer alike.
    A round ends with the upload: digest the last consensus, revisit own data, answer this round's images.
    No model crosses the network; every client draws its own first weights.
    """

    Settings = Settings

    def initialise(self, task: Task, rng: Rng) -> State:
        """The student's first weights, and the seed of the public images on both sides."""
        public.public_images(task, self.settings, anew=True)
        student = pack(task.new_model(rng.at("model"))) if not self.tests_own_models else {}
        return State(task, student, {"round": 0, "seed": rng.at("alignment").key})

    def _aligned(self, task: Task, seed: int, t: int) -> torch.Tensor:
        """d_j, the public images of a round, uint8 (n, C, S, S), the same for server and clients."""
        shared = Rng(seed).at("round", t)
        return public.drawn(task, self.settings, self.settings.alignment, shared)

    def broadcast(self, state: State, client_id: int) -> Message:
        """The last round's consensus, if there was one, and which public images to answer."""
        return Message(
            take("sent/", state.tensors), {"round": state.meta["round"], "seed": state.meta["seed"]}
        )

    def upload_format(self, state: State) -> Format:
        """Logits for the public images of the round."""
        count = min(self.settings.alignment, len(public.public_images(state.task, self.settings)))
        return {"answers/logits": Field((count, state.task.dataset.num_classes), torch.float32)}, {}

    def client_update(self, client: Client, message: Message, rng: Rng) -> Message:
        """Digest, revisit, communicate."""
        settings, task = self.settings, client.task
        t, seed = message.whole("round"), message.whole("seed")
        if "consensus/logits" in message.tensors and client.memory:
            model = task.model_from(client.memory, OWN)
            # digest: f_k approaches the consensus on the public images of the round before
            self._digest(
                task,
                model,
                self._aligned(task, seed, t - 1),
                message.tensors["consensus/logits"],
                settings.align_epochs,
                rng.at("digest"),
            )
            epochs, steps = settings.local_epochs, settings.local_steps
        else:
            model = task.new_model(rng.at("model"))
            epochs, steps = settings.initial_epochs, settings.initial_steps
        # revisit: f_k trains on its own data
        local = LocalTraining(
            lr=settings.lr, batch_size=settings.batch_size, local_epochs=epochs, local_steps=steps
        )
        train(
            model,
            client.images,
            client.labels,
            local,
            supervised(task),
            rng.at("revisit"),
            optimisers=[public.adam(model, settings.lr)],
        )
        client.memory = pack(model, OWN)
        # communicate: f_k(x_i), the class scores of the public images
        return Message({"answers/logits": task.outputs(model, self._aligned(task, seed, t))})

    def _digest(
        self,
        task: Task,
        model: nn.Module,
        images: torch.Tensor,
        consensus: torch.Tensor,
        epochs: int,
        rng: Rng,
    ) -> None:
        """Bring logits closer to the consensus, by the mean absolute error as in the authors' code."""
        batch = self.settings.align_batch
        public.mimic(
            task,
            model,
            images,
            consensus,
            F.l1_loss,
            public.adam(model, self.settings.lr),
            batch,
            epochs * -(-len(images) // batch),
            rng,
        )

    def server_update(self, state: State, uploads: Mapping[int, Message], rng: Rng) -> State:
        """Aggregate; the student learns from the consensus as the clients will."""
        t = state.meta["round"]
        # f~(x_i) = 1/m sum_k f_k(x_i)
        consensus = torch.stack(
            [upload.tensors["answers/logits"] for upload in uploads.values()]
        ).mean(0)
        tensors = state.tensors | {"sent/consensus/logits": consensus}
        if not self.tests_own_models:
            student = state.task.model_from(state.tensors)
            self._digest(
                state.task,
                student,
                self._aligned(state.task, state.meta["seed"], t),
                consensus,
                self.settings.student_epochs,
                rng.at("student"),
            )
            tensors |= pack(student)
        return attrs.evolve(state, tensors=tensors, meta=state.meta | {"round": t + 1})

    @property
    def tests_own_models(self) -> bool:
        """True where the settings have the clients' models tested."""
        return self.settings.tested == "clients"

    def model(self, state: State) -> nn.Module | list[nn.Module]:
        """The student, or the model of every client that has answered."""
        if self.tests_own_models:
            return self.client_models(state)
        return state.task.model_from(state.tensors)
