"""FedAD: distillation of outputs and of attention on public images without answers.

Gong, Sharma, Karanam, Wu, Chen, Doermann, Innanje. Ensemble Attention Distillation for
Privacy-Preserving Federated Learning. ICCV 2021.

Every client trains a network to completion and answers public images once: with its outputs, and with a
map of where it looks. A network on the server learns the outputs' ensemble, and to look where all
clients look and nowhere where none does. FedIOD's Table 9 compares with it for images, where the paper
says nothing of its form; here attention is that of Zagoruyko and Komodakis (ICLR 2017) at the U-Net's
bottleneck, scaled to lie in [0, 1], the loss is how far it lies outside of the clients', squared, and a
client's weight for a class is its share of that class. (The authors' later article, IEEE Transactions on
Medical Imaging 2022, has a form for images, too; its equations were not at hand.) The public images are
the data set's validation images, whose answers are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch
from torch import nn

from core import distillation
from core.checks import number, whole
from core.errors import InputError
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
    supervised,
    train,
)
from core.federation.tensors import pack_optimiser, take_each, unpack_optimiser
from core.models import UNet, at_once
from core.rng import Rng
from core.training import adam, batches, take_step


@attrs.frozen(kw_only=True)
class Settings(LocalTraining):
    """Local training of the clients; all others are the server's, with values of our own."""

    distill_steps: int = attrs.field(default=1000, validator=whole(1))
    distill_batch: int = attrs.field(default=16, validator=whole(1))
    student_lr: float = attrs.field(default=1e-3, validator=number(0, above=True))
    #: factor of the attention loss
    attention: float = attrs.field(default=1.0, validator=number(0))


def with_attention(network: nn.Module, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs (N, C, S, S) of a U-Net, and its attention sum_c phi_c(x)^2 at the bottleneck over its
    largest value, (N, h, w), from one pass. Raises InputError for another network.
    """
    if not isinstance(network, UNet):
        raise InputError("FedAD takes attention from an encoder of maps: it needs the model 'unet'")
    outputs, maps = network.answer(inputs)
    energy = maps.float().square().sum(1)
    return outputs.float(), energy / energy.amax((1, 2), keepdim=True).clamp_min(1e-12)


def attention_loss(own: torch.Tensor, maps: torch.Tensor) -> torch.Tensor:
    """Squared distance of maps (N, h, w) from between the least and largest of (K, N, h, w), a mean."""
    # A_cap = min_k A_k, A_cup = max_k A_k
    below, above = maps.amin(0) - own, own - maps.amax(0)
    return (below.relu().square() + above.relu().square()).mean()


class FedAD(Algorithm):
    """Min over S of |S(x) - sum_k pi_k T_k(x)|^2 + lambda L_attention on public images x."""

    Settings = Settings
    task_kinds = ("reconstruction", "segmentation")
    remote_calls = ("teach",)

    def initialise(self, task: Task, rng: Rng) -> State:
        """A fresh student. Raises InputError without public images, or where they also test."""
        if self.schedule.evaluate_on == "val":
            raise InputError(
                "FedAD distils on the validation images: they cannot test it, only 'test'"
            )
        if not len(task.dataset.val):
            raise InputError(
                f"FedAD needs public images, and {task.dataset.name} has no validation images that could "
                "stand for them"
            )
        return State(
            task, pack(task.new_model(rng.at("student")), "student/"), {"step": 0, "round": 0}
        )

    def upload_format(self, state: State) -> Format:
        """Outputs and attention for all public images, and how often each class occurs."""
        task, data = state.task, state.task.dataset
        count, classes = len(data.val), data.num_classes
        with torch.no_grad():
            _, attention = with_attention(
                task.new_model(Rng(0)).eval(), task.inputs(self.public(task)[:1])
            )
        return {
            "outputs": Field((count, classes, data.size, data.size), torch.float32),
            "attention": Field((count, *attention.shape[1:]), torch.float32, low=0, high=1),
            "counts": task.counts(),
        }, {}

    def public(self, task: Task) -> torch.Tensor:
        """The public images, uint8 (M, C, S, S)."""
        return task.dataset.val.images.to(task.runtime.device)

    def teach(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """Train each client's T_k to completion and answer the images that came."""
        answers = {}
        for client, rng in zip(clients, rngs, strict=True):
            task = client.task
            model = task.new_model(rng.at("model"))
            train(model, client.images, client.labels, self.settings, supervised(task), rng)
            images = messages[client.id].tensors["images"]
            with torch.no_grad(), task.runtime.autocast():
                parts = images.split(at_once(images))
                pairs = [with_attention(model.eval(), task.inputs(part)) for part in parts]
            outputs, attention = (torch.cat(each) for each in zip(*pairs, strict=True))
            answers[client.id] = Message(
                {"outputs": outputs, "attention": attention, "counts": client.class_counts}
            )
        return answers

    def round(self, state: State, clients: Sequence[Client], ledger: Ledger, rng: Rng) -> State:
        """Ask the clients that have not answered yet; then this round's part of the distillation."""
        root, task, tensors = Rng(rng.seed, ("fedad",)), state.task, dict(state.tensors)
        new = [client for client in clients if f"teachers/{client.id}/counts" not in tensors]
        if new:
            down = {c.id: ledger.count("down", Message({"images": self.public(task)})) for c in new}
            form, streams = self.upload_format(state), root.at("client")
            given = self.call_clients("teach", new, down, form, ledger, streams, clients)
            for id_, upload in given.items():
                tensors |= {f"teachers/{id_}/{k}": v for k, v in upload.tensors.items()}
        done = state.meta["round"] + 1
        until = self.schedule.steps_until(self.settings.distill_steps, done)
        with ledger.timed("server"):
            tensors |= self._distilled(task, tensors, state.meta["step"], until, root)
        return State(task, tensors, {"step": until, "round": done})

    def _distilled(
        self, task: Task, tensors: Mapping[str, torch.Tensor], first: int, until: int, root: Rng
    ) -> dict[str, torch.Tensor]:
        """The student and its Adam after steps `first` to `until`."""
        teachers = list(take_each("teachers/", tensors).values())
        outputs, attention, counts = (
            torch.stack([teacher[name] for teacher in teachers])
            for name in ("outputs", "attention", "counts")
        )
        # pi_k^c, the same for every image and pixel: (K, 1, C)
        importance = distillation.class_input_importance(counts)
        wanted = torch.einsum("kc,kmchw->mchw", importance[:, 0], outputs)
        student = task.model_from(tensors, "student/").train()
        optimiser = adam(student.parameters(), self.settings.student_lr)
        unpack_optimiser(optimiser, student, tensors, "student/adam/")
        images, size = self.public(task), self.settings.distill_batch
        drawn = batches(len(images), size, until, root.at("batches"), images.device)
        for step, rows in enumerate(drawn):
            if step < first:
                continue
            inputs = task.inputs(images[rows])
            with task.runtime.autocast():
                predicted, own = with_attention(student, inputs)
            # |S(x) - sum_k pi_k T_k(x)|^2, a mean over pixels
            loss = (predicted - wanted[rows]).square().sum(1).mean()
            if self.settings.attention:
                loss = loss + self.settings.attention * attention_loss(own, attention[:, rows])
            take_step(loss, optimiser)
        return pack(student, "student/") | pack_optimiser(optimiser, student, "student/adam/")

    def model(self, state: State) -> nn.Module:
        """The student."""
        return state.task.model_from(state.tensors, "student/")
