"""Which language and script a document is in, from the counts of the measuring pass.

`zh`, `ja`, `ko`, `en`, `other`, or `und` where there are no letters. Accuracy on the sample corpora stands in
docs/cleaning.md. Chinese without kana and without a simplified-only or traditional-only character has no variant. A
fastText model by path (`FastTextModel`) replaces the guess where more languages matter.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdata.clean import columns as c
from mmdata.clean import tables as t
from mmdata.errors import MissingPackageError, RecipeError

LANGUAGES = ("und", "zh", "ja", "ko", "en", "other")
UND, ZH, JA, KO, EN, OTHER = range(6)
KANA_SHARE = 0.05  # of Han and kana: Japanese prose has 0.4 and more, Chinese text that quotes Japanese less than this
EN_STOP_SHARE = 0.08  # of Latin words: English prose has 0.35-0.45, other European languages less than 0.06

Matrix = npt.NDArray[np.int64]


def detect(rows: Matrix) -> npt.NDArray[np.int8]:
    """Language number (an index of LANGUAGES) of each measured document."""
    han, kana, hangul = rows[:, t.HAN], rows[:, t.KANA], rows[:, t.HANGUL]
    latin, letters = rows[:, t.LATIN], rows[:, t.LETTER]
    words = rows[:, c.LATIN_WORDS] - rows[:, c.DIGIT_WORDS]
    east = han + kana
    out = np.full(len(rows), OTHER, np.int8)
    stops = rows[:, c.EN_STOPS]
    english = (latin >= 0.9 * (latin + letters)) & ((stops >= EN_STOP_SHARE * words) | (words < 12))
    out[english] = EN
    out[(letters > latin)] = OTHER
    out[(east * 2 >= words) & (east > 0) & (letters <= east * 3)] = ZH
    out[(kana > KANA_SHARE * east) & (east * 2 >= words) & (east > 0)] = JA
    out[(hangul > 0.3 * (hangul + east + latin + letters)) & (hangul > 0)] = KO
    out[(east + latin + letters + hangul + rows[:, t.WIDE_ALNUM]) == 0] = UND
    return out


def scripts(rows: Matrix) -> list[str | None]:
    """`simplified` or `traditional` for each document by which script's own characters are more, None for neither."""
    names = ("simplified", None, "traditional")
    return [names[sign + 1] for sign in np.sign(rows[:, c.TRADITIONAL] - rows[:, c.SIMPLIFIED]).tolist()]


def script_counts(text: str) -> tuple[int, int]:
    """The columns TRADITIONAL and SIMPLIFIED of a text, at a tenth of what it costs to measure it whole."""
    # Only Han characters have either mark, so halves of what stands beyond the Basic Multilingual Plane count for none.
    marks = t.character_table()[np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2")]
    return int(np.count_nonzero(marks & t.TRADITIONAL)), int(np.count_nonzero(marks & t.SIMPLIFIED))


def script(row: npt.NDArray[np.int64]) -> str | None:
    """The same of one document's row."""
    return scripts(row[np.newaxis])[0]


class FastTextModel:
    """A fastText language model from a local file, such as lid.176.bin or GlotLID.

    Raises MissingPackageError without the `fasttext` module and RecipeError when the file cannot be loaded.
    """

    def __init__(self, path: str) -> None:
        self.check(path)
        import fasttext

        self._model: Any = fasttext.load_model(path)

    @staticmethod
    def check(path: str) -> None:
        """Raise what stands in the way of loading the model, without loading it."""
        if not Path(path).is_file():
            raise RecipeError(f"language: no model file at {path}")
        if find_spec("fasttext") is None:
            raise MissingPackageError(
                f"the language model {path} needs the fasttext module: pip install fasttext-predict"
            )

    def predict(self, text: str) -> tuple[str, float]:
        """Language code without fastText's `__label__` and its score; fastText reads one line."""
        labels, scores = self._model.predict(text.replace("\n", " ")[:20000])
        return (labels[0].removeprefix("__label__").split("_")[0], float(scores[0])) if labels else ("und", 0.0)
