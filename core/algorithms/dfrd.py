"""DFRD: the server distils the clients' models into their average, with images that it learns to
generate.

Luo, Wang, Fu, Li, Lan, Gao. DFRD: Data-Free Robustness Distillation for Heterogeneous Federated
Learning. NeurIPS 2023, Section 3; here with one architecture for all, so the average is that of
FedAvg. The authors' repository is anonymous and its code could not be had; the defaults are those
of its README, and where the paper is silent, the code of their later DFDG (2024) was read. The
README also names a bound on the length of the label's embedding, which the paper does not have; it
is left out.

Chosen where the paper is silent or cannot be followed:
- KL(a, b) of both equations is `kl_div(log a, b)` of PyTorch, the sum of b log(b / a), as in DFDG's
  code; so the student learns from KL(ensemble || student), as is usual. The temperature is 1. The
  gradient of the generator passes through both arguments.
- The 2-norms of the diversity loss: of images with hundreds of pixels their product is in the
  hundreds, and exp(-600) is 0 with gradient 0. The default is the mean of squared differences,
  which DFDG's code names "l2"; `distance: norm` is the equation as printed.
- The student and the clients' models are in evaluation mode: their running statistics are those of
  real images, and batches of synthetic ones must not replace them. Generators normalise by their
  own batch.
- The moving average starts from the first generator. Adam's moments are kept from round to round;
  the student's SGD starts anew.
- Network of the generator: `ImageGenerator`, with label and noise multiplied as printed.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from torch import nn
from torch.nn import functional as F

from core.algorithms import fedavg
from core.checks import number, one_of, part, whole
from core.distillation import kl_divergence
from core.families import generative
from core.federation import Client, Field, Message, State, Task, learn, pack
from core.federation.tensors import pack_optimiser, unpack, unpack_optimiser
from core.models import ImageGenerator
from core.models.stacked import Stacked
from core.rng import Rng
from core.server import ServerTraining, draw_labels, label_shares
from core.training import adam, sgd, take_step


@attrs.frozen(kw_only=True)
class Settings(fedavg.Settings):
    """Local training, and the adversarial distillation on the server."""

    #: I: rounds of the game between generator and student; with 0 the method is FedAvg
    iterations: int = attrs.field(default=10, validator=whole(0))
    #: I_g and I_d: steps of the generator and of the student in each
    generator_steps: int = attrs.field(default=2, validator=whole(1))
    student_steps: int = attrs.field(default=5, validator=whole(1))
    #: synthetic images of one step
    server_batch: int = attrs.field(default=64, validator=whole(2))
    #: Adam of the generator; beta_2 is 0.999
    generator_lr: float = attrs.field(default=2e-4, validator=number(0, above=True))
    generator_momentum: float = attrs.field(default=0.5, validator=number(0, 1))
    #: SGD of the student
    server_lr: float = attrs.field(default=0.01, validator=number(0, above=True))
    server_momentum: float = attrs.field(default=0.9, validator=number(0, 1))
    server_weight_decay: float = attrs.field(default=1e-4, validator=number(0))
    #: beta_tran and beta_div
    transferability: float = attrs.field(default=1.0, validator=number(0))
    diversity: float = attrs.field(default=1.0, validator=number(0))
    #: between two images, and between two inputs: the "mean_square" of their difference, or its
    #: 2-"norm" as printed
    distance: str = attrs.field(
        default="mean_square", validator=one_of("distance", "mean_square", "norm")
    )
    #: alpha, beta_old in the book: weight of images of the averaged generator
    alpha: float = attrs.field(default=0.5, validator=number(0))
    #: lambda: what the averaged generator keeps of itself in a round
    ema: float = attrs.field(default=0.5, validator=number(0, 1))
    #: z, length of a noise vector
    noise: int = attrs.field(default=64, validator=whole(1))
    generator_width: int = attrs.field(default=64, validator=whole(1))


class Generator(nn.Module):
    """s = G(h; w) of h = o(z, y) = z x E(y): noise times a learnt embedding of the label, number by
    number.

    Args:
        network: from h (N, z) to images in [0, 1]; embedding: E, (C, z).
    """

    def __init__(self, network: ImageGenerator, embedding: torch.Tensor) -> None:
        super().__init__()
        self.network, self.embedding = network, nn.Parameter(embedding)

    def merge(self, noise: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """h = o(z, y), (N, z)."""
        return noise * self.embedding[labels]

    def forward(self, merged: torch.Tensor) -> torch.Tensor:
        """Images (N, C, S, S) in [0, 1] of h (N, z)."""
        return self.network(merged)


@attrs.frozen(eq=False)
class Ensemble:
    """sum_i tau_{i,y} f_i(s): the clients' models, each heard by its share of the class; `shares`
    is (K, C).
    """

    models: Stacked
    shares: torch.Tensor

    def __call__(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Logits (N, C) in float32 of network inputs (N, C, S, S) that were made for `labels`
        (N,).
        """
        return (self.shares[:, labels, None] * self.models(inputs).float()).sum(0)


class DFRD(fedavg.FedAvg):
    """FedAvg, after which the server plays I rounds of a game in every round of the federation.

    The generator looks for images that the ensemble of the clients' models takes for the wanted
    class and the global model does not; the global model learns from the ensemble on them, and on
    images of a moving average of the generator, so that it does not forget. Clients say how often
    each label was among their batches.
    """

    Settings = Settings

    def initialise(self, task: Task, rng: Rng) -> State:
        """A fresh model, and a generator with w~ = w."""
        tensors = super().initialise(task, rng).tensors
        generator = self._generator(task, rng.at("generator"))
        return State(task, tensors | pack(generator, "generator/") | pack(generator, "ema/"))

    def upload_format(self, state: State) -> tuple[dict[str, Field], dict[str, Field]]:
        """A model, the number of samples behind it, and n_{i,y}: how often it trained on each
        label.
        """
        tensors, meta = super().upload_format(state)
        return tensors | {"labels/counts": state.task.counts(self.settings.views)}, meta

    def client_update(self, client: Client, message: Message, rng: Rng) -> Message:
        """Local training as in FedAvg, counting the labels that it sees."""
        counts = torch.zeros(
            client.task.dataset.num_classes, dtype=torch.int64, device=client.labels.device
        )
        objective = self.objective(client, message, rng.at("objective"))

        def counting(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            counts.scatter_add_(0, labels, torch.ones_like(labels))
            return objective(model, images, labels)

        model = self.start(client, message)
        learn(model, client.images, client.labels, self.settings, counting, rng)
        answer = self.answer(client, model)
        return Message(answer.tensors | {"labels/counts": counts}, answer.meta)

    def server_update(self, state: State, uploads: Mapping[int, Message], rng: Rng) -> State:
        """Average the models, then distil all of them into the average."""
        state = super().server_update(state, uploads, rng)
        if not self.settings.iterations:
            return state
        teachers = [
            self.network(state.task, upload.tensors).eval().requires_grad_(False)
            for upload in uploads.values()
        ]
        counts = torch.stack([upload.tensors["labels/counts"] for upload in uploads.values()])
        # tau_{i,y} = n_{i,y} / n_y and p(y) = n_y / sum_y n_y
        ensemble, distribution = (
            Ensemble(Stacked(teachers), label_shares(counts)),
            counts.sum(0).float(),
        )
        learnt = self._distil(state.task, state.tensors, ensemble, distribution, rng)
        return attrs.evolve(state, tensors=state.tensors | learnt)

    def _distil(
        self,
        task: Task,
        tensors: Mapping[str, torch.Tensor],
        ensemble: Ensemble,
        distribution: torch.Tensor,
        rng: Rng,
    ) -> dict[str, torch.Tensor]:
        """The changed part of the state after I rounds of the game; nothing in them waits for a
        GPU.
        """
        settings = self.settings
        student = self.network(task, tensors).eval()
        generator, average = (
            unpack(self._generator(task, Rng(0)), tensors, prefix)
            for prefix in ("generator/", "ema/")
        )
        of_generator, of_student = self._optimisers(generator, student)
        unpack_optimiser(of_generator, generator, tensors, "adam/")
        draws = rng.at("draws").generator(task.runtime.device)
        for _ in range(settings.iterations):
            noise, labels = self._sample(distribution, draws)
            student.requires_grad_(False)
            for _ in range(settings.generator_steps):
                wrong = self.generator_loss(task, generator, student, ensemble, noise, labels)
                take_step(wrong, of_generator)
            student.requires_grad_(True)
            new = self._lesson(task, generator, ensemble, noise, labels)
            for _ in range(settings.student_steps):
                sample = self._sample(distribution, draws)
                old = self._lesson(task, average, ensemble, *sample)
                take_step(self.student_loss(task, student, new, old), of_student)
        with torch.no_grad():
            # w~^t = lambda w~^{t-1} + (1 - lambda) w^t
            for kept, latest in zip(average.parameters(), generator.parameters(), strict=True):
                kept.lerp_(latest, 1 - settings.ema)
        return (
            pack(student)
            | pack(generator, "generator/")
            | pack(average, "ema/")
            | pack_optimiser(of_generator, generator, "adam/")
        )

    def _optimisers(
        self, generator: nn.Module, student: nn.Module
    ) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
        """Adam for the generator, SGD for the student."""
        settings = self.settings
        own = part(settings, ServerTraining, "server_", batch_size=settings.server_batch)
        return (
            adam(generator.parameters(), settings.generator_lr, settings.generator_momentum),
            sgd(student.parameters(), own),
        )

    def _sample(
        self, distribution: torch.Tensor, draws: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """z ~ N(0, 1) and y ~ p(y)."""
        size = self.settings.server_batch
        noise = torch.randn(size, self.settings.noise, generator=draws, device=draws.device)
        return noise, draw_labels(distribution, size, draws)

    def generator_loss(
        self,
        task: Task,
        generator: Generator,
        student: nn.Module,
        ensemble: Ensemble,
        noise: torch.Tensor,
        labels: torch.Tensor,
    ) -> torch.Tensor:
        """L_gen = L_fid + beta_tran L_tran + beta_div L_div."""
        settings = self.settings
        with task.runtime.autocast():
            merged = generator.merge(noise, labels)
            inputs = task.dataset.standardise(generator(merged))
            heard, own = ensemble(inputs, labels), student(inputs).float()
        # L_fid = CE(sum_i tau_{i,y} f_i(s), y)
        loss = F.cross_entropy(heard, labels)
        loss = loss + settings.transferability * transferability_loss(heard, own, labels)
        return loss + settings.diversity * diversity_loss(inputs, merged, settings.distance)

    @torch.no_grad()
    def _lesson(
        self,
        task: Task,
        generator: Generator,
        ensemble: Ensemble,
        noise: torch.Tensor,
        labels: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Network inputs that a generator makes for labels, and what the ensemble says of them."""
        with task.runtime.autocast():
            inputs = task.dataset.standardise(generator(generator.merge(noise, labels)))
            return inputs, ensemble(inputs, labels)

    def student_loss(
        self,
        task: Task,
        student: nn.Module,
        new: tuple[torch.Tensor, torch.Tensor],
        old: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """L_md = KL(f(s), sum_i tau_{i,y} f_i(s)) + alpha KL(f(s~), sum_i tau_{i,y~} f_i(s~))."""
        with task.runtime.autocast():
            answers = student(torch.cat([new[0], old[0]])).float().chunk(2)
        return kl_divergence(answers[0], new[1]) + self.settings.alpha * kl_divergence(
            answers[1], old[1]
        )

    def _generator(self, task: Task, rng: Rng) -> Generator:
        settings, data = self.settings, task.dataset
        network = generative.image_generator(
            task, rng.at("network"), noise=settings.noise, width=settings.generator_width
        )
        embedding = torch.randn(
            data.num_classes, settings.noise, generator=rng.at("embedding").generator()
        )
        return Generator(network, embedding.to(task.runtime.device)).train()


def transferability_loss(
    heard: torch.Tensor, own: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """L_tran = -eps KL(sum_i tau_{i,y} f_i(s), f(s)), the mean over images.

    eps is 1 where the ensemble sees the label and the global model does not: such images lie
    between the two decision boundaries. `heard` and `own` are logits (N, C) of the ensemble and of
    the global model.
    """
    between = (heard.argmax(1) == labels) & (own.argmax(1) != labels)
    apart = F.kl_div(
        heard.log_softmax(1), own.log_softmax(1), log_target=True, reduction="none"
    ).sum(1)
    return -(between * apart).mean()


def diversity_loss(images: torch.Tensor, merged: torch.Tensor, distance: str) -> torch.Tensor:
    """L_div = exp(-1/Q^2 sum_{i,j} |s_i - s_j| |h_i - h_j|), in (0, 1]: 1 when all images are
    equal.

    Args:
        images: s, (Q, ...); merged: h, (Q, z).
        distance: "norm", |a| the 2-norm as printed; or "mean_square", the mean of the squares of a.
    """
    apart = [_distances(each.flatten(1).float(), distance) for each in (images, merged)]
    return torch.exp(-(apart[0] * apart[1]).mean())


def _distances(rows: torch.Tensor, distance: str) -> torch.Tensor:
    """Distances of all pairs of rows, (Q, Q) of (Q, D)."""
    rows = rows - rows.mean(0)
    squares = rows.square().sum(1)
    itself = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    # the distance to itself is 0, and a square root must not see it
    apart = (squares[:, None] + squares - 2 * rows @ rows.T).clamp_min(0)
    if distance == "mean_square":
        return apart.masked_fill(itself, 0.0) / rows.shape[1]
    return apart.masked_fill(itself, 1.0).sqrt().masked_fill(itself, 0.0)
