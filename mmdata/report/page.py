"""The report as one page that opens anywhere: no script, nothing from outside, every text escaped.

Takes the report's JSON (schema `mmdata.report/1`); sections whose data is not there are left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from mmdata.errors import InputError, OutputExistsError, UsageError
from mmdata.indexed.durable import disk_faults, write_durably
from mmdata.jsonl import check_outputs
from mmdata.report.build import SCHEMA
from mmdata.report.charts import curve, horizontal_bars, vertical_bars

STYLE = """
body{font:15px/1.5 system-ui,"Noto Sans CJK SC","Microsoft YaHei",sans-serif;max-width:60rem;margin:2rem auto;
padding:0 1rem;color:#1c2733}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem;border-bottom:1px solid #d5dde5}
table{border-collapse:collapse;width:100%}td,th{padding:.25rem .6rem;border-bottom:1px solid #e6ebf0;text-align:right}
td:first-child,th:first-child{text-align:left;word-break:break-all}
.chart{width:100%;max-width:50rem;height:auto}.chart rect{fill:#3b78b5}.chart text{font-size:12px;fill:#1c2733}
.chart text.small{font-size:10px}.chart rect.frame{fill:none;stroke:#b8c4d0}
.chart polyline{fill:none;stroke:#3b78b5;stroke-width:2}.chart line.mark{stroke:#c0392b;stroke-dasharray:4 3}
.sum{font-size:1.1rem}.pair{display:grid;grid-template-columns:1fr 1fr;gap:1rem;margin:.8rem 0}
.pair pre{white-space:pre-wrap;background:#f4f7fa;padding:.6rem;margin:0;max-height:14rem;overflow:auto}
"""


def render_page(data: Any) -> str:
    """The page for a report. Raises InputError when it is no report of a known schema."""
    if not isinstance(data, dict):
        raise InputError(f"the report is a {type(data).__name__}, not an object")
    if data.get("schema") != SCHEMA:
        raise InputError(f"the report's schema is {data.get('schema')!r}; this version draws {SCHEMA!r}")
    sections = [
        _account(data), _lost(data), _cleaning(data), _deduplication(data), _chat(data), _lengths(data),
        _inputs(data), _outputs(data), _run(data),
    ]  # fmt: skip
    body = "\n".join(section for section in sections if section)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>mmdata report</title><style>{STYLE}</style></head><body>\n<h1>What became of every record</h1>\n"
        f"{body}\n</body></html>\n"
    )


def write_page(source: str, output: str, *, overwrite: bool = False) -> str:
    """Draw the report at `source` (a P_report.json, or the prefix P) to `output`; returns the path written.

    Raises InputError when there is no such report or it is damaged, UsageError where the page would replace it or
    `output` is a folder, OutputExistsError, OutputError when the page cannot be written.
    """
    path = source if source.endswith(".json") else f"{source}_report.json"
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such report; give the prefix of a conversion or its P_report.json")
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: is no report ({error})") from error
    if os.path.realpath(path) == os.path.realpath(output):
        raise UsageError(f"{output} is the report itself: choose another output")
    check_outputs([], [output])
    if os.path.exists(output) and not overwrite:
        raise OutputExistsError(f"{output} exists; choose another name or give --overwrite")
    try:
        page = render_page(data)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: is damaged ({type(error).__name__}: {error})") from error
    with disk_faults(output):
        os.makedirs(os.path.dirname(output) or ".", exist_ok=True)
    write_durably(output, page.encode("utf-8"))
    return output


def _account(data: dict[str, Any]) -> str:
    records = data["records"]
    dropped, rejected = sum(records["dropped"].values()), sum(records["rejected"].values())
    return (
        f'<p class="sum"><b>{records["read"]:,}</b> records read = <b>{records["kept"]:,}</b> kept + '
        f"<b>{dropped:,}</b> dropped + <b>{rejected:,}</b> rejected; {records['blank']:,} blank lines.<br>"
        f"{data['documents']['written']:,} documents written ({data['documents']['made_by_splitting']:,} made by "
        f"splitting), {data['tokens']:,} tokens.</p>"
    )


def _lost(data: dict[str, Any]) -> str:
    read = data["records"]["read"] or 1
    rows = [*data["records"]["dropped"].items()]
    rows += [(f"rejected:{cause}", count) for cause, count in data["records"]["rejected"].items()]
    rows.sort(key=lambda row: (-row[1], row[0]))
    bars = [(reason, count, f"{count:,} ({count / read:.2%})") for reason, count in rows]
    return _section("Why records are missing", horizontal_bars(bars))


def _cleaning(data: dict[str, Any]) -> str:
    counters: dict[str, int] = data["counters"]
    tables = {
        "Documents changed, by step": "clean.changed.", "Bytes removed, by step": "clean.bytes_removed.",
        "Flagged for review": "clean.review.", "Personal data found": "pii.", "Languages": "clean.language.",
    }  # fmt: skip
    drawn = []
    for title, start in tables.items():
        rows = [(name.removeprefix(start), count) for name, count in counters.items() if name.startswith(start)]
        rows.sort(key=lambda row: (-row[1], row[0]))
        if rows:
            drawn.append(f"<h3>{title}</h3>" + horizontal_bars([(n, max(c, 0), f"{c:,}") for n, c in rows]))
    return _section("Cleaning", "".join(drawn)) if drawn else ""


def _deduplication(data: dict[str, Any]) -> str:
    facts = data["stages"].get("dedup")
    if not facts:
        return ""
    parameters = facts["parameters"]
    parts = [
        f"<p>{facts['dropped']:,} of {facts['documents']:,} documents duplicate a kept one; "
        f"{facts['comparisons']:,} exact comparisons were made.</p>",
        "<h3>Documents that share one kept document</h3>",
        vertical_bars([(size, count) for size, count in facts["cluster_sizes"].items()], "documents in the cluster"),
    ]
    if facts["catch_curve"]:
        title = f"{parameters['bands']} bands x {parameters['rows']} rows"
        parts += [
            f"<h3>Share of pairs that are compared, by similarity ({title})</h3>",
            curve(facts["catch_curve"], "Jaccard similarity", "share compared", parameters["threshold"]),
            "<h3>Similarity of dropped documents to the kept one</h3>",
            vertical_bars([(f"{n / 20:.2f}", c) for n, c in enumerate(facts["similarities"]) if c], "similarity from"),
        ]
    sources = [(row["source"], f"{row['documents']:,}", f"{row['dropped']:,}", f"{row['share']:.2%}")
               for row in facts["sources"]]  # fmt: skip
    parts += ["<h3>By source</h3>", _table(("source", "documents", "dropped", "share"), sources)]
    matrix = [(f"{row['dropped_from']} → {row['kept_in']}", f"{row['documents']:,}") for row in facts["matrix"]]
    parts += ["<h3>Dropped from → kept in</h3>", _table(("sources", "documents"), matrix)]
    parts += ["<h3>A sample of pairs</h3>", *(_pair(pair) for pair in facts["pairs"])]
    return _section("Deduplication", "".join(parts))


def _pair(pair: dict[str, Any]) -> str:
    estimated = pair["estimated"]
    guess = "" if estimated is None or estimated != estimated else f", estimated {estimated:.3f}"
    return (
        f'<p>exact similarity {pair["exact"]:.3f}{guess}</p><div class="pair">'
        f"<div>dropped: {escape(pair['dropped'])}<pre>{escape(pair['dropped_text'])}</pre></div>"
        f"<div>kept: {escape(pair['kept'])}<pre>{escape(pair['kept_text'])}</pre></div></div>"
    )


def _chat(data: dict[str, Any]) -> str:
    rows = [(name[5:].replace("_", " "), f"{count:,}") for name, count in data["counters"].items()
            if name.startswith("chat.")]  # fmt: skip
    return _section("Conversations", _table(("count", ""), rows)) if rows else ""


def _lengths(data: dict[str, Any]) -> str:
    rows = [(f"{entry['from']:,}-{entry['to']:,}", entry["documents"]) for entry in data["length_histogram"]]
    return _section("Document lengths", vertical_bars(rows, "tokens")) if rows else ""


def _inputs(data: dict[str, Any]) -> str:
    columns = ("records", "kept", "dropped", "rejected", "blank", "tokens")
    rows = [(item["path"], *(f"{item[column]:,}" for column in columns)) for item in data["inputs"]]
    return _section("Inputs", _table(("file", *columns), rows))


def _outputs(data: dict[str, Any]) -> str:
    rows = [(item["prefix"], f"{item['documents']:,}", f"{item['tokens']:,}") for item in data["outputs"]]
    return _section("Shards", _table(("prefix", "documents", "tokens"), rows))


def _run(data: dict[str, Any]) -> str:
    run = data["run"]
    seconds = sorted(run["stage_seconds"].items(), key=lambda item: (-item[1], item[0]))
    bars = [(stage, value, f"{value:.2f} s") for stage, value in seconds if value >= 0.01]
    facts = "".join(f"<li>{escape(str(note))}</li>" for note in run["notices"])
    return _section(
        "This run",
        f"<p>{run['seconds']:,} s with {run['workers']} workers, {run['mb_per_second']} MB/s.</p><ul>{facts}</ul>"
        f"<h3>Processor seconds by stage, summed over workers</h3>{horizontal_bars(bars)}",
    )


def _section(title: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{body}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return "<table>" + "".join(lines) + "</table>"
