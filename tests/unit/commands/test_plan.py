"""``multigpu plan``: what it prints for a layout and for a search, and what it refuses."""

import json

import pytest

from multigpu.cli import main

GPT = (
    "--layers 24 --hidden 2048 --heads 32 --kv-heads 32 --ffn 8192 --vocab 50304 --seq 4096 "
    "--global-batch 1024 --gpu H100 --gpus 8 --gpus-per-node 8"
)
WHOLE = f"{GPT} --dp 2 --tp 4 --pp 1 --cp 1 --zero 0 --micro-batch 8 --recompute none"
LLAMA = "--model llama-3-8b --gpus 16 --global-batch 64"


def answer(capsys, arguments, code=0):
    """What the command printed."""
    assert main(["plan", *arguments.split()]) == code
    return capsys.readouterr().out


def test_json_has_all_figures_of_a_layout(capsys):
    found = json.loads(answer(capsys, f"{WHOLE} --json"))
    assert found["fits"] is True
    assert 0.2 < found["mfu"] < 0.6
    assert found["model_tflops_per_gpu"] == pytest.approx(found["mfu"] * 989)
    tokens = found["tokens_per_second_per_gpu"] * found["step_seconds"] * 8
    assert tokens == pytest.approx(1024 * 4096)
    assert found["memory_gib_per_gpu"] == pytest.approx(sum(found["memory_gib"].values()))
    exposed = sum(part["exposed"] for part in found["parts"].values())
    assert exposed == pytest.approx(found["step_seconds"])
    assert (found["layout"]["dp"], found["layout"]["tp"], found["layout"]["zero"]) == (2, 4, 0)


def test_options_change_the_plan(capsys):
    def figure(more, key="step_seconds"):
        return json.loads(answer(capsys, f"{GPT} --dp 8 {more} --json"))[key]

    usual = figure("")
    slower = ("--precision fp32", "--attention standard", "--recompute full", "--node-bandwidth .1")
    assert all(figure(option) > usual for option in slower)
    assert figure("--gpu B200") < usual
    assert figure("--gated", "parameters") > figure("--no-gated", "parameters")
    assert figure("--zero 3", "memory_gib_per_gpu") < figure("", "memory_gib_per_gpu")


def test_a_layout_is_shown_with_its_memory_and_its_step(capsys):
    shown = answer(capsys, WHOLE)
    for said in ("1.31 billion parameters (GELU)", "dp 2, tp 4", "of 80 GiB, fits", "optimizer",
                 "activations", "compute", "exposed", "tokens/s per GPU", "MFU"):  # fmt: skip
        assert said in shown, said
    assert "pipeline" not in shown, "a part that takes no time is left out"


def test_the_other_sizes_leave_dp_and_what_does_not_fit_is_shown(capsys):
    assert "dp 4, tp 4" in answer(capsys, f"{LLAMA} --tp 4")
    assert "DOES NOT FIT" in answer(capsys, f"{LLAMA} --dp 16")


def test_a_search_shows_the_best_and_why_others_lose_in_80_columns(capsys):
    shown = answer(capsys, LLAMA)
    assert "The best of" in shown
    assert "Why the other kinds lose" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_search_that_finds_nothing_ends_with_1(capsys):
    large = "--model gpt-175b --gpus 8 --global-batch 8"
    assert "larger GPUs" in answer(capsys, large, code=1)
    assert json.loads(answer(capsys, f"{large} --json", code=1))["fits"] is False


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (f"{WHOLE} --tp 8", "is 16 GPUs, not 8"),
        (f"{GPT} --gpu H1000", "--gpu H1000: choose one of"),
        (f"{GPT} --dp 8 --micro-batch 3", "--global-batch 1024"),
        (f"{GPT} --dp 8 --recompute all", "--recompute all: choose one of none"),
        (f"{GPT} --node-bandwidth 0", "--node-bandwidth 0: above 0"),
        ("--model gpt-5 --gpus 8 --global-batch 8", "llama-3-8b"),
        ("--layers 2 --gpus 8 --global-batch 8", "hidden"),
    ],
)
def test_wrong_usage_is_explained_on_standard_error(capsys, arguments, said):
    assert main(["plan", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert out == ""
