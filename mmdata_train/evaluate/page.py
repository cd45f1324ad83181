"""The results as one page that opens anywhere: no script, nothing from outside, every text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from mmdata_train.evaluate.results import (
    Evaluation,
    SetResult,
    change_text,
    gains,
    interval,
    library_line,
    number,
)
from mmdata_train.evaluate.scores import Score

_STYLE = """
body{font:15px/1.5 system-ui,"Noto Sans CJK SC","Microsoft YaHei",sans-serif;max-width:68rem;margin:2rem auto;
padding:0 1rem;color:#1c2733}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem;border-bottom:1px solid #d5dde5}
table{border-collapse:collapse;width:100%;margin:.6rem 0}
td,th{padding:.3rem .6rem;border-bottom:1px solid #e6ebf0;text-align:right;vertical-align:top}
td:first-child,th:first-child{text-align:left;word-break:break-all}
.better{color:#1a7f4b}.worse{color:#b3372b}.small{font-size:.82rem;color:#5a6a79}
.warn{background:#fdf1e3;border-left:4px solid #d98324;padding:.5rem .8rem}
pre{white-space:pre-wrap;background:#f4f7fa;padding:.6rem;margin:.3rem 0;max-height:16rem;overflow:auto}
"""
_EXAMPLES = 5


def render_page(evaluation: Evaluation) -> str:
    """The page of an evaluation."""
    sections = [_summary(evaluation), _gains(evaluation), _contamination(evaluation)]
    sections += [_set(evaluation, name) for name in evaluation.results]
    sections.append(_about(evaluation))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Evaluation</title><style>{_STYLE}</style></head><body>\n<h1>Evaluation</h1>\n"
        + "\n".join(section for section in sections if section)
        + "\n</body></html>\n"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells of `rows` are HTML already; heads are text."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"


def _cell(score: Score | None, base: Score | None) -> str:
    if score is None:
        return "–"
    text = f"{number(score)}{escape(score.unit) if score.unit == '%' else ''}"
    if score.low is not None:
        text += f'<br><span class="small">{interval(score)}</span>'
    if base is None or base is score:
        return text
    change = score.value / base.value - 1 if score.lower_is_better and base.value else score.value - base.value
    if not change:
        return text
    kind = "better" if (change < 0) == score.lower_is_better else "worse"
    shown = f"{change:+.1%}" if score.lower_is_better else f"{change:+.2f}"
    return f'{text}<br><span class="{kind}">{shown}</span>'


def _summary(evaluation: Evaluation) -> str:
    models = list(evaluation.models)
    rows = []
    for name, by_model in evaluation.results.items():
        facts = evaluation.sets[name]
        base = by_model[models[0]].main if models[0] in by_model else None
        main = next(iter(by_model.values())).main
        counted = "tokens" if main.lower_is_better else "items"
        label = f'{escape(name)} <span class="small">{escape(main.name)}, {main.items:,} {counted}'
        label += f", {escape(str(facts['group']))}" if facts.get("group") else ""
        cells = [_cell(by_model[m].main if m in by_model else None, base) for m in models]
        rows.append([f"{label}</span>", *cells])
    return "<h2>Side by side</h2>" + _table(["set", *models], rows)


def _gains(evaluation: Evaluation) -> str:
    found = gains(evaluation)
    if not found:
        return ""
    models = list(evaluation.models)
    titles = {"domain": "gain in the domain", "general": "change in general skills"}
    rows = [
        [titles[group], *(escape(change_text(by_model[m])) if m in by_model else "–" for m in models[1:])]
        for group, by_model in found.items()
    ]
    note = f"Mean change against {escape(models[0])}: points of percentages, and perplexity (less is better)."
    return "<h2>Domain gain and general loss</h2>" + _table(["", *models[1:]], rows) + f'<p class="small">{note}</p>'


def _contamination(evaluation: Evaluation) -> str:
    facts = evaluation.contamination
    if facts is None:
        return "<h2>Contamination</h2><p>Not checked: no training data is known for these models.</p>"
    bad = facts["contaminated"]
    kind = ' class="warn"' if bad else ""
    text = (
        f"<h2>Contamination</h2><p{kind}>{len(bad):,} of {facts['items']:,} items have at least {facts['limit']:.0%} of"
        f" their 13-grams in the training data, {facts['touched']:,} have any; {facts['unchecked']:,} are too short to"
        " judge.</p>"
    )
    rows = [[escape(f"{path}:{line}"), f"{share:.0%}"] for path, line, share in bad[:50]]
    return text + (_table(["item", "found"], rows) if rows else "")


def _set(evaluation: Evaluation, name: str) -> str:
    by_model = evaluation.results[name]
    models = list(by_model)
    scores = [score.name for score in by_model[models[0]].scores]
    rows = []
    for index, title in enumerate(scores):
        base = by_model[models[0]].scores[index]
        rows.append([escape(title), *(_cell(by_model[m].scores[index], base) for m in models)])
    parts = list(dict.fromkeys(part for result in by_model.values() for part in result.by_part))
    text = f"<h2>{escape(name)}</h2>" + _table(["score", *models], rows)
    if len(parts) > 1:
        base_parts = by_model[models[0]].by_part
        text += "<h3>By part</h3>" + _table(
            ["part", "items", *models],
            [
                [escape(part), _items(by_model.values(), part),
                 *(_cell(by_model[m].by_part.get(part), base_parts.get(part)) for m in models)]
                for part in parts
            ],
        )  # fmt: skip
    every = [score for result in by_model.values() for score in result.scores]
    text += "".join(f'<p class="small">{escape(line)}</p>' for line in library_line(every))
    for model, result in by_model.items():
        text += "".join(f'<p class="warn">{escape(model)}: {escape(note)}</p>' for note in result.notes)
    return text + _examples(by_model)


def _items(results: Iterable[SetResult], part: str) -> str:
    return f"{next(r.by_part[part].items for r in results if part in r.by_part):,}"


def _examples(by_model: dict[str, SetResult]) -> str:
    first = next(iter(by_model.values())).examples[:_EXAMPLES]
    if not first:
        return ""
    blocks = []
    for index, example in enumerate(first):
        answers = [(m, r.examples[index]) for m, r in by_model.items() if index < len(r.examples)]
        rows = [[escape(m), _pre(found["answer"]), escape(str(found.get("verdict", "")))] for m, found in answers]
        wanted = _pre(example["wanted"])
        blocks.append(f"{_pre(example['prompt'])}<p>wanted:</p>{wanted}" + _table(["model", "answer", ""], rows))
    return f"<details><summary>The first {len(blocks)} items</summary>{''.join(blocks)}</details>"


def _pre(value: Any) -> str:
    return f'<pre style="text-align:left">{escape(str(value))}</pre>'


def _about(evaluation: Evaluation) -> str:
    rows = [[escape(name), escape(", ".join(f"{k} {v}" for k, v in facts.items() if v not in (None, "", [])))]
            for name, facts in evaluation.models.items()]  # fmt: skip
    notes = "".join(f"<li>{escape(note)}</li>" for note in evaluation.notes)
    run = ", ".join(f"{key} {value}" for key, value in evaluation.run.items())
    return f'<h2>Models</h2>{_table(["model", "facts"], rows)}<ul>{notes}</ul><p class="small">{escape(run)}</p>'
