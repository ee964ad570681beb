"""DFRD: the server distils the clients' models into their average, with images that it learns to
generate.

Luo, Wang, Fu, Li, Lan, Gao. DFRD: Data-Free Robustness Distillation for Heterogeneous Federated
Learning. NeurIPS 2023, Section 3; here with one architecture for all, so the average is that of
FedAvg. The authors' repository is anonymous and could not be had, but for its README. A copy of
their code is in HaowenGuan/DFFKE (baselines/DFRD, commit b89363d), which uses it as a baseline; its
options are those of the README. `released()` has its values. The other defaults are those of the
README, and where the paper is silent, of the code of their later DFDG (2024).

Chosen where the paper is silent or cannot be followed:
- KL(a, b) of both equations is `kl_div(log a, b)` of PyTorch, the sum of b log(b / a), as in both
  codes; so the student learns from KL(ensemble || student), as is usual. By default the temperature
  is 1, and the gradient of the generator passes through both arguments.
- The 2-norms of the diversity loss: of images with hundreds of pixels their product is in the
  hundreds, and exp(-600) is 0 with gradient 0. The default is the mean of squared differences,
  which both codes name "l2"; `distance: norm` is the equation of the paper.
- The student and the clients' models are in evaluation mode: their running statistics are those of
  real images, and batches of synthetic ones must not replace them. Generators normalise by their
  own batch. In the copy it is the other way round: the authors' networks keep no running
  statistics, and generators make the student's images with theirs.
- By default the moving average starts from the first generator, and Adam's moments are kept from
  round to round; the student's SGD starts anew.
- Network of the generator: `ImageGenerator`, with label and noise multiplied as in the paper. The copy's
  has four transposed convolutions, and begins with normal weights of deviation 0.02.

The copy averages the models only on request (`weight_agg_plus`); here they always are. Its counts of
labels go on from round to round; here they are those of the round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import repeat
from typing import TypeVar

import attrs
import torch
from torch import nn
from torch.nn import functional as F

from core.baselines import fedavg, fedgen
from core.checks import beta_1, number, one_of, part, whole
from core.distillation import kl_divergence
from core.families import generative
from core.federation import (
    CLASSIFICATION,
    SERVER,
    Client,
    Format,
    Message,
    State,
    Task,
    pack,
    train,
)
from core.federation.tensors import pack_optimiser, unpack, unpack_optimiser
from core.models import ImageGenerator
from core.models.stacked import Stacked
from core.progress import counted
from core.rng import Rng
from core.server import ServerTraining, draw_labels, label_shares
from core.server.game import (
    FORMS,
    diversity_loss,
    embedding_excess,
    transferability_loss,
)
from core.training import adam, sgd, take_step

Drawn = TypeVar("Drawn")


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
    generator_momentum: float = attrs.field(default=0.5, validator=beta_1)
    #: SGD of the student
    server_lr: float = attrs.field(default=0.01, validator=number(0, above=True))
    server_momentum: float = attrs.field(default=0.9, validator=number(0, 1))
    server_weight_decay: float = attrs.field(default=1e-4, validator=number(0))
    #: beta_tran and beta_div
    transferability: float = attrs.field(default=1.0, validator=number(0))
    diversity: float = attrs.field(default=1.0, validator=number(0))
    #: between two images, and between two inputs: the "mean_square" of their difference, or its
    #: 2-"norm" as in the paper
    distance: str = attrs.field(
        default="mean_square", validator=one_of("distance", "mean_square", "norm")
    )
    #: L_tran "printed": the mean over all images, with a gradient through both models; "released":
    #: the mean over images between the boundaries, the global model's answer held fixed
    transferability_form: str = attrs.field(
        default="printed", validator=one_of("form of the transferability", *FORMS)
    )
    #: of the answers that L_tran and L_md compare; its square is not multiplied in
    temperature: float = attrs.field(default=1.0, validator=number(0, above=True))
    #: weight of the bound on embeddings, which the README names and the paper does not
    embedding_bound: float = attrs.field(default=0.0, validator=number(0))
    #: what a generator makes: "pixels" in [0, 1], which are standardised, or the "inputs" of a
    #: network themselves, in [-1, 1]; the same where mean and deviation of a data set are 0.5
    output: str = attrs.field(default="pixels", validator=one_of("output", "pixels", "inputs"))
    #: noise and labels of new images: "once" in an iteration, or at "each_step" in it
    draws: str = attrs.field(default="once", validator=one_of("draws", "once", "each_step"))
    #: of the generator's Adam: "kept" from round to round, or "anew" in each iteration
    moments: str = attrs.field(default="kept", validator=one_of("moments", "kept", "anew"))
    #: alpha, beta_old in the book: weight of images of the averaged generator
    alpha: float = attrs.field(default=0.5, validator=number(0))
    #: lambda: what the averaged generator keeps of itself in a round
    ema: float = attrs.field(default=0.5, validator=number(0, 1))
    #: the averaged generator at first: the "generator" itself, or "zero", which makes no images
    #: until a round has been added to it
    ema_start: str = attrs.field(
        default="generator", validator=one_of("ema_start", "generator", "zero")
    )
    #: z, length of a noise vector
    noise: int = attrs.field(default=64, validator=whole(1))
    generator_width: int = attrs.field(default=64, validator=whole(1))

    @classmethod
    def released(cls) -> Settings:
        """The public copy of the code, local training included."""
        return cls(
            local_steps=20,
            momentum=0.0,
            weight_decay=0.0,
            server_momentum=0.0,
            transferability_form="released",
            temperature=10.0,
            embedding_bound=0.25,
            output="inputs",
            draws="each_step",
            moments="anew",
            ema_start="zero",
        )


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
    """sum_i tau_{i,y} f_i(s): the clients' models, weighted by their shares (K, C) of a class."""

    models: Stacked
    shares: torch.Tensor

    def __call__(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Logits (N, C) float32 of network inputs (N, C, S, S) that were made for `labels` (N,)."""
        return (self.shares[:, labels, None] * self.models(inputs).float()).sum(0)


class DFRD(fedavg.FedAvg):
    """FedAvg, after which the server plays I rounds of a game. The generator looks for images that the
    ensemble of the clients takes for the wanted class and the global model does not; this one learns
    from the ensemble on them, and on images of a moving average of the generator.
    """

    Settings = Settings
    task_kinds = CLASSIFICATION
    evaluators = SERVER

    def initialise(self, task: Task, rng: Rng) -> State:
        """A fresh model, and a generator; w~ = w, or w~ is not there yet."""
        tensors = super().initialise(task, rng).tensors
        generator = self._generator(task, rng.at("generator"))
        average = pack(generator, "ema/") if self.settings.ema_start == "generator" else {}
        return State(task, tensors | pack(generator, "generator/") | average)

    def upload_format(self, state: State) -> Format:
        """A model, its number of samples, and n_{i,y}: how often it trained on each label."""
        tensors, meta = super().upload_format(state)
        return tensors | {"labels/counts": state.task.counts(self.settings.views)}, meta

    def client_update(self, client: Client, message: Message, rng: Rng) -> Message:
        """Local training as in FedAvg, counting the labels that it sees."""
        model = self.start(client, message)
        objective = self.objective(client, message, rng.at("objective"))
        drawn = fedgen.counting(client, self.batches(client, rng))
        train(model, client.images, client.labels, self.settings, objective, rng, drawn=drawn)
        answer, counts = self.answer(client, model), client.memory.pop(fedgen.SEEN)
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
        """The changed part of the state after I rounds of the game; nothing in it waits for a GPU."""
        settings = self.settings
        student = self.network(task, tensors).eval()
        generator = unpack(self._generator(task, Rng(0)), tensors, "generator/")
        average = self._average(task, tensors)
        of_generator, of_student = self._optimisers(generator, student)
        unpack_optimiser(of_generator, generator, tensors, "adam/")
        sample = partial(self._sample, distribution, rng.at("draws").generator(task.runtime.device))
        lesson = partial(self._lesson, task, ensemble)
        for _ in counted(range(settings.iterations), "distillation", settings.iterations):
            if settings.moments == "anew":
                of_generator.state.clear()
            samples = per_step(iter(sample, None), settings.draws)
            student.requires_grad_(False)
            for _ in range(settings.generator_steps):
                wrong = self.generator_loss(task, generator, student, ensemble, *next(samples))
                take_step(wrong, of_generator)
            student.requires_grad_(True)
            lessons = per_step(map(partial(lesson, generator), samples), settings.draws)
            for _ in range(settings.student_steps):
                new = next(lessons)
                old = None if average is None else lesson(average, sample())
                take_step(self.student_loss(task, student, new, old), of_student)
        learnt = pack(student) | pack(generator, "generator/")
        if settings.moments == "kept":
            learnt |= pack_optimiser(of_generator, generator, "adam/")
        return learnt | pack(self._averaged(task, average, generator), "ema/")

    def _average(self, task: Task, tensors: Mapping[str, torch.Tensor]) -> Generator | None:
        """The averaged generator, or None before the first round of one that starts from zero."""
        if not any(name.startswith("ema/") for name in tensors):
            return None
        return unpack(self._generator(task, Rng(0)), tensors, "ema/")

    @torch.no_grad()
    def _averaged(self, task: Task, average: Generator | None, generator: Generator) -> Generator:
        """w~^t = lambda w~^{t-1} + (1 - lambda) w^t, with w~^0 = 0 where there is no average."""
        if average is None:
            average = self._generator(task, Rng(0))
            for weight in average.parameters():
                weight.zero_()
        for mean, latest in zip(average.parameters(), generator.parameters(), strict=True):
            mean.lerp_(latest, 1 - self.settings.ema)
        return average

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
        """L_gen = L_fid + beta_tran L_tran + beta_div L_div, and the bound on embeddings."""
        settings = self.settings
        with task.runtime.autocast():
            merged = generator.merge(noise, labels)
            inputs = self.inputs(task, generator(merged))
            teacher_logits, own = ensemble(inputs, labels), student(inputs).float()
        # L_fid = CE(sum_i tau_{i,y} f_i(s), y)
        loss = F.cross_entropy(teacher_logits, labels)
        loss = loss + settings.transferability * transferability_loss(
            teacher_logits, own, labels, settings.temperature, settings.transferability_form
        )
        if settings.embedding_bound:
            excess = embedding_excess(generator.embedding[labels])
            loss = loss + settings.embedding_bound * excess
        return loss + settings.diversity * diversity_loss(inputs, merged, settings.distance)

    def inputs(self, task: Task, images: torch.Tensor) -> torch.Tensor:
        """Network inputs (N, C, S, S) of what a generator made, in [0, 1]."""
        if self.settings.output == "inputs":
            return 2 * images - 1
        return task.dataset.standardise(images)

    @torch.no_grad()
    def _lesson(
        self,
        task: Task,
        ensemble: Ensemble,
        generator: Generator,
        sample: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Network inputs that a generator makes, and the ensemble's logits on them."""
        noise, labels = sample
        with task.runtime.autocast():
            inputs = self.inputs(task, generator(generator.merge(noise, labels)))
            return inputs, ensemble(inputs, labels)

    def student_loss(
        self,
        task: Task,
        student: nn.Module,
        new: tuple[torch.Tensor, torch.Tensor],
        old: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> torch.Tensor:
        """L_md = KL(f(s), sum_i tau_{i,y} f_i(s)) + alpha KL(f(s~), sum_i tau_{i,y~} f_i(s~)); the
        first alone where there are no old images.
        """
        lessons = [new] if old is None else [new, old]
        with task.runtime.autocast():
            seen = student(torch.cat([inputs for inputs, _ in lessons]))
        losses = [
            kl_divergence(own, teacher_logits, self.settings.temperature)
            for own, (_, teacher_logits) in zip(
                seen.float().chunk(len(lessons)), lessons, strict=True
            )
        ]
        return losses[0] + self.settings.alpha * sum(losses[1:])

    def _generator(self, task: Task, rng: Rng) -> Generator:
        settings, data = self.settings, task.dataset
        network = generative.image_generator(
            task, rng.at("network"), noise=settings.noise, width=settings.generator_width
        )
        embedding = torch.randn(
            data.num_classes, settings.noise, generator=rng.at("embedding").generator()
        )
        return Generator(network, embedding.to(task.runtime.device)).train()


def per_step(made: Iterator[Drawn], draws: str) -> Iterator[Drawn]:
    """Iterate over what each step takes: the first for all ("once"), or the next ("each_step")."""
    return repeat(next(made)) if draws == "once" else made
