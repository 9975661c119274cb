"""Each of torch's common functions: same values, dtype, shape and gradients as on the CPU.

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
        "s": square,
        "spd": square @ square.T + 4 * torch.eye(4, dtype=torch.float64),
        "b": normal(2, 3, 4),
        "c": torch.complex(normal(3, 4), normal(3, 4)),
        "img": normal(2, 3, 8, 8),
        "seq": normal(2, 3, 9),
        "w1": normal(2, 3, 3),
        "w2": normal(2, 3, 3, 3),
        "k": torch.tensor([[0, 2, 1], [1, 1, 0], [2, 0, 3]]),  # indices below 4, (3, 3)
        "t": torch.tensor([0, 3, 1]),  # classes below 4
        "mask": torch.tensor([[True, False, True, True]] * 3),
    }


# Named by what they compute; the parameter names say which arguments they take.
FUNCTIONS = [
    lambda x: (x.abs(), x.neg(), x.sign(), x.floor(), x.ceil(), x.round(), x.trunc(), x.frac()),
    lambda x: (x.exp(), x.expm1(), x.sin(), x.cos(), x.tan(), x.atan(), x.sinh(), x.tanh()),
    lambda p: (p.log(), p.log2(), p.log10(), p.log1p(), p.sqrt(), p.rsqrt(), p.reciprocal()),
    lambda p: (p.lgamma(), p.digamma(), p.erf(), p.pow(2.5), 2**p, torch.special.i0(p)),
    lambda u: (u.acos(), u.asin(), u.atanh(), u.logit(), u.erfinv(), torch.special.entr(u)),
    lambda x, y: (x + y, x - y, x * y, x / y, x % y, torch.fmod(x, y), x.atan2(y)),
    lambda x, v: (x + v, v - x, torch.maximum(x, v), torch.minimum(x, v), torch.hypot(x, v)),
    lambda x: (1 - x, 2 / x, 3 * x, x.add(1, alpha=2), torch.rsub(x, 1), x.clamp(-1, 1), x.clip(0)),
    lambda x, y: (x.lerp(y, 0.3), x.addcmul(y, y), x.addcdiv(y, y), torch.dist(x, y)),
    lambda x, y: (x > y, x >= y, x == y, x != y, torch.isclose(x, y), x.isnan(), x.isfinite()),
    lambda mask: (~mask, mask & mask, mask | ~mask, mask ^ mask, mask.any(1), mask.all(0)),
    lambda k: (k << 1, k >> 1, k & 1, k | 1, k.bitwise_not(), k // 2, k.gcd(k + 1), k.float()),
    lambda x: (x.sum(), x.sum(0), x.mean(1), x.prod(1), x.std(0), x.var(), x.norm(), x.median()),
    lambda x: (x.amax(0), x.amin(1), x.max(1), x.min(), x.argmax(1), x.argmin()),
    lambda x: (x.logsumexp(1), x.cumsum(0), x.cumprod(1), x.cummax(1), x.logcumsumexp(0)),
    lambda x: (x.sort(1), x.argsort(0), x.topk(2), x.kthvalue(2), x.quantile(0.3), x.mode(1)),
    lambda k: (k.unique(), k.unique(return_counts=True), k.bincount() if k.ndim == 1 else k),
    lambda x: (x.reshape(4, 3), x.view(-1), x.t(), x.permute(1, 0), x.flatten(), x[None], x.mT),
    lambda x: (x[1], x[:, ::2], x[..., -1], x.narrow(1, 1, 2), x.select(0, 1), x.diagonal()),
    lambda x: (x.split(2), x.chunk(3), x.unbind(), torch.tensor_split(x, 2, 1), x.unfold(1, 2, 1)),
    lambda x: (x.expand(2, 3, 4), x.repeat(2, 1), x.tile(2), x.repeat_interleave(2, 1), x.roll(1)),
    lambda x: (
        x.flip(0),
        x.rot90(),
        x.tril(),
        x.triu(1),
        x.squeeze(),
        x.unsqueeze(1),
        x.movedim(0, 1),
    ),
    lambda x, y: (
        torch.cat([x, y]),
        torch.stack([x, y], 1),
        torch.hstack([x, y]),
        torch.dstack([x, y]),
    ),
    lambda x, k: (x.gather(1, k), x.take(k), x.index_select(1, k[0]), x.take_along_dim(k, 1)),
    lambda x, y, k: (x.scatter(1, k, y[:, :3]), x.scatter_add(1, k, y[:, :3])),
    lambda x, t, y: (x.index_add(0, t.clamp(max=2), y), x.index_copy(0, t.argsort().flip(0), y)),
    lambda x, t: (x.index_fill(1, t, 2.0), x.index_put((t.clamp(max=2),), x[0])),
    lambda x, mask: (x[mask], x.masked_fill(mask, 0.0), x.masked_select(mask), mask.nonzero()),
    lambda x, y, mask: (
        torch.where(mask, x, y),
        torch.where(mask, x, 0.0),
        x.masked_scatter(mask, y),
    ),
    lambda x, t: (x[t.clamp(max=2)], x[:, t], x[t.clamp(max=2), t], x[None, :, None], x[[0, 2]]),
    lambda x, m: (x @ m, x.mm(m), torch.einsum("ij,jk->ik", x, m), torch.tensordot(x, m, 1)),
    lambda x, v, s: (
        x.mv(v),
        torch.dot(v, v),
        torch.outer(v, v),
        torch.addmv(x[:, 0], x, v),
        v @ s,
    ),
    lambda b, m: (b @ m, b.bmm(b.mT), torch.baddbmm(b @ b.mT, b, b.mT), torch.kron(b[0], m)),
    lambda spd, s, v: (
        torch.linalg.solve(spd, v),
        spd.inverse(),
        spd.det(),
        spd.logdet(),
        s.trace(),
    ),
    lambda spd: (torch.linalg.cholesky(spd), torch.linalg.eigvalsh(spd), torch.linalg.svdvals(spd)),
    lambda s, spd: (
        torch.linalg.qr(s),
        torch.linalg.pinv(spd),
        torch.matrix_exp(s),
        s.matrix_power(2),
    ),
    lambda x, y: (torch.cdist(x, y), f.cosine_similarity(x, y), f.pairwise_distance(x, y), x.cov()),
    lambda c: (
        c.abs(),
        c.angle(),
        c.conj().imag,
        c.real,
        torch.view_as_real(c),
        c * c.conj(),
        c.exp(),
    ),
    lambda c: (torch.linalg.pinv(c), torch.linalg.svdvals(c), c.mH @ c, torch.linalg.norm(c)),
    lambda c: (torch.linalg.vecdot(c, c), torch.fft.hfft(c)),
    lambda x: (torch.fft.fft(x).abs(), torch.fft.rfft2(x).real, torch.fft.fftshift(x)),
    lambda x: (
        f.relu(x),
        f.gelu(x),
        f.silu(x),
        f.elu(x),
        f.selu(x),
        f.leaky_relu(x),
        f.softplus(x),
    ),
    lambda x: (
        f.hardtanh(x),
        f.mish(x),
        f.softsign(x),
        f.logsigmoid(x),
        f.hardswish(x),
        f.glu(x, 1),
    ),
    lambda x: (x.softmax(1), x.log_softmax(0), f.softmin(x, 1), x.sigmoid(), f.normalize(x)),
    lambda x, v: (
        f.layer_norm(x, (4,), v, v),
        f.prelu(x, v),
        f.rms_norm(x, (4,)),
        f.threshold(x, 0.1, 2),
    ),
    lambda img: (f.max_pool2d(img, 2), f.avg_pool2d(img, 2), f.adaptive_max_pool2d(img, 3)),
    lambda img: (f.interpolate(img, scale_factor=2), f.interpolate(img, size=5, mode="bilinear")),
    lambda img: (
        f.pad(img, (1, 2)),
        f.pad(img, (1, 1, 2, 2), "reflect"),
        f.unfold(img, 2),
        f.pixel_unshuffle(img, 2),
    ),
    lambda img: (f.instance_norm(img), f.group_norm(img, 3), f.local_response_norm(img, 2)),
    lambda img: f.batch_norm(img, None, None, training=True),
    lambda img, w2: (
        f.conv2d(img, w2),
        f.conv2d(img, w2, stride=2, padding=1),
        f.conv2d(img, w2, padding="same"),
    ),
    lambda img, w2: f.conv_transpose2d(img[:, :2], w2),
    lambda seq, w1: (
        f.conv1d(seq, w1),
        f.max_pool1d(seq, 2),
        f.avg_pool1d(seq, 3),
        f.lp_pool1d(seq, 2, 3),
    ),
    lambda x, t: (
        f.cross_entropy(x, t),
        f.nll_loss(x, t),
        f.multi_margin_loss(x, t),
        f.one_hot(t, 4),
    ),
    lambda x, y: (f.mse_loss(x, y), f.l1_loss(x, y), f.smooth_l1_loss(x, y), f.huber_loss(x, y)),
    lambda u, y: (
        f.binary_cross_entropy(u, u.detach()),
        f.kl_div(y, u, reduction="sum"),
        f.poisson_nll_loss(y, u),
    ),
    lambda x, u: (
        f.binary_cross_entropy_with_logits(x, u.detach()),
        f.soft_margin_loss(x, x.detach().sign()),
    ),
    lambda x, y, p: (
        f.gaussian_nll_loss(x, y, p),
        f.triplet_margin_loss(x, y, p),
        f.hinge_embedding_loss(x, y.detach().sign()),
    ),
    lambda x, t, m: (f.embedding(t, x.t()), f.embedding_bag(t[None], m), f.linear(x, m.t())),
    lambda b: f.scaled_dot_product_attention(b, b, b, is_causal=True),
    lambda x, y: (torch.meshgrid(x[0], y[0], indexing="ij"), torch.cartesian_prod(x[0], y[0])),
    lambda x: (
        x.histc(4),
        torch.bucketize(x, x[0].sort()[0]),
        torch.searchsorted(x[0].sort()[0], x),
    ),
    lambda x: (
        torch.atleast_3d(x),
        torch.block_diag(x, x),
        torch.diag_embed(x),
        x.diff(),
        torch.trapezoid(x),
    ),
    lambda x: (x.new_zeros(2), torch.zeros_like(x), torch.full_like(x, 2.0), x.clone(), x.detach()),
    lambda x: (
        x.double(),
        x.float(),
        x.half(),
        x.bfloat16(),
        x.long(),
        x.bool(),
        x.int(),
        x.to(torch.int8),
    ),
    lambda x: (
        x.nan_to_num(),
        x.copysign(-x),
        torch.signbit(x),
        x.ldexp(x),
        x.frexp(),
    ),
    lambda x: (
        x.contiguous(),
        x.t().contiguous(),
        x.to_sparse().to_dense(),
        torch.broadcast_tensors(x, x[0]),
    ),
    lambda x: torch._foreach_mul(torch._foreach_add([x, x], 1.0), [x, x]),
    lambda x: (x.clone().add_(1).mul_(2).clamp_(0), x.clone().zero_(), x.clone().fill_(3).sub_(1)),
    lambda x: (
        x.clone().index_fill_(0, torch.tensor([0], device=x.device), 1.0),
        x.clone().t_().relu_(),
    ),
    lambda x: torch.vmap(lambda row: row.sum() * row)(x),
]


def name_of(function) -> str:
    source = inspect.getsource(function).strip()
    return source.partition(":")[2].strip(" (),").partition(",")[0] or source


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


@pytest.mark.parametrize("function", FUNCTIONS, ids=name_of)
def test_in_inference_mode_as_on_the_cpu(function):
    with torch.inference_mode():
        expected, _ = run(function, "cpu", gradients=False)
        results, _ = run(function, "cuda:1", gradients=False)
    assert {result.device for result in results} == {CUDA_1}
    for on_gpu, on_cpu in zip(results, expected, strict=True):
        torch.testing.assert_close(on_gpu.cpu(), on_cpu, equal_nan=True)
