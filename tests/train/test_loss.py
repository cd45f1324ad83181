"""The fused head gives the loss and gradients torch's own cross-entropy gives, whatever the chunk and the padding."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from mmdata_train.loss import IGNORED, TokenLoss  # noqa: E402

VOCABULARY, PADDED, WIDTH = 61, 64, 16


def problem(dtype: object = None, ignored: float = 0.3) -> tuple[object, object, object]:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(3, 10, WIDTH, generator=generator, dtype=dtype).requires_grad_()
    weight = torch.randn(PADDED, WIDTH, generator=generator, dtype=dtype).requires_grad_()
    labels = torch.randint(0, VOCABULARY, (3, 10), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < ignored] = IGNORED
    return hidden, weight, labels


def expected(hidden: object, weight: object, labels: object, scale: float) -> tuple[object, ...]:
    logits = hidden @ weight[:VOCABULARY].T  # type: ignore[operator, index]
    nll = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")  # type: ignore[attr-defined]
    loss = nll.sum() * scale
    return (loss, nll.view(labels.shape).sum(1), *torch.autograd.grad(loss, (hidden, weight)))  # type: ignore[attr-defined]


@pytest.mark.parametrize("split_backward", [False, True])
@pytest.mark.parametrize("chunk_rows", [1, 7, 1000])
def test_loss_and_gradients_equal_torchs(chunk_rows: int, split_backward: bool) -> None:
    hidden, weight, labels = problem()
    head = TokenLoss(VOCABULARY, scale=0.25, chunk_elements=chunk_rows * PADDED, split_backward=split_backward)
    loss, nll = head(hidden, weight, labels)
    got = (loss.squeeze(), nll, *torch.autograd.grad(loss, (hidden, weight)))
    for ours, theirs in zip(got, expected(hidden, weight, labels, 0.25), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_padded_rows_of_the_head_get_no_gradient_and_no_chance() -> None:
    hidden, weight, labels = problem()
    with torch.no_grad():
        weight[VOCABULARY:] = 100.0  # would win every softmax
    loss, _ = TokenLoss(VOCABULARY)(hidden, weight, labels)
    (grad,) = torch.autograd.grad(loss, weight)
    assert torch.equal(grad[VOCABULARY:], torch.zeros(PADDED - VOCABULARY, WIDTH))
    torch.testing.assert_close(loss.squeeze(), expected(hidden, weight, labels, 1.0)[0])


def test_batch_without_a_counted_token_gives_zero_loss_and_zero_gradients() -> None:
    hidden, weight, labels = problem(ignored=2.0)
    loss, nll = TokenLoss(VOCABULARY)(hidden, weight, labels)
    grads = torch.autograd.grad(loss, (hidden, weight))
    assert loss.item() == 0.0 and not nll.any()
    assert not grads[0].any() and not grads[1].any()


def test_logits_that_would_overflow_stay_finite() -> None:
    hidden, weight, labels = problem()
    loss, _ = TokenLoss(VOCABULARY)(hidden * 1e4, weight, labels)
    assert torch.isfinite(loss).all()


def test_frozen_head_costs_no_gradient_of_its_weight() -> None:
    hidden, weight, labels = problem()
    loss, _ = TokenLoss(VOCABULARY)(hidden, weight.detach(), labels)
    loss.backward()
    assert weight.grad is None and hidden.grad is not None


def test_small_fp16_gradients_survive_because_the_scale_comes_before_rounding() -> None:
    hidden, weight, labels = problem(torch.float16)
    scale = 2.0**16 / 1e8  # loss scale over many tokens: unscaled gradients lie below fp16's smallest number
    loss, _ = TokenLoss(VOCABULARY, scale=scale)(hidden, weight, labels)
    (grad,) = torch.autograd.grad(loss, hidden)
    exact = expected(hidden.detach().float().requires_grad_(), weight.detach().float().requires_grad_(), labels, scale)[
        2
    ]
    torch.testing.assert_close(grad.float(), exact, rtol=0.02, atol=2e-5)
    unscaled = (exact / 2.0**16).half()
    assert (grad != 0).sum() > 1.2 * (unscaled != 0).sum()


def test_evaluation_logits_leave_the_padding_out() -> None:
    hidden, weight, _ = problem()
    logits = TokenLoss(VOCABULARY).logits(hidden, weight)
    torch.testing.assert_close(logits, hidden @ weight[:VOCABULARY].T)
