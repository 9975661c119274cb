"""Training with wrappers written by hand: the solutions stand in for a learner's exercises."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from multigpu import RankError, run_ranks, virtual_gpus
from multigpu.training import TrainConfig, Trainer
from multigpu.training.own import load_own

ROOT = Path(__file__).resolve().parents[3]
ROWS = 44  # in batches of 12: the last one has 8, and on 3 GPUs 3, 3 and 2


def data() -> TensorDataset:
    torch.manual_seed(3)
    return TensorDataset(torch.rand(ROWS, 5), torch.randint(0, 3, (ROWS,)))


def weights(
    mode: str, folder: Path | None, *, gpus: int | None = None, parts: int = 1
) -> dict[str, Tensor]:
    """The weights after two epochs from a fixed start; `folder`: where the wrapper is from."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    config = TrainConfig(
        mode=mode,
        gpus=gpus,
        batch_size=12,
        accumulation_steps=parts,
        epochs=2,
        optimizer="sgd",
        learning_rate=0.1,
        progress=False,
    )
    own = None if folder is None else load_own(folder, mode)
    trainer = Trainer(model, config, data(), data(), own=own)
    trainer.fit()
    assert folder is None or f"{folder.name}/" in trainer.describe()
    return {name: value.detach().cpu() for name, value in model.state_dict().items()}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=1e-5, atol=1e-6)


def test_the_seven_functions_train_as_one_gpu_does() -> None:
    alone = weights("single", None, parts=2)
    with virtual_gpus(3):
        assert_same(weights("dp", ROOT / "solutions", gpus=3, parts=2), alone)
        assert_same(weights("dp", None, gpus=3, parts=2), alone)


def test_bucketed_ddp_trains_as_pytorchs_does() -> None:
    def both() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return weights("ddp", ROOT / "solutions", parts=2), weights("ddp", None, parts=2)

    alone = weights("single", None, parts=2)
    for by_hand, pytorchs in run_ranks(both, 3, show=False):
        assert_same(by_hand, pytorchs)
        assert_same(by_hand, alone)


@pytest.mark.parametrize("by_hand", [True, False])
def test_both_replicas_compute_in_bfloat16(by_hand: bool) -> None:
    seen = []

    class Spy(nn.Linear):
        def forward(self, rows: Tensor) -> Tensor:
            out = super().forward(rows)
            seen.append(out.dtype)
            return out

    own = load_own(ROOT / "solutions", "dp") if by_hand else None
    with virtual_gpus(2):
        config = TrainConfig(mode="dp", gpus=2, batch_size=12, max_steps=1, precision="bfloat16")
        Trainer(Spy(5, 3), config, data(), own=own).fit()
    assert seen == [torch.bfloat16] * 2


def test_a_half_written_class_is_refused_with_its_name(tmp_path: Path) -> None:
    write(
        tmp_path,
        "distributed_data_parallel",
        "from torch import nn\n"
        "class BucketedDDP(nn.Module):\n"
        "    def __init__(self, module):\n"
        "        super().__init__()\n"
        "    def forward(self, rows):\n"
        "        raise NotImplementedError('forward')\n",
    )
    place = r"BucketedDDP\b.*distributed_data_parallel\.py:6\b"
    with pytest.raises(RankError, match=rf"NotWritten: .*{place}"):
        run_ranks(weights, 1, "ddp", tmp_path, show=False)


@pytest.mark.parametrize(
    ("mode", "words"),
    [("dp", r"data_parallel\.py"), ("single", r"mode='single'.*\bdp\b")],
)
def test_what_is_not_there_is_said(tmp_path: Path, mode: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_own(tmp_path, mode)


def test_a_missing_function_is_named(tmp_path: Path) -> None:
    write(tmp_path, "data_parallel", "")
    with virtual_gpus(2), pytest.raises(ValueError, match="multigpu check replicate"):
        weights("dp", tmp_path, gpus=2)


def write(folder: Path, module: str, source: str) -> None:
    (folder / f"{module}.py").write_text(source, encoding="utf-8")
