"""Kernel intervals to busy, communicating and exposed time."""

from __future__ import annotations

import pytest

from mmdata_train.kernel_time import KernelTime, kernel_time, length, merged, overlap


def test_overlapping_and_touching_intervals_become_one() -> None:
    assert merged([(4, 5), (0, 2), (1, 3), (3, 3.5)]) == [(0, 3.5), (4, 5)]
    assert merged([]) == []


def test_overlap_counts_shared_time_once() -> None:
    assert overlap([(0, 10)], [(1, 2), (3, 5), (9, 12)]) == pytest.approx(4)
    assert overlap([(0, 1), (2, 3)], [(1, 2)]) == 0
    assert overlap([], [(0, 1)]) == 0
    assert length([(0, 1.5), (2, 3)]) == pytest.approx(2.5)


def test_communication_is_exposed_only_where_no_kernel_computes() -> None:
    kernels = [
        ("ncclDevKernel_AllGather", 1.0, 4.0),
        ("sm90_gemm", 0.0, 2.0),
        ("triton_poi_fused", 3.5, 5.0),
        ("ncclDevKernel_SendRecv", 3.0, 3.2),
        ("Memcpy DtoD", 2.0, 3.0),
    ]
    found = kernel_time(kernels)
    assert found.busy_seconds == pytest.approx(3.5)
    assert found.nccl_seconds == pytest.approx(3.0)
    assert found.exposed_seconds == pytest.approx(1.5)


def test_device_that_ran_nothing_has_no_time() -> None:
    assert kernel_time([]) == KernelTime(0, 0, 0)
