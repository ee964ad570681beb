"""AsynDGAN: one generator against a discriminator at each client, and a network that learns from what
it makes.

Chang, Qu, Zhang, Sabuncu, Chen, Zhang, Metaxas. Synthetic Learning: Learn From Distributed
Asynchronized Discriminator GAN Without Sharing Medical Image Data. CVPR 2020.

The clients send their label maps once; then, in each step, the server makes images of each client's
maps and the client answers with the gradient of its losses with respect to them. When the generator
has learned, the server trains a segmentation network on pairs of maps and made images. Images of
patients never leave a client, but their masks do.

The authors' code (tommy-qichang/AsynDGAN) compares VGG-16's features of made and of real images, by the
mean over four maps. Here the features are those of the encoder of a U-Net with random weights, the same
at every client: nothing is downloaded; their differences are added up over its maps. More differences:
in the code the rate falls to 0 along a line in the second half of the steps, and clients have equal
weights; here it is constant, and pi_k, as in the paper, is a client's share of the samples. But the maps
from which the segmentation network learns come from every client equally often, where the paper draws
them by these shares and the code makes an image for each map. The code's generator is by default a U-Net
with batch normalisation, the paper's and ours has nine residual blocks, without the code's dropout; its
networks begin with normal weights of deviation 0.02, ours as PyTorch's layers do. All steps are cut into
as many parts as the run has rounds; a step draws the same numbers in whichever round it falls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch
from torch import nn
from torch.nn import functional

from core.checks import beta_1, number, one_of, whole
from core.errors import InputError
from core.families import conditional
from core.federation import (
    Algorithm,
    Client,
    Field,
    Format,
    Ledger,
    LocalTraining,
    Message,
    State,
    Task,
    pack,
)
from core.federation.tensors import pack_optimiser, take, unpack, unpack_optimiser
from core.models import DensePatchDiscriminator, LabelToImage
from core.progress import counted
from core.rng import Rng
from core.training import adam, sgd, take_step

GAN_LOSSES = ("vanilla", "least_squares")


@attrs.frozen(kw_only=True)
class Settings(LocalTraining):
    """Local training is the segmentation network's, on the server; the rest has the code's defaults."""

    generator_width: int = attrs.field(default=64, validator=whole(1))
    discriminator_width: int = attrs.field(default=64, validator=whole(1))
    #: how often it halves its maps
    discriminator_layers: int = attrs.field(default=3, validator=whole(1))
    #: steps of generator and discriminators
    gan_steps: int = attrs.field(default=100_000, validator=whole(1))
    #: images of each client in a step
    gan_batch: int = attrs.field(default=1, validator=whole(1))
    gan_lr: float = attrs.field(default=2e-4, validator=number(0, above=True))
    gan_beta: float = attrs.field(default=0.5, validator=beta_1)
    #: "vanilla": cross-entropy, the generator's not saturating; "least_squares"
    gan_loss: str = attrs.field(
        default="vanilla", validator=one_of("adversarial loss", *GAN_LOSSES)
    )
    #: factors of the adversarial loss of the discriminators, and of the generator's three terms: in the
    #: code's script for brain tumours 0.1 times 1, 100 and 1, in the one for nuclei 0.1 times 1, 0 and
    #: 10, the last one of a mean over maps where a sum is taken here
    judging: float = attrs.field(default=0.05, validator=number(0, above=True))
    gan: float = attrs.field(default=0.1, validator=number(0))
    l1: float = attrs.field(default=10.0, validator=number(0))
    perceptual: float = attrs.field(default=0.1, validator=number(0))


def _root(seed: int) -> Rng:
    """Return the root of all draws of a run's clients."""
    return Rng(seed, ("asyndgan",))


def adversarial(logits: torch.Tensor, real: bool, loss: str) -> torch.Tensor:
    """Mean loss over patches (N, 1, h, w) that should be taken for real, or for generated."""
    wanted = torch.full_like(logits, float(real))
    if loss == "vanilla":
        # - log D(y|x), or - log(1 - D(y^|x))
        return functional.binary_cross_entropy_with_logits(logits, wanted)
    return functional.mse_loss(logits, wanted)


class AsynDGAN(Algorithm):
    """min_G max_{D_1..D_K} sum_k pi_k E_{x ~ s_k} {E[log D_k(y|x)] + E[log(1 - D_k(G(x)|x))]}, then a
    segmentation network from pairs (G(x), x).
    """

    Settings = Settings
    task_kinds = ("segmentation",)
    remote_calls = ("introduce", "judge")

    def initialise(self, task: Task, rng: Rng) -> State:
        """A fresh generator and segmentation network. Raises InputError for augmented images, as the
        server trains on made ones, and for images too small for the discriminators.
        """
        if self.settings.local_augmentation != "none":
            raise InputError(
                "AsynDGAN's server trains on images as they are made: set local_augmentation to none"
            )
        conditional.judge(task, Rng(0), **self._judging())  # what cannot be is refused here
        width = self.settings.generator_width
        tensors = pack(task.new_model(rng.at("student")), "student/")
        generator = conditional.generator(task, rng.at("generator"), width=width)
        return State(task, tensors | pack(generator, "generator/"), {"round": 0, "step": 0})

    def upload_format(self, state: State) -> Format:
        """The form of what a client sends in a step: gradients with respect to the images made for it."""
        data = state.task.dataset
        shape = (self.settings.gan_batch, data.channels, data.size, data.size)
        return {"gradients/images": Field(shape, torch.float32)}, {}

    def round(self, state: State, clients: Sequence[Client], ledger: Ledger, rng: Rng) -> State:
        """Take this round's part of all steps."""
        root = _root(rng.seed)
        state = self._with_label_maps(state, clients, ledger, root)
        # those whose maps were not refused
        clients = [client for client in clients if f"conditions/{client.id}" in state.tensors]
        maps = [state.tensors[f"conditions/{client.id}"] for client in clients]
        # the segmentation network learns from the maps of all that the server knows
        every = take("conditions/", state.tensors)
        known = [every[owner] for owner in sorted(every, key=int)]
        last = self.settings.gan_steps + self.settings.steps(sum(map(len, known)))
        meta = state.meta | {"round": state.meta["round"] + 1}
        first, gan = state.meta["step"], self.settings.gan_steps
        # `last` grows with clients that are new
        until = max(self.schedule.steps_until(last, meta["round"]), first)
        generator = self.generator(state)
        tensors = dict(state.tensors)
        if first < gan:
            adam = self._adam(generator)
            unpack_optimiser(adam, generator, tensors, "generator/adam/")
            steps = range(first, min(until, gan))
            for step in counted(steps, "GAN", len(steps)):
                self._play(state, generator, adam, clients, maps, ledger, root.at("step", step))
            tensors |= pack(generator, "generator/")
            tensors |= pack_optimiser(adam, generator, "generator/adam/")
        if until > gan:
            with ledger.timed("server"):
                steps = range(max(first, gan), until)
                tensors |= self._train_student(state.task, tensors, generator, known, steps, root)
        return State(state.task, tensors, meta | {"step": until})

    def _with_label_maps(
        self, state: State, clients: Sequence[Client], ledger: Ledger, root: Rng
    ) -> State:
        """The label maps of the clients that are new to the server."""
        new = [client for client in clients if f"conditions/{client.id}" not in state.tensors]
        if not new:
            return state
        form = {"conditions": conditional.maps_field(state.task)}
        given = self.call_clients("introduce", new, None, (form, {}), ledger, root, clients)
        maps = {f"conditions/{id_}": m.tensors["conditions"] for id_, m in given.items()}
        return attrs.evolve(state, tensors=state.tensors | maps)

    def introduce(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """The clients' label maps."""
        return {
            client.id: Message({"conditions": conditional.maps_of(client)}) for client in clients
        }

    def _play(
        self,
        state: State,
        generator: LabelToImage,
        adam: torch.optim.Adam,
        clients: Sequence[Client],
        maps: Sequence[torch.Tensor],
        ledger: Ledger,
        rng: Rng,
    ) -> None:
        """One step of the generator, in place: images of each client's maps down, gradients up."""
        batch = self.settings.gan_batch
        with ledger.timed("server"):
            rows = [
                torch.randint(len(own), (batch,), generator=rng.at("rows", client.id).generator())
                for client, own in zip(clients, maps, strict=True)
            ]
            on_device = [
                drawn.to(own.device, non_blocking=True)
                for own, drawn in zip(maps, rows, strict=True)
            ]
            labels = torch.cat([own[drawn] for own, drawn in zip(maps, on_device, strict=True)])
            # y^ = G(x), x ~ s_k(x)
            with state.task.runtime.autocast():
                images = generator(labels).float()
        messages = {
            client.id: ledger.count("down", Message({"images": made, "conditions/rows": drawn}))
            for client, made, drawn in zip(clients, images.detach().split(batch), rows, strict=True)
        }
        form = self.upload_format(state)
        answers = self.call_clients("judge", clients, messages, form, ledger, rng)
        with ledger.timed("server"):
            total = sum(map(len, maps))
            slopes = [
                # pi_k
                len(own) / total * answers[client.id].tensors["gradients/images"]
                if client.id in answers
                else images.new_zeros(batch, *images.shape[1:])
                for client, own in zip(clients, maps, strict=True)
            ]
            adam.zero_grad(set_to_none=True)
            images.backward(torch.cat(slopes))
            adam.step()

    def judge(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """Each client's D_k takes its step; then the gradients of the generator's losses."""
        task, root, perception, answers = clients[0].task, _root(rngs[0].seed), None, {}
        if self.settings.perceptual:  # the same at every client and in every step
            perception = task.new_model(root.at("perception")).eval().requires_grad_(False)
        for client in clients:
            judge = conditional.judge(task, root.at("judge", client.id), **self._judging())
            if take("judge/", client.memory):
                unpack(judge, client.memory, "judge/")
            answers[client.id] = self._judged(client, messages[client.id], judge, perception)
        return answers

    def _judging(self) -> dict[str, int]:
        """The form of a discriminator."""
        settings = self.settings
        return {"width": settings.discriminator_width, "layers": settings.discriminator_layers}

    def _judged(
        self,
        client: Client,
        message: Message,
        judge: DensePatchDiscriminator,
        perception: nn.Module | None,
    ) -> Message:
        task, s = client.task, self.settings
        adam = self._adam(judge)
        unpack_optimiser(adam, judge, client.memory, "judge/adam/")
        rows = message.tensors["conditions/rows"].to(client.labels.device, non_blocking=True)
        labels = conditional.dense(task).condition(client.labels[rows])
        real = task.inputs(client.some(rows))
        made = message.tensors["images"].clone().requires_grad_()
        inputs = task.dataset.standardise(made)
        with task.runtime.autocast():
            on_real = judge(conditional.with_planes(task, real, labels))
            on_made = judge(conditional.with_planes(task, inputs.detach(), labels))
        loss = adversarial(on_made, False, s.gan_loss) + adversarial(on_real, True, s.gan_loss)
        take_step(s.judging * loss, adam)
        with task.runtime.autocast():
            on_made = judge(conditional.with_planes(task, inputs, labels))
            # lambda_G (L_GAN + lambda_1 |G(x) - y|_1 + lambda_2 L_perceptual)
            total = s.gan * adversarial(on_made, True, s.gan_loss)
            total = total + s.l1 * (inputs - real).abs().mean()
            if perception is not None:
                total = total + s.perceptual * conditional.perceptual_loss(perception, inputs, real)
        (slope,) = torch.autograd.grad(total, made)
        client.memory |= pack(judge, "judge/") | pack_optimiser(adam, judge, "judge/adam/")
        return Message({"gradients/images": slope})

    def _train_student(
        self,
        task: Task,
        tensors: Mapping[str, torch.Tensor],
        generator: LabelToImage,
        maps: Sequence[torch.Tensor],
        steps: range,
        root: Rng,
    ) -> dict[str, torch.Tensor]:
        """Return the segmentation network after steps on pairs (G(x), x), and what its SGD remembers."""
        student = task.model_from(tensors, "student/").train()
        descent = sgd(student.parameters(), self.settings)
        unpack_optimiser(descent, student, tensors, "student/sgd/")
        for step in counted(steps, "training", len(steps)):
            pairs = conditional.draw(maps, self.settings.batch_size, root.at("pairs", step))
            with torch.no_grad(), task.runtime.autocast():
                images = generator(pairs.labels).float()
            with task.runtime.autocast():
                outputs = student(task.dataset.standardise(images))
            take_step(task.loss(outputs, pairs.labels), descent)
        return pack(student, "student/") | pack_optimiser(descent, student, "student/sgd/")

    def _adam(self, network: nn.Module) -> torch.optim.Adam:
        return adam(network.parameters(), self.settings.gan_lr, self.settings.gan_beta)

    def generator(self, state: State) -> LabelToImage:
        """The generator that a state holds."""
        made = conditional.generator(state.task, Rng(0), width=self.settings.generator_width)
        return unpack(made, state.tensors, "generator/")

    def painted(self, state: State, labels: torch.Tensor) -> torch.Tensor:
        """Images of label maps (N, S, S), (N, C, S, S) in [0, 1]."""
        return conditional.painted(state.task, self.generator(state), labels)

    def model(self, state: State) -> nn.Module:
        """The segmentation network."""
        return state.task.model_from(state.tensors, "student/")
