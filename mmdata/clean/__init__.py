"""Cleaning: repairs bad text, drops meaningless text, keeps good Chinese.

    import mmdata
    report = mmdata.clean(["corpus/"], "out/clean.jsonl", recipe="auto")     # files; the package itself is callable

    from mmdata.clean.pipeline import Cleaner                                # documents, inside a pipeline
    result = Cleaner("zh").clean_documents(documents)

Recipes are YAML (mmdata.clean.recipe); docs/cleaning.md lists every step. Importing this package loads nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mmdata._callable import make_callable

if TYPE_CHECKING:
    from mmdata.clean.account import CleanReport

make_callable(__name__)


def clean(inputs: Any, output: Any, **settings: Any) -> CleanReport:
    """See mmdata.clean.files.clean."""
    from mmdata.clean.files import clean as run

    return run(inputs, output, **settings)
