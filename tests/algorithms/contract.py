"""What every algorithm promises, whatever it learns.

A promise is a function of a `Subject`, an algorithm with tiny settings; it raises AssertionError
where it is broken. Most of them read what one watched run left behind.
"""

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
from tests.algorithms.hostile import nothing_gets_by
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


def resumes_bit_for_bit(subject: Subject) -> None:
    """Killed after every round, it goes on from the file alone as if nothing had happened."""
    whole = watch(subject)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, ROUNDS + 1):
            checkpoint = Path(folder) / "checkpoint"
            running = subject.run(crowd(subject.task_kind), checkpoint=checkpoint)
            results = [next(running) for _ in range(number)]
            running.close()
    assert not differences(outcome(whole.results), outcome(results))


@functools.cache
def second(subject: Subject) -> tuple[list[RoundResult], list[tuple[int, int]], bool]:
    """Another run, to which somebody listens: its results, how many steps of how many were done in what
    was told, and whether the global generators, which begin elsewhere, stay as they are.
    """
    stages = list[tuple[int, int]]()

    def tell(running: Sequence[Stage]) -> None:
        stages.extend((stage.done, stage.total) for stage in running)

    torch.manual_seed(1)
    random.seed(1)
    before = torch.random.get_rng_state(), random.getstate()
    with listening(tell):
        results = list(subject.run(crowd(subject.task_kind)))
    still = torch.equal(before[0], torch.random.get_rng_state()) and before[1] == random.getstate()
    return results, stages, still


def one_seed_is_one_result(subject: Subject) -> None:
    """All numbers come from the seed: the global generators are neither read nor moved."""
    whole, (again, _, still) = watch(subject), second(subject)
    assert still, "a global generator was used"
    assert not differences(outcome(whole.results), outcome(again))
    other = next(subject.run(crowd(subject.task_kind), seed=SEED + 1))
    assert differences(other.state.tensors, whole.results[0].state.tensors), "the seed is not used"
    ours, others = (
        subject.new().initialise(task(subject.task_kind), Rng(seed)) for seed in (SEED, SEED + 1)
    )
    assert "seed" not in ours.meta or ours.meta["seed"] != others.meta["seed"]
    names = [name for name in ours.tensors if "parameters/" in name]
    for part in {name.split("parameters/")[0] for name in names}:
        own = [name for name in names if name.startswith(f"{part}parameters/")]
        same = all(torch.equal(ours.tensors[name], others.tensors[name]) for name in own)
        assert not same, f"the network {part!r} is the same with another seed"


def a_listener_hears_of_loops(subject: Subject) -> None:
    """Whoever shows a run hears how far it is within a round, and changes nothing."""
    whole, (again, stages, _) = watch(subject), second(subject)
    assert any(0 < done < total for done, total in stages), "no loop of a round is counted"
    assert all(done < total for done, total in stages), "a loop has more steps than it said"
    assert not differences(outcome(whole.results), outcome(again))


def an_empty_client_takes_no_part(subject: Subject) -> None:
    """Without it all goes as with it, and nobody hears of it."""
    whole, others = watch(subject), [client for client in crowd(subject.task_kind) if len(client)]
    without = list(subject.run(others))
    assert not differences(outcome(whole.results), outcome(without))
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
    """A client answers the same by itself and in one program with others, and in whatever order.

    8-bit images within one grey level, and nearly all equal; the rest as close as sums of float32
    in another order are.
    """
    pairs = watch(subject).alone
    assert pairs or "client_update" not in subject.kind.remote_calls
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
    """No message down holds what only a client's memory held; no image of a client goes up.

    Condensed images that start from real ones may still be near them: nothing is said of those.
    """
    from_real = getattr(subject.settings, "init", "noise") != "noise"
    if subject.name not in SEND_IMAGES and not from_real:
        assert not watch(subject).leaked


#: settings that several methods share, and another value of each
SHARED = {"class_weights": "balanced", "aggregation": "median"}


def shared_settings_are_heeded(subject: Subject) -> None:
    """Another value changes the parameters of what is learnt: buffers may go another way."""

    def parameters(algorithm: Algorithm, result: RoundResult) -> list[torch.Tensor]:
        model = algorithm.model(result.state)
        models = model if isinstance(model, list) else [model]
        return [w.detach() for each in models for w in each.parameters()]

    for name, value in SHARED.items():
        dense = name == "class_weights" and subject.task_kind != "classification"
        if not hasattr(subject.settings, name) or dense:
            continue
        try:
            settings = attrs.evolve(subject.settings, **{name: value})
        except InputError:  # this way through the algorithm has nothing to average
            continue
        other = attrs.evolve(subject, settings=settings)
        pairs = zip(watch(subject).results, other.run(crowd(subject.task_kind)), strict=True)
        assert any(
            not all(map(torch.equal, *(parameters(subject.new(), result) for result in pair)))
            for pair in pairs
        ), f"{name} changes nothing"


# hostile uploads


def _with(message: Message, name: str, value: Any) -> Message:
    return Message({**message.tensors, name: value}, message.meta)


def _first(tensor: torch.Tensor, value: float) -> torch.Tensor:
    """A tensor whose first number is another one."""
    spoilt = tensor.clone(memory_format=torch.contiguous_format)
    spoilt.view(-1)[0] = value
    return spoilt


def _longer(shape: list[int], axis: int, by: int = 1) -> list[int]:
    return [length + by * (axis == number) for number, length in enumerate(shape)]


def hostile_tensors(name: str, tensor: torch.Tensor, field: Field) -> Iterator[tuple[str, Any]]:
    """Spoilt copies of a tensor, with a word for each."""
    shape = list(tensor.shape)
    yield "another dtype", tensor.to(torch.int64 if tensor.is_floating_point() else torch.float32)
    yield "a wider dtype", tensor.to(torch.float64)
    yield "one dimension more", tensor[None]
    for axis, length in enumerate(field.shape):
        rows = (
            _longer(shape, axis)
            if length is not None
            else [field.most + 1 if axis == number else n for number, n in enumerate(shape)]
        )
        yield f"too long along {axis}", tensor.new_zeros(()).expand(rows)
        if length is None and field.least:
            yield f"too few along {axis}", tensor[: field.least - 1]
        if length:
            yield f"too short along {axis}", tensor.new_zeros(_longer(shape, axis, -1))
    if not tensor.numel():
        return
    if tensor.is_floating_point():
        for value in (math.nan, math.inf, -math.inf):
            yield f"{value}", _first(tensor, value)
    for bound, step in ((field.low, -1), (field.high, 1)):
        if math.isfinite(bound) and (tensor.is_floating_point() or tensor.dtype != torch.uint8):
            yield f"{bound + step}", _first(tensor, bound + step)
    if tensor.dtype == torch.int64:  # a number of samples or a label
        yield "-1", _first(tensor, -1)
    if name.endswith(("labels", "classes")) and field.shape == (None,):
        yield "no class", _first(tensor, 10)


def hostile_numbers(field: Field) -> list[Any]:
    """Values of `meta` that no field allows, and those beyond its bounds."""
    beyond = [b + s for b, s in ((field.low, -1), (field.high, 1)) if math.isfinite(b)]
    return [math.nan, math.inf, "12", None, True, [1], *beyond]


def hostile(message: Message, tensors: Mapping, meta: Mapping) -> Iterator[tuple[str, str, Any]]:
    """What is wrong, the name that the refusal must say, and the spoilt message."""
    for name, field in tensors.items():
        rest = {key: value for key, value in message.tensors.items() if key != name}
        yield "missing", name, Message(rest, message.meta)
        for word, value in hostile_tensors(name, message.tensors[name], field):
            yield word, name, _with(message, name, value)
    rows = [name for name, field in tensors.items() if field.shape[:1] == (None,)]
    for name in rows:
        if len(rows) > 1 and len(message.tensors[name]):
            yield "a row less", name, _with(message, name, message.tensors[name][1:])
    yield "extra", "more", _with(message, "more", torch.zeros(1))
    for name, field in meta.items():
        rest = {key: value for key, value in message.meta.items() if key != name}
        yield "missing", name, Message(message.tensors, rest)
        for value in hostile_numbers(field):
            yield repr(value), name, Message(message.tensors, message.meta | {name: value})
    yield "extra", "more", Message(message.tensors, message.meta | {"more": 1})


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
        for word, name, spoilt in hostile(message, tensors, meta):
            try:
                known = {id_: len(seen.clients[id_])}
                validate_uploads([(id_, spoilt)], (tensors, meta), known, Ledger.aside())
            except UploadError as error:
                assert f"client {id_} " in str(error) and repr(name) in str(error), (word, error)
            else:
                raise AssertionError(f"{name}, {word}: accepted")


def no_upload_gets_by_its_form(subject: Subject) -> None:
    """What is drawn at random is refused, or is what the form of the algorithm promises."""
    seen, done = watch(subject), set()
    for message, tensors, meta, id_ in seen.checked:
        if (names := tuple(sorted({**tensors, **meta}))) not in done:
            done.add(names)
            nothing_gets_by(message, tensors, meta, id_, len(seen.clients[id_]))


# bad settings

#: no setting allows the first two of these, and few the others
NONSENSE: tuple[Any, ...] = (math.nan, object(), math.inf, "nonsense", None, [], {}, -1, 1.5, True)
#: settings for which a negative number has a meaning
SIGNED = {"b"}


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
        no_upload_gets_by_its_form,
        bad_settings_are_answered,
    )
}
