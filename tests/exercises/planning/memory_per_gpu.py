"""``planning.memory_per_gpu``: what a GPU holds of a model that is divided in three ways."""

import math
import operator
from fractions import Fraction

from multigpu.checking.comparing import Difference, Rule
from multigpu.checking.declaration import case, exercise
from multigpu.checking.encoding import describe

memory_per_gpu = exercise(
    "planning.memory_per_gpu",
    expects="2 bytes for each weight, 2 for its gradient and 12 for its state, as far as this GPU"
    " holds them, and the activations",
    everywhere=True,
)

PARAMETERS = (1000, 8_030_261_248, 70_553_706_496, 1_000_003, 7)
SIZES = ((4, 2, 1), (1, 1, 1), (64, 1, 1), (8, 8, 1), (3, 2, 5), (1, 8, 4), (16, 4, 8), (2, 1, 3))


@memory_per_gpu.cases
def cases():
    for zero in (1, 0, 2, 3):
        for place, parameters in enumerate(PARAMETERS):
            for dp, tp, pp in SIZES:
                more = (50, 0, 3 * 2**30)[place % 3]
                sizes = {"dp": dp, "tp": tp, "pp": pp, "zero": zero, "activation_bytes": more}
                written = ", ".join(f"{name}={value}" for name, value in sizes.items())
                title = f"memory_per_gpu({parameters}, {written})"
                yield case(title, parameters=parameters, sizes=sizes)


@memory_per_gpu.drive
def drive(submission, case, devices):
    result = submission.memory_per_gpu(case.parameters, **case.sizes)
    return int(result) if type(result) is float and result.is_integer() else result


@memory_per_gpu.words
def words(case):
    return case.sizes


@memory_per_gpu.expected
def expected(case):
    dp, tp, pp, zero, activations = case.sizes.values()
    mine = math.ceil(Fraction(case.parameters, tp * pp))
    part = math.ceil(Fraction(mine, dp))
    held = [part if zero >= stage else mine for stage in (3, 2, 1)]
    right = activations + sum(size * each for size, each in zip((2, 2, 12), held, strict=True))

    def examine(came):
        if type(came) not in (int, float):
            return Difference("wrong_type", f"{describe(came)} and not an integer")
        if came != right:
            return Difference("wrong_values", f"{came:,} bytes and not {right:,}")
        return None

    return Rule(examine)


# --- right answers -------------------------------------------------------------------------------


@memory_per_gpu.right
def with_ceil(num_parameters, dp, tp, pp, zero, activation_bytes):
    mine = math.ceil(num_parameters / (tp * pp))
    total = activation_bytes
    for size, stage in ((2, 3), (2, 2), (12, 1)):
        total += size * (math.ceil(mine / dp) if zero >= stage else mine)
    return total


# --- mistakes ------------------------------------------------------------------------------------


def counted(
    num_parameters, *, dp, tp, pp, zero, activation_bytes,
    sizes=(2, 2, 12), divided=operator.ge, divide=lambda a, b: -(-a // b),
):  # fmt: skip
    """Right, and each mistake below changes one argument."""
    mine = divide(num_parameters, tp * pp)
    part = divide(mine, dp)
    held = [part if divided(zero, stage) else mine for stage in (3, 2, 1)]
    return sum(size * each for size, each in zip(sizes, held, strict=True)) + activation_bytes


@memory_per_gpu.mistake(
    "zero_ignored",
    "nothing is divided among the replicas.",
    fix="Stage 1 divides the optimizer's state, 2 the gradients, too, 3 also the weights.",
)
def no_zero(num_parameters, **given):
    return counted(num_parameters, **given | {"zero": 0})


@memory_per_gpu.mistake(
    "always_divided",
    "everything is divided among the replicas.",
    fix="Only stage 3 divides all. Data parallelism alone copies the model.",
)
def stage_three(num_parameters, **given):
    return counted(num_parameters, **given | {"zero": 3})


@memory_per_gpu.mistake(
    "stages_cut_only_one",
    "each stage of ZeRO divides one thing only: 1 the state, 2 the gradients, 3 the weights.",
    fix="A stage divides also what the stages before it divide: compare with >=, not with ==.",
)
def equal_to_the_stage(num_parameters, **given):
    return counted(num_parameters, **given, divided=operator.eq)


@memory_per_gpu.mistake(
    "parts_forgotten",
    "the parameters are not divided by tp and pp.",
    fix="A GPU has one of tp · pp parts.",
)
def whole_model(num_parameters, **given):
    return counted(num_parameters, **given | {"tp": 1, "pp": 1})


@memory_per_gpu.mistake(
    "state_of_float32_training",
    "the optimizer's state is counted with 8 bytes: the float32 copy of the weights is missing.",
    fix="In mixed precision it takes 12: a copy of the weight, and Adam's two numbers.",
)
def without_the_copy(num_parameters, **given):
    return counted(num_parameters, **given, sizes=(2, 2, 8))


@memory_per_gpu.mistake(
    "activations_forgotten",
    "the activations are missing.",
    fix="Add activation_bytes, which are already those of one GPU.",
)
def no_activations(num_parameters, **given):
    return counted(num_parameters, **given | {"activation_bytes": 0})


@memory_per_gpu.mistake(
    "rounded_down",
    "parts are rounded down.",
    fix="The GPU that holds most decides: round up, for example with -(-a // b).",
)
def floor(num_parameters, **given):
    return counted(num_parameters, **given, divide=operator.floordiv)
