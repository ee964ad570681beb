"""FedDistill: federated distillation of mean logits per class, in the meaning of FedGen's
repository.

Jeong, Oh, Kim, Park, Bennis, Kim. Communication-Efficient On-Device Machine Learning: Federated
Distillation and Augmentation under Non-IID Private Data. 2018; Seo, Park, Oh, Bennis, Kim.
Federated Knowledge Distillation. 2020; code: zhuangdizhu/FedGen (`FedDistill`, and `FedDistill-FL`,
which the paper of FedGen calls FedDistill+).

Clients average their logits per class while they train, the server averages these averages, and in
the next round clients keep their outputs on an image near the mean of its class. In the papers of
2018 and 2020 nothing else is shared, and every client keeps a model of its own (`sharing: logits`).
FedDistill+ shares and averages models too.

FedMK's tables cite Seo et al. but can only mean FedDistill+, the default here. On the whole test
set of MNIST they report 58% to 76%, level with FedAvg; a client by itself knows the few classes that
a Dirichlet split of 0.1 gives it. And the scripts of FedGen's repository, from which FedMK has its
setting, run `FedDistill-FL`.

Open or different: a class whose logits nobody has sent has no regulariser, and one that nobody has
in a round keeps those of the last round that had some. In the papers a client is compared with the
mean of the others, in the code with the mean of all, as here. The code adds up logits over all
rounds and counts a client without a class as logits of zero, so that a class that nobody has is
drawn towards equal probabilities; settings `tracking` and `absent` do that. It also counts one
sample too many of every class, which is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from torch import nn

from core.baselines import fedavg, fedgen
from core.checks import number, one_of
from core.distillation import kl_divergence
from core.errors import InputError
from core.families.own_models import OWN
from core.federation import CLASSIFICATION, Client, Field, Format, Message, State, Task
from core.federation.local_training import LocalLoss
from core.federation.tensors import put, take, weights
from core.rng import Rng


@attrs.frozen(kw_only=True)
class Settings(fedavg.Settings):
    """Local training, and the regulariser."""

    #: weight of the divergence from the mean logits
    weight: float = attrs.field(default=1.0, validator=number(0))
    #: "models": models and logits (FedDistill+); "logits": logits only, every client tests its own
    #: model
    sharing: str = attrs.field(default="models", validator=one_of("sharing", "models", "logits"))
    #: a client without a class is "skipped" when the logits of that class are averaged, or counts
    #: as "zero": then every class has logits in every round
    absent: str = attrs.field(
        default="skipped", validator=one_of("treatment of absent classes", "skipped", "zero")
    )
    #: logits are averaged over the "round", or over the whole "run"
    tracking: str = attrs.field(
        default="round", validator=one_of("tracking of logits", "round", "run")
    )

    def __attrs_post_init__(self) -> None:
        if self.sharing == "logits" and self.aggregation != "mean":
            raise InputError(
                "with sharing: logits no models are averaged, so aggregation must be mean, "
                f"not {self.aggregation}"
            )

    @classmethod
    def released(cls) -> Settings:
        """The local training of zhuangdizhu/FedGen, and its way to average logits."""
        return cls(**fedgen.LOCAL, absent="zero", tracking="run")


class FedDistill(fedavg.FedAvg):
    """Clients keep their outputs near all clients' mean of the class; else FedAvg (`sharing: models`)."""

    Settings = Settings
    task_kinds = CLASSIFICATION

    def initialise(self, task: Task, rng: Rng) -> State:
        """A fresh model; with `sharing: logits` the seed from which every client makes the same."""
        if self.settings.sharing == "models":
            return super().initialise(task, rng)
        return State(task, {}, {"seed": rng.at("model").key})

    def broadcast(self, state: State, client_id: int) -> Message:
        """The global model or the seed; from round 2 on, mean logits and their classes."""
        logits = put("logits/", take("logits/", state.tensors))
        return Message(weights(state.tensors) | logits, dict(state.meta))

    def upload_format(self, state: State) -> Format:
        """The model, if shared; mean logits, and the number of samples behind each."""
        tensors, meta = super().upload_format(state)
        classes = state.task.dataset.num_classes
        return tensors | {
            "logits/mean": Field((classes, classes), torch.float32),
            "logits/samples": state.task.counts(self._views),
        }, meta

    def _views(self, samples: int) -> int:
        """Number of times that a client with so many samples has seen one, in all rounds together."""
        return self.schedule.rounds * self.settings.views(samples)

    @property
    def tests_own_models(self) -> bool:
        """True where clients keep a model of their own, or test."""
        return self.settings.sharing == "logits" or self.clients_test

    def loss(self, client: Client, received: Message, rng: Rng) -> LocalLoss:
        """The loss of the data and the divergence from the mean logits; sums up the client's own."""
        task, classes, device = client.task, client.task.dataset.num_classes, client.labels.device
        if self.settings.tracking == "round" or "tracked/sums" not in client.memory:
            client.memory |= {
                "tracked/sums": torch.zeros(classes, classes, device=device),
                "tracked/samples": torch.zeros(classes, dtype=torch.int64, device=device),
            }
        sums, samples = client.memory["tracked/sums"], client.memory["tracked/samples"]
        mean, known = (received.tensors.get(f"logits/{name}") for name in ("mean", "known"))
        data_loss = self.settings.data_loss(task, client.labels)

        def loss(model: nn.Module, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            outputs = outputs.float()
            sums.index_add_(0, labels, outputs.detach())
            samples.index_add_(0, labels, torch.ones_like(labels))
            plain = data_loss(outputs, labels)
            if mean is None or known is None:
                return plain
            # an output compared with itself has neither a divergence nor a gradient
            wanted = torch.where(known[labels].unsqueeze(1), mean[labels], outputs.detach())
            return plain + self.settings.weight * kl_divergence(outputs, wanted)

        return loss

    def start(self, client: Client, message: Message) -> nn.Module:
        """The global model, or the client's own."""
        if self.settings.sharing == "models":
            return super().start(client, message)
        own = take(OWN, client.memory)
        fresh = Rng(message.whole("seed"))
        return self.network(client.task, own) if own else client.task.new_model(fresh)

    def answer(self, client: Client, model: nn.Module) -> Message:
        """The trained model, or none; the mean logits go along."""
        own, answer = self.settings.sharing == "logits", super().answer(client, model)
        if own:
            client.memory |= put(OWN, answer.tensors)
        samples = client.memory["tracked/samples"]
        logits = {
            "logits/mean": client.memory["tracked/sums"] / samples.clamp(min=1).unsqueeze(1),
            "logits/samples": samples.clone(),
        }
        return Message(logits if own else answer.tensors | logits, answer.meta)

    def server_update(self, state: State, uploads: Mapping[int, Message], rng: Rng) -> State:
        """The average of the models, and the mean over clients of their mean logits."""
        state = super().server_update(state, uploads, rng)
        means, samples = (
            torch.stack([upload.tensors[f"logits/{name}"] for upload in uploads.values()])
            for name in ("mean", "samples")
        )
        having = (samples > 0) | (self.settings.absent == "zero")
        known = having.any(0)
        mean = (means * having.unsqueeze(2)).sum(0) / having.sum(0).clamp(min=1).unsqueeze(1)
        if "logits/mean" in state.tensors:
            # with "skipped" a class that nobody has in this round keeps what was known of it
            mean = torch.where(known.unsqueeze(1), mean, state.tensors["logits/mean"])
            known = known | state.tensors["logits/known"]
        return attrs.evolve(
            state, tensors=state.tensors | {"logits/mean": mean, "logits/known": known}
        )

    def model(self, state: State) -> nn.Module | list[nn.Module]:
        """The global model, or the model of every client that has trained one."""
        if self.settings.sharing == "models":
            return super().model(state)
        return self.client_models(state)
