"""What a hospital keeps to itself: its data, its memory, its noise, its limit."""

import copy
import json
import math

import numpy as np
import pytest
import torch

from core.errors import InputError
from core.federation import Client, Message, Runtime
from core.files import Busy, alone
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


def test_memory_survives_a_restart_where_the_node_has_a_folder_for_it(tmp_path):
    stated = experiment("moon", settings={"local_steps": 2}, rounds=3)
    nodes = Nodes(stated)
    for context in nodes.contexts.values():
        context.node_config["memory"] = str(tmp_path)

    def forget(number, content):
        nodes.contexts[100 + number].state = RecordDict()  # a new process knows nothing
        return content

    nodes.spoil = forget
    assert comparable(server.federate(nodes, nodes.server)) == comparable(one_by_one(stated))
    kept = list(tmp_path.glob("*.safetensors"))
    # it holds the node's secret
    assert kept and {one.stat().st_mode & 0o777 for one in kept} == {0o600}
    for context in nodes.contexts.values():
        del context.node_config["memory"]
    nodes = Nodes(stated, spoil=forget)
    assert comparable(server.federate(nodes, nodes.server)) != comparable(one_by_one(stated))


def limited(folder, epsilon, run=1, **settings):
    """Nodes with a budget of their own, in a run of private FedKD."""
    given = {
        "private": True,
        "protects": "upload",
        "full_epsilon": 4.0,
        "local_steps": 2,
        "pool": 40,
    }
    nodes = Nodes(experiment("fedkd", settings=given | settings, rounds=1))
    for node, context in nodes.contexts.items():
        context.node_config |= {"memory": str(folder / str(node)), "epsilon": epsilon}
        context.run_id = run
    return nodes


def test_a_hospital_takes_part_while_its_own_budget_lasts(tmp_path, caplog):
    """Two runs of epsilon 4 are within 9, whatever the server says; a third is not."""
    for number in (1, 2):
        nodes = limited(tmp_path, 9.0, number)
        assert server.federate(nodes, nodes.server).status == "complete"
        assert server.federate(limited(tmp_path, 9.0, number), nodes.server)  # entered once
    nodes = limited(tmp_path, 9.0, 3)
    with pytest.raises(InputError, match="sent no upload"):
        server.federate(nodes, nodes.server)
    assert "epsilon 9 at most; with this run it would be 12" in caplog.text
    spent = json.loads((tmp_path / "100" / "spent.json").read_text())
    assert [entry.split("/")[::2] for entry in spent] == [["1", "0"], ["2", "0"]]
    assert set(spent.values()) == {4.0}


def test_a_hospital_with_a_budget_answers_nothing_without_a_bound(tmp_path, caplog):
    nodes = limited(tmp_path, 9.0, private=False)
    with pytest.raises(InputError, match="sent no upload"):
        server.federate(nodes, nodes.server)
    assert "asks for answers without a bound" in caplog.text
    nodes = limited(tmp_path, 9.0, delta=0.1)  # hardly any noise, whatever epsilon says
    with pytest.raises(InputError, match="sent no upload"):
        server.federate(nodes, nodes.server)
    assert "takes a delta of 1e-05 at most, and the run has 0.1" in caplog.text
    nodes = limited(tmp_path, 9.0)
    for context in nodes.contexts.values():
        del context.node_config["memory"]
    with pytest.raises(InputError, match="sent no upload"):
        server.federate(nodes, nodes.server)
    assert "needs a memory folder" in caplog.text


def test_a_server_cannot_call_whatever_it_likes():
    nodes = Nodes(experiment())
    content = wire.records(Message({}))
    content["asked"] = wire.ConfigRecord({"what": '["initialise", []]'})
    with pytest.raises(InputError, match="no remote call of fedavg named 'initialise'"):
        client.app(Envelope(content, 100, "query"), nodes.contexts[100])


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_question_that_comes_twice_gets_the_same_answer(tmp_path, on_disk):
    stated = experiment("moon", settings={"local_steps": 2}, rounds=3)
    nodes = Nodes(stated)
    nodes.times = 2  # the first answer is lost
    if on_disk:
        for context in nodes.contexts.values():
            context.node_config["memory"] = str(tmp_path)
        nodes.spoil = lambda number, content: (
            setattr(nodes.contexts[100 + number], "state", RecordDict()) or content
        )
    assert comparable(server.federate(nodes, nodes.server)) == comparable(one_by_one(stated))


def test_an_algorithm_that_looks_into_its_clients_is_refused():
    stated = experiment("centralized", settings={"local_steps": 1}, rounds=1)
    nodes = Nodes(stated)
    with pytest.raises(InputError, match="never leaves it"):
        server.federate(nodes, nodes.server)


def test_a_node_with_its_own_folder_has_the_data_of_that_folder_only(tmp_path):
    task = make_task(experiment(), Runtime())
    part = make_clients(experiment(), task)[1]
    arrays = {
        "train_images": part.images[:, 0].numpy(),
        "train_labels": part.labels.numpy()[:, None],
        "test_images": task.dataset.test.images[:, 0].numpy(),
        "test_labels": task.dataset.test.labels.numpy()[:, None],
        "classes": np.array(task.dataset.classes),
    }
    np.savez(tmp_path / "clinic.npz", **arrays)
    stated = experiment(dataset="clinic")
    config = {"experiment": json.dumps(stated.to_dict())}
    context = Context(1, 5, {"partition-id": 1, "data": str(tmp_path)}, RecordDict(), config)
    _, found = client.own(context)
    assert found.id == 1 and torch.equal(found.images, part.images)
    assert torch.equal(found.labels, part.labels)


def test_validation_images_are_those_of_the_servers_folder_or_it_says_so(tmp_path):
    """A node leaves its own tenth, and the share that the experiment leaves, out of what it learns."""
    task = make_task(experiment(), Runtime())
    part, test = make_clients(experiment(), task)[1], task.dataset.test
    arrays = {
        "train_images": part.images[:, 0].numpy(),
        "train_labels": part.labels.numpy()[:, None],
        "test_images": test.images[:, 0].numpy(),
        "test_labels": test.labels.numpy()[:, None],
        "classes": np.array(task.dataset.classes),
    }
    np.savez(tmp_path / "clinic.npz", **arrays)
    stated = experiment(dataset="clinic", evaluate_on="val", train_fraction=0.5)
    config = {"experiment": json.dumps(stated.to_dict()), "server-data": str(tmp_path)}
    with pytest.raises(InputError, match="no validation images"):
        server.server_task(stated, Context(1, 0, {}, RecordDict(), config), 10)
    node = Context(1, 5, {"partition-id": 1, "data": str(tmp_path)}, RecordDict(), config)
    held_out = math.ceil(len(part) / 10)
    assert len(client.own(node)[1]) == math.ceil((len(part) - held_out) / 2)
    some = {"val_images": arrays["test_images"][:7], "val_labels": arrays["test_labels"][:7]}
    np.savez(tmp_path / "clinic.npz", **arrays, **some)
    found = server.server_task(stated, Context(1, 0, {}, RecordDict(), config), 10)
    assert len(found.dataset.val) == 7 and len(found.dataset.train) == 10


@pytest.mark.parametrize("learns", DRAWN)
def test_a_dense_task_is_deployed_with_folders_at_nodes_and_server(learns, tmp_path):
    one = experiment(
        dataset=DRAWN[learns],
        model="unet",
        model_options={"width": 4},
        settings={"local_steps": 2, "batch_size": 4},
        clients=2,
        rounds=1,
    )
    task = make_task(one, Runtime())
    train = task.dataset.train
    nodes = Nodes(one, (0, 1), **{"server-data": str(tmp_path)})
    for context in nodes.contexts.values():
        context.node_config["data"] = str(tmp_path)
    record = server.federate(nodes, nodes.server)
    clients = [Client(number, task, train.images, train.masks) for number in range(2)]
    beside = run(one, task=task, clients=clients)
    assert record.metrics == pytest.approx(beside.metrics, rel=1e-3)
    known = server.server_task(one, nodes.server, 7)
    assert known.kind == learns and len(known.dataset.train) == 7
    assert not known.dataset.train.images.any() and not known.dataset.train.masks.any()


def test_the_server_cannot_take_the_noise_of_a_private_client_off():
    """It knows seed and path of every draw; a node's secret is its own, and stays while it runs, so
    that a question asked twice gets one noise.
    """
    stated = experiment(
        "fedkd",
        settings={"private": True, "protects": "upload", "local_steps": 2, "pool": 40},
        rounds=1,
    )
    algorithm, task = stated.new_algorithm(), make_task(stated, Runtime())
    state = algorithm.initialise(task, Rng(0).at("initialise"))
    question, path = algorithm.broadcast(state, 0), ["round", 1, "client"]

    def votes(nodes):
        content = wire.records(question)
        asked = json.dumps(["client_update", path])
        content["asked"] = wire.ConfigRecord({"what": asked})
        reply = client.app(Envelope(content, 100, "query"), nodes.contexts[100])
        return wire.message(reply.content, torch.device("cpu")).tensors["votes/noisy"]

    nodes, others = Nodes(stated), Nodes(stated)
    first = votes(nodes)
    assert torch.equal(first, votes(nodes)) and not torch.equal(first, votes(others))
    member = make_clients(stated, task)[0]
    guess = algorithm.at_clients("client_update", [member], {0: question}, Rng(0, tuple(path)))[0]
    assert not torch.equal(first, guess.tensors["votes/noisy"])


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


def private_votes():
    """A private FedKD's nodes, and a function that asks one of their contexts, with a message whose
    entries may be changed.
    """
    stated = experiment(
        "fedkd",
        settings={"private": True, "protects": "upload", "local_steps": 2, "pool": 40},
        rounds=1,
    )
    algorithm, task = stated.new_algorithm(), make_task(stated, Runtime())
    honest = algorithm.broadcast(algorithm.initialise(task, Rng(0)), 0)

    def ask(context, question="client_update", **change):
        content = wire.records(Message({}, honest.meta | change))
        content["asked"] = wire.ConfigRecord(
            {"what": json.dumps([question, ["round", 1, "client"]])}
        )
        return client.app(Envelope(content, 100, "query"), context)

    return Nodes(stated), ask


def test_a_private_node_answers_the_same_address_with_another_content_as_another_question():
    """Or a server would get the votes on as many images as it likes, with one noise."""
    nodes, ask = private_votes()
    ask(nodes.contexts[100])
    ask(nodes.contexts[100])
    with pytest.raises(InputError, match="privacy budget"):
        ask(nodes.contexts[100], seed=7)


def test_two_questions_at_once_do_not_get_the_same_noise(tmp_path):
    """Flower begins a process for each message, with the Context as it was: the second has to know of the
    first by the node's folder.
    """
    nodes, ask = private_votes()
    first, second = nodes.contexts[100], nodes.context(0, 100)
    first.node_config["memory"] = second.node_config["memory"] = str(tmp_path)
    ask(first, "teach")
    second.state = copy.deepcopy(first.state)  # both know what the node knew then
    ask(first)
    with pytest.raises(InputError, match="privacy budget"):
        ask(second, seed=7)


def test_a_question_waits_for_the_one_before_it(tmp_path, monkeypatch):
    nodes, ask = private_votes()
    context = nodes.contexts[100]
    context.node_config["memory"] = str(tmp_path)
    monkeypatch.setattr(client, "DAY", 0.1)
    with (
        alone(tmp_path / "1-0.lock", "this test"),
        pytest.raises(Busy, match="another question of this run"),
    ):
        ask(context, "teach")
    ask(context, "teach")


def test_a_private_node_with_data_of_its_own_needs_a_folder(tmp_path):
    stated = experiment("fedkd", settings={"private": True, "protects": "upload"}, rounds=1)
    nodes = Nodes(stated)
    context = nodes.contexts[100]
    context.node_config["data"] = str(tmp_path)
    content = wire.records(Message({}, {}))
    content["asked"] = wire.ConfigRecord({"what": '["teach", ["round", 1]]'})
    with pytest.raises(InputError, match="needs a memory folder"):
        client.app(Envelope(content, 100, "query"), context)


def test_masks_do_not_leave_a_private_node():
    stated = Experiment.from_dict(
        {"algorithm": "fediod", "dataset": "nuclei_drawn", "model": "unet", "clients": 4}
        | {"model_options": {"width": 2}, "partition": {"name": "natural"}}
        | {"settings": {"private": True, "importance": "class_ratio"}}
    )
    nodes = Nodes(stated)
    content = wire.records(Message({}, {}))
    content["asked"] = wire.ConfigRecord({"what": '["introduce", ["round", 1]]'})
    with pytest.raises(InputError, match="private must be off"):
        client.app(Envelope(content, 100, "query"), nodes.contexts[100])


def test_a_server_does_not_hear_the_names_of_a_nodes_files(tmp_path, caplog):
    (tmp_path / "hiv_clinic.npz").write_bytes(b"")
    nodes = Nodes(experiment(dataset="hiv"))
    context = nodes.contexts[100]
    context.node_config["data"] = str(tmp_path)
    with pytest.raises(InputError, match="its own log says why") as said:
        client.app(Envelope(RecordDict(), 100, "query.introduce"), context)
    assert "hiv" not in str(said.value) and str(tmp_path) in caplog.text


def test_a_hospital_cannot_say_that_it_has_more_images_than_the_run_allows():
    nodes = Nodes(experiment(rounds=1), patience=0.1, **{"most-samples": 100})
    with pytest.raises(InputError, match=r"clients \[0, 1, 2\] did not come"):
        server.federate(nodes, nodes.server)


def test_one_account_is_for_all_that_a_node_is(tmp_path, caplog):
    """Another number, or another experiment under the number of the same run, adds to it."""
    nodes = limited(tmp_path, 9.0)
    for context in nodes.contexts.values():
        context.node_config["memory"] = str(tmp_path)
    with pytest.raises(InputError, match="client 2 sent no upload"):
        server.federate(nodes, nodes.server)  # three clients of epsilon 4 at one node
    assert "epsilon 9 at most; with this run it would be 12" in caplog.text
    assert sum(json.loads((tmp_path / "spent.json").read_text()).values()) == 8.0


def test_a_sum_that_nobody_forms_protects_nobody():
    """Across a network the server sees each upload of FedKD, which has a part of the noise."""
    nodes = Nodes(experiment("fedkd", settings={"private": True, "pool": 40}, rounds=1))
    with pytest.raises(InputError, match="protects must be upload across a network"):
        server.federate(nodes, nodes.server)


def test_a_private_client_refuses_a_server_that_asks_for_less_noise():
    stated = experiment(
        "fedkd", settings={"private": True, "protects": "upload", "local_steps": 2, "pool": 40}
    )
    algorithm, task = stated.new_algorithm(), make_task(stated, Runtime())
    client_, state = make_clients(stated, task)[0], algorithm.initialise(task, Rng(0))
    honest = algorithm.broadcast(state, 0)
    for change in ({"noise": 0.0}, {"queries": 41}):
        with pytest.raises(InputError, match="privacy budget"):
            algorithm.client_update(client_, Message({}, honest.meta | change), Rng(0))
