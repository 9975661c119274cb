"""The lessons in the order in which they are meant to be read, with their exercises and notebooks.

The command and the site take the order from here.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Lesson:
    """One page of ``docs/lessons``, with what belongs to it."""

    page: str
    title: str
    needs: tuple[str, ...] = ()  # the pages of the lessons that it builds on
    notebook: str | None = None  # one notebook may go with two lessons
    exercises: tuple[str, ...] = ()  # each exercise belongs to one lesson

    @property
    def number(self) -> int:
        """Its place on the way, from 1."""
        return LESSONS.index(self) + 1


@dataclass(frozen=True)
class Part:
    """Lessons about one question."""

    title: str
    lessons: tuple[Lesson, ...]


def _all(module: str, functions: str) -> tuple[str, ...]:
    return tuple(f"{module}.{function}" for function in functions.split())


PARTS: Final = (
    Part(
        "One process, several GPUs",
        (
            Lesson("one_gpu", "One GPU: what a training step costs"),
            Lesson(
                "data_parallel",
                "nn.DataParallel: wrap, move, train",
                needs=("one_gpu",),
                notebook="multi_GPU",
            ),
            Lesson(
                "data_parallel_by_hand",
                "DataParallel by hand",
                needs=("data_parallel",),
                notebook="multi_GPU",
                exercises=_all(
                    "data_parallel",
                    "split replicate parallel_apply gather sum_gradients broadcast train_step",
                ),
            ),
        ),
    ),
    Part(
        "One process for each GPU",
        (
            Lesson(
                "processes_and_ranks",
                "Processes, ranks and collectives",
                needs=("data_parallel_by_hand",),
                notebook="ranks",
                exercises=_all("collectives", "shift broadcast"),
            ),
            Lesson(
                "server_to_all_reduce",
                "From the model server to all-reduce",
                needs=("processes_and_ranks",),
                notebook="ranks",
                exercises=_all("collectives", "all_reduce ring_all_reduce")
                + _all("model_server", "worker_step server_step"),
            ),
            Lesson(
                "distributed_data_parallel",
                "DistributedDataParallel and torchrun",
                needs=("server_to_all_reduce",),
                notebook="ddp",
                exercises=_all("distributed_data_parallel", "shard_indices"),
            ),
            Lesson(
                "ddp_by_hand",
                "DDP by hand",
                needs=("distributed_data_parallel",),
                notebook="ddp",
                exercises=_all(
                    "distributed_data_parallel",
                    "average_gradients NaiveDDP OverlappedDDP BucketedDDP",
                ),
            ),
        ),
    ),
    Part(
        "Real data, a real loop",
        (
            Lesson(
                "feeding_data",
                "Feeding many GPUs",
                needs=("distributed_data_parallel",),
                notebook="data",
                exercises=_all(
                    "distributed_data_parallel", "weighted_average_gradients global_mean"
                ),
            ),
            Lesson(
                "trainer",
                "A Trainer",
                needs=("ddp_by_hand", "feeding_data"),
                notebook="trainer",
                exercises=_all("distributed_data_parallel", "save_checkpoint load_checkpoint"),
            ),
        ),
    ),
    Part(
        "What it costs",
        (
            Lesson(
                "measuring",
                "Measuring: single against DP against DDP",
                needs=("trainer",),
                notebook="scaling",
            ),
            Lesson(
                "cost",
                "What will it cost?",
                needs=("measuring",),
                exercises=_all("costs", "flops_per_token all_reduce_time step_time"),
            ),
        ),
    ),
    Part(
        "Larger than one GPU",
        (
            Lesson(
                "precision",
                "Precision and recomputation",
                needs=("cost",),
                exercises=_all("memory", "ScaledStep Checkpointed"),
            ),
            Lesson(
                "sharding",
                "When the model does not fit: ZeRO and FSDP",
                needs=("trainer",),
                notebook="sharding",
                exercises=_all("sharding", "Zero1Optimizer Zero2Optimizer Zero3"),
            ),
            Lesson(
                "pipeline",
                "Pipeline parallelism: stages, schedules and the bubble",
                needs=("sharding",),
                notebook="pipeline",
                exercises=_all("pipeline", "balance gpipe one_f_one_b run"),
            ),
        ),
    ),
    Part(
        "Split models and sequences",
        (
            Lesson(
                "tensor_parallel",
                "Tensor parallelism",
                needs=("pipeline",),
                exercises=_all(
                    "tensor_parallel",
                    "ColumnParallelLinear RowParallelLinear vocab_parallel_cross_entropy",
                ),
            ),
            Lesson(
                "long_sequences",
                "Long sequences",
                needs=("tensor_parallel",),
                exercises=_all("context_parallel", "merge_partial_attention ring_attention"),
            ),
            Lesson(
                "experts",
                "Experts",
                needs=("tensor_parallel",),
                exercises=_all("experts", "dispatch combine"),
            ),
            Lesson(
                "mesh",
                "Two and three dimensions",
                needs=("tensor_parallel",),
                exercises=_all("mesh", "groups_of average_over"),
            ),
        ),
    ),
    Part(
        "Farther, and safely",
        (
            Lesson("many_machines", "Many machines", needs=("trainer",)),
            Lesson(
                "when_it_hangs",
                "When it hangs: finding the rank that is to blame",
                needs=("ddp_by_hand",),
                exercises=_all(
                    "hangs", "rank_zero_metric uneven_batches reordered_reductions early_stop"
                ),
            ),
            Lesson(
                "planning",
                "Plan a run",
                needs=("cost", "mesh"),
                exercises=_all("planning", "memory_per_gpu best_layout"),
            ),
        ),
    ),
)
LESSONS: Final = tuple(lesson for part in PARTS for lesson in part.lessons)
NOTEBOOKS: Final = tuple(
    dict.fromkeys(lesson.notebook for lesson in LESSONS if lesson.notebook is not None)
)


def lessons_with(*, notebook: str | None = None, exercise: str | None = None) -> list[Lesson]:
    """The lessons that a notebook (``multi_GPU``) or an exercise (``hangs.early_stop``) is for.

    An exercise module's name (``hangs``) gives the lessons of all its exercises.
    """
    return [
        lesson
        for lesson in LESSONS
        if (notebook is not None and lesson.notebook == notebook)
        or any(exercise in (name, name.partition(".")[0]) for name in lesson.exercises)
    ]


def as_lessons(lessons: list[Lesson]) -> str:
    """``lesson 3`` or ``lessons 6 to 9``; the numbers of a run of lessons."""
    first, last = lessons[0].number, lessons[-1].number
    if first == last:
        return f"lesson {first}"
    return f"lessons {first} {'and' if last == first + 1 else 'to'} {last}"
