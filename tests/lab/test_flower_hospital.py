"""What a hospital keeps to itself: its data, its memory, its noise, its limit."""

import copy
import json
import math

import attrs
import numpy as np
import pytest
import torch

from core.baselines.fedkd import FedKD
from core.errors import InputError
from core.federation import Client, Message, Runtime
from core.files import alone
from core.rng import Rng
from lab import Experiment, make_clients, make_task, run

flwr = pytest.importorskip("flwr", reason="Flower is not installed: see `make federation-demo`")

from flwr.app import Context, RecordDict  # noqa: E402
from flwr.app import Message as Envelope  # noqa: E402

from core.privacy import differential  # noqa: E402
from lab.flower import client, server, wire  # noqa: E402
from tests.algorithms.subjects import DRAWN, subjects  # noqa: E402
from tests.lab.flower_nodes import (  # noqa: E402, F401
    Nodes,
    comparable,
    experiment,
    identity,
    of_subject,
    one_by_one,
)

PRIVATE = {name: one for name, one in subjects().items() if getattr(one.settings, "private", False)}
VOTES = {"private": True, "protects": "upload", "local_steps": 2, "pool": 40}


def configured(nodes: Nodes, **config) -> Nodes:
    for context in nodes.contexts.values():
        context.node_config |= config
    return nodes


def asked(context: Context, what: str, message: Message | None = None) -> RecordDict:
    """What a node answers to a question."""
    content = wire.records(message or Message({}), json.dumps([what, ["round", 1]]))
    return client.app(Envelope(content, 100, "query"), context).content


def private_votes(**settings):
    """A private FedKD's nodes, and a function that asks one of their contexts, with a message whose
    entries may be changed, and returns the votes.
    """
    stated = experiment("fedkd", settings=VOTES | settings, rounds=1)
    algorithm, task = stated.new_algorithm(), make_task(stated, Runtime())
    honest = algorithm.broadcast(algorithm.initialise(task, Rng(0).at("initialise")), 0)

    def ask(context, call="client_update", **change):
        content = asked(context, call, Message({}, honest.meta | change))
        return wire.message(content, torch.device("cpu"))[0].tensors.get("votes/noisy")

    return Nodes(stated), ask


def test_memory_survives_a_restart_where_the_node_has_a_folder_for_it(tmp_path):
    stated = experiment("moon", settings={"local_steps": 2}, rounds=3)

    def forget(number, content):
        nodes.contexts[100 + number].state = RecordDict()  # a new process knows nothing
        return content

    nodes = configured(Nodes(stated, spoil=forget), memory=str(tmp_path))
    assert comparable(server.federate(nodes, nodes.server)) == comparable(one_by_one(stated))
    kept = list(tmp_path.glob("*.safetensors"))
    # it holds the node's secret
    assert kept and {one.stat().st_mode & 0o777 for one in kept} == {0o600}
    nodes = Nodes(stated, spoil=forget)
    assert comparable(server.federate(nodes, nodes.server)) != comparable(one_by_one(stated))


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_question_that_comes_twice_gets_the_same_answer(tmp_path, on_disk):
    stated = experiment("moon", settings={"local_steps": 2}, rounds=3)
    nodes = Nodes(stated)
    nodes.times = 2  # the first answer is lost
    if on_disk:
        configured(nodes, memory=str(tmp_path))
        nodes.spoil = lambda number, content: (
            setattr(nodes.contexts[100 + number], "state", RecordDict()) or content
        )
    assert comparable(server.federate(nodes, nodes.server)) == comparable(one_by_one(stated))


@pytest.mark.parametrize("on_disk", [False, True])
def test_memory_and_noise_go_by_run_experiment_and_client(tmp_path, on_disk):
    """Also where a server gives another experiment the number of a run, and a Context has both."""
    seen, state = [], RecordDict()
    for lr, number in ((0.01, 1), (0.02, 1), (0.01, 2)):
        nodes, ask = private_votes(lr=lr)
        context = nodes.contexts[100]
        if on_disk:
            context.node_config["memory"] = str(tmp_path)
        context.state, context.run_id = state, number
        seen.append(ask(context))
        assert torch.equal(seen[-1], ask(context))
    assert not any(torch.equal(seen[k], seen[k - 1]) for k in range(3))
    kept = len(list(tmp_path.glob("*.safetensors"))) if on_disk else len(state) / 2
    assert kept == 3 and bool(state) != on_disk


def test_the_server_cannot_take_the_noise_of_a_private_client_off():
    """It knows seed and path of every draw; a node's secret is its own, and stays while it runs, so
    that a question asked twice gets one noise.
    """
    nodes, ask = private_votes()
    first = ask(nodes.contexts[100])
    assert torch.equal(first, ask(nodes.contexts[100]))
    assert not torch.equal(first, ask(private_votes()[0].contexts[100]))
    stated = experiment("fedkd", settings=VOTES, rounds=1)
    algorithm, task = stated.new_algorithm(), make_task(stated, Runtime())
    question = algorithm.broadcast(algorithm.initialise(task, Rng(0).at("initialise")), 0)
    member = make_clients(stated, task)[0]
    key = client.key_of(nodes.contexts[100], stated, 0)
    for path in (("round", 1), (key, "round", 1)):
        guess = algorithm.client_update(member, question, Rng(0, path).at("client", 0))
        assert not torch.equal(first, guess.tensors["votes/noisy"])
        member.memory = {}


@pytest.mark.parametrize("name", PRIVATE)
def test_all_noise_of_a_node_comes_from_the_whole_of_its_secret(name, monkeypatch):
    """And not from the 32 bits that PyTorch keeps of a seed, which a server could try one by one."""
    of_a_seed, with_noise = [], differential.with_noise

    def watched(values, sensitivity, multiplier, generator):
        seeded = torch.Generator().manual_seed(generator.initial_seed())
        of_a_seed.append(torch.equal(seeded.get_state(), generator.get_state()))
        return with_noise(values, sensitivity, multiplier, generator)

    monkeypatch.setattr(differential, "with_noise", watched)
    nodes = Nodes(of_subject(PRIVATE[name]))
    server.federate(nodes, nodes.server)
    assert of_a_seed and not any(of_a_seed)


def test_a_private_node_answers_the_same_address_with_another_content_as_another_question():
    """Or a server would get the votes on as many images as it likes, with one noise."""
    nodes, ask = private_votes()
    ask(nodes.contexts[100])
    with pytest.raises(InputError, match="privacy budget"):
        ask(nodes.contexts[100], seed=7)
    for change in ({"noise": 0.0}, {"queries": 41}):  # nor does it answer with less noise
        with pytest.raises(InputError, match="privacy budget"):
            ask(nodes.contexts[101], **change)


def test_another_question_at_one_address_draws_other_noise(monkeypatch):
    """Whatever a method refuses: their difference would have no noise."""
    drawn = []

    def watched(values, sensitivity, multiplier, generator):
        drawn.append(generator.get_state())
        return values

    monkeypatch.setattr(differential, "with_noise", watched)
    monkeypatch.setattr(FedKD, "_keep_to_budget", lambda *given: None)
    nodes, ask = private_votes()
    for seed in (6, 7, 6):
        ask(nodes.contexts[100], seed=seed)
    assert not torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[0], drawn[2])


def test_two_questions_at_once_do_not_get_the_same_noise(tmp_path, monkeypatch):
    """Flower begins a process for each message, with the Context as it was: the second has to know of the
    first by the node's folder, and waits for it.
    """
    nodes, ask = private_votes()
    first, second = nodes.contexts[100], nodes.context(0, 100)
    first.node_config["memory"] = second.node_config["memory"] = str(tmp_path)
    ask(first, "teach")
    second.state = copy.deepcopy(first.state)  # both know what the node knew then
    ask(first)
    with pytest.raises(InputError, match="privacy budget"):
        ask(second, seed=7)
    monkeypatch.setattr(client, "DAY", 0.1)
    (lock,) = tmp_path.glob("*-0.lock")
    with alone(lock, "this test"), pytest.raises(InputError, match="its own log says why"):
        ask(first, "teach")
    ask(first, "teach")


def limited(folder, run=1, seed=0, config=(), **settings):
    """Nodes that give away epsilon 9 at most, in a run of private FedKD of epsilon 4."""
    given = VOTES | {"full_epsilon": 4.0} | settings
    nodes = Nodes(experiment("fedkd", settings=given, rounds=1, seed=seed))
    for node, context in nodes.contexts.items():
        context.node_config |= {"memory": str(folder / str(node)), "epsilon": 9.0, **dict(config)}
        context.run_id = run
    return nodes


def test_a_hospital_takes_part_while_its_own_budget_lasts(tmp_path, caplog):
    """Two runs of epsilon 4 are within 9, whatever the server says; a third is not, also under the number
    of the second.
    """
    for _ in range(2):  # entered once
        for number in (1, 2):
            nodes = limited(tmp_path, number)
            assert server.federate(nodes, nodes.server).status == "complete"
    nodes = limited(tmp_path, 2, seed=1)
    with pytest.raises(InputError, match="sent no upload"):
        server.federate(nodes, nodes.server)
    assert "epsilon 9 at most; with this run it would be 12" in caplog.text
    spent = json.loads((tmp_path / "100" / "spent.json").read_text())
    assert [entry.split("-")[::2] for entry in spent] == [["1", "0"], ["2", "0"]]
    assert list(spent.values()) == [[4.0, 1e-5]] * 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"private": False}, "asks for answers without a bound"),
        # hardly any noise, whatever epsilon says
        ({"delta": 0.1}, "delta 0.0001 at most; with this run it would be 0.1"),
        ({"config": {"delta": 1e-6}}, "delta 1e-06 at most; with this run it would be 1e-05"),
        ({"config": {"epsilon": float("nan")}}, "epsilon of the --node-config must be"),
        ({"config": {"memory": None}}, "needs a memory folder"),
    ],
)
def test_a_hospital_with_a_budget_answers_nothing_beyond_it(tmp_path, caplog, change, said):
    nodes = limited(tmp_path, **change)
    with pytest.raises(InputError, match="sent no upload"):
        server.federate(nodes, nodes.server)
    assert said in caplog.text


def test_one_account_is_for_all_that_a_node_is(tmp_path, caplog):
    """Another number adds to it."""
    nodes = configured(limited(tmp_path), memory=str(tmp_path))
    with pytest.raises(InputError, match="client 2 sent no upload"):
        server.federate(nodes, nodes.server)  # three clients of epsilon 4 at one node
    assert "epsilon 9 at most; with this run it would be 12" in caplog.text


@pytest.mark.parametrize(
    "account", ["{", "[]", '{"1": 4.0}', '{"1": [-4.0, 0]}', '{"1": [NaN, 0]}']
)
def test_a_damaged_account_buys_nothing_and_the_server_does_not_hear_where_it_lies(
    tmp_path, caplog, account
):
    nodes = limited(tmp_path)
    path = tmp_path / "100" / "spent.json"
    path.parent.mkdir()
    path.write_text(account)
    with pytest.raises(InputError) as said:
        asked(nodes.contexts[100], "teach")
    assert str(tmp_path) not in str(said.value) and str(path) in caplog.text
    assert path.read_text() == account


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InputError("the disk /home/ann is full"), "its own log says why"),
        (InputError(r"the disk C:\ann is full"), "its own log says why"),
        (InputError("the training of the client diverged"), "diverged"),
        (ZeroDivisionError("by patient 7"), "ZeroDivisionError"),
    ],
)
def test_what_goes_wrong_at_a_node_stays_in_its_own_log(error, said, monkeypatch, caplog):
    nodes = Nodes(experiment())
    monkeypatch.setattr(client, "charge", lambda *_: (_ for _ in ()).throw(error))
    with pytest.raises(InputError, match=said) as told:
        asked(nodes.contexts[100], "client_update")
    assert not {"/", "\\", "patient"} & set(str(told.value).split()) and str(error) in caplog.text


def test_a_server_gets_no_answer_that_it_must_not_have(tmp_path):
    nodes = Nodes(experiment())
    with pytest.raises(InputError, match="no remote call of fedavg named 'initialise'"):
        asked(nodes.contexts[100], "initialise")
    own = make_clients(experiment(), make_task(experiment(), Runtime()))[0]
    clinic(tmp_path, own, own.task.dataset)
    nodes = Nodes(experiment("fedkd", settings=VOTES, rounds=1, dataset="clinic"))
    configured(nodes, data=str(tmp_path))
    with pytest.raises(InputError, match="needs a memory folder"):
        asked(nodes.contexts[100], "teach")
    masks = Experiment.from_dict(
        {"algorithm": "fediod", "dataset": "nuclei_drawn", "model": "unet", "clients": 4}
        | {"model_options": {"width": 2}, "partition": {"name": "natural"}}
        | {"settings": {"private": True, "importance": "class_ratio"}}
    )
    with pytest.raises(InputError, match="private must be off"):
        asked(Nodes(masks).contexts[100], "introduce")


@pytest.mark.parametrize(
    ("stated", "config", "said"),
    [
        # training of all data; a sum that nobody forms protects nobody: the server sees each upload
        (("centralized", {"local_steps": 1}), {}, "never leaves it"),
        (("fedkd", {"private": True, "pool": 40}), {}, "protects must be upload across a network"),
        (
            ("fedavg", {"local_steps": 3}),
            {"most-samples": 100},
            r"clients \[0, 1, 2\] did not come",
        ),
    ],
)
def test_a_run_that_needs_what_never_leaves_a_hospital_is_refused(stated, config, said):
    nodes = Nodes(experiment(stated[0], settings=stated[1], rounds=1), patience=0.1, **config)
    with pytest.raises(InputError, match=said):
        server.federate(nodes, nodes.server)


def clinic(folder, part, dataset, **more) -> None:
    """A file with a client's images to train on and a data set's to test on."""
    arrays = {
        "train_images": part.images[:, 0].numpy(),
        "train_labels": part.labels.numpy()[:, None],
        "test_images": dataset.test.images[:, 0].numpy(),
        "test_labels": dataset.test.labels.numpy()[:, None],
        "classes": np.array(dataset.classes),
    }
    np.savez(folder / "clinic.npz", **arrays, **more)


def test_a_node_with_its_own_folder_has_the_data_of_that_folder_only(tmp_path):
    """Of those it leaves its own tenth, and the share that the experiment leaves, out of what it learns.
    Validation images are those of the server's folder, or it says so.
    """
    task = make_task(experiment(), Runtime())
    part = make_clients(experiment(), task)[1]
    clinic(tmp_path, part, task.dataset)
    stated = experiment(dataset="clinic")

    def config(stated):
        return {"experiment": json.dumps(stated.to_dict()), "server-data": str(tmp_path)}

    where = {"partition-id": 1, "data": str(tmp_path)}
    _, found = client.experiment_and_client(Context(1, 5, where, RecordDict(), config(stated)))
    assert found.id == 1 and torch.equal(found.images, part.images)
    assert torch.equal(found.labels, part.labels)
    stated = attrs.evolve(stated, evaluate_on="val", train_fraction=0.5)
    at_server = Context(1, 0, {}, RecordDict(), config(stated))
    with pytest.raises(InputError, match="no validation images"):
        server.server_task(stated, at_server, 10)
    held_out = math.ceil(len(part) / 10)
    _, found = client.experiment_and_client(Context(1, 5, where, RecordDict(), config(stated)))
    assert len(found) == math.ceil((len(part) - held_out) / 2)
    test = task.dataset.test
    some = {"val_images": test.images[:7, 0].numpy(), "val_labels": test.labels[:7, None].numpy()}
    clinic(tmp_path, part, task.dataset, **some)
    known = server.server_task(stated, at_server, 10).dataset
    assert len(known.val) == 7 and len(known.train) == 10


@pytest.mark.parametrize("kind", DRAWN)
def test_a_dense_task_is_deployed_with_folders_at_nodes_and_server(kind, tmp_path):
    one = experiment(
        dataset=DRAWN[kind],
        model="unet",
        model_options={"width": 4},
        settings={"local_steps": 2, "batch_size": 4},
        clients=2,
        rounds=1,
    )
    task = make_task(one, Runtime())
    train = task.dataset.train
    nodes = configured(Nodes(one, (0, 1), **{"server-data": str(tmp_path)}), data=str(tmp_path))
    record = server.federate(nodes, nodes.server)
    clients = [Client(number, task, train.images, train.masks) for number in range(2)]
    beside = run(one, task=task, clients=clients)
    assert record.metrics == pytest.approx(beside.metrics, rel=1e-3)
    known = server.server_task(one, nodes.server, 7)
    assert known.kind == kind and len(known.dataset.train) == 7
    assert not known.dataset.train.images.any() and not known.dataset.train.masks.any()
