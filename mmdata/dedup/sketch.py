"""datasketch's permutations and exchange with its MinHash and LeanMinHash.

A signature here equals datasketch 2.x's bit for bit when both see the same hashed values: with `item_hash="sha1"`
from text, or for any values through `signatures_of_hashes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.dedup.params import SCHEMES, DedupParams
from mmdata.errors import DedupParameterError

Permutations = tuple[NDArray[Any], NDArray[Any]]


@lru_cache(maxsize=16)
def permutations(scheme: str, count: int, seed: int) -> Permutations:
    """The multipliers and offsets that datasketch draws: uint32 for affine32, else uint64, each of length count.

    affine: odd multipliers below 2^w and offsets below 2^w, drawn as two vectors. legacy: multipliers in [1, p) and
    offsets in [0, p), p = 2^61 - 1, drawn in turns. Raises DedupParameterError for an unknown scheme or seed.
    """
    if scheme not in SCHEMES:
        raise DedupParameterError(f"scheme {scheme!r}: must be one of {', '.join(SCHEMES)}")
    if not 0 <= seed < 2**32:
        raise DedupParameterError(f"seed {seed}: must be between 0 and 2^32 - 1")
    generator = np.random.RandomState(seed)
    a: NDArray[Any]
    b: NDArray[Any]
    if scheme == "legacy":
        prime = (1 << 61) - 1
        drawn = [
            (generator.randint(1, prime, dtype=np.uint64), generator.randint(0, prime, dtype=np.uint64))
            for _ in range(count)
        ]
        a, b = np.array(drawn, dtype=np.uint64).reshape(count, 2).T.copy()
    else:
        width = 32 if scheme == "affine32" else 64
        dtype: Any = np.uint32 if width == 32 else np.uint64
        a = generator.randint(0, 1 << (width - 1), count, dtype=dtype) * dtype(2) + dtype(1)
        b = generator.randint(0, 1 << width, count, dtype=dtype)
    a.flags.writeable = b.flags.writeable = False
    return a, b


def to_datasketch(signature: NDArray[Any], params: DedupParams, lean: bool = False) -> Any:
    """A `datasketch.MinHash` (or LeanMinHash) of one signature, to insert into or query datasketch's LSH."""
    import datasketch

    values = np.asarray(signature)
    if lean:
        return datasketch.LeanMinHash(seed=params.seed, hashvalues=values, scheme=params.scheme)
    return datasketch.MinHash(num_perm=len(values), seed=params.seed, hashvalues=values, scheme=params.scheme)


def from_datasketch(sketches: Sequence[Any], params: DedupParams) -> NDArray[Any]:
    """The signatures of datasketch objects as one array (documents, num_perm).

    Raises DedupParameterError when a sketch has another scheme, seed or number of permutations.
    """
    for number, sketch in enumerate(sketches):
        found = (sketch.scheme, int(sketch.seed), len(sketch.hashvalues))
        wanted = (params.scheme, params.seed, params.num_perm)
        if found != wanted:
            raise DedupParameterError(
                f"sketch {number} has (scheme, seed, permutations) {found}, these parameters {wanted}: "
                "sketches compare only when all three agree"
            )
    dtype = np.uint32 if params.scheme == "affine32" else np.uint64
    return np.array([sketch.hashvalues for sketch in sketches], dtype=dtype).reshape(len(sketches), params.num_perm)
