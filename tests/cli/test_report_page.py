"""The report page escapes everything, opens offline, and draws what is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmdata.errors import InputError, UsageError
from mmdata.report.build import ReportParts, build_report
from mmdata.report.page import render_page, write_page
from mmdata.report.tally import Tally

HOSTILE = "<script>alert('x')</script>&\"'"


def report() -> dict[str, object]:
    tally = Tally(kept=3, documents=3, tokens=40)
    tally.source(0).records = 5
    tally.dropped = {f"clean:{HOSTILE}": 1}
    tally.rejected = {"bad-json": 1}
    tally.counters = {"clean.changed.nfc": 2, "pii.mobile": 1, "chat.conversations": 1}
    tally.lengths[4] = 3
    pair = {"dropped": HOSTILE, "kept": HOSTILE, "exact": 0.9, "estimated": 0.91, "dropped_text": HOSTILE,
            "kept_text": HOSTILE}  # fmt: skip
    dedup = {
        "dropped": 1, "documents": 4, "comparisons": 2, "parameters": {"bands": 20, "rows": 6, "threshold": 0.8},
        "cluster_sizes": {"2": 1}, "catch_curve": [[0.5, 0.2], [1.0, 1.0]], "similarities": [0] * 18 + [1, 0],
        "sources": [{"source": HOSTILE, "documents": 4, "dropped": 1, "share": 0.25}],
        "matrix": [{"dropped_from": HOSTILE, "kept_in": HOSTILE, "documents": 1}], "pairs": [pair],
    }  # fmt: skip
    run = {"seconds": 1.0, "workers": 1, "mb_per_second": 2.0, "notices": [HOSTILE]}
    outputs = [{"prefix": HOSTILE, "documents": 3, "tokens": 40}]
    inputs: list[dict[str, object]] = [{"number": 0, "path": HOSTILE}]
    return build_report(ReportParts(tally, inputs, outputs, {}, None, run, {"dedup": dedup}))


def test_every_text_is_escaped() -> None:
    page = render_page(report())
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 8


def test_the_page_asks_for_nothing_from_outside() -> None:
    page = render_page(report())
    assert "http://" not in page and "https://" not in page and "src=" not in page
    assert "default-src 'none'" in page


def test_the_accounting_identity_is_on_the_page() -> None:
    assert "<b>5</b> records read = <b>3</b> kept + <b>1</b> dropped + <b>1</b> rejected" in render_page(report())


def test_sections_without_data_are_left_out() -> None:
    data = report()
    data["stages"], data["counters"] = {}, {}
    page = render_page(data)
    assert "Deduplication" not in page and "Cleaning" not in page and "Conversations" not in page


def test_a_page_is_written_from_a_prefix_or_a_path(tmp_path: Path) -> None:
    (tmp_path / "p_report.json").write_text(json.dumps(report()), encoding="utf-8")
    for source in ("p", "p_report.json"):
        output = tmp_path / f"{source}.html"
        write_page(str(tmp_path / source), str(output))
        assert output.read_text(encoding="utf-8") == render_page(report())


@pytest.mark.parametrize("content", [None, "no json", '{"schema": "other/9"}'])
def test_what_is_no_report_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "p_report.json").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match="report"):
        write_page(str(tmp_path / "p"), str(tmp_path / "page.html"))


@pytest.mark.parametrize("data", [[], 5, {"schema": "mmdata.report/1"}, {"schema": "mmdata.report/1", "records": 5}])
def test_a_damaged_report_is_refused_and_no_page_is_written(tmp_path: Path, data: object) -> None:
    source = tmp_path / "a_report.json"
    source.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(InputError, match="report"):
        write_page(str(source), str(tmp_path / "page.html"))
    assert list(tmp_path.iterdir()) == [source]


def test_a_page_never_replaces_its_report(tmp_path: Path) -> None:
    source = tmp_path / "a_report.json"
    source.write_text(json.dumps(report()), encoding="utf-8")
    before = source.read_bytes()
    with pytest.raises(UsageError, match="is the report itself"):
        write_page(str(tmp_path / "a"), str(source))
    assert source.read_bytes() == before
