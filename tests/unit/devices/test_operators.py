"""Torch's common functions: same values, dtype, shape, strides and gradients as on the CPU.

And above all: every tensor that comes out is on the GPU, also the gradients.
"""

import inspect

import pytest
import torch
from torch.nn import functional as f
from torch.utils._pytree import tree_leaves

pytestmark = pytest.mark.usefixtures("machine")

CUDA_1 = torch.device("cuda", 1)


def makers() -> dict[str, torch.Tensor]:
    """Arguments by name; those that float take part in the comparison of gradients."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    square = normal(4, 4)
    return {
        "x": normal(3, 4),
        "y": normal(3, 4),
        "p": normal(3, 4).abs() + 0.5,  # positive
        "u": normal(3, 4).sigmoid(),  # between 0 and 1
        "v": normal(4),
        "m": normal(4, 5),
        "spd": square @ square.T + 4 * torch.eye(4, dtype=torch.float64),
        "b": normal(2, 3, 4),
        "c": torch.complex(normal(3, 4), normal(3, 4)),
        "img": normal(2, 3, 8, 8),
        "w1": normal(2, 3, 3),
        "w2": normal(2, 3, 3, 3),
        "k": torch.tensor([[0, 2, 1], [1, 1, 0], [2, 0, 3]]),  # indices below 4, (3, 3)
        "t": torch.tensor([0, 3, 1]),  # classes below 4
        "mask": torch.tensor([[True, False, True, True]] * 3),
    }


# Named by what they compute; the parameter names say which arguments they take.
FUNCTIONS = [
    lambda x: (x.abs(), x.round(), x.exp(), x.sin(), x.frexp(), x.nan_to_num(), x.clamp(-1, 1)),
    lambda p: (p.log(), p.sqrt(), p.lgamma(), p.pow(2.5), 2**p, torch.special.i0(p)),
    lambda x, y: (x + y, x / y, x % y, x.atan2(y), x.lerp(y, 0.3), x.addcmul(y, y)),
    lambda x, v: (x + v, v - x, torch.maximum(x, v), 1 - x, 2 / x, x.add(1, alpha=2)),
    lambda x, y: (x > y, x == y, torch.isclose(x, y), x.isfinite()),
    lambda mask, k: (~mask, mask ^ mask, mask.any(1), k << 1, k & 1, k // 2, k.float()),
    lambda x: (x.sum(), x.mean(1), x.prod(1), x.std(0), x.norm(), x.median(), x.quantile(0.3)),
    lambda x: (x.max(1), x.amin(1), x.argmax(1), x.logsumexp(1), x.cumsum(0), x.cummax(1)),
    lambda x: (x.sort(1), x.argsort(0), x.topk(2), x.kthvalue(2), x.histc(4), x.diff()),
    lambda k: (k.unique(), k.unique(return_counts=True), k[0].bincount(), k.nonzero()),
    lambda x: (x.reshape(4, 3), x.view(-1), x.t(), x.permute(1, 0), x.flatten(), x[None], x.mT),
    lambda x: (x[1], x[:, ::2], x[..., -1], x.narrow(1, 1, 2), x.diagonal(), x.unfold(1, 2, 1)),
    lambda x: (x.split(2), x.chunk(3), x.unbind(), torch.tensor_split(x, 2, 1)),
    lambda x: (x.expand(2, 3, 4), x.repeat(2, 1), x.repeat_interleave(2, 1), x.roll(1), x.flip(0)),
    lambda x, y: (torch.cat([x, y]), torch.stack([x, y], 1), torch.dstack([x, y])),
    lambda x, y: (torch.meshgrid(x[0], y[0], indexing="ij"), torch.broadcast_tensors(x, x[0])),
    lambda x, k: (x.gather(1, k), x.take(k), x.index_select(1, k[0]), x.take_along_dim(k, 1)),
    lambda x, y, k: (x.scatter(1, k, y[:, :3]), x.scatter_add(1, k, y[:, :3])),
    lambda x, t, y: (x.index_add(0, t.clamp(max=2), y), x.index_fill(1, t, 2.0)),
    lambda x, t: (x[t.clamp(max=2), t], x[None, :, None], x.index_put((t.clamp(max=2),), x[0])),
    lambda x, y, mask: (x[mask], x.masked_fill(mask, 0.0), torch.where(mask, x, y)),
    lambda x, m, v: (x @ m, torch.einsum("ij,jk->ik", x, m), x.mv(v), torch.outer(v, v)),
    lambda b, m: (b @ m, b.bmm(b.mT), torch.baddbmm(b @ b.mT, b, b.mT), torch.kron(b[0], m)),
    lambda spd, v: (torch.linalg.solve(spd, v), spd.inverse(), spd.det(), spd.trace()),
    lambda spd: (torch.linalg.cholesky(spd), torch.linalg.qr(spd), torch.linalg.svdvals(spd)),
    lambda x, y: (torch.cdist(x, y), f.cosine_similarity(x, y), x.cov()),
    lambda c: (c.abs(), c.conj().imag, c.real, torch.view_as_real(c), c * c.conj(), c.mH @ c),
    lambda c: (torch.linalg.pinv(c), torch.linalg.vecdot(c, c), torch.fft.hfft(c)),
    lambda x: (torch.fft.fft(x).abs(), torch.fft.rfft2(x).real, torch.fft.fftshift(x)),
    lambda x: (f.relu(x), f.gelu(x), f.glu(x, 1), x.softmax(1), x.log_softmax(0), f.normalize(x)),
    lambda x, v: (f.layer_norm(x, (4,), v, v), f.prelu(x, v), f.rms_norm(x, (4,))),
    lambda img: (f.max_pool2d(img, 2), f.avg_pool2d(img, 2), f.adaptive_max_pool2d(img, 3)),
    lambda img: (f.interpolate(img, size=5, mode="bilinear"), f.pad(img, (1, 1, 2, 2), "reflect")),
    lambda img: (f.instance_norm(img), f.group_norm(img, 3), f.local_response_norm(img, 2)),
    lambda img: f.batch_norm(img, None, None, training=True),
    lambda img, w2: (f.conv2d(img, w2, padding="same"), f.conv_transpose2d(img[:, :2], w2)),
    lambda b, w1: (f.conv1d(b, w1), f.max_pool1d(b, 2), f.lp_pool1d(b, 2, 3)),
    lambda x, t: (f.cross_entropy(x, t), f.multi_margin_loss(x, t), f.one_hot(t, 4)),
    lambda x, y: (f.mse_loss(x, y), f.l1_loss(x, y), f.smooth_l1_loss(x, y)),
    lambda u, y: (f.binary_cross_entropy(u, u.detach()), f.kl_div(y, u, reduction="sum")),
    lambda x, y, p: (f.gaussian_nll_loss(x, y, p), f.triplet_margin_loss(x, y, p)),
    lambda x, t, m: (f.embedding(t, x.t()), f.embedding_bag(t[None], m), f.linear(x, m.t())),
    lambda b: f.scaled_dot_product_attention(b, b, b, is_causal=True),
    lambda x: (torch.bucketize(x, x[0].sort()[0]), torch.block_diag(x, x), torch.trapezoid(x)),
    lambda x: (x.new_zeros(2), torch.full_like(x, 2.0), x.clone(), x.detach(), x.t().contiguous()),
    lambda x: (x.float(), x.half(), x.bfloat16(), x.long(), x.bool(), x.to(torch.int8)),
    lambda x: x.to_sparse().to_dense(),
    lambda x: torch._foreach_mul(torch._foreach_add([x, x], 1.0), [x, x]),
    lambda x: (x.clone().add_(1).mul_(2).clamp_(0), x.clone().fill_(3).sub_(1), x.clone().t_()),
    lambda x: torch.vmap(lambda row: row.sum() * row)(x),
]


def name_of(function) -> str:
    source = inspect.getsource(function).strip()
    return source.partition(":")[2].strip(" (),").partition(",")[0]


def run(function, device: str, *, gradients: bool):
    """The results of `function` on `device`, and the gradients of its floating arguments."""
    wanted = inspect.signature(function).parameters
    arguments = {name: made.to(device) for name, made in makers().items() if name in wanted}
    floating = [a for a in arguments.values() if a.is_floating_point() or a.is_complex()]
    for argument in floating if gradients else ():
        argument.requires_grad_()
    results = [
        leaf for leaf in tree_leaves(function(**arguments)) if isinstance(leaf, torch.Tensor)
    ]
    sums = [result.abs().double().sum() for result in results if result.requires_grad]
    if not sums:
        return results, []
    return results, torch.autograd.grad(sum(sums), floating, allow_unused=True)


@pytest.mark.parametrize("function", FUNCTIONS, ids=name_of)
def test_on_a_gpu_as_on_the_cpu(function):
    expected = run(function, "cpu", gradients=True)
    results = run(function, "cuda:1", gradients=True)
    for ours, theirs in zip(results, expected, strict=True):
        assert len(ours) == len(theirs)
        for on_gpu, on_cpu in zip(ours, theirs, strict=True):
            if on_cpu is None:
                assert on_gpu is None
                continue
            assert on_gpu.device == CUDA_1
            assert on_gpu.stride() == on_cpu.stride()
            assert on_gpu.requires_grad == on_cpu.requires_grad
            torch.testing.assert_close(on_gpu.detach().cpu(), on_cpu.detach(), equal_nan=True)
    with torch.inference_mode():
        inferred, _ = run(function, "cuda:1", gradients=False)
    assert {result.device for result in inferred} == {CUDA_1}
    for on_gpu, on_cpu in zip(inferred, expected[0], strict=True):
        torch.testing.assert_close(on_gpu.cpu(), on_cpu.detach(), equal_nan=True)
