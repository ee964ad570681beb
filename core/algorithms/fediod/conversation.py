"""The answers of FedIOD's clients to the questions of stage two, and how a server asks clients that are
elsewhere.

In one process all clients are served together and keep the graph of a step until the server has
answered (`ClientsHere`). A client across a network may be another process at each question: it keeps
what it needs in its memory, and computes the graph once more, to the same numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

import attrs
import torch

from core.algorithms.fediod.clients import AnswerGradients, Answers, ClientsHere
from core.algorithms.fediod.teachers import train_teacher
from core.errors import InputError
from core.families import conditional
from core.families.conditional import LabelMaps
from core.federation import Algorithm, Client, Field, Ledger, Message, UploadError
from core.federation.tensors import put, take
from core.privacy.differential import affordable_steps, noise_multiplier
from core.progress import counted
from core.rng import Rng

#: what a client received before stage two, and the images that it answered last
WEIGHT, STEPS, EPOCH, ASKED = "heard/weight", "heard/steps", "heard/epoch", "asked/"
#: how many places of its budget a private client has behind it: see `Conversation.release`
SPENT = "spent/places"


def part_of(root: Rng, step: int, part: int = 0) -> Rng:
    """The address of the questions about a batch of images of a step."""
    return root.at("step", step, part)


class Conversation(Algorithm):
    """The questions of FedIOD. The address of a question says which step it belongs to."""

    remote_calls = ("introduce", "receive_schedule", "answer", "pull_back", "answer_only", "logits")

    def introduce(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """Stage one, where a client has no teacher yet; its class counts, and its label maps where
        every pixel has an answer. Raises InputError where these would leave a private client.
        """
        self.settings.check(clients[0].task)
        pairs = zip(clients, rngs, strict=True)
        for client, rng in counted(pairs, "clients", len(clients)):
            if not take("teacher/", client.memory):
                train_teacher(client, self.settings, rng)
        answers = {client.id: Message({"counts": client.class_counts}) for client in clients}
        for client in clients:
            if client.task.kind != "classification":
                answers[client.id].tensors["conditions"] = conditional.maps_of(client)
        return answers

    def receive_schedule(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """Remember pi_k and how many steps stage two has, and an epoch of it where D_k rests. Raises
        InputError where a private client, whose noise depends on the steps, has received another number.
        """
        for client in clients:
            message, device = messages[client.id], client.labels.device
            steps = message.whole("steps")
            if self.settings.private and int(client.memory.get(STEPS, steps)) != steps:
                raise InputError(f"client {client.id} has heard of another number of steps before")
            client.memory[WEIGHT] = torch.tensor(message.number("weight"), device=device)
            client.memory[STEPS] = torch.tensor(steps, device=device)
            if self.settings.discriminator_rests:
                client.memory[EPOCH] = torch.tensor(message.whole("epoch"), device=device)
        return {client.id: Message({}) for client in clients}

    def answer(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """z_k, D_k(x) and E D_k(x'_k) of the images that came."""
        self.release(clients, rngs, 0)
        for client in clients:
            client.memory |= put(ASKED, messages[client.id].tensors)
        side, step, _ = self._recalled(clients, rngs)
        asked = [messages[client.id].tensors for client in clients]
        answers, _ = side.answer(asked[0]["images"], step, LabelMaps.received(asked))
        return {client.id: Message(answers.of(k)) for k, client in enumerate(clients)}

    def pull_back(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """The gradients with respect to the images answered last, or, where images come along, to
        those, which only D_k judges; then D_k takes its step, where it comes after.
        """
        self.release(clients, rngs, 1)
        side, step, _ = self._recalled(clients, rngs)
        asked = [messages[client.id].tensors for client in clients]
        if "images" in asked[0]:
            graph = side.judge_only(asked[0]["images"], step, LabelMaps.received(asked))
        else:
            asked = [take(ASKED, client.memory) for client in clients]
            _, graph = side.answer(asked[0]["images"], step, LabelMaps.received(asked))
            for client, question in zip(clients, asked, strict=True):
                for name in question:
                    client.memory.pop(ASKED + name)
        slopes = side.pull_back(
            graph, AnswerGradients.joined([messages[client.id] for client in clients]), step
        )
        side.remember()
        return {
            client.id: Message({} if slopes is None else {"gradients/images": slopes[k]})
            for k, client in enumerate(clients)
        }

    def answer_only(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """The answers on images that the student alone learns from."""
        self.release(clients, rngs, 1 + int(rngs[0].parent.path[-1]))
        side, step, part = self._recalled(clients, rngs)
        asked = [messages[client.id].tensors for client in clients]
        maps = LabelMaps.received(asked)
        answers = side.answer_only(asked[0]["images"], step, part, maps)
        return {client.id: Message(answers.of(k)) for k, client in enumerate(clients)}

    def logits(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """z_k of any images, for tests. Raises InputError for private clients, whom nobody tests."""
        if self.settings.private:
            raise InputError("a private client shows what its teacher says to nobody")
        logits_of = self._recalled(clients, rngs)[0].logits(
            messages[clients[0].id].tensors["images"]
        )
        return {client.id: Message({"logits": logits_of[k]}) for k, client in enumerate(clients)}

    def _recalled(
        self, clients: Sequence[Client], rngs: Sequence[Rng]
    ) -> tuple[ClientsHere, int, int]:
        """The clients' side as it was left, and the step and part that a question belongs to."""
        address = rngs[0].parent
        *root, _, step, part = address.path
        weights = torch.stack([client.memory[WEIGHT] for client in clients])
        steps = int(clients[0].memory[STEPS])
        noise = self.budget(steps)[0] if self.settings.private else 0.0
        epoch = int(clients[0].memory[EPOCH]) if self.settings.discriminator_rests else 1
        above = attrs.evolve(address, path=tuple(root))  # of a node's secret where it is one
        side = ClientsHere(clients, self.settings, weights, noise, above, epoch)
        side.set_rate(self.settings.gan_rate(int(step), steps))
        return side, int(step), int(part)

    def release(self, clients: Sequence[Client], rngs: Sequence[Rng], place: int) -> None:
        """Enter what private clients send in a step by its place: logits 0, gradients 1, then logits of
        fresh images. InputError for what the budget lacks: it has each place once, in order.
        """
        settings, step = self.settings, int(rngs[0].parent.path[-2])
        if not settings.private:
            return
        places = 2 + settings.fresh_batches
        logits_due = place == 1 or step >= settings.pretrain_steps
        for client in clients:
            last = self.budget(int(client.memory[STEPS]))[1]
            now, spent = places * step + place, int(client.memory.get(SPENT, 0))
            if not (logits_due and 0 <= step < last and 0 <= place < places and now >= spent):
                raise InputError(
                    f"client {client.id} is asked for more than its privacy budget of epsilon "
                    f"{settings.epsilon or settings.full_epsilon:g} allows"
                )
            client.memory[SPENT] = torch.tensor(now + 1)

    def budget(self, steps: int) -> tuple[float, int]:
        """The multiplier of a private client's noise where stage two has so many steps, and how many
        of them the budget buys, private or not. Raises InputError where it buys none.
        """
        s = self.settings
        if not s.private and s.epsilon is None:
            return 0.0, steps
        releases = s.releases(steps)
        noise = noise_multiplier(s.full_epsilon, s.delta, 1.0, releases)
        if s.epsilon is None:
            return noise, steps
        affordable = affordable_steps(s.epsilon, s.delta, noise, 1.0, releases)
        last = bisect_right(range(1, steps + 1), affordable, key=s.releases)
        if not last:
            raise InputError(
                f"a budget of epsilon {s.epsilon:g} does not buy one step of distillation"
            )
        return noise, last


#: what a server sends to a client, by its position
Down = Callable[[int], Mapping[str, torch.Tensor]]


def with_maps(images: torch.Tensor, maps: LabelMaps | None) -> Down:
    """Images (N, C, S, S) for every client, with the label maps that they were made from."""
    return lambda k: {"images": images, **(maps.of(k) if maps else {})}


class ClientsElsewhere:
    """Clients elsewhere: every call is a question to all of them; the caller counts what crosses."""

    def __init__(
        self, algorithm: Algorithm, clients: Sequence[Client], form: Mapping[str, Field], rng: Rng
    ) -> None:
        """`form` is that of all that a client sends in a step; `rng` the run's root."""
        self.algorithm, self.clients, self.form, self.rng = algorithm, clients, form, rng

    def _ask(
        self,
        question: str,
        down: Down,
        form: dict[str, Field],
        rng: Rng,
    ) -> dict[str, torch.Tensor]:
        """The answers of all clients to a question, (K, ...) by name. Raises UploadError where one
        is missing: the ensemble of a step is that of all.
        """
        messages = {client.id: Message(dict(down(k))) for k, client in enumerate(self.clients)}
        given = self.algorithm.call_clients(
            question, self.clients, messages, (form, {}), Ledger.aside(), rng
        )
        if missing := sorted(messages.keys() - given.keys()):
            raise UploadError(
                f"client {missing[0]} did not answer in step {rng.path[-2]} of the distillation, "
                "which needs all clients of its round"
            )
        return {
            name: torch.stack([given[client.id].tensors[name] for client in self.clients])
            for name in form
        }

    def _answers(
        self, question: str, images: torch.Tensor, rng: Rng, maps: LabelMaps | None
    ) -> Answers:
        names = ["logits"]
        if self.algorithm.settings.sends_judgements:
            names += ["discriminator/generated", "discriminator/real"]
        form = {name: self.form[name] for name in names}
        logits, *judged = self._ask(question, with_maps(images, maps), form, rng).values()
        if not judged:
            return Answers(logits)
        generated, real = judged
        return Answers(logits, generated, real.squeeze(1))

    def answer(
        self, images: torch.Tensor, step: int, maps: LabelMaps | None = None
    ) -> tuple[Answers, Down]:
        """The answers, and what `pull_back` has to send: the clients remember the images."""
        return self._answers("answer", images, part_of(self.rng, step), maps), lambda _: {}

    def judge_only(self, images: torch.Tensor, step: int, maps: LabelMaps | None = None) -> Down:
        """Return what `pull_back` has to send: the images, which nobody has seen yet."""
        return with_maps(images, maps)

    def answer_only(
        self, images: torch.Tensor, step: int, part: int, maps: LabelMaps | None = None
    ) -> Answers:
        """The answers on images that the student alone learns from."""
        return self._answers("answer_only", images, part_of(self.rng, step, part), maps)

    def pull_back(self, graph: Down, pull: AnswerGradients, step: int) -> torch.Tensor | None:
        """The gradients with respect to the images; D_k's step is taken when this returns."""
        name, wanted = "gradients/images", bool(pull.of(0)) or self.algorithm.settings.gan > 0
        form = {name: self.form[name]} if wanted else {}
        gradients = self._ask(
            "pull_back", lambda k: {**graph(k), **pull.of(k)}, form, part_of(self.rng, step)
        )
        return gradients.get(name)

    def logits(self, images: torch.Tensor, part: int = 0) -> torch.Tensor:
        """z_k of any images, (K, M, classes), for tests; `part` numbers the questions of a test."""
        shape = (len(images), self.form["logits"].shape[1])
        form = {"logits": Field(shape, torch.float32)}
        rng = part_of(self.rng, -1, part)
        return self._ask("logits", lambda _: {"images": images}, form, rng)["logits"]

    def set_rate(self, rate: float) -> None:
        """Clients know their rate by the step."""

    def remember(self) -> None:
        """Clients remember after every question."""


#: the clients' side of stage two, as the server sees it
ClientsSide = ClientsHere | ClientsElsewhere
