"""What cannot work is refused before anything is computed, in one line that says what to do."""

import re
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from multigpu import run_ranks, virtual_gpus
from multigpu.training import TrainConfig, Trainer
from multigpu.training.config import MODES, refuse_batch, resolve_mode
from multigpu.training.distributed import Launch
from multigpu.training.dp import DataParallel
from multigpu.training.strategy import Strategy

ALONE = Launch()
ONE_OF_TWO = Launch(world_size=2, local_world_size=2, started_by="torchrun")


def rows(count: int) -> TensorDataset:
    return TensorDataset(torch.rand(count, 4), torch.zeros(count, dtype=torch.long))


def trainer(
    model: nn.Module | None = None, *, count: int = 12, eval_data: Any = None, **settings: Any
) -> Trainer:
    model = nn.Linear(4, 2) if model is None else model
    return Trainer(model, TrainConfig(**{"batch_size": 4} | settings), rows(count), eval_data)


def test_a_wrapped_part_of_a_model_is_refused_by_its_name() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.DataParallel(nn.Linear(4, 2)))
    with pytest.raises(ValueError, match=r"'1'.*DataParallel"):
        trainer(model)


def test_what_cannot_work_on_ranks_is_refused_on_each_of_them() -> None:
    def on_a_rank() -> None:
        from torch.distributed.fsdp import fully_shard
        from torch.nn.parallel import DistributedDataParallel

        for refused, words in (
            (lambda: trainer(DistributedDataParallel(nn.Linear(4, 2))), "DistributedDataParallel"),
            (lambda: trainer(fully_shard(nn.Linear(4, 2))), "FSDP"),
            (lambda: trainer(count=1, batch_size=2), r"\b1 rows.*\b2 ranks\D*1\b"),
            (lambda: trainer(mode="dp", gpus=2), "mode='dp' in a process of.*mode='ddp'"),
            (lambda: trainer(mode="single"), r"mode='single'.*\b2 ranks"),
        ):
            with pytest.raises(ValueError, match=words):
                refused()

    run_ranks(on_a_rank, 2, show=False)


@pytest.mark.parametrize(
    ("size", "ranks", "parts", "near"),
    [
        (128, 3, 1, "126 or 129"),
        (2, 3, 1, "3"),
        (100, 8, 1, "96 or 104"),
        (100, 2, 3, "96 or 102"),
        (10, 1, 4, "8 or 12"),
    ],
)
def test_a_batch_that_does_not_divide_is_refused_with_the_nearest_that_do(
    size: int, ranks: int, parts: int, near: str
) -> None:
    config = TrainConfig(batch_size=size, accumulation_steps=parts)
    with pytest.raises(ValueError, match=rf"batch_size={size}\b.*\b{near}\D*$") as found:
        refuse_batch(config, ranks=ranks, rows=1000)
    for number in re.findall(r"\d+", near):  # and these are accepted
        good = TrainConfig(batch_size=int(number), accumulation_steps=parts)
        refuse_batch(good, ranks=ranks, rows=1000)
    assert ("accumulation_steps=3" in str(found.value)) == (parts == 3)


def test_ddp_in_one_process_says_how_to_start_several() -> None:
    with pytest.raises(ValueError, match="torchrun --nproc_per_node 2"):
        trainer(mode="ddp")


def test_dp_without_a_gpu_says_how_to_get_virtual_ones() -> None:
    if torch.cuda.device_count():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ValueError, match="gpus=2"):
        trainer(mode="dp")


def test_gpus_in_ddp_is_refused_with_the_command_that_gives_as_many() -> None:
    def on_a_rank() -> None:
        for mode in ("ddp", "auto", "pipeline"):
            with pytest.raises(ValueError, match="torchrun --nproc_per_node 4"):
                trainer(mode=mode, gpus=4)

    run_ranks(on_a_rank, 1, show=False)
    with pytest.raises(ValueError, match="torchrun --nproc_per_node 4"):
        trainer(mode="zero2", gpus=4)


def test_auto_goes_by_how_the_run_was_started_and_what_it_sees() -> None:
    auto = TrainConfig()
    assert resolve_mode(auto, ONE_OF_TWO) == "ddp"
    assert resolve_mode(TrainConfig(gpus=3), ALONE) == "dp"
    with virtual_gpus(2):
        assert resolve_mode(auto, ALONE) == "dp"
    with virtual_gpus(1):
        assert resolve_mode(auto, ALONE) == "single"


def add_modes(**parents: type) -> None:
    """A mode of one's own for each of these names, a subclass of that strategy."""
    own: Any = ModuleType("multigpu.training.own_modes")
    sys.modules[own.__name__] = own
    for mode, parent in parents.items():
        setattr(own, mode, type(mode, (parent,), {"mode": mode}))
        MODES[mode] = f"own_modes:{mode}"


def test_a_mode_of_ones_own_takes_what_the_mode_that_it_extends_takes() -> None:
    def on_a_rank() -> None:
        from multigpu.training.ddp import Distributed
        from multigpu.training.fsdp import Zero3

        add_modes(half=Distributed, third=Zero3)
        trainer(mode="half", precision="float16")
        with pytest.raises(ValueError, match=r"float16.*bfloat16"):
            trainer(mode="third", precision="float16")
        for mode in ("half", "third"):
            with pytest.raises(ValueError, match="torchrun --nproc_per_node 4"):
                trainer(mode=mode, gpus=4)

    run_ranks(on_a_rank, 1, show=False)


def test_so_does_one_in_a_single_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for mode in ("chunks", "bare"):
        monkeypatch.setitem(MODES, mode, "")  # and taken out afterwards
    add_modes(chunks=DataParallel, bare=Strategy)
    with virtual_gpus(2):
        assert trainer(mode="chunks", gpus=2, precision="float16").strategy.copies == 2
        with pytest.raises(ValueError, match=r"float16.*bfloat16"):
            trainer(mode="bare", precision="float16")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mode": "dpp"}, "mode='dpp'.*auto, single, dp,.*'dp'"),
        ({"optimizer": "adamW"}, "optimizer='adamW'.*'adamw'"),
        ({"precision": "bf16"}, "precision='bf16'.*float32, bfloat16"),
        ({"batch_size": 0}, r"batch_size=0\b.*\b1\b"),
        ({"batch_size": 12.5}, r"batch_size=12\.5\b.*whole"),
        ({"epochs": -1}, "epochs=-1"),
        ({"learning_rate": 0.0}, r"learning_rate=0\.0\b.*above 0"),
        ({"clip_norm": -1.0}, "clip_norm=-1.0"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TrainConfig(**settings)


def test_a_figure_that_is_not_figured_cannot_be_watched() -> None:
    with pytest.raises(ValueError, match=r"monitor='acuracy'.*'accuracy'"):
        trainer(eval_data=rows(4), monitor="acuracy")
    for setting in ({"monitor": "accuracy"}, {"evaluate_every": 2}):
        with pytest.raises(ValueError, match="without eval_data"):
            trainer(**setting)


def test_a_frozen_model_is_refused() -> None:
    frozen = nn.Linear(4, 2).requires_grad_(False)
    for mode in ("single", "auto"):
        with pytest.raises(ValueError, match=r"no parameter.*gradient"):
            trainer(frozen, mode=mode)


def test_ranks_with_different_data_or_settings_are_told_both_values() -> None:
    def on_a_rank() -> None:
        second = torch.distributed.get_rank() == 1
        for rows_of_rank_1, setting_of_rank_1, words in (
            (10, {}, r"rank 1 has rows of train_data = 10\b.*\brank 0 has 12\b"),
            (12, {"epochs": 3}, r"rank 1 has epochs = 3\b.*\brank 0 has 2\b"),
        ):
            settings = {"epochs": 2, **(setting_of_rank_1 if second else {})}
            with pytest.raises(ValueError, match="every rank the same") as found:
                trainer(count=rows_of_rank_1 if second else 12, **settings)
            assert re.search(words, str(found.value))

    run_ranks(on_a_rank, 2, show=False)
