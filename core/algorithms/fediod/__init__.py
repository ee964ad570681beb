"""FedIOD: one-way distillation with learnt inputs.

Gong, Li, Bao, Yao, Huang, Wu, Zhang, Zheng, Doermann. Federated Learning via Input-Output
Collaborative Distillation. AAAI 2024, Algorithm 1.

Stage one: every client trains a teacher T_k to completion. Stage two: a generator G and a student S
on the server and a discriminator D_k at each client learn together; in each step all of them answer
the same synthetic images.

"One-way" means that no network is ever sent, not that the server is silent. In each step these
cross the network, for each client, and all are counted: the synthetic images down; the teacher's
logits up, with D_k(x) and E D_k(x'_k) where the weights of Eq. 8 need them; the gradient of the
server's losses with respect to these answers down, because the Jensen-Shannon divergence and the
ensemble depend on all clients and only the server can form them; the gradient with respect to the
images up, because the client alone can differentiate its networks. Before the first step a client
says how many samples of each class it has, and receives its weight pi_k and the number of steps.

The whole of stage two is cut into as many parts as the run has rounds: round r of R takes the steps
from T (r - 1) / R to T r / R. A step draws the same numbers whichever round it falls into, so R
changes neither the result nor the bytes of the distillation, only how often the run is tested and
can be resumed. Where some clients only take part in a round (`active`), an epoch is one of those of the
first round, and a teacher is asked from its first round on.

Where the paper is silent: an epoch of stage two is one pass over the data of the client with the most
(`epoch_of`); there are no steps in which only generator and discriminators learn (`pretrain_steps`);
local SGD has the momentum of all methods here; the networks of the game are those of a work whose name
our text has lost, beside that D_k judges 8x8 patches (`generator_form`, `discriminator_norm`, the
widths; the code's are those of MosaicKD, but for the generator's second enlargement); D_k(x) is the
mean over patches of the sigmoid; Eq. 2's signs are those of the paper, which makes D_k(x) large where x
seems generated, as Eq. 7 needs it (`input_ratio`); the class ratio is one of counts, as the text says,
not of expectations, as the symbol does (`class_ratio`); at a finite tau the ensemble mixes logits, too
(`core.distillation.mimic_loss`); the gradient of L_mimic flows through the weights of Eq. 8 too;
teachers start from different weights; the label maps of a batch come from every
client equally often.

Masks and images (Tables 2 to 4, 8, 9): every pixel is a prediction, so Eq. 3 to 10 hold as they are,
with the judgement on an image for each of its pixels. The generator is given a label map in the place of
noise; each client sends its maps once. A discriminator sees an image beside its map, and L_gan has a
perceptual loss beside it, of the images that are made from a client's own maps against that client's
own images, on its own teacher's encoder. A discriminator halves its maps twice, that of AsynDGAN, whose
networks the paper seems to take, three times. This part was never released; where the answer is an
image, see `server.Server.shaping`.

Privacy (Table 5) was never released. Here a private client sends no outputs of its discriminator,
so the weights must be class ratios; what it does send in a step, logits and gradients with respect
to images, goes through the Gaussian mechanism, and both are accounted together. This protects each
upload by itself. A client across a network keeps to the budget of the run's settings, which the
server states: its noise depends on a number of steps that it receives once, and it answers each
question of each of these once, in order. The paper names PATE for the logits, whose noise protects
the sum of the clients' votes; but a vote is a class, and Eq. 3, 4 and 9 need probabilities and
logits. How many samples a client has of each class is
sent as it is. Where the clients are at hand, `ensemble_accuracy` and the inception scores are measured on
their networks as they are: numbers of the experimenter, for which the budget does not hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import nn

from core.algorithms.fediod.clients import AnswerGradients, Answers, ClientsHere
from core.algorithms.fediod.conversation import (
    ClientsElsewhere,
    ClientsSide,
    Conversation,
    Down,
    with_maps,
)
from core.algorithms.fediod.scores import check_inception, ensemble_accuracy, inception_scores
from core.algorithms.fediod.server import Server, generator_from, new_generator
from core.algorithms.fediod.settings import Settings
from core.algorithms.fediod.teachers import check_teachers
from core.errors import InputError
from core.families import conditional
from core.families.conditional import LabelMaps
from core.federation import (
    EVERY_TASK,
    Client,
    Field,
    Format,
    Ledger,
    Message,
    State,
    Task,
    UploadError,
    pack,
)
from core.federation.tensors import take
from core.privacy.differential import spent_epsilon
from core.progress import counted
from core.rng import Rng
from core.training import cosine

#: images that are the same to one grey level in each pixel are one image
LEVEL = 1 / 255


class FedIOD(Conversation):
    """Clients' networks answer synthetic images; a student on the server learns from these answers."""

    Settings = Settings
    task_kinds = EVERY_TASK

    @property
    def private(self) -> bool:
        """True where the settings ask for noise."""
        return self.settings.private

    @property
    def privacy_budget(self) -> tuple[float, float] | None:
        """The budget of a private run; counts of classes are outside it."""
        s = self.settings
        return (s.epsilon or s.full_epsilon, s.delta) if s.private else None

    def initialise(self, task: Task, rng: Rng) -> State:
        """A fresh student and generator. Raises InputError, before any teacher trains, for settings or
        teachers that do not fit the task, and for weights of Inception that cannot be read.
        """
        self.settings.check(task)
        check_teachers(task, self.settings)
        if self.settings.scored_images and task.kind == "classification":
            check_inception()
        tensors = pack(task.new_model(rng.at("student")), "student/")
        tensors |= pack(new_generator(task, self.settings, rng.at("generator")), "generator/")
        meta = {"round": 0, "step": 0, "last": 0, "all": 0, "noise": 0.0, "measures": {}}
        return State(task, tensors, meta)

    def round(self, state: State, clients: Sequence[Client], ledger: Ledger, rng: Rng) -> State:
        """Teachers for the clients that have none, then this round's part of stage two."""
        root = Rng(
            rng.seed, ("fediod",)
        )  # not below the round: a step is the same step in whichever round it falls
        state = self._introduced(state, clients, ledger, root, rng)
        clients = [client for client in clients if f"counts/{client.id}" in state.tensors]
        meta = state.meta | {"round": state.meta["round"] + 1}
        until = self.schedule.steps_until(meta["last"], meta["round"])
        with ledger.timed("distillation"):
            tensors, measures = self._distil(state, clients, ledger, until, root)
        spent = (
            {
                "spent_epsilon": spent_epsilon(
                    meta["noise"], 1.0, self.settings.releases(until), self.settings.delta
                )
            }
            if self.settings.private
            else {}
        )
        return State(
            state.task,
            tensors,
            meta | {"step": until, "measures": meta["measures"] | measures | spent},
        )

    def upload_format(self, state: State) -> Format:
        """The tensors that a client sends in a step, some in one message and some in the next."""
        data, batch = state.task.dataset, self.settings.distill_batch
        pixels = () if data.task_kind == "classification" else (data.size, data.size)
        return {
            "logits": Field((batch, data.num_classes, *pixels), torch.float32),
            "discriminator/generated": Field((batch,), torch.float32, low=0, high=1),
            "discriminator/real": Field((1,), torch.float32, low=0, high=1),
            "gradients/images": Field((batch, data.channels, data.size, data.size), torch.float32),
        }, {}

    def _introduced(
        self, state: State, clients: Sequence[Client], ledger: Ledger, root: Rng, rng: Rng
    ) -> State:
        """Teachers and class counts of the clients that are new to the server, and how long stage
        two is when it begins; every client is sent that and its weight.
        """
        tensors, meta, settings = dict(state.tensors), dict(state.meta), self.settings
        new = [client for client in clients if f"counts/{client.id}" not in tensors]
        if not meta["all"]:  # what a budget cannot buy is said before any teacher is trained
            self.budget(settings.all_steps([len(client) for client in clients]))
        if new:
            form = {"counts": state.task.counts()}
            if state.task.kind != "classification":
                form |= {"conditions": conditional.maps_field(state.task)}
            streams = root.at("client")
            answers = self.call_clients(
                "introduce", new, None, (form, {}), ledger, streams, clients
            )
            for id_, upload in answers.items():
                tensors |= {f"{name}/{id_}": value for name, value in upload.tensors.items()}
        clients = [client for client in clients if f"counts/{client.id}" in tensors]
        counts = torch.stack([tensors[f"counts/{client.id}"] for client in clients])
        samples = (counts.sum(1) // state.task.predictions).tolist()
        if not meta["all"]:
            meta["all"] = settings.all_steps(samples)
            meta["noise"], meta["last"] = self.budget(meta["all"])
        run = {"steps": meta["all"]}
        if settings.discriminator_rests:
            run["epoch"] = settings.epoch_steps(samples)
        messages = {
            client.id: ledger.count("down", Message({}, {"weight": share, **run}))
            for client, share in zip(clients, self.gan_weights(counts).tolist(), strict=True)
        }
        self.call_clients("receive_schedule", clients, messages, ({}, {}), ledger, rng)
        return State(state.task, tensors, meta)

    def gan_weights(self, counts: torch.Tensor) -> torch.Tensor:
        """pi_k of Eq. 2, (K,), of clients with these samples of each class, (K, C)."""
        if self.settings.gan_weights == "uniform":
            return torch.full((len(counts),), 1 / len(counts), device=counts.device)
        return (counts.sum(1) / counts.sum()).float()

    def _distil(
        self, state: State, clients: Sequence[Client], ledger: Ledger, until: int, root: Rng
    ) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
        """Take the steps of stage two up to `until`; new tensors of the state, measures of the last."""
        settings, step = self.settings, state.meta["step"]
        if until <= step:
            return state.tensors, {}
        server, side = self.sides(state, clients, root)
        form = self.upload_format(state)[0]
        for now in counted(range(step, until), "distillation", until - step):
            self._set_rates(server, side, now, state.meta["all"])
            for exchange in self.step(server, side, now):
                self._cross(exchange, clients, form, ledger)
        measures = server.measures()
        if settings.distill_batch > 1 and measures["synthetic_spread"] < LEVEL:
            raise InputError(
                f"the generator collapsed before step {until}: all its images are the same; a smaller "
                "gan_lr, a smaller mimic or a balance above 0 may keep it from that"
            )
        # across a network private clients answer no test
        closed = settings.private and self.remote
        scored = settings.scored_images and state.task.kind == "classification" and not closed
        if until == state.meta["last"] and scored:
            current = State(state.task, server.tensors())
            made = self.synthetic(current, settings.scored_images, root.at("scored"))
            measures |= inception_scores(side, server, made)
            split = getattr(state.task.dataset, self.schedule.evaluate_on)
            measures["ensemble_accuracy"] = ensemble_accuracy(side, server, split)
        side.remember()
        return state.tensors | server.tensors(), measures

    def _cross(
        self,
        exchange: Exchange,
        clients: Sequence[Client],
        form: Mapping[str, Field],
        ledger: Ledger,
    ) -> None:
        """Count what crosses, and admit what clients here send up. Raises UploadError where an answer
        is refused: the ensemble of a step needs all clients.
        """
        messages = {client.id: exchange.of(position) for position, client in enumerate(clients)}
        if exchange.direction == "down" or self.remote:
            for message in messages.values():
                ledger.count(exchange.direction, message)
            return
        asked = {name: form[name] for name in exchange.names}
        admitted = self.validate(messages, (asked, {}), clients, ledger)
        if missing := sorted(messages.keys() - admitted.keys()):
            raise UploadError(
                f"{ledger.rounds[-1]['refused'][str(missing[0])]}; a step of the distillation needs "
                "all clients of its round"
            )

    def sides(
        self, state: State, clients: Sequence[Client], root: Rng
    ) -> tuple[Server, ClientsSide]:
        """Return what the server has and what the clients have when stage two begins or goes on."""
        counts = torch.stack([state.tensors[f"counts/{client.id}"] for client in clients])
        by_client = take("conditions/", state.tensors)
        maps = [by_client[str(client.id)] for client in clients] if by_client else []
        server = Server(state.task, self.settings, state.tensors, counts, root, maps)
        if self.remote:
            return server, ClientsElsewhere(self, clients, self.upload_format(state)[0], root)
        noise = state.meta["noise"] if self.settings.private else 0.0
        epoch = self.settings.epoch_steps((counts.sum(1) // state.task.predictions).tolist())
        return server, ClientsHere(
            clients, self.settings, self.gan_weights(counts), noise, root, epoch
        )

    def _set_rates(self, server: Server, side: ClientsSide, now: int, steps: int) -> None:
        """Set the rates of all optimisers for the next step; the student's falls from its first."""
        s = self.settings
        rate = s.gan_rate(now, steps)
        side.set_rate(rate)
        server.generator_optimiser.param_groups[0]["lr"] = rate
        done = max(now - s.pretrain_steps, 0) / (steps - s.pretrain_steps)
        server.student_optimiser.param_groups[0]["lr"] = cosine(
            s.student_lr, s.student_last_lr, done
        )

    def step(self, server: Server, side: ClientsSide, now: int) -> Iterator[Exchange]:
        """One step of Alg. 1; yields what crosses the network before anything is computed from it."""
        images, maps = server.images(now), server.label_maps(now)
        sent = images.detach()
        yield sent_down(sent, maps)
        if now < self.settings.pretrain_steps:
            graph: Any = side.judge_only(sent, now, maps)
            slopes = side.pull_back(graph, AnswerGradients(), now)
            assert slopes is not None  # there is an adversarial loss
            yield slopes_up(slopes)
            server.generator_step(images, slopes.sum(0))
            return
        answers, graph = side.answer(sent, now, maps)
        yield answers_up(answers)
        pull, through_student = server.learn(answers, sent)
        if pull.of(0):
            yield Exchange("down", pull.of)
        gradients = side.pull_back(graph, pull, now)
        parts = [] if through_student is None else [through_student]
        if gradients is not None:
            yield slopes_up(gradients)
            parts.insert(0, gradients.sum(0))
        server.generator_step(images, torch.stack(parts).sum(0))
        for part in range(1, self.settings.fresh_batches + 1):
            with torch.no_grad():
                fresh = server.images(now, part)
            maps = server.label_maps(now, part)
            yield sent_down(fresh, maps)
            more = side.answer_only(fresh, now, part, maps)
            yield answers_up(more)
            server.learn_only(more, fresh)

    def synthetic(self, state: State, count: int, rng: Rng) -> torch.Tensor:
        """Images of the trained generator, (count, C, S, S) in [0, 1], by its running statistics."""
        generator = generator_from(state.task, self.settings, state.tensors).eval()
        device = state.task.runtime.device
        by_client = take("conditions/", state.tensors)
        # by id, for a state that was read again has its tensors in the order of their names
        if maps := [by_client[owner] for owner in sorted(by_client, key=int)]:
            return self.painted(state, conditional.draw(maps, count, rng).labels)
        noise = torch.randn(
            count, self.settings.noise, generator=rng.generator(device), device=device
        )
        with torch.no_grad(), state.task.runtime.autocast():
            return torch.cat([generator(part).float() for part in noise.split(500)])

    def painted(self, state: State, labels: torch.Tensor) -> torch.Tensor:
        """Images of label maps (N, S, S), (N, C, S, S) in [0, 1]."""
        generator = generator_from(state.task, self.settings, state.tensors).eval()
        return conditional.painted(state.task, generator, labels)

    def model(self, state: State) -> nn.Module:
        """The student."""
        return state.task.model_from(state.tensors, "student/")

    def measures(self, state: State) -> dict[str, float]:
        """Measures of the last step, scores of synthetic images, and the epsilon spent."""
        return dict(state.meta["measures"])


@attrs.frozen(eq=False)
class Exchange:
    """One message of a step for every client, its tensors by the client's position."""

    direction: Any
    tensors: Down
    names: tuple[str, ...] = ()

    def of(self, position: int) -> Message:
        """The message of one client."""
        return Message(dict(self.tensors(position)))


def sent_down(images: torch.Tensor, maps: LabelMaps | None) -> Exchange:
    """Synthetic images (N, C, S, S) from the server to every client, with their label maps."""
    return Exchange("down", with_maps(images, maps))


def answers_up(answers: Answers) -> Exchange:
    """The exchange in which clients say what they think of images."""
    judged = ("discriminator/generated", "discriminator/real")
    return Exchange(
        "up", answers.of, ("logits", *(judged if answers.generated is not None else ()))
    )


def slopes_up(slopes: torch.Tensor) -> Exchange:
    """The exchange in which clients send gradients with respect to images, (K, N, C, S, S)."""
    return Exchange("up", lambda k: {"gradients/images": slopes[k]}, ("gradients/images",))
