"""FedGAN: clients train generative adversarial networks that are averaged, and classify with the
help of their images.

Rasouli, Sun, Rajagopal. FedGAN: Federated Generative Adversarial Networks for Distributed Data.
2020, Algorithm 1. The FedGAN that FedVCK's paper cites averages such networks for the detection of
COVID-19: Nguyen, Ding, Pathirana, Seneviratne, Zomaya. Federated Learning for COVID-19 Detection
with Generative Adversarial Networks in Edge Cloud Computing. IEEE Internet of Things Journal 2022;
code: dinhgit/FL-GAN_COVID. Its classifier is one network that learns centrally, so it is no row of a
comparison; FedVCK does not say how it became one.

Taken from Algorithm 1: generator and discriminator step at the same time, each from the weights of
both before the step; after K local steps both are averaged with the weights p_i = |R_i| / sum_j
|R_j|.

Chosen here, and different from both:
- Loss: non-saturating (Goodfellow et al. 2014). Both networks see the label (Mirza and Osindero 2014),
  and a made image has that of a real one: a client's generator learns the classes that the client
  has, and averaging puts them together. Both papers' images have an auxiliary class loss instead
  (ACGAN), in the code with labels drawn from all classes.
- K: as many batches as the classifier takes on the client's own images (20 to 6,000 in the paper of
  2020, two passes in the code). Adam starts anew in every round; the code's goes on, its
  discriminator steps before the generator, and its sum over clients has the first one twice.
- Classification: from the averaged generator a client draws images of all classes, with equal odds,
  `share` times as many as it has, and trains the classifier on both together; classifiers are
  averaged as in FedAvg. In the first round the generator has learnt nothing, so no images are
  drawn.
- Networks: FedVCK's Tables 5 and 9 count model, generator and discriminator, and say nothing of the
  latter two. From 32 to 64 pixels the reported cost grows as that of a generator that turns 100
  numbers into 128 maps of a quarter of the side; the 3.5 million numbers that this leaves are put
  into the discriminator. The default widths so chosen bring the upload within 9 percent of all
  eight reported costs.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from torch.nn import functional as F

from core.baselines import fedavg
from core.checks import beta_1, number, whole
from core.families import generative
from core.federation import (
    CLASSIFICATION,
    SERVER,
    Client,
    Format,
    Message,
    State,
    Task,
    network_form,
    pack,
    train,
)
from core.federation.tensors import unpack
from core.models import ImageGenerator, PatchDiscriminator
from core.progress import counted
from core.rng import Rng
from core.training import adam, batches

#: images that are drawn at once; batch normalisation sees these alone, so those of a short last part
#: come out a little otherwise
CHUNK = 500


@attrs.frozen(kw_only=True)
class Settings(fedavg.Settings):
    """Local training of the classifier, the adversarial networks, and how their images are used."""

    #: synthetic images as a multiple of a client's own; with 0 the classifier is that of FedAvg
    share: float = attrs.field(default=1.0, validator=number(0))
    #: Adam of both networks, its rate and beta_1 (Radford et al. 2016, and the code)
    gan_lr: float = attrs.field(default=2e-4, validator=number(0, above=True))
    gan_momentum: float = attrs.field(default=0.5, validator=beta_1)
    #: z, length of a noise vector
    noise: int = attrs.field(default=100, validator=whole(1))
    generator_width: int = attrs.field(default=64, validator=whole(1))
    discriminator_width: int = attrs.field(default=320, validator=whole(1))


class FedGAN(fedavg.FedAvg):
    """Clients train the classifier on own and synthetic images, then generator and discriminator on
    own images; the server averages all three by numbers of samples.
    """

    Settings = Settings
    task_kinds = CLASSIFICATION
    evaluators = SERVER

    def initialise(self, task: Task, rng: Rng) -> State:
        """A fresh classifier, w_0 of the discriminator and theta_0 of the generator."""
        tensors = super().initialise(task, rng).tensors
        tensors |= pack(self._fresh_generator(task, rng.at("generator")), "generator/")
        tensors |= pack(self._discriminator(task, rng.at("discriminator")), "discriminator/")
        return State(task, tensors, {"round": 0})

    def broadcast(self, state: State, client_id: int) -> Message:
        """Classifier, generator and discriminator, and the round."""
        return Message(state.tensors, {"round": state.meta["round"]})

    def upload_format(self, state: State) -> Format:
        """Classifier, generator and discriminator, and the number of samples behind them."""
        _, meta = super().upload_format(state)
        return network_form(state.tensors), meta

    def client_update(self, client: Client, message: Message, rng: Rng) -> Message:
        """Train the classifier on own and synthetic images, and the GAN on own images."""
        task = client.task
        generator = self.generator(task, message.tensors)
        discriminator = self._discriminator(task, Rng(0))
        unpack(discriminator, message.tensors, "discriminator/")

        images, labels = client.images, client.labels
        amount = round(self.settings.share * len(client))
        if amount and message.whole("round"):  # not in the first
            more, of = draw(task, generator, amount, rng.at("synthetic"))
            images, labels = torch.cat([images, more]), torch.cat([labels, of])
        model = self.start(client, message)
        objective = self.objective(client, message, rng.at("objective"))
        train(model, images, labels, self.settings, objective, rng)

        self._train_gan(client, generator, discriminator, rng.at("gan"))
        answer = self.answer(client, model)
        networks = pack(generator, "generator/") | pack(discriminator, "discriminator/")
        return Message(answer.tensors | networks, answer.meta)

    def server_update(self, state: State, uploads: Mapping[int, Message], rng: Rng) -> State:
        """w_n = sum_j p_j w_n^j and theta_n = sum_j p_j theta_n^j; the classifiers likewise."""
        samples = [upload.whole("samples") for upload in uploads.values()]
        average = self.combined([upload.tensors for upload in uploads.values()], samples, state)
        return State(state.task, average, {"round": state.meta["round"] + 1})

    def generator(self, task: Task, tensors: Mapping[str, torch.Tensor]) -> ImageGenerator:
        """G with the weights `generator/...` of a state's or a message's tensors."""
        return unpack(self._fresh_generator(task, Rng(0)), tensors, "generator/")

    def _fresh_generator(self, task: Task, rng: Rng) -> ImageGenerator:
        settings = self.settings
        return generative.image_generator(
            task,
            rng,
            noise=settings.noise,
            width=settings.generator_width,
            classes=task.dataset.num_classes,
        )

    def _discriminator(self, task: Task, rng: Rng) -> PatchDiscriminator:
        return generative.discriminator(
            task, rng, width=self.settings.discriminator_width, classes=task.dataset.num_classes
        )

    def _train_gan(
        self, client: Client, generator: ImageGenerator, discriminator: PatchDiscriminator, rng: Rng
    ) -> None:
        """K local steps of both networks, in place. Nothing in the loop waits for a GPU."""
        settings, task = self.settings, client.task
        images, device = client.images, client.labels.device
        draws = rng.at("noise").generator(device)
        networks = (discriminator.train(), generator.train())
        optimisers = [
            adam(each.parameters(), settings.gan_lr, settings.gan_momentum) for each in networks
        ]
        steps = settings.steps(len(client))
        drawn = batches(len(client), settings.batch_size, steps, rng, device)
        for batch in counted(drawn, "GAN", steps):
            labels = client.labels[batch]
            noise = torch.randn(len(batch), settings.noise, generator=draws, device=device)
            with task.runtime.autocast():
                fake = task.dataset.standardise(generator(noise, labels))
                # one pass for both: its normalisation does not mix images
                inputs = labelled(
                    torch.cat([task.inputs(images[batch]), fake]),
                    labels.repeat(2),
                    task.dataset.num_classes,
                )
                real_logits, fake_logits = discriminator(inputs).float().chunk(2)
            # w_n = w_{n-1} + a g(theta_{n-1}, w_{n-1}) and theta_n = theta_{n-1} + b h(theta_{n-1},
            # w_{n-1})
            losses = adversarial_losses(real_logits, fake_logits)
            gradients = [
                torch.autograd.grad(
                    loss, list(each.parameters()), retain_graph=each is discriminator
                )
                for each, loss in zip(networks, losses, strict=True)
            ]
            for network, gradient, optimiser in zip(networks, gradients, optimisers, strict=True):
                for parameter, value in zip(network.parameters(), gradient, strict=True):
                    parameter.grad = value
                optimiser.step()


def adversarial_losses(real: torch.Tensor, fake: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses of the discriminator, -E log D(x) - E log(1 - D(G(z))), and the generator, -E log D(G(z)),
    of D's logits `real` and `fake` of any shape; means over images and patches.
    """
    cheated = F.softplus(-fake).mean()
    return F.softplus(-real).mean() + F.softplus(fake).mean(), cheated


def labelled(images: torch.Tensor, labels: torch.Tensor, classes: int) -> torch.Tensor:
    """Images (N, C, S, S) with a plane for each class, (N, C + classes, S, S): ones for their own."""
    planes = (
        F.one_hot(labels, classes)
        .to(images.dtype)[:, :, None, None]
        .expand(-1, -1, *images.shape[2:])
    )
    return torch.cat([images, planes], 1)


@torch.no_grad()
def draw(
    task: Task, generator: ImageGenerator, amount: int, rng: Rng
) -> tuple[torch.Tensor, torch.Tensor]:
    """Synthetic images (amount, C, S, S) uint8, labels (amount,) with equal odds for all classes."""
    device = task.runtime.device
    draws = rng.generator(device)
    labels = torch.randint(task.dataset.num_classes, (amount,), generator=draws, device=device)
    generator.train()
    parts = []
    for some in labels.split(CHUNK):
        noise = torch.randn(len(some), generator.noise, generator=draws, device=device)
        with task.runtime.autocast():
            images = generator(noise, some)
        parts.append((images.float() * 255).round().to(torch.uint8))
    return torch.cat(parts), labels
