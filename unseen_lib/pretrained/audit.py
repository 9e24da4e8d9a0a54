"""Have the rows of a published model's unused tokens collapsed? The measures of the course, and a verdict.

A row that no text ever used still moved: wherever it was not the answer, training pushed it down, and pushed
all such rows alike. What an audit can see is where they are now. It compares them with a sample of ordinary
rows of the same table, and subtracts the mean of those first, because the rows of most tables share a drift:
in SmolLM2 two random ordinary tokens have a cosine of 0.44, and of 0.00 once it is gone.

What it cannot see is why. Tokens that training did use can end up alike too, such as the ten digits, or the
markers of a chat format that stand in the same places. So the special tokens of a tokenizer are shown and not
judged, and a report says that its verdict is no proof.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from unseen_lib.collapse import RowMeasures, measure_rows
from unseen_lib.errors import PretrainedError
from unseen_lib.pretrained.files import Folder, open_folder
from unseen_lib.pretrained.tables import Table, Tables, blocks, find_tables, open_gguf, rows, tables_of_model
from unseen_lib.pretrained.tokens import (
    NOTHING_KNOWN,
    Group,
    Tokens,
    gguf_tokens,
    given_group,
    ordinary_group,
    read_tokens,
    special_group,
    thinned,
    tokenizer_tokens,
    unused_groups,
)

# Where the verdicts change, and what it was tried on: the two real models that install like a library. The
# cosine here is the smaller of the plain and the centered one.
#                                             cosine      distance / ordinary   nearly identical
#   MiniLM, 994 [unused] tokens                 0.80             0.17                 none
#   SmolLM2, 17 special tokens                  0.73             0.73              11 of 17
#   either, ordinary tokens at random      up to 0.04          about 1                none
#   SmolLM2, all runs of 99 ordinary ids   up to 0.19          about 1                none
#   either, letters; adverbs               0.15 to 0.24        about 1                none
#   MiniLM, SmolLM2, ten digits            0.41; 0.74        0.75; 0.53               none
# In MiniLM, runs of 99 ids are above 0.2 only among characters of other scripts, which lie with the unused
# ones. The <unused> rows of Gemma 3 have plain cosines of 0.78 (1B) and 0.23 to 0.43 (the larger models).
COLLAPSED_COSINE = 0.5  #: Half of what is left of a row beside the drift is the same in all of them
COLLAPSED_DISTANCE = 0.75  #: Rows of ordinary length at that cosine are 0.71 of the ordinary distance apart
PARTLY_COSINE = 0.2  #: From here on, and what chance adds, rows are partly collapsed
IDENTICAL = 0.01  # of the ordinary distance: several times the rounding of bfloat16 and of 8-bit tables
NEAR = 1.25  # times the median distance of unused rows from their own mean
SHOWN = 20  # suspects and groups of twins in a report; the counts are of all


@dataclass(frozen=True)
class GroupAudit:
    """One group of rows of one table.

    Parameters
    ----------
    kind, label : str
        As in :class:`~unseen_lib.pretrained.tokens.Group`.
    side : {"input", "output"}
        The embedding or the unembedding; a tied table is called input.
    count, measured : int
        Rows in the group, and how many of them were read.
    raw, centered : RowMeasures
        Of the rows as they are, and with the mean ordinary row subtracted.
    distance_ratio, norm_ratio : float
        Distance between rows and their mean norm, both centered, over those of ordinary rows.
    identical : list of list of int
        Groups of ids whose rows are nearly the same.
    verdict : {"healthy", "partly collapsed", "collapsed"}
    """

    kind: str
    label: str
    side: str
    count: int
    measured: int
    raw: RowMeasures
    centered: RowMeasures
    distance_ratio: float
    norm_ratio: float
    identical: list[list[int]]
    verdict: str

    @property
    def judged(self) -> bool:
        """Whether the verdict counts; ordinary and special tokens are there to compare with."""
        return self.kind in ("unused", "padding", "given")


@dataclass(frozen=True)
class Suspect:
    """An ordinary token that lies where the unused ones lie: its distance from their mean, and its cosine."""

    id: int
    name: str
    distance: float
    cosine: float


@dataclass(frozen=True)
class Scan:
    """What reading every row of the embedding showed (the indicators of Land & Bartolo 2024).

    Parameters
    ----------
    distances, cosines : Tensor
        (V,), of every row from the mean unused row, and of both, centered, with each other.
    quantiles : dict of str to list of float
        Distances of the judged and of the ordinary rows at 0, 5, 50, 95 and 100 %.
    suspects : list of Suspect
        The nearest of the ordinary tokens that lie within ``NEAR`` times the distance that unused rows have.
    suspect_count : int
        How many there are.
    twins : list of list of int
        The largest groups of rows that are the same to the last bit.
    twin_count : int
        How many rows have a twin.
    """

    distances: Tensor = field(repr=False)
    cosines: Tensor = field(repr=False)
    quantiles: dict[str, list[float]]
    suspects: list[Suspect]
    suspect_count: int
    twins: list[list[int]]
    twin_count: int


@dataclass(frozen=True)
class Audit:
    """What :func:`audit` found.

    Parameters
    ----------
    model : str
    table : str
        Name of the embedding; ``rows``, ``width`` and ``dtype`` are its own.
    tied : bool
        Whether there is no unembedding of its own: the embedding is it, or there is none.
    bytes_read, bytes_stored, bytes_beside : int
        Of the weights, how many were read and how many there are; and how many of configuration and tokenizer
        were read.
    groups : list of GroupAudit
        The ordinary rows first.
    scan : Scan or None
    points : dict
        For a figure: the distance and the cosine of each measured row of the embedding, (N, 2), by label.
    """

    model: str
    table: str
    rows: int
    width: int
    dtype: str
    tied: bool
    bytes_read: int
    bytes_stored: int
    bytes_beside: int
    groups: list[GroupAudit]
    scan: Scan | None
    points: dict[str, Tensor] = field(repr=False)

    @property
    def collapsed(self) -> bool:
        """Whether any group that counts has collapsed, wholly or partly."""
        return any(group.judged and group.verdict != "healthy" for group in self.groups)

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON data, without the numbers of single rows."""
        data = {name: value for name, value in vars(self).items() if name not in ("groups", "scan", "points")}
        data["collapsed"] = self.collapsed
        data["groups"] = [{**asdict(group), "judged": group.judged} for group in self.groups]
        data["scan"] = None
        if self.scan is not None:
            data["scan"] = {k: v for k, v in vars(self.scan).items() if k not in ("distances", "cosines")}
            data["scan"]["suspects"] = [asdict(suspect) for suspect in self.scan.suspects]
        return data


def audit(
    model: Any,
    tokens: Iterable[int | str] | None = None,
    *,
    tokenizer: Any = None,
    sample: int = 256,
    seed: int = 0,
    scan: bool | None = None,
) -> Audit:
    """Measure the rows of tokens that training never used, beside ordinary ones, and judge them.

    Parameters
    ----------
    model : str, Path or a model of transformers
        A folder of safetensors, a GGUF file, a name on the hub (``owner/name`` or
        ``owner/name@revision``), or a loaded model.
    tokens : list of int or str, optional
        The tokens you mean to use, by id or by text; found by the patterns of their names if left out.
    tokenizer : optional
        Of a loaded model, to find tokens by their names.
    sample : int
        At most so many rows of each group are measured.
    seed : int
        Draws those rows.
    scan : bool, optional
        Whether to read every row of the embedding too; if left out, only where that needs no network.

    Raises
    ------
    PretrainedError
        If the model cannot be read, or there is nothing to judge.
    """
    if sample < 2:
        raise PretrainedError(f"sample={sample} is too small: measure at least 2 rows")
    name, tables, known, remote = _open(model, tokenizer, with_names=bool(scan) or tokens is not None)
    table = tables.embedding
    if tokens is not None:
        judged = [given_group(known, tokens, table.size)]
    else:
        judged = unused_groups(known, table.size)
    special = special_group(known, table.size)
    if not judged:
        raise PretrainedError(_nothing_to_judge(name, known, special))
    if all(len(group.ids) == 1 for group in judged):
        raise PretrainedError(f"{judged[0].label} is one token only: name two or more to compare them")
    taken = {row for group in judged for row in group.ids}
    ordinary = ordinary_group(known, taken, table.size, sample=sample, seed=seed)
    all_groups = [ordinary, *judged, *([special] if tokens is None else [])]
    groups = [group for group in all_groups if len(group.ids) >= 2]

    found: list[GroupAudit] = []
    read = _read(table, groups, sample, seed)
    found += _audit_groups("input", groups, read)
    center = read[0][1].mean(0)
    reference = torch.cat(
        [values for group, (_, values) in zip(groups, read, strict=True) if group in judged]
    )
    reference = reference.mean(0)
    points = {
        group.label: torch.stack(_near(values.clone(), reference, center), 1)
        for group, (_, values) in zip(groups, read, strict=True)
    }
    if tables.unembedding is not None:
        other = tables.unembedding
        inside = [Group(g.kind, g.label, tuple(row for row in g.ids if row < other.size)) for g in groups]
        inside = [group for group in inside if len(group.ids) >= 2]
        found += _audit_groups("output", inside, _read(other, inside, sample, seed))
    scanned = None
    if scan or (scan is None and not remote):
        scanned = _scan(table, known, judged, special, reference, center, found[0].raw.distance)
    return Audit(
        model=name,
        table=table.name,
        rows=table.size,
        width=table.width,
        dtype=table.dtype,
        tied=tables.unembedding is None,
        bytes_read=tables.meter.weights,
        bytes_stored=tables.stored,
        bytes_beside=tables.meter.other,
        groups=found,
        scan=scanned,
        points=points,
    )


def verdict(cosine: float, distance_ratio: float, identical: int, measured: int, width: int) -> str:
    """Judge a group by more than one number.

    Collapsed: the rows point one way (cosine) and lie closer together than ordinary rows (distance), or half
    of them have a twin. Partly collapsed: they point one way more than chance or a common meaning explains,
    or some have a twin. The lines are drawn at the top of this module, and what they were tried on.

    Parameters
    ----------
    cosine : float
        The smaller of the plain and the centered one. Short rows around zero have a large centered one in a
        table that drifts, and the rows of such a table a large plain one; neither makes them alike.
    distance_ratio : float
        Their distance over that of ordinary rows.
    identical, measured : int
        Rows that have a twin, and all rows that were measured.
    width : int
        Called D. The mean cosine of N random rows has a standard deviation of 1 / sqrt(D N (N - 1) / 2).
    """
    chance = 3 / math.sqrt(width * measured * (measured - 1) / 2)
    alike = cosine >= COLLAPSED_COSINE and distance_ratio <= COLLAPSED_DISTANCE
    if alike or identical >= measured / 2:
        return "collapsed"
    if cosine >= PARTLY_COSINE + chance or identical:
        return "partly collapsed"
    return "healthy"


def identical_rows(values: Tensor, ids: Sequence[int], within: float) -> list[list[int]]:
    """Groups of ids whose rows (N, D) are connected by distances of at most ``within``, the largest first."""
    pairs = (torch.cdist(values.double(), values.double()) <= within).nonzero().numpy()  # (pairs, 2)
    graph = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(len(ids), len(ids)))
    _, labels = connected_components(graph, directed=False)
    return _groups_of_equal(labels, ids)


def _open(model: Any, tokenizer: Any, *, with_names: bool) -> tuple[str, Tables, Tokens, bool]:
    """The model's name, tables and tokens, and whether it is far away."""
    if hasattr(model, "get_input_embeddings"):
        known = NOTHING_KNOWN if tokenizer is None else tokenizer_tokens(tokenizer)
        return (
            str(getattr(model, "name_or_path", "") or type(model).__name__),
            tables_of_model(model),
            known,
            False,
        )
    path = Path(model).expanduser()
    if path.is_file() and path.suffix == ".gguf":
        tables, names, kinds = open_gguf(path)
        return str(model), tables, gguf_tokens(names, kinds), False
    folder: Folder = open_folder(model)
    tables = find_tables(folder)
    remote = folder.readers > 1
    known = read_tokens(folder, tables.embedding.size, all_names=with_names or not remote)
    return folder.name, tables, known, remote


def _nothing_to_judge(name: str, known: Tokens, special: Group) -> str:
    if not known.names:
        return (
            f"{name} has no tokenizer that is read here (tokenizer.json, vocab.txt or vocab.json), so its "
            "unused tokens cannot be found: name tokens by their ids"
        )
    beside = f", beside its {len(special.ids)} special ones" if special.ids else ""
    return (
        f"the tokenizer of {name} has no unused tokens among its {known.size:,}{beside}: name the tokens you "
        "mean to use, by id or by text"
    )


def _read(table: Table, groups: Sequence[Group], sample: int, seed: int) -> list[tuple[Group, Tensor]]:
    """Of each group, the rows that are measured: (N, D). Reading all at once hides the delay of a server."""
    measured = [thinned(group, sample, seed) for group in groups]
    together = rows(table, [row for group in measured for row in group.ids])
    if not together.isfinite().all():
        raise PretrainedError(f"{table.name} holds values that are not finite: the weights are damaged")
    return list(zip(measured, together.split([len(group.ids) for group in measured]), strict=True))


def _audit_groups(
    side: str, groups: Sequence[Group], read: Sequence[tuple[Group, Tensor]]
) -> list[GroupAudit]:
    """Measure the groups of one table, of which the first is ordinary."""
    center = read[0][1].mean(0)
    normal = measure_rows(read[0][1] - center)
    if normal.distance == 0:
        raise PretrainedError(
            "the ordinary rows of this model are all the same: its weights are damaged, or only a placeholder"
        )
    found = []
    for group, (measured, values) in zip(groups, read, strict=True):
        raw, centered = measure_rows(values), measure_rows(values - center)
        cosine = min(raw.cosine, centered.cosine)
        ratio = centered.distance / normal.distance
        identical = identical_rows(values, measured.ids, IDENTICAL * normal.distance)
        twins = sum(len(ids) for ids in identical)
        found.append(
            GroupAudit(
                kind=group.kind,
                label=group.label,
                side=side,
                count=len(group.ids),
                measured=len(measured.ids),
                raw=raw,
                centered=centered,
                distance_ratio=ratio,
                norm_ratio=centered.norm / normal.norm,
                identical=identical,
                verdict=verdict(cosine, ratio, twins, len(measured.ids), values.shape[1]),
            )
        )
    return found


def _near(values: Tensor, reference: Tensor, center: Tensor) -> tuple[Tensor, Tensor]:
    """Distance of rows (N, D) from the reference, and cosine of both less the center; overwrites the rows."""
    values -= reference
    squares = values.square().sum(1)
    axis = reference - center  # a row minus the center is (row - reference) + axis
    along = values @ axis
    length = (squares + 2 * along + axis @ axis).clamp_min(0).sqrt()
    cosines = (along + axis @ axis) / (length * axis.norm()).clamp_min(1e-12)
    return squares.sqrt(), cosines


def _scan(
    table: Table,
    known: Tokens,
    judged: Sequence[Group],
    special: Group,
    reference: Tensor,
    center: Tensor,
    ordinary_distance: float,
) -> Scan:
    """Read the whole table once, in bounded memory."""
    distances, cosines = torch.empty(table.size), torch.empty(table.size)
    hashes = np.empty(table.size, dtype=np.int64)
    for start, values in blocks(table):
        end = start + len(values)
        whole = values.numpy().tobytes()
        step = len(whole) // len(values)
        hashes[start:end] = [hash(whole[at : at + step]) for at in range(0, len(whole), step)]
        distances[start:end], cosines[start:end] = _near(values, reference, center)

    ids = torch.tensor(sorted({row for group in judged for row in group.ids}))
    ordinary = torch.ones(table.size, dtype=torch.bool)
    ordinary[ids] = False
    ordinary[list(special.ids)] = False
    ordinary[known.size or table.size :] = False
    limit = max(NEAR * distances[ids].median().item(), IDENTICAL * ordinary_distance)
    suspicious = ordinary & (distances <= limit) & (cosines >= COLLAPSED_COSINE)
    nearest = suspicious.nonzero()[:, 0]
    nearest = nearest[distances[nearest].argsort(stable=True)]
    twins = _groups_of_equal(hashes, range(table.size))
    return Scan(
        distances=distances,
        cosines=cosines,
        quantiles={"judged": _quantiles(distances[ids]), "ordinary": _quantiles(distances[ordinary])},
        suspects=[
            Suspect(row, known.name(row), distances[row].item(), cosines[row].item())
            for row in nearest[:SHOWN].tolist()
        ],
        suspect_count=len(nearest),
        twins=twins[:SHOWN],
        twin_count=sum(len(group) for group in twins),
    )


def _quantiles(values: Tensor) -> list[float]:
    return [float(value) for value in np.quantile(values.numpy(), (0, 0.05, 0.5, 0.95, 1))]


def _groups_of_equal(keys: np.ndarray, ids: Sequence[int]) -> list[list[int]]:
    """Ids with equal keys, where there are two or more, the largest group first."""
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order])) + 1
    groups = [group for group in np.split(order, starts) if len(group) > 1]
    return [[ids[index] for index in group] for group in sorted(groups, key=len, reverse=True)]
