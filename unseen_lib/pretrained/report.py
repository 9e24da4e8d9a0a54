"""An audit in words: a table for a person, a verdict, and what to do."""

from __future__ import annotations

from unseen_lib.pretrained.audit import Audit, GroupAudit

LEGEND = (
    "cosine: mean over pairs of rows, as they are, and centered (less the mean ordinary row); distance,\n"
    "norm: centered, over those of ordinary rows; rank: effective rank; twins: rows with one nearly the same."
)
CAUTION = (
    "Rows that look alike do not prove that their tokens were never trained: chat markers and digits, which\n"
    "are in use, can look alike too. Do not repair a token that the model needs."
)


def report_text(audit: Audit) -> str:
    """The whole report, ready to print."""
    use = "no other table" if audit.tied else "and an unembedding of its own"
    lines = [
        _shown(audit.model),
        f"  embedding  {audit.table}, {audit.rows:,} rows × {audit.width:,}, {audit.dtype}, {use}",
        f"  read       {_bytes(audit.bytes_read)} of {_bytes(audit.bytes_stored)} of weights"
        f" ({_percent(audit)}), {_bytes(audit.bytes_beside)} of configuration and tokenizer",
        "",
        f"{'rows':<38}{'number':>8}{'cosine':>8}{'centered':>10}{'distance':>10}{'norm':>6}{'rank':>7}"
        f"{'twins':>7}  verdict",
        *(_line(group, audit.tied) for group in audit.groups),
        LEGEND,
        *_scan_lines(audit),
        "",
        *advice(audit),
    ]
    return "\n".join(lines)


def advice(audit: Audit) -> list[str]:
    """The verdict in words and what to do, a paragraph an entry."""
    bad = [group for group in audit.groups if group.judged and group.verdict != "healthy"]
    if not bad:
        return [
            "Healthy: these rows differ from each other as those of ordinary tokens do. Use them as they are."
        ]
    paragraphs = []
    for verdict in dict.fromkeys(group.verdict for group in bad):
        names = [_where(group, audit.tied) for group in bad if group.verdict == verdict]
        what = {
            "collapsed": "The model can hardly tell them apart, and fine-tuning would first have to.",
            "partly collapsed": "They share a direction that ordinary tokens lack, so they start out alike.",
        }[verdict]
        paragraphs.append(f"{verdict.capitalize()}: {'; '.join(names)}.\n{what}")
    paragraphs.append(
        "What to do: put your symbols on ordinary tokens, or draw these rows anew before you fine-tune:\n"
        "    from unseen_lib.pretrained.repair import reinitialize\n"
        "    reinitialize(model, tokens)"
    )
    return [*paragraphs, CAUTION]


def _line(group: GroupAudit, tied: bool) -> str:
    twins = sum(len(ids) for ids in group.identical)
    outcome = {"ordinary": "to compare with", "special": "not judged"}.get(group.kind, group.verdict)
    number = f"{group.count:,}" if group.kind != "ordinary" else f"{group.measured:,}"
    return (
        f"{_where(group, tied):<38.37}{number:>8}{group.raw.cosine:>8.2f}{group.centered.cosine:>10.2f}"
        f"{group.distance_ratio:>10.2f}{group.norm_ratio:>6.2f}{group.centered.effective_rank:>7.1f}{twins:>7}"
        f"  {outcome}"
    )


def _where(group: GroupAudit, tied: bool) -> str:
    return _shown(group.label) + ("" if tied or group.side == "input" else " (output)")


def _scan_lines(audit: Audit) -> list[str]:
    scan = audit.scan
    if scan is None:
        return ["Only rows of these groups were read; --scan reads the whole embedding."]
    lines = [""]
    suspects = ", ".join(f"{_shown(s.name)} ({s.id})" for s in scan.suspects[:8])
    lines.append(
        f"Of all other tokens, {scan.suspect_count:,} lie where these do, as if hardly trained"
        + (f", nearest: {suspects}" if suspects else "")
    )
    if scan.twin_count:
        groups = "; ".join(", ".join(str(row) for row in ids[:8]) for ids in scan.twins[:3])
        lines.append(
            f"Of all rows, {scan.twin_count:,} are the same as another to the last bit: ids {groups}"
        )
    return lines


def _shown(text: str) -> str:
    """A token's text without anything that a terminal would act on."""
    return text if text.isprintable() else repr(text)[1:-1]


def _bytes(number: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.3g} GB" if number < 1000 else f"{number:,.0f} GB"


def _percent(audit: Audit) -> str:
    share = audit.bytes_read / audit.bytes_stored if audit.bytes_stored else 0.0
    return f"{share:.2%}"
