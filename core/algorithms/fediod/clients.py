"""The clients' side of FedIOD's second stage: frozen teachers, discriminators that learn, and what
both answer.

All clients are served together, for speed; nothing here lets one client see what another one has.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import nn

from core import distillation
from core.algorithms.fediod.settings import Settings
from core.algorithms.fediod.teachers import teachers
from core.families import conditional, generative
from core.families.conditional import LabelMaps
from core.federation import LARGEST, Client, Message, pack
from core.federation.tensors import pack_optimiser, take, unpack, unpack_optimiser
from core.models import Stacked
from core.privacy.differential import clip_and_noise
from core.rng import Rng


@attrs.frozen(eq=False)
class Answers:
    """Logits (K, N, C) of K clients for N images; where sent, D_k(x), (K, N), and E D_k(x'_k), (K,)."""

    logits: torch.Tensor
    generated: torch.Tensor | None = None
    real: torch.Tensor | None = None

    def of(self, position: int) -> dict[str, torch.Tensor]:
        """Return what one client uploads."""
        sent = {"logits": self.logits[position]}
        if self.generated is not None and self.real is not None:
            sent |= {
                "discriminator/generated": self.generated[position],
                "discriminator/real": self.real[position : position + 1],
            }
        return sent


@attrs.frozen(eq=False)
class AnswerGradients:
    """Gradients of the server's losses with respect to the clients' answers, where there are any."""

    logits: torch.Tensor | None = None
    generated: torch.Tensor | None = None

    def of(self, position: int) -> dict[str, torch.Tensor]:
        """Return what the server sends to one client."""
        both = {"gradients/logits": self.logits, "gradients/generated": self.generated}
        return {name: value[position] for name, value in both.items() if value is not None}

    @classmethod
    def joined(cls, messages: Sequence[Message]) -> AnswerGradients:
        """Join what several clients were sent."""

        def each(name: str) -> torch.Tensor | None:
            if name not in messages[0].tensors:
                return None
            return torch.stack([message.tensors[name] for message in messages])

        return cls(each("gradients/logits"), each("gradients/generated"))


@attrs.frozen(eq=False)
class Graph:
    """Computations of the clients for the last images until the server answers; never sent."""

    images: torch.Tensor
    logits: torch.Tensor | None
    generated: torch.Tensor
    #: L_gan^k as D_k minimises it, and as it enters the generator's loss, (K,) each
    judging: torch.Tensor
    fooling: torch.Tensor
    #: perceptual loss of client k's part of the batch, (K,); None where there is none
    perceiving: torch.Tensor | None = None


class ClientsHere:
    """K clients with their frozen teachers T_k and their learning discriminators D_k."""

    def __init__(
        self,
        clients: Sequence[Client],
        settings: Settings,
        gan_weights: torch.Tensor,
        multiplier: float,
        rng: Rng,
        epoch: int,
    ) -> None:
        """`gan_weights` (K,): pi_k of Eq. 2; `multiplier`: of the noise, or 0; `epoch`: its steps."""
        self.clients, self.settings, self.gan_weights, self.rng = (
            clients,
            settings,
            gan_weights,
            rng,
        )
        self.multiplier, self.epoch = multiplier, epoch
        self.task = clients[0].task
        self.teachers = Stacked(teachers(clients, settings))
        self.judges = [self._judge(client) for client in clients]
        self.judge = Stacked(self.judges)
        #: Adam of every D_k: it treats each number by itself, so one does it for all
        self.optimiser = torch.optim.Adam(
            self._parameters(), lr=settings.gan_lr, betas=(settings.gan_beta, 0.999), foreach=True
        )
        for client, judge in zip(clients, self.judges, strict=True):
            unpack_optimiser(self.optimiser, judge, client.memory, "judge/optimiser/")

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for judge in self.judges for parameter in judge.parameters()]

    def _judge(self, client: Client) -> nn.Module:
        """D_k as the client remembers it, or a fresh one."""
        rng, width = self.rng.at("discriminator", client.id), self.settings.discriminator_width
        judge: nn.Module
        if self.task.kind == "classification":
            norm = self.settings.discriminator_norm
            judge = generative.discriminator(self.task, rng, width=width, norm=norm)
        else:
            judge = conditional.judge(self.task, rng, width=width)
        return unpack(judge, client.memory, "judge/") if take("judge/", client.memory) else judge

    def _inputs(self, images: torch.Tensor) -> torch.Tensor:
        """Images in [0, 1], (K, N, C, S, S), as the networks take them."""
        return self.task.dataset.standardise(images.flatten(0, 1)).unflatten(0, images.shape[:2])

    def _real(self, step: int) -> torch.Tensor:
        """x'_k, randomly sampled from X'_k with replacement: (K, N, C, S, S), normalised, and beside
        them the planes of their label maps where judges see these.
        """
        size, device = self.settings.distill_batch, self.task.runtime.device
        drawn = [
            torch.randint(
                len(client), (size,), generator=self.rng.at("real", client.id, step).generator()
            )
            for client in self.clients
        ]
        picked = [
            client.some(rows.to(device, non_blocking=True))
            for client, rows in zip(self.clients, drawn, strict=True)
        ]
        inputs = self.task.inputs(torch.cat(picked))
        if self.task.kind != "classification":
            labels = [
                client.labels[rows.to(device, non_blocking=True)]
                for client, rows in zip(self.clients, drawn, strict=True)
            ]
            maps = conditional.dense(self.task).condition(torch.cat(labels))
            inputs = conditional.with_planes(self.task, inputs, maps)
        return inputs.unflatten(0, (len(picked), size))

    def _judge_inputs(self, inputs: torch.Tensor, maps: LabelMaps | None) -> torch.Tensor:
        """Inputs of the discriminators for generated images (K, N, C, S, S)."""
        return inputs if maps is None else conditional.with_planes(self.task, inputs, maps.labels)

    def _perceived(self, inputs: torch.Tensor, maps: LabelMaps | None) -> torch.Tensor | None:
        """The perceptual loss of each client, (K,), on those of the images (K, N, C, S, S) whose label
        maps are its own: it knows what these images should look like.
        """
        if maps is None or not self.settings.perceptual:
            return None
        losses = []
        for position, client in enumerate(self.clients):
            own = maps.rows[position]
            places = (own >= 0).nonzero().flatten()
            if not len(places):  # fewer images than clients
                losses.append(inputs.new_zeros(()))
                continue
            places, rows = (
                index.to(inputs.device, non_blocking=True) for index in (places, own[places])
            )
            real = client.some(rows)
            network, made = self.teachers.networks[position], inputs[position, places]
            losses.append(conditional.perceptual_loss(network, made, self.task.inputs(real)))
        return torch.stack(losses)

    def answer(
        self, images: torch.Tensor, step: int, maps: LabelMaps | None = None
    ) -> tuple[Answers, Graph]:
        """z_k = T_k(x), D_k(x) and E D_k(x'_k) of images (N, C, S, S), and the graph that
        `pull_back` needs; `maps` are the label maps of the images, where they were made from such.
        """
        leaf, inputs = self._copies(images)
        with self.task.runtime.autocast():
            logits = self.teachers.each(inputs).float()
        graph, real = self._judged(leaf, inputs, step, logits, maps)
        return self._sent(logits, graph.generated, real, ("logits", step)), graph

    def judge_only(self, images: torch.Tensor, step: int, maps: LabelMaps | None = None) -> Graph:
        """The discriminators' part of `answer`, while only they and the generator learn."""
        leaf, inputs = self._copies(images)
        return self._judged(leaf, inputs, step, None, maps)[0]

    def _copies(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of the images, (K, N, C, S, S), which gradients reach; and as network inputs."""
        many = images.repeat(len(self.clients), 1, 1, 1).contiguous(
            memory_format=torch.channels_last
        )
        leaf = many.unflatten(0, (len(self.clients), -1)).requires_grad_()
        return leaf, self._inputs(leaf)

    def _judged(
        self,
        leaf: torch.Tensor,
        inputs: torch.Tensor,
        step: int,
        logits: torch.Tensor | None,
        maps: LabelMaps | None,
    ) -> tuple[Graph, torch.Tensor]:
        """L_gan^k(G, D_k) <- D_k(x'_k), D_k(x), within the clients' graph; and E D_k(x'_k), (K,)."""
        if self.settings.discriminator_first:
            *_, judging, _ = self._played(inputs.detach(), step, maps)
            self._discriminators_learn(judging, step)
        fake, real, judging, fooling = self._played(inputs, step, maps)
        with self.task.runtime.autocast():
            perceiving = self._perceived(inputs, maps)
        graph = Graph(leaf, logits, self._says(fake), judging, fooling, perceiving)
        return graph, self._says(real).mean(1)

    def _played(
        self, inputs: torch.Tensor, step: int, maps: LabelMaps | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits of D_k for generated (K, N, ...) and real images; L_gan^k of D_k and of G, (K,)."""
        with self.task.runtime.autocast():
            fake = self.judge.each(self._judge_inputs(inputs, maps))
            real = self.judge.each(self._real(step))
        losses = distillation.gan_losses(
            fake, real, self.gan_weights, self.settings.gan_loss, self.settings.gan_weighted
        )
        return fake, real, *losses

    def _discriminators_learn(self, judging: torch.Tensor, step: int) -> None:
        """A step of every D_k that does not rest, down the gradient of L_gan^k, (K,)."""
        at, awake = step % self.epoch, list(range(len(self.judges)))
        if self.settings.discriminator_rests:
            awake = [k for k in awake if at < self.settings.passes(len(self.clients[k]))]
        if not awake:  # a node of a federation has one client
            return
        awake_ones = [parameter for k in awake for parameter in self.judges[k].parameters()]
        slopes = torch.autograd.grad(torch.stack([judging[k] for k in awake]).sum(), awake_ones)
        self.optimiser.zero_grad(set_to_none=True)
        # update D_k by descending its stochastic gradient
        for parameter, slope in zip(awake_ones, slopes, strict=True):
            parameter.grad = slope
        self.optimiser.step()

    @torch.no_grad()
    def answer_only(
        self, images: torch.Tensor, step: int, part: int, maps: LabelMaps | None = None
    ) -> Answers:
        """The answers on images that the student alone learns from: nobody else does."""
        inputs = self._inputs(images.expand(len(self.clients), *images.shape))
        with self.task.runtime.autocast():
            logits = self.teachers.each(inputs).float()
            if not self.settings.sends_judgements:
                return self._sent(logits, None, None, ("logits", step, part))
            fake = self.judge.each(self._judge_inputs(inputs, maps))
            real = self.judge.each(self._real(step))
        return self._sent(
            logits, self._says(fake), self._says(real).mean(1), ("logits", step, part)
        )

    def _says(self, logits: torch.Tensor) -> torch.Tensor:
        """D_k(x) of Eq. 8, (K, N)."""
        return distillation.generated(
            logits if self.settings.input_ratio == "generated" else -logits
        )

    def _sent(
        self,
        logits: torch.Tensor,
        generated: torch.Tensor | None,
        real: torch.Tensor | None,
        purpose: tuple[str | int, ...],
    ) -> Answers:
        """Return what leaves the clients: without graphs, and with noise where the run is private."""
        logits = self._private(logits.detach(), self.settings.logit_norm, purpose)
        if generated is None or real is None or not self.settings.sends_judgements:
            return Answers(logits)
        return Answers(logits, generated.detach(), real.detach())

    def pull_back(self, graph: Graph, pull: AnswerGradients, step: int) -> torch.Tensor | None:
        """Gradients of the generator's loss with respect to the images, (K, N, C, S, S), or None without a
        term that a client knows. Each client completes the server's chain rule and adds its adversarial
        loss; then D_k takes its step, unless it did so before. Both use the D_k that answered.
        """
        first = self.settings.discriminator_first
        wanted = [
            (output, direction)
            for output, direction in (
                (graph.logits, pull.logits),
                (graph.generated, pull.generated),
            )
            if output is not None and direction is not None
        ]
        if self.settings.gan:
            # - sum_k L_gan^k of the generator's loss
            wanted.append((graph.fooling, torch.full_like(graph.fooling, self.settings.gan)))
        if graph.perceiving is not None and graph.perceiving.requires_grad:
            factor = torch.full_like(graph.perceiving, self.settings.perceptual)
            wanted.append((graph.perceiving, factor))
        gradients = None
        if wanted:
            outputs, directions = zip(*wanted, strict=True)
            (gradients,) = torch.autograd.grad(
                outputs, graph.images, directions, retain_graph=not first
            )
            gradients = self._private(gradients, self.settings.clip_norm, ("gradients", step))
        if not first:
            self._discriminators_learn(graph.judging, step)
        return gradients

    def _private(
        self, rows: torch.Tensor, bound: float, purpose: tuple[str | int, ...]
    ) -> torch.Tensor:
        """Rows (K, N, ...) through the Gaussian mechanism, each client by its own draws, cut to what a server
        takes. What is not finite counts as 0: an error would leak where a teacher overflows.
        """
        if not self.multiplier:
            return rows
        rows = rows.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        noised = [
            clip_and_noise(
                own,
                bound,
                self.multiplier,
                self.rng.at("private", client.id, *purpose).generator(own.device),
                checked=True,
            )
            for client, own in zip(self.clients, rows, strict=True)
        ]
        return torch.stack(noised).clamp(-LARGEST, LARGEST)

    @torch.no_grad()
    def logits(self, images: torch.Tensor, part: int = 0) -> torch.Tensor:
        """z_k of images (M, C, S, S), (K, M, classes), for tests, which see all teachers."""
        inputs = self.task.dataset.standardise(images)
        with self.task.runtime.autocast():
            return self.teachers.in_parts(inputs)

    def set_rate(self, rate: float) -> None:
        """The learning rate of every D_k in its next step."""
        self.optimiser.param_groups[0]["lr"] = rate

    def remember(self) -> None:
        """Keep discriminators and their optimisers in the clients' memories."""
        for client, judge in zip(self.clients, self.judges, strict=True):
            client.memory |= pack(judge, "judge/")
            client.memory |= pack_optimiser(self.optimiser, judge, "judge/optimiser/")
