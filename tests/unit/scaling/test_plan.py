"""The planner: against published steps and memory, and what must hold for every layout."""

from dataclasses import replace

import pytest

from multigpu.scaling import published_steps
from multigpu.scaling.layouts import kind_of, layouts, search
from multigpu.scaling.pipeline_times import bubble
from multigpu.scaling.plan import GIB, Layout, plan, plan_of, predicted
from multigpu.scaling.specs import cluster_of, model_of

ROWS = published_steps()
MEGATRON = [row for row in ROWS if row.suite.startswith("Megatron")]
TORCHTITAN = [row for row in ROWS if row.suite.startswith("torchtitan")]
SMALL = model_of(layers=8, hidden=1024, heads=16, kv_heads=16, ffn=4096, vocab=32000, seq=2048)


def small(gpus=8, batch=64, **layout):
    """A plan of the small GPT on H100s."""
    return plan(SMALL, cluster_of("H100", gpus=gpus), Layout(**layout), global_batch=batch)


def off(row):
    """By which share of the published value the prediction is off."""
    return abs(predicted(row) / row.value - 1)


def test_the_rows_are_those_of_megatrons_table():
    published = [137, 138, 142, 135, 138, 140, 148, 155, 163, 163]  # table 1 of arXiv 2104.04473
    assert [row.value for row in MEGATRON] == published
    assert all(row.gpus == plan_of(row).layout.gpus for row in MEGATRON)


def test_eight_of_megatrons_ten_rows_are_predicted_within_ten_percent():
    assert sum(off(row) <= 0.1 for row in MEGATRON) >= 8


@pytest.mark.parametrize("row", TORCHTITAN, ids=lambda row: f"{row.work} on {row.gpus} {row.gpu}")
def test_torchtitans_rows_are_predicted_within_twenty_percent(row):
    assert off(row) <= 0.2


@pytest.mark.parametrize("row", [r for r in TORCHTITAN if hasattr(r, "gib")])
def test_the_memory_of_torchtitans_rows_is_predicted_within_ten_percent(row):
    assert plan_of(row).memory_gib == pytest.approx(row.gib, rel=0.1)


@pytest.mark.parametrize("row", MEGATRON, ids=lambda row: row.work)
def test_megatrons_models_have_the_published_number_of_parameters_and_fit(row):
    planned = plan_of(row)
    published = float(row.work.split()[1])
    assert planned.model.parameters / 1e9 == pytest.approx(published, abs=0.06, rel=0.005)
    assert planned.fits


@pytest.mark.parametrize(
    ("name", "billions"),
    [("gpt-175b", 175), ("llama-2-13b", 13.0), ("llama-2-70b", 69), ("llama-3-8b", 8.03),
     ("llama-3-70b", 70.6), ("llama-3-405b", 405.8)],
)  # fmt: skip
def test_known_models_have_the_size_in_their_names(name, billions):
    assert model_of(name).parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_flops_are_those_of_megatrons_formula():
    row = MEGATRON[4]
    planned, s, V = plan_of(row), 2048, 51200
    B, l, h = row.global_batch, planned.model.layers, planned.model.hidden  # noqa: E741
    lh2 = B * s * l * h * h
    seconds = planned.step_seconds * row.gpus * 1e12
    full = 96 * lh2 * (1 + s / (6 * h) + V / (16 * l * h)) / seconds
    without = 72 * lh2 * (1 + s / (6 * h) + V / (12 * l * h)) / seconds
    assert planned.model_tflops_per_gpu == pytest.approx(full)
    assert planned.hardware_tflops_per_gpu == pytest.approx(full)
    assert planned.mfu == pytest.approx(without / 312)


def test_flops_are_those_of_torchtitan_without_the_embedding():
    (row,) = (row for row in TORCHTITAN if row.work == "Llama 3 70B, full")
    planned = plan_of(row)
    model, tokens = planned.model, planned.tokens_per_second_per_gpu
    embedding = 6 * model.vocab * model.hidden
    per_token = 6 * model.parameters + 12 * model.layers * model.hidden * model.seq
    assert planned.mfu == pytest.approx((per_token - embedding) * tokens / 312e12)
    assert row.value * per_token / 312e12 == pytest.approx(0.517, abs=0.001)  # as published then


def test_what_is_recomputed_is_not_in_mfu():
    for recompute, passes in {"none": 3, "selective": 3, "full": 4}.items():
        found = small(gpus=1, recompute=recompute, attention="flash")
        layers = (
            SMALL.layers * SMALL.layer_flops / (SMALL.layers * SMALL.layer_flops + SMALL.head_flops)
        )
        more = found.model_tflops_per_gpu / (found.mfu * 989) - 1
        assert more == pytest.approx((passes - 3) / 3 * layers)
    hardware = small(gpus=1, recompute="selective").hardware_tflops_per_gpu
    assert hardware > small(gpus=1, recompute="selective").model_tflops_per_gpu


def test_adam_in_mixed_precision_needs_16_bytes_per_parameter():
    memory = small(gpus=1).memory
    state = memory["weights"] + memory["gradients"] + memory["optimizer"]
    assert state == pytest.approx(16 * SMALL.parameters)
    sharded = small(dp=8, zero=1).memory
    assert sharded["weights"] + sharded["gradients"] == pytest.approx(4 * SMALL.parameters)
    assert sharded["optimizer"] == pytest.approx(12 * SMALL.parameters / 8)


@pytest.mark.parametrize(
    ("recompute", "numbers"), [("none", 34 + 5 * 16 * 2), ("selective", 34), ("full", 2)]
)
def test_activations_are_those_of_korthikanti(recompute, numbers):
    """s·b·h·(34 + 5as/h) for a layer; selective without the scores, full with the input only."""
    two, b = {}, 4
    for layers in (1, 2):
        model = replace(SMALL, layers=layers)
        layout = Layout(micro_batch=b, recompute=recompute, attention="standard")
        planned = plan(model, cluster_of("H100", gpus=1), layout, global_batch=b)
        two[layers] = planned.memory["activations"]
    assert two[2] - two[1] == pytest.approx(SMALL.seq * b * SMALL.hidden * numbers)


def test_more_replicas_or_a_higher_zero_stage_never_need_more_memory():
    def memory(replicas, zero):
        return small(gpus=replicas, batch=replicas, dp=replicas, zero=zero).memory_gib

    for zero in range(4):
        sizes = [memory(replicas, zero) for replicas in (1, 2, 8, 64)]
        assert sizes == sorted(sizes, reverse=True)
    for replicas in (1, 2, 8):
        sizes = [memory(replicas, zero) for zero in range(4)]
        assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("v", [1, 2])
def test_the_bubble_is_that_of_the_pipelines_formula(v):
    schedule = "interleaved" if v > 1 else "1f1b"
    parts = small(gpus=4, batch=16, pp=4, schedule=schedule, stages_per_rank=v).parts
    busy = parts["compute"].exposed + parts["tensor"].exposed
    idle = parts["pipeline bubble"].exposed
    assert idle / (busy + idle) == pytest.approx(bubble(4, 16, stages_per_rank=v))


def test_1f1b_holds_the_activations_of_as_many_micro_batches_as_stages():
    model, cluster = replace(SMALL, vocab=10), cluster_of("H100", gpus=4)

    def held(batch, schedule="1f1b"):
        layout = Layout(pp=4, schedule=schedule)
        return plan(model, cluster, layout, global_batch=batch).memory["activations"]

    assert 4 * held(1) == pytest.approx(held(4), rel=0.01)
    assert held(4) == held(8) == held(32)
    assert held(32, "gpipe") == pytest.approx(8 * held(32), rel=0.01)


def test_backward_hides_the_gradients_of_data_parallelism_but_not_tensor_parallelism():
    data = small(dp=8).parts["data"]
    assert data.seconds > data.exposed == 0
    tensor = small(tp=8).parts["tensor"]
    assert tensor.seconds == tensor.exposed > 0


def test_zero_3_sends_in_every_micro_batch_and_ddp_once():
    def sent(zero, micro_batch):
        return small(dp=8, zero=zero, micro_batch=micro_batch).parts["data"].seconds

    assert sent(3, 1) == pytest.approx(8 * sent(3, 8))
    assert sent(0, 1) == pytest.approx(sent(0, 8))
    assert sent(3, 8) == pytest.approx(1.5 * sent(0, 8))


def test_a_slower_network_makes_the_step_longer_only_between_nodes():
    def step(gpus, network):
        cluster = replace(cluster_of("H100", gpus=gpus), network=network)
        return plan(SMALL, cluster, Layout(dp=gpus), global_batch=64).step_seconds

    assert step(16, 1e8) > 2 * step(16, 50e9)
    assert step(8, 1e8) == step(8, 50e9)


def test_a_ring_between_nodes_uses_the_network_cards_of_all_its_gpus_on_a_node():
    cluster = cluster_of("A100-80", gpus=64)
    together = cluster.collective_seconds(64, 1e9, stride=1)
    alone = cluster.collective_seconds(8, 1e9, stride=8)  # one GPU of each node
    assert together / alone == pytest.approx((63 / 64 / 200) / (7 / 8 / 25), rel=0.01)


@pytest.mark.parametrize(
    ("layout", "batch", "said"),
    [
        ({"dp": 2, "tp": 2}, 64, "is 4 GPUs, not 8"),
        ({"dp": 8, "zero": 4}, 64, "zero=4: choose one of 0, 1, 2, 3"),
        ({"dp": 8, "micro_batch": 3}, 64, r"global_batch=64.* = 24; try 72"),
        ({"dp": 8}, 0, "global_batch=0.*try 8"),
        ({"pp": 8, "stages_per_rank": 2, "schedule": "interleaved"}, 64, "16 stages for 8 layers"),
        ({"dp": 8, "schedule": "interleaved"}, 64, "2 stages per rank or more"),
        ({"pp": 4, "dp": 2, "stages_per_rank": 2, "schedule": "interleaved"}, 6, "divides, not 3"),
    ],
)  # fmt: skip
def test_an_impossible_layout_is_refused(layout, batch, said):
    with pytest.raises(ValueError, match=said):
        small(batch=batch, **layout)


def test_what_does_not_divide_the_model_is_refused():
    three = cluster_of("H100", gpus=3)
    with pytest.raises(ValueError, match="tp=3: must divide heads=16"):
        plan(SMALL, three, Layout(tp=3), global_batch=3)
    with pytest.raises(ValueError, match="cp=3: must divide seq=2048"):
        plan(SMALL, three, Layout(cp=3), global_batch=3)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"name": "gpt-5"}, "model=gpt-5: choose one of .*llama-3-8b"),
        ({"name": "llama-3-8b", "layers": 0}, "layers=0: at least 1"),
        (
            {"name": "llama-3-8b", "heads": 7, "kv_heads": 7},
            "hidden=4096: not divisible by heads=7",
        ),
        ({"name": "llama-3-8b", "kv_heads": 5}, "kv_heads=5: must divide heads=32"),
    ],
)
def test_an_impossible_model_is_refused(sizes, said):
    with pytest.raises(ValueError, match=said):
        model_of(**sizes)


@pytest.mark.parametrize(
    ("gpu", "gpus", "said"),
    [
        ("H1000", 8, "gpu=H1000: choose one of .*A100-80, H100"),
        ("H100", 12, "gpus=12: give a multiple of gpus_per_node=8"),
        ("H100", 0, "gpus=0"),
    ],
)
def test_an_impossible_cluster_is_refused(gpu, gpus, said):
    with pytest.raises(ValueError, match=said):
        cluster_of(gpu, gpus=gpus)


def test_a_search_finds_what_planning_every_layout_finds():
    model, cluster = model_of("llama-3-8b"), cluster_of("H100", gpus=16)
    found = search(model, cluster, global_batch=64)
    every = [plan(model, cluster, each, global_batch=64) for each in layouts(model, cluster, 64)]
    fit = [planned for planned in every if planned.fits]
    assert (found.tried, found.fitting) == (len(every), len(fit))
    steps = [planned.step_seconds for planned in found.best]
    assert steps == sorted(steps)
    assert all(planned.fits and planned.layout.gpus == 16 for planned in found.best)
    sizes = {(p.layout.dp, p.layout.tp, p.layout.pp, p.layout.cp) for p in found.best}
    assert 1 < len(sizes) == len(steps) <= 10
    assert found.best[0].step_seconds == pytest.approx(min(p.step_seconds for p in fit), abs=2e-6)
    assert max(planned.layout.tp for planned in every) == 8, "tensor parallelism stays in a node"
    kinds = {kind_of(planned.layout) for planned in every}
    assert not {kind_of(planned.layout) for planned in found.best} & found.others.keys()
    assert kinds == {kind_of(planned.layout) for planned in found.best} | found.others.keys()


def test_each_other_kind_says_whether_it_is_slower_or_too_large():
    model, cluster = model_of("llama-3-70b"), cluster_of("H200", gpus=16)
    found = search(model, cluster, global_batch=16, recompute="full")
    least = plan(model, cluster, Layout(dp=16, zero=2, recompute="full"), global_batch=16)
    weights = least.memory["weights"] / GIB
    assert found.others["data"] == f"needs {least.memory_gib:.0f} GiB (weights {weights:.0f})"
    slower = [float(why.split()[0]) for why in found.others.values() if "× the step" in why]
    assert slower
    assert slower == sorted(slower)
    assert slower[0] >= 1


def test_a_search_keeps_to_what_is_fixed():
    cluster = cluster_of("A100-80", gpus=8)
    found = search(SMALL, cluster, global_batch=64, zero=1, recompute="full", micro_batch=2)
    for planned in found.best:
        each = planned.layout
        assert (each.zero, each.recompute, each.micro_batch) == (1, "full", 2)


def test_a_search_keeps_to_sizes_that_are_fixed_and_to_stages_of_a_pipeline():
    cluster = cluster_of("A100-80", gpus=8)
    found = search(SMALL, cluster, global_batch=64, tp=4)
    assert {planned.layout.tp for planned in found.best} == {4}
    stages = list(layouts(SMALL, cluster, 64, stages_per_rank=2))
    assert {each.schedule for each in stages} == {"interleaved"}
    assert min(each.pp for each in stages) == 2


def test_a_search_refuses_what_no_layout_has():
    cluster = cluster_of("A100-80", gpus=8)
    with pytest.raises(TypeError, match="micro_batches"):
        search(SMALL, cluster, global_batch=64, micro_batches=2)
    for wrong in ({"zero": 4}, {"tp": 0}):
        [[name, value]] = wrong.items()
        with pytest.raises(ValueError, match=f"{name}={value}: "):
            search(SMALL, cluster, global_batch=64, **wrong)
    with pytest.raises(ValueError, match="micro_batch=0: "):
        list(layouts(SMALL, cluster, 64, micro_batch=0))


def test_a_batch_that_no_layout_divides_is_refused():
    prime = replace(SMALL, heads=1, kv_heads=1, layers=1, seq=2049)
    with pytest.raises(ValueError, match=r"global_batch=3.*multiple of the number of GPUs"):
        search(prime, cluster_of("H100", gpus=8), global_batch=3)
