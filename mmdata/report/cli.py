"""`mmdata report`."""

from __future__ import annotations

import click

from mmdata.run.cli import emit, output_options


@click.command()
@click.argument("source", metavar="PREFIX|P_report.json")
@click.option("-o", "--output", required=True, metavar="page.html", help="The page to write.")
@click.option("--overwrite", is_flag=True, help="Replace an existing page.")
@output_options
def report(source: str, output: str, overwrite: bool, as_json: bool, quiet: bool) -> None:
    """Draw a run's report as one page that works offline.

    Example: mmdata report out/corpus -o corpus.html
    """
    from mmdata.report.page import write_page

    path = write_page(source, output, overwrite=overwrite)
    emit({"page": path}, as_json, path)
