"""What every algorithm promises: functions of a `Subject` that raise AssertionError."""

from __future__ import annotations

import functools
import json
import math
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch

from core.errors import InputError
from core.federation import (
    Algorithm,
    Field,
    Ledger,
    Message,
    RoundResult,
    UploadError,
    validate_uploads,
)
from core.progress import Stage, listening
from core.rng import Rng
from tests.algorithms.subjects import (
    EMPTY,
    NOBODYS,
    ROUNDS,
    SEED,
    SEND_IMAGES,
    Subject,
    crowd,
    task,
)
from tests.algorithms.watching import contents, differences, watch

# promises about a run


def outcome(results: list[RoundResult]) -> dict[str, Any]:
    """Return all that must be the same in another run: not the time that it took."""
    last = results[-1]
    rows = [result.row() | {"seconds": None} for result in results]
    traffic = [{way: entry[way] for way in ("up", "down")} for entry in last.ledger.rounds]
    memories = {str(client.id): dict(client.memory) for client in last.clients if len(client)}
    return dict(contents({"rows": rows, "traffic": traffic, "memory": memories})) | dict(
        contents(last.state)
    )


@attrs.frozen(eq=False)
class Again:
    """Another run with the same seed."""

    results: list[RoundResult]
    #: how many steps of how many a listener was told of
    stages: list[tuple[int, int]]
    #: whether the global generators are as they were before
    still: bool


@functools.cache
def again(subject: Subject) -> Again:
    """Run the subject once more, with all different that must not matter: it is killed after every
    round and goes on from the file alone, the client without data is not there, somebody listens, and
    the global generators begin elsewhere.
    """
    stages = list[tuple[int, int]]()

    def tell(running: Sequence[Stage]) -> None:
        stages.extend((stage.done, stage.total) for stage in running)

    torch.manual_seed(1)
    random.seed(1)
    before = torch.random.get_rng_state(), random.getstate()
    with listening(tell), tempfile.TemporaryDirectory() as folder:
        for number in range(1, ROUNDS + 1):
            clients = [client for client in crowd(subject.task_kind) if len(client)]
            running = subject.run(clients, checkpoint=Path(folder) / "checkpoint")
            results = [next(running) for _ in range(number)]
            running.close()
    still = torch.equal(before[0], torch.random.get_rng_state()) and before[1] == random.getstate()
    return Again(results, stages, still)


def resumes_bit_for_bit(subject: Subject) -> None:
    """Nothing but the seed decides the result: see `again`."""
    assert not differences(outcome(watch(subject).results), outcome(again(subject).results))


def one_seed_is_one_result(subject: Subject) -> None:
    """The seed decides: global generators are left alone, other seeds give other networks."""
    first = watch(subject).results[0].state.tensors
    assert again(subject).still, "a global generator was used"
    ours, others = (
        subject.new().initialise(task(subject.task_kind), Rng(seed)) for seed in (SEED, SEED + 1)
    )
    if not differences(ours, others):  # all that is learnt is with the clients
        other = next(subject.run(crowd(subject.task_kind), seed=SEED + 1)).state.tensors
        assert differences(other, first), "the seed is not used"
    assert "seed" not in ours.meta or ours.meta["seed"] != others.meta["seed"]
    names = [name for name in ours.tensors if "parameters/" in name]
    for part in {name.split("parameters/")[0] for name in names}:
        own = [name for name in names if name.startswith(f"{part}parameters/")]
        same = all(torch.equal(ours.tensors[name], others.tensors[name]) for name in own)
        assert not same, f"the network {part!r} is the same with another seed"


def a_listener_hears_of_loops(subject: Subject) -> None:
    """Whoever shows a run hears how far it is within a round."""
    stages = again(subject).stages
    assert any(0 < done < total for done, total in stages), "no loop of a round is counted"
    assert all(done < total for done, total in stages), "a loop has more steps than it said"


def an_empty_client_takes_no_part(subject: Subject) -> None:
    """Nobody hears of it; without it the result is the same, see `again`."""
    whole = watch(subject)
    assert not whole.results[-1].clients[EMPTY].memory
    assert EMPTY not in {id_ for *_, id_ in whole.checked}


def hard_clients_are_served(subject: Subject) -> None:
    """One image, one class, a class that nobody has: all stays finite, and nobody claims a 9."""
    seen = watch(subject)
    for name, value in seen.results[-1].state.tensors.items():
        assert value.isfinite().all(), name
    assert all(map(math.isfinite, seen.results[-1].metrics.values()))
    for _, _, direction, message in seen.counted:
        for name, value in message.tensors.items():
            if direction == "up" and name.endswith(("labels", "classes")) and value.dim() == 1:
                assert not (value == NOBODYS).any(), name
            if direction == "up" and name.endswith(("counts", "samples")) and len(value) == 10:
                assert value[NOBODYS] == 0, name


def alone_equals_batched(subject: Subject) -> None:
    """By itself or among others, in whatever order; 8-bit images within one grey level."""
    pairs = watch(subject).alone
    assert pairs or not subject.kind.remote_calls
    for id_, batched, alone in pairs:
        assert batched.keys() == alone.keys(), id_
        for name, value in batched.items():
            other = alone[name]
            if not isinstance(value, torch.Tensor):
                assert value == other, (id_, name)
            elif value.dtype == torch.uint8 and value.dim() > 2:
                apart = (value.int() - other.int()).abs()
                assert (apart <= 1).all() and (apart > 0).sum() <= 0.02 * apart.numel(), (id_, name)
            else:
                torch.testing.assert_close(value, other, rtol=1e-3, atol=1e-3, msg=f"{id_} {name}")


def nothing_given_is_changed(subject: Subject) -> None:
    """States, messages, images: no method changes in place what it is given."""
    assert not watch(subject).changed


def bytes_are_those_of_the_tensors(subject: Subject) -> None:
    """The ledger has the sizes of what crossed, all of it, and once."""
    seen = watch(subject)
    wanted = [{"up": 0, "down": 0} for _ in range(ROUNDS)]
    for ledger, number, direction, message in seen.counted:
        if ledger is seen.ledger:
            arrays = [np.ascontiguousarray(value.numpy()) for value in message.tensors.values()]
            text = json.dumps(message.meta) if message.meta else ""
            wanted[number][direction] += sum(a.nbytes for a in arrays) + len(text)
    assert [{"up": result.up, "down": result.down} for result in seen.results] == wanted
    for direction, message in seen.served:
        entries = [way for *_, way, one in seen.counted if one is message]
        assert entries == [direction], f"{sorted(message.tensors)} was counted {entries}"


def nothing_private_is_sent(subject: Subject) -> None:
    """No memory goes down, no image up; condensed images that start from real ones may be near."""
    from_real = getattr(subject.settings, "init", "noise") != "noise"
    if subject.name not in SEND_IMAGES and not from_real:
        assert not watch(subject).leaked


#: settings that several methods share, and another value of each
SHARED = {"class_weights": "balanced", "aggregation": "median", "order": "by_class"}


def shared_settings_are_heeded(subject: Subject) -> None:
    """Another value changes the parameters of what is learnt: buffers may go another way."""

    def parameters(algorithm: Algorithm, result: RoundResult) -> list[torch.Tensor]:
        model = algorithm.model(result.state)
        models = model if isinstance(model, list) else [model]
        return [w.detach() for each in models for w in each.parameters()]

    for name, value in SHARED.items():
        dense = name != "aggregation" and subject.task_kind != "classification"
        if getattr(subject.settings, name, value) == value or dense:
            continue
        try:
            settings = attrs.evolve(subject.settings, **{name: value})
            other = attrs.evolve(subject, settings=settings)
            other.new()
        except InputError:  # this way through the algorithm says that it cannot
            continue
        pairs = zip(watch(subject).results, other.run(crowd(subject.task_kind)), strict=True)
        assert any(
            not all(map(torch.equal, *(parameters(subject.new(), result) for result in pair)))
            for pair in pairs
        ), f"{name} changes nothing"


# hostile uploads


def spoilt_tensors(name: str, tensor: torch.Tensor, field: Field) -> Iterator[torch.Tensor]:
    """Copies of a tensor of another dtype or shape, or with a number that the field does not allow."""
    floating = tensor.is_floating_point()
    yield tensor.to(torch.int64 if floating else torch.float32)
    yield tensor.to(torch.float64)
    yield tensor[None]
    for axis, length in enumerate(field.shape):
        least, most = (field.least, field.most) if length is None else (length, length)
        for wrong in (least - 1, most + 1):
            if wrong >= 0:
                shape = [*tensor.shape[:axis], wrong, *tensor.shape[axis + 1 :]]
                yield tensor.new_zeros(()).expand(shape)
    numbers = [field.low - 1, field.high + 1]
    if floating:
        numbers += [math.nan, math.inf, -math.inf]
    elif name.endswith(("labels", "classes")) and field.shape == (None,):
        numbers += [10]
    for number in numbers if tensor.numel() else ():
        limits = torch.finfo(tensor.dtype) if floating else torch.iinfo(tensor.dtype)
        if floating or limits.min <= number <= limits.max:
            spoilt = tensor.clone(memory_format=torch.contiguous_format)
            spoilt.view(-1)[0] = number
            yield spoilt


def hostile(message: Message, tensors: Mapping, meta: Mapping) -> Iterator[tuple[str, Message]]:
    """The name that a refusal must say, and a spoilt message."""
    rows = [name for name, field in tensors.items() if field.shape[:1] == (None,)]
    for name, field in tensors.items():
        own = message.tensors[name]
        for value in spoilt_tensors(name, own, field):
            yield name, Message({**message.tensors, name: value}, message.meta)
        if name in rows and len(rows) > 1 and len(own):
            yield name, Message({**message.tensors, name: own[1:]}, message.meta)
    for name, field in meta.items():
        beyond = [b + s for b, s in ((field.low, -1), (field.high, 1)) if math.isfinite(b)]
        for value in (math.nan, math.inf, "12", None, True, [1], *beyond):
            yield name, Message(message.tensors, message.meta | {name: value})
    yield "more", Message({**message.tensors, "more": torch.zeros(1)}, message.meta)
    yield "more", Message(message.tensors, message.meta | {"more": 1})
    for part in ("tensors", "meta"):
        for name in getattr(message, part):
            parts = {"tensors": dict(message.tensors), "meta": dict(message.meta)}
            del parts[part][name]
            yield name, Message(**parts)


def hostile_uploads_are_refused(subject: Subject) -> None:
    """All that goes up is checked first; the check names the client and what is wrong."""
    seen, forms = watch(subject), {}
    known = {id(message) for message, *_ in seen.checked} | {
        value.data_ptr() for message, *_ in seen.checked for value in message.tensors.values()
    }
    for _, _, direction, message in seen.counted:
        if direction == "up" and id(message) not in known:
            for name, value in message.tensors.items():
                assert value.data_ptr() in known, f"{name} goes up unchecked"
    for message, tensors, meta, id_ in seen.checked:
        forms.setdefault(tuple(sorted({**tensors, **meta})), (message, tensors, meta, id_))
    for message, tensors, meta, id_ in forms.values():
        samples = {id_: len(seen.clients[id_])}
        for name, spoilt in hostile(message, tensors, meta):
            try:
                validate_uploads([(id_, spoilt)], (tensors, meta), samples, Ledger.aside())
            except UploadError as error:
                assert f"client {id_} " in str(error) and repr(name) in str(error), error
            else:
                raise AssertionError(f"{spoilt.tensors.get(name, spoilt.meta.get(name))}: accepted")


# bad settings

#: no setting allows the first two of these, and few the others
NONSENSE: tuple[Any, ...] = (math.nan, object(), math.inf, "nonsense", None, [], {}, -1, 1.5, True)
#: settings for which a negative number has a meaning, and those that any name may be
SIGNED, NAMES = {"b"}, {"auxiliary"}


def bad_settings_are_answered(subject: Subject) -> None:
    """A value that a setting does not allow is answered with one sentence that names the setting."""
    for field in attrs.fields(subject.kind.Settings):
        refused = []
        for value in NONSENSE:
            try:
                attrs.evolve(subject.settings, **{field.name: value})
            except InputError as error:
                assert field.name in str(error) and "\n" not in str(error), f"{value!r}: {error}"
                refused.append(value)
        assert refused[:2] == list(NONSENSE[:2]), f"{field.name} takes nan or any object"
        if isinstance(field.default, (str, bool)) and field.name not in NAMES:
            assert "nonsense" in refused, f"{field.name} takes any word"
        number = isinstance(field.default, (int, float)) and not isinstance(field.default, bool)
        if number and field.name not in SIGNED:
            assert -1 in refused and math.inf in refused, f"{field.name} takes -1 or inf"


PROMISES: dict[str, Callable[[Subject], None]] = {
    promise.__name__: promise
    for promise in (
        resumes_bit_for_bit,
        one_seed_is_one_result,
        a_listener_hears_of_loops,
        an_empty_client_takes_no_part,
        hard_clients_are_served,
        alone_equals_batched,
        nothing_given_is_changed,
        bytes_are_those_of_the_tensors,
        nothing_private_is_sent,
        shared_settings_are_heeded,
        hostile_uploads_are_refused,
        bad_settings_are_answered,
    )
}
