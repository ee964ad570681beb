"""Partitions: which client gets which samples of a training set.

Every function returns one int64 array of sample numbers per client. Every sample is given to one
client; only `from_file`, and `dirichlet` with `per_class`, may leave samples out. All draws come
from the seed: the same call gives the same partition again.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from core.checks import LARGEST, check_kind, check_number, check_whole, plain
from core.data.dataset import Split
from core.data.roots import data_root
from core.errors import InputError, unknown
from core.files import read_json
from core.rng import Rng

Labels = np.ndarray | torch.Tensor
Parts = list[np.ndarray]
#: where the files below `splits` come from
HOW_TO_GET = (
    "FedVCK's authors give theirs in the folder dataset/split_file of the repository "
    "Youth-49/FedVCK_2024; put them there as NAME_clients10_alphaALPHA.json"
)
#: bytes of the largest split file that is read: some ten million numbers
LARGEST_FILE = 2**27


def iid(labels: Labels, clients: int, seed: int) -> Parts:
    """Random parts whose sizes differ by at most one. InputError for more clients than samples."""
    labels = _labels(labels)
    _check(labels, len(labels), clients, seed, 1)
    order = Rng(seed).at("partition", "iid").numpy().permutation(len(labels))
    return [np.sort(part) for part in np.array_split(order, clients)]


def dirichlet(
    labels: Labels,
    clients: int,
    alpha: float,
    seed: int,
    min_size: int = 1,
    cap: bool = False,
    per_class: int | None = None,
) -> Parts:
    """Give each class to the clients in proportions drawn from Dir(alpha, ..., alpha), plain as in
    Yurochkin et al. 2019 (Bayesian Nonparametric Federated Learning of Neural Networks).

    `cap`: a client that already holds N / clients samples gets nothing of the classes that follow,
    which evens out client sizes (NIID-Bench, Li et al. 2022, arXiv:2102.02079; the splits of FedVCK
    are drawn so). At small alpha a client may get next to nothing. Where NIID-Bench draws again
    until every client is large enough, which may take forever, here samples drawn at random from
    whichever client is largest are moved until every client has `min_size`; 0 allows empty clients.
    `per_class`: no more than so many random samples of a class are given out, as in the code of
    FedGen (1,500); None: all. Raises InputError when alpha is no number above 0 or when
    `clients * min_size` exceeds the number of samples.
    """
    labels = _labels(labels)
    if per_class is not None:
        _whole("per_class", per_class, 1)
    counts = np.unique(labels, return_counts=True)[1]
    given = int(np.minimum(counts, len(labels) if per_class is None else per_class).sum())
    _check(labels, given, clients, seed, min_size)
    check_number("alpha", alpha, 0, math.inf, above=True)
    if not isinstance(cap, bool):
        raise InputError(f"cap must be true or false, not {cap!r}")
    rng = Rng(seed).at("partition", "dirichlet").numpy()
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    sizes = np.zeros(clients, dtype=np.int64)
    for label in np.unique(labels):
        index = rng.permutation(np.flatnonzero(labels == label))[:per_class]
        open_ = sizes * clients < given if cap else np.ones(clients, dtype=bool)
        cuts = np.rint(np.cumsum(_proportions(rng, float(alpha), open_)) * len(index)).astype(
            np.int64
        )[:-1]
        for client, part in enumerate(np.split(index, cuts)):
            parts[client].append(part)
            sizes[client] += len(part)
    return [np.sort(part) for part in _fill([np.concatenate(p) for p in parts], min_size, rng)]


def pathological(labels: Labels, clients: int, classes_per_client: int, seed: int) -> Parts:
    """Give every client exactly `classes_per_client` classes (McMahan et al. 2017; FedMK, Table 3). Clients
    choose in turn among the classes with the fewest owners; owners share a class evenly. InputError for
    too few classes, a class without an owner, or with fewer samples than owners.
    """
    labels = _labels(labels)
    _check(labels, len(labels), clients, seed, 1)
    _whole("classes_per_client", classes_per_client, 1)
    present, counts = np.unique(labels, return_counts=True)
    if classes_per_client > len(present):
        raise InputError(
            f"classes_per_client is {classes_per_client}, but the samples have {len(present)} classes"
        )
    if clients * classes_per_client < len(present):
        raise InputError(
            f"{clients} clients with classes_per_client={classes_per_client} cannot hold all "
            f"{len(present)} classes; together they must have that many: more clients, or more classes each"
        )
    rng = Rng(seed).at("partition", "pathological").numpy()
    owners: list[list[int]] = [[] for _ in present]
    for client in range(clients):
        order = sorted(rng.permutation(len(present)).tolist(), key=lambda k: len(owners[k]))
        for k in order[:classes_per_client]:
            owners[k].append(client)
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for k, label in enumerate(present):
        if counts[k] < len(owners[k]):
            raise InputError(
                f"class {label} has {counts[k]} samples for {len(owners[k])} clients that should own it"
            )
        index = rng.permutation(np.flatnonzero(labels == label))
        for client, part in zip(owners[k], np.array_split(index, len(owners[k])), strict=True):
            parts[client].append(part)
    return [np.sort(np.concatenate(part)) for part in parts]


def natural(centre: Labels | None) -> Parts:
    """Client i holds the samples of centre i, perhaps none. InputError for a set without centres."""
    if centre is None:
        raise InputError(
            "a natural partition needs the centre of each sample, which this data set does not have"
        )
    centre = _labels(centre)
    if not len(centre) or centre.min() < 0:
        raise InputError("centres must be whole numbers from 0, one per sample")
    present = np.unique(centre)
    if present[-1] >= len(centre):
        raise InputError(f"centres go up to {present[-1]} although there are {len(centre)} samples")
    return [np.flatnonzero(centre == value) for value in range(int(present[-1]) + 1)]


def from_file(
    path: str | Path,
    samples: int | None = None,
    labels: Labels | None = None,
    index: Labels | None = None,
) -> Parts:
    """A partition in a JSON file: `{"client_idx": [[...], ...], "client_classes": [[...], ...]}`.

    The layout of the FedVCK authors' split files, in whose order the sample numbers are returned.
    Clients may be empty and samples may be left out. Numbers beyond `samples`, or beyond the N of
    `labels`, are refused where these are given. With `labels` (N,) each client keeps the classes of
    its `client_classes` only, as the authors' code does: classes with few samples on a client are
    not listed. `index` (N,) says by which number the file calls each sample; numbers that it lacks
    are left out, with a warning. Raises InputError, naming the file, when it is missing, not of this
    form, or when a sample appears twice.
    """
    path, given = Path(path), None if labels is None else _labels(labels)
    if given is not None:
        samples = min(len(given), len(given) if samples is None else samples)
    data = read_json(path, LARGEST_FILE, "split file")
    if not isinstance(data, dict):
        raise InputError(f"{path} must hold a table with 'client_idx'")
    parts = [np.array(part, dtype=np.int64) for part in _lists(data, "client_idx", path)]
    values, counts = np.unique(np.concatenate(parts), return_counts=True)
    if len(values) and values[0] < 0:
        raise InputError(f"{path}: client_idx holds the negative number {values[0]}")
    if len(values) and counts.max() > 1:
        raise InputError(
            f"{path}: sample {values[counts.argmax()]} is given out {counts.max()} times"
        )
    if index is not None:
        rows = {number: row for row, number in enumerate(_labels(index).tolist())}
        parts = [np.array([rows[n] for n in p.tolist() if n in rows], np.int64) for p in parts]
        if lost := len(values) - sum(map(len, parts)):
            warnings.warn(f"{path}: {lost} of {len(values)} samples are not here", stacklevel=2)
    elif samples is not None and len(values) and values[-1] >= samples:
        raise InputError(
            f"{path}: client_idx holds sample {values[-1]}, but there are only {samples} training samples"
        )
    if given is None:
        return parts
    listed = _lists(data, "client_classes", path)
    if len(listed) != len(parts):
        raise InputError(
            f"{path}: client_classes lists {len(listed)} clients, client_idx {len(parts)}"
        )
    return [
        part[np.isin(given[part], classes)] for part, classes in zip(parts, listed, strict=True)
    ]


def _of_split(split: Split, root: Path, *, file: str, listed_classes_only: bool = False) -> Parts:
    if not isinstance(file, str) or not file:
        raise InputError(f"file must be the path of a split file, not {file!r}")
    if not isinstance(listed_classes_only, bool):
        raise InputError(f"listed_classes_only must be true or false, not {listed_classes_only!r}")
    if not (root / file).is_file() and Path(file).parent == Path("splits"):
        raise InputError(f"there is no split file {root / file}; {HOW_TO_GET}")
    labels = split.labels if listed_classes_only else None
    return from_file(root / file, len(split), labels, split.index)


#: what a partition is given beside its options
GIVEN = ("labels", "centre", "split", "clients", "seed", "root")
PARTITIONS: dict[str, Callable[..., Parts]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "pathological": pathological,
    "natural": natural,
    "file": _of_split,
}


def written(spec: Mapping[str, Any], root: str | Path | None = None) -> Path | None:
    """Return the file that a partition is read from, or None. InputError for what is no partition."""
    name, options = parse(spec)
    return data_root(root) / str(options["file"]) if name == "file" else None


def split(
    spec: Mapping[str, Any],
    split: Split,
    clients: int | None,
    seed: int,
    root: str | Path | None = None,
) -> Parts:
    """Distribute the samples of `split` over `clients` clients as `spec` says; None: over as many as a
    natural partition, or one in a file, has.

    `spec` is `{"name": ...}` with a name of `PARTITIONS` and its options: `{"name": "iid"}`,
    `{"name": "dirichlet", "alpha": 0.05}` (`min_size`, `cap`, `per_class`), `{"name":
    "pathological", "classes_per_client": 5}`, `{"name": "natural"}`, `{"name": "file", "file":
    "splits/CIFAR10_clients10_alpha0.05.json"}` (`listed_classes_only`). A file's path is relative
    to the data folder `root`. Raises InputError for anything unknown, missing or impossible, and
    when a natural partition, or one in a file, has another number of clients.
    """
    check_kind("partition", spec, Mapping)
    (name, options), clients, seed = parse(plain(dict(spec))), plain(clients), plain(seed)
    if clients is not None:
        _whole("clients", clients, 1)
    values = (split.labels, split.centre, split, clients, seed, data_root(root))
    wanted = inspect.signature(PARTITIONS[name]).parameters
    known = {key: value for key, value in zip(GIVEN, values, strict=True) if key in wanted}
    parts = PARTITIONS[name](**known, **options)
    if clients not in (None, len(parts)):
        where = (
            f"the file {options['file']}"
            if name == "file"
            else f"the {name} partition of this data set"
        )
        raise InputError(
            f"{where} has {len(parts)} clients, not {clients}: give --clients {len(parts)}"
        )
    return parts


def parse(spec: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return name and options of a partition. InputError for unknown, missing or bad options."""
    if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
        raise InputError(
            f"a partition is a table with a 'name', such as {{'name': 'iid'}}, not {spec!r}"
        )
    name = spec["name"]
    if name not in PARTITIONS:
        raise unknown("partition", name, PARTITIONS)
    parameters = inspect.signature(PARTITIONS[name]).parameters
    known = {key: p.default for key, p in parameters.items() if key not in GIVEN}
    options = {key: value for key, value in spec.items() if key != "name"}
    for key in options:
        if not known:
            raise InputError(f"the partition {name!r} takes no options, but {key!r} is given")
        if key not in known:
            raise unknown(f"option of the partition {name!r}", key, known)
    for key, default in known.items():
        if default is inspect.Parameter.empty and key not in options:
            raise InputError(f"the partition {name!r} needs {key!r}")
    if "alpha" in options:
        check_number("alpha", options["alpha"], 0, math.inf, above=True)
    return name, options


def _labels(labels: Labels) -> np.ndarray:
    array = labels.cpu().numpy() if isinstance(labels, torch.Tensor) else np.asarray(labels)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise InputError(
            f"labels must be whole numbers of shape (N,), not {array.dtype} of shape {array.shape}"
        )
    return array.astype(np.int64)


def _whole(name: str, value: Any, low: int, high: int = LARGEST) -> None:
    check_whole(name, value.item() if isinstance(value, np.integer) else value, low, high)


def _check(labels: np.ndarray, given: int, clients: int, seed: int, min_size: int) -> None:
    """Raise InputError where there are no samples, or the `given` ones do not suffice for all clients."""
    _whole("clients", clients, 1)
    _whole("seed", seed, 0, 2**64 - 1)
    _whole("min_size", min_size, 0)
    if not len(labels):
        raise InputError("there are no samples to give out")
    if clients * min_size > given:
        each = "one sample" if min_size == 1 else f"{min_size} samples"
        raise InputError(f"{given} samples cannot give each of {clients} clients at least {each}")


def _proportions(rng: np.random.Generator, alpha: float, open_: np.ndarray) -> np.ndarray:
    """A draw from Dir(alpha), zero where a client is not open, summing to 1; where it leaves floating
    point, its limit: one open client at small alpha, equal shares at large alpha.
    """
    # NumPy's draw prefers the last clients when alpha is subnormal; at 1e-300 one client gets
    # everything just as well
    draw = rng.dirichlet(np.full(len(open_), max(alpha, 1e-300)))
    winner = rng.choice(np.flatnonzero(open_))
    share = np.where(open_, draw, 0.0)
    total = share.sum()
    if np.isfinite(total) and total > np.finfo(float).tiny:
        return share / total
    if alpha > 1:
        return open_ / open_.sum()
    return np.eye(len(open_))[winner]


def _fill(parts: Parts, min_size: int, rng: np.random.Generator) -> Parts:
    """Move samples from the largest parts until each has `min_size`; at most `min_size * len(parts)`
    moves, as the caller made sure that there are enough.
    """
    if all(len(part) >= min_size for part in parts):
        return parts
    pools = [rng.permutation(part).tolist() for part in parts]
    sizes = np.array([len(pool) for pool in pools])
    for client, pool in enumerate(pools):
        while len(pool) < min_size:
            giver = int(sizes.argmax())
            pool.append(pools[giver].pop())
            sizes[giver] -= 1
        sizes[client] = len(pool)
    return [np.array(pool, dtype=np.int64) for pool in pools]


def _lists(data: dict[str, Any], key: str, path: Path) -> list[list[int]]:
    """Return `data[key]`, checked to be a list of lists of whole numbers that fit int64."""
    value = data.get(key)
    if not (isinstance(value, list) and value and all(isinstance(part, list) for part in value)):
        raise InputError(f"{path}: {key!r} must be a list with one list of numbers per client")
    for client, part in enumerate(value):
        if set(map(type, part)) - {int}:
            raise InputError(
                f"{path}: {key!r} of client {client} holds something other than whole numbers"
            )
        if part and max(map(abs, part)) >= 2**63:
            raise InputError(f"{path}: {key!r} of client {client} holds a number that is too large")
    return value
