"""DESA: synthetic anchors that all clients share, to align their features and to learn from each
other on.

Huang, Srinivas, Zhang, Li. Overcoming Data and Model Heterogeneities in Decentralized Federated
Learning via Synthetic Anchors. ICML 2024. Code: ubc-tea/DESA. The defaults are its values, but for
the local training, which is that of all methods here with the paper's batches of 32; `released()`
has the code's.

Before training every client condenses anchors of its classes by distribution matching at random
networks; the anchors of all clients are averaged, pixel by pixel, and every client gets them.
Locally it minimises L_CE(D_i and D_syn) + lambda_REG L_REG(D_i, D_syn) + lambda_KD L_KD(D_syn).

The paper has no server and no global model, and clients exchange logits on the anchors. FedVCK's
comparison has a global model, and its Tables 9 and 10 count a model as the upload. So here:
- The server averages the models as FedAvg does, and the average is tested. The mutual distillation
  keeps its meaning: the teacher of a client is the mean of the logits of the others' models, as
  they were uploaded in the last round. The server computes them and sends them with the model;
  there are none in the first round, nor in one in which a new client brings anchors (the code begins
  with those of random networks).
- Anchors start from N(0, 1), as in the code.
- Anchors cross the network once, as 8-bit images (the code averages floats, and writes PNG files):
  up in the first round that a client takes part in, down whenever it lacks the present ones.
  FedVCK's Table 10 has them as "Initialization".
- A class is averaged over the clients that have it. The code averages over all, and so adds noise
  images of clients without the class.
- All clients match at the same random networks, so that they condense in one batch.
- These are of the kind that clients train. The code takes a ConvNet of width 128 and depth 3 with
  instance normalisation, whatever clients train (iterative_desa.py calls `distribution_matching` of
  condensation.py without a network; `get_default_convnet_setting` of utils.py): `encoder: convnet`.
- The anchors of L_REG and L_KD are the same, and pass the network together with the batch of L_CE,
  so that batch normalisation, which the code's networks do not have, takes its statistics from
  both.

As in the code: L_REG moves the features of the batch towards those of the anchors, which are held
fixed in it; L_KD is multiplied by the square of its temperature. Left out are its mean over classes,
its factor of 0.9 and its extra cross-entropy on anchors, which L_CE has already: with C classes the
code's weight is a `kd` of 0.9 / C here. With ten it is 0.09, as in `released()`; with two, 0.45.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import attrs
import torch
from torch import nn
from torch.nn import functional as F

from core.baselines import fedavg
from core.checks import number, on_or_off, one_of, part, whole
from core.condensation import LatentEncoder
from core.condensation.engine import (
    ESTIMATORS,
    Condensation,
    Draws,
    MatchingObjective,
    condense,
    strategy,
)
from core.condensation.latent import Separate
from core.distillation import kl_divergence
from core.families import condensing
from core.federation import (
    CLASSIFICATION,
    SERVER,
    Client,
    Field,
    Ledger,
    Message,
    State,
    Task,
    train,
)
from core.federation.tensors import put, take
from core.models import Classifier
from core.progress import counted
from core.rng import Rng
from core.training import Objective


@attrs.frozen(kw_only=True)
class Settings(fedavg.Settings):
    """Local training, the making of anchors, and the weights of what is learnt from them."""

    batch_size: int = attrs.field(default=32, validator=whole(1))

    #: anchors per class
    ipc: int = attrs.field(default=50, validator=whole(1))
    iterations: int = attrs.field(default=1000, validator=whole(1))
    image_lr: float = attrs.field(default=1.0, validator=number(0, above=True))
    #: see `core.condensation.engine.Condensation`; `pool` is the number of random networks of a
    #: stored real side
    real_batch: int = attrs.field(default=256, validator=whole(1))
    replacement: bool = attrs.field(default=True, validator=on_or_off)
    candidates: int | None = attrs.field(default=None, validator=whole(1, optional=True))
    estimator: str = attrs.field(default="minibatch", validator=one_of("estimator", *ESTIMATORS))
    augmentation: str = attrs.field(
        default="color_crop_cutout_flip_scale_rotate", validator=strategy
    )
    pool: int = attrs.field(default=8, validator=whole(1))
    #: what anchors are matched at: random networks like the "task"'s own, whose batch normalisation
    #: takes the statistics of each batch, or the "convnet" of the code; its width and depth
    encoder: str = attrs.field(default="task", validator=one_of("encoder", "task", "convnet"))
    encoder_width: int = attrs.field(default=128, validator=whole(1))
    encoder_depth: int = attrs.field(default=3, validator=whole(1))

    #: whether L_CE sees the anchors beside the client's images
    learn_anchors: bool = attrs.field(default=True, validator=on_or_off)
    #: lambda_REG, and the temperature of its supervised contrastive loss
    reg: float = attrs.field(default=1.0, validator=number(0))
    reg_temperature: float = attrs.field(default=0.07, validator=number(0, above=True))
    #: lambda_KD, and its temperature
    kd: float = attrs.field(default=1.0, validator=number(0))
    kd_temperature: float = attrs.field(default=20.0, validator=number(0, above=True))

    @classmethod
    def released(cls) -> Settings:
        """Local training of the authors' code, one pass in a round by plain SGD, its ConvNet for
        anchors, real batches without replacement, and its weight of L_KD with ten classes.
        """
        return cls(
            local_epochs=1,
            momentum=0.0,
            weight_decay=0.0,
            kd=0.09,
            replacement=False,
            encoder="convnet",
        )

    def network(self, task: Task, rng: Rng) -> Classifier:
        """A random network that anchors are matched at."""
        if self.encoder == "task":
            return task.new_model(rng)
        return condensing.instance_convnet(task, rng, self.encoder_width, self.encoder_depth)

    @property
    def matching(self) -> Condensation:
        """Return these settings as condensation takes them."""
        return part(self, Condensation)

    @property
    def wants_anchors(self) -> bool:
        """True where anything is learnt from anchors; the method is FedAvg otherwise."""
        return self.learn_anchors or self.reg > 0 or self.kd > 0


class DESA(fedavg.FedAvg):
    """FedAvg with synthetic anchors, by which clients train, align and learn from each other."""

    Settings = Settings
    network_parts = ("embed", "classifier")
    task_kinds = CLASSIFICATION
    evaluators = SERVER
    remote_calls = ("anchors", "client_update")

    def initialise(self, task: Task, rng: Rng) -> State:
        """A fresh model; no anchors yet."""
        data, device = task.dataset, task.runtime.device
        shape = (data.num_classes, self.settings.ipc, data.channels, data.size, data.size)
        empty = {
            "anchors/sum": torch.zeros(shape, device=device),
            "anchors/owners": torch.zeros(data.num_classes, dtype=torch.int64, device=device),
        }
        return State(
            task, super().initialise(task, rng).tensors | empty, {"owners": [], "sent": {}}
        )

    def round(self, state: State, clients: Sequence[Client], ledger: Ledger, rng: Rng) -> State:
        """Anchors of clients that take part for the first time go up, then a round of FedAvg."""
        if self.settings.wants_anchors:
            state = self.exchange(state, clients, ledger, rng)
        return super().round(state, clients, ledger, rng)

    def upload_fault(self, upload: Message) -> str | None:
        """Say where an upload of anchors has a class more than once."""
        classes = upload.tensors.get("anchors/classes")
        if classes is None or len(classes.unique()) == len(classes):
            return None
        return "anchors need each class once, with its images"

    def broadcast(self, state: State, client_id: int) -> Message:
        """The global model, the anchors where the client lacks the present ones, and, where others
        have uploaded theirs, the mean of their logits on the anchors.
        """
        tensors = super().broadcast(state, client_id).tensors
        if state.meta["sent"].get(str(client_id), 0) != len(state.meta["owners"]):
            tensors |= take("present/", state.tensors)
        # sorted: the order in a state that was read from a file is another one
        others = [
            state.tensors[name]
            for name in sorted(state.tensors)
            if name.startswith("outputs/") and name != f"outputs/{client_id}"
        ]
        # Z_i = mean_{j != i} M_j(D_syn)
        mean = {"logits/others": torch.stack(others).mean(0)} if others else {}
        return Message(tensors | mean)

    def client_update(self, client: Client, message: Message, rng: Rng) -> Message:
        """Local training on the client's images and, with `learn_anchors`, on the anchors."""
        client.memory |= put("anchors/", take("anchors/", message.tensors))
        images, labels = client.images, client.labels
        if self.settings.learn_anchors:
            images = torch.cat([images, client.memory["anchors/images"]])
            labels = torch.cat([labels, client.memory["anchors/labels"].long()])
        model = self.start(client, message)
        objective = self.objective(client, message, rng.at("objective"))
        train(model, images, labels, self.settings, objective, rng)
        return self.answer(client, model)

    def objective(self, client: Client, received: Message, rng: Rng) -> Objective:
        """L_CE + lambda_REG L_REG + lambda_KD L_KD of a batch and as many newly drawn anchors."""
        settings, task, plain = self.settings, client.task, super().objective(client, received, rng)
        teacher = received.tensors.get("logits/others") if settings.kd else None
        if not settings.reg and teacher is None:
            return plain
        images, classes = (client.memory[f"anchors/{name}"] for name in ("images", "labels"))
        draws = rng.generator(images.device)
        data_loss = settings.data_loss(task, client.labels)

        def objective(model: nn.Module, batch: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            rows = torch.randint(
                len(images), (settings.batch_size,), generator=draws, device=images.device
            )
            with task.runtime.autocast():
                features = model.embed(task.inputs(torch.cat([batch, images[rows]])))  # type: ignore[operator]
                outputs = model.classifier(features)  # type: ignore[operator]
            own, anchored = features.float().tensor_split([len(batch)])
            loss = data_loss(outputs[: len(batch)], labels)
            if settings.reg:
                loss = loss + settings.reg * supervised_contrastive(
                    torch.cat([own, anchored.detach()]),
                    torch.cat([labels, classes[rows].long()]),
                    settings.reg_temperature,
                )
            if teacher is not None:
                # L_KD = T^2 KL(Z_i || M_i(D_syn)) at temperature T
                loss = loss + settings.kd * settings.kd_temperature**2 * kl_divergence(
                    outputs[len(batch) :].float(), teacher[rows], settings.kd_temperature
                )
            return loss

        return objective

    def server_update(self, state: State, uploads: Mapping[int, Message], rng: Rng) -> State:
        """Average the models, and note each one's logits on the anchors; who sent one has these."""
        sent = dict.fromkeys(map(str, uploads), len(state.meta["owners"]))
        meta = state.meta | {"sent": state.meta["sent"] | sent}
        tensors = without_outputs(super().server_update(state, uploads, rng).tensors)
        if self.settings.kd:
            images = state.tensors["present/anchors/images"]
            tensors |= {
                f"outputs/{id_}": state.task.outputs(
                    self.network(state.task, upload.tensors), images
                )
                for id_, upload in uploads.items()
            }
        return attrs.evolve(state, tensors=tensors, meta=meta)

    def exchange(self, state: State, clients: Sequence[Client], ledger: Ledger, rng: Rng) -> State:
        """Ask clients that are new for their anchors, and average those of all."""
        owners = state.meta["owners"]
        new = [client for client in clients if client.id not in owners]
        if not new:
            return state
        form = anchors_format(state)
        uploads = self.call_clients(
            "anchors", new, None, (form, {}), ledger, rng.at("anchors"), clients
        )
        if uploads:  # else the outputs that are here stay those on the anchors of today
            state = attrs.evolve(
                state,
                tensors=collect(state, uploads),
                meta=state.meta | {"owners": sorted({*owners, *uploads})},
            )
        return attrs.evolve(state, tensors=state.tensors | put("present/", anchors(state)))

    def anchors(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """The anchors that clients upload."""
        answers: dict[int, Message] = {}
        stream_of = {client.id: rng for client, rng in zip(clients, rngs, strict=True)}
        parts = list(condensing.chunks(clients))
        for some in counted(parts, "parts", len(parts)):
            answers |= self._condensed(some, [stream_of[client.id] for client in some])
        return answers

    def _condensed(self, clients: Sequence[Client], rngs: Sequence[Rng]) -> dict[int, Message]:
        """The anchors of some clients, condensed from noise at the same random networks."""
        task, rng = clients[0].task, rngs[0].parent
        network = partial(self.settings.network, task)
        encoder = LatentEncoder(network(rng.at("encoder")))
        real, _ = condensing.gather(clients, rngs, self.settings.candidates)
        group = torch.arange(real.groups, device=real.group.device).repeat_interleave(
            self.settings.ipc
        )
        # min sum_c |mean psi(D_c) - mean psi(S_c)|^2 over random networks psi
        encoder.resample = lambda step: redraw(encoder, network(rng.at("network", step)))
        objective = MatchingObjective(
            encoder,
            real,
            self.settings.matching,
            Draws(rngs, real.owner),
            task.inputs,
            task.runtime.autocast,
            Separate(),
        )
        images, _ = condense(objective, condensing.starts("noise", real, group, task, rngs), group)
        images = condensing.encode(images, task.dataset, "uint8").unflatten(
            0, (real.groups, self.settings.ipc)
        )
        return {
            client.id: Message(
                {
                    "anchors/images": images[real.owner == position],
                    "anchors/classes": real.label[real.owner == position].to(torch.uint8),
                }
            )
            for position, client in enumerate(clients)
        }


def supervised_contrastive(
    features: torch.Tensor, labels: torch.Tensor, temperature: float
) -> torch.Tensor:
    """The mean supervised contrastive loss (Khosla et al. 2020, L_out) of features (N, D), labels (N,):
    -1/|P(i)| sum_{p in P(i)} log exp(z_i z_p / tau) / sum_{a != i} exp(z_i z_a / tau), z of length 1,
    P(i) the other samples of the label; 0 where there are none.
    """
    z = F.normalize(features, dim=1)
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    similarity = (z @ z.T / temperature).masked_fill(itself, -torch.inf)
    positive = (labels[:, None] == labels) & ~itself
    log_shares = similarity.log_softmax(1).masked_fill(~positive, 0.0)
    return -(log_shares.sum(1) / positive.sum(1).clamp(min=1)).mean()


def anchors_format(state: State) -> dict[str, Field]:
    """The form of a client's anchors: its classes, and the images of each."""
    classes, *shape = state.tensors["anchors/sum"].shape
    return {
        "anchors/images": Field((None, *shape), torch.uint8, most=classes),
        "anchors/classes": Field((None,), torch.uint8, low=0, high=classes - 1, most=classes),
    }


def collect(state: State, uploads: Mapping[int, Message]) -> dict[str, torch.Tensor]:
    """The state's tensors with the sums of new anchors; outputs on the old anchors are dropped."""
    total, owners = state.tensors["anchors/sum"].clone(), state.tensors["anchors/owners"].clone()
    for upload in uploads.values():
        images, classes = upload.tensors["anchors/images"], upload.tensors["anchors/classes"].long()
        total.index_add_(0, classes, images.float())
        owners.index_add_(0, classes, torch.ones_like(classes))
    return without_outputs(state.tensors) | {"anchors/sum": total, "anchors/owners": owners}


def without_outputs(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a state but for what models said of the anchors."""
    return {name: value for name, value in tensors.items() if not name.startswith("outputs/")}


def anchors(state: State) -> dict[str, torch.Tensor]:
    """D_syn: the owners' mean image of each class, (M, C, H, W) uint8, and the labels (M,) uint8."""
    total, owners = state.tensors["anchors/sum"], state.tensors["anchors/owners"]
    present = owners.nonzero().squeeze(1)
    images = (
        (total[present] / owners[present].view(-1, 1, 1, 1, 1))
        .round()
        .to(torch.uint8)
        .flatten(0, 1)
    )
    return {
        "anchors/images": images,
        "anchors/labels": present.to(torch.uint8).repeat_interleave(total.shape[1]),
    }


def redraw(encoder: LatentEncoder, network: nn.Module) -> None:
    """Give an encoder the weights of a fresh network, in place."""
    fresh = network.state_dict()
    for name, value in encoder.model.state_dict().items():
        value.copy_(fresh[name])
