"""``multigpu run`` and ``multigpu trace``: programs as they are."""

import json
import re
import subprocess
import sys
import textwrap

import pytest

from multigpu.cli import main

SETUP = """
    import os
    import sys
    from dataclasses import dataclass

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("nccl")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
"""
TRAINING = """
    model = DistributedDataParallel(nn.Linear(3, 2).cuda(local_rank), device_ids=[local_rank])
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.ones(4, 3)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    dist.barrier()
"""


@pytest.fixture
def program(tmp_path):
    """``program(text, before=SETUP)``: the path of a script with this text."""

    def write(text, *, before=""):
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(before) + textwrap.dedent(text))
        return str(path)

    return write


def test_a_script_for_cuda_runs_in_one_process(program, capsys):
    text = """
        import sys
        import torch
        from torch import nn
        model = nn.DataParallel(nn.Linear(3, 2).cuda())
        outputs = model(torch.ones(8, 3).cuda())
        print(torch.cuda.device_count(), outputs.device, sys.argv[1:], __name__)
        sys.exit(3)
    """
    assert main(["run", "--gpus", "4", program(text), "--rows", "8"]) == 3
    out, told = capsys.readouterr()
    assert out == "4 cuda:0 ['--rows', '8'] __main__\n"
    assert "cuda:3  held at most" in told
    assert "cuda:0 to cuda:1" in told


def test_what_fails_on_cuda_fails_with_the_line_of_the_script(program, capsys):
    text = "import torch\nx = torch.ones(2).cuda()\ny = x + torch.ones(2)\n"
    assert main(["run", "--gpus", "1", program(text)]) == 1
    told = capsys.readouterr().err
    assert "program.py:3" in told
    assert "Expected all tensors to be on the same device" in told
    assert "multigpu/" not in told


def test_memory_is_limited(program, capsys):
    text = "import torch\ntorch.empty(2**20, device='cuda')\n"
    assert main(["run", "--gpus", "1", "--memory", "1 MiB", program(text)]) == 1
    assert "OutOfMemoryError" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ['dist.init_process_group("gloo")', 'int(os.environ["LOCAL_RANK"])', "1 / 0"]
)
def test_in_one_process_a_script_for_torchrun_is_told_to_give_nproc(program, capsys, text):
    path = program(f"import os\nimport torch.distributed as dist\n{text}\n")
    assert main(["run", "--gpus", "2", path]) == 1
    assert ("--nproc 2" in capsys.readouterr().err) == (text != "1 / 0")


def test_a_script_for_torchrun_and_nccl_trains(program, capsys):
    ending = "print(rank, loss.device, dist.get_backend())\ndist.destroy_process_group()\n"
    path = program(textwrap.dedent(TRAINING) + ending, before=SETUP)
    assert main(["run", "--nproc", "2", path]) == 0
    out, told = capsys.readouterr()
    for rank in range(2):
        assert f"rank {rank} | {rank} cuda:{rank} nccl\n" in out
    assert re.search(r"^  all_reduce  .*, calls of rank 0: 3$", told, re.MULTILINE)


def test_a_group_can_be_made_again(program):
    text = """
        import os
        import torch
        import torch.distributed as dist
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        for _ in range(2):
            assert not dist.is_initialized()
            dist.init_process_group("nccl")
            one = torch.ones(1, device="cuda")
            dist.all_reduce(one)
            assert one.item() == dist.get_world_size() == 2
            dist.destroy_process_group()
    """
    assert main(["run", "--nproc", "2", program(text)]) == 0


def test_a_rank_that_leaves_after_the_server_has_ended_says_nothing(program, capfd):
    text = """
        import os, time
        import torch.distributed as dist
        rank = int(os.environ["RANK"])
        address = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
        dist.init_process_group("gloo", init_method=address, world_size=2, rank=rank)
        dist.barrier()
        time.sleep(rank)
        dist.destroy_process_group()
    """
    assert main(["run", "--nproc", "2", program(text)]) == 0
    out, told = capfd.readouterr()
    assert "frame #" not in out + told


def test_classes_of_the_script_can_be_sent_and_saved(program, tmp_path, capsys):
    text = f"""
        @dataclass
        class Row:
            number: int

        class Net(nn.Linear):
            pass

        rows = [None] * dist.get_world_size()
        dist.all_gather_object(rows, Row(rank))
        if rank == 0:
            print(rows)
            torch.save(Net(2, 1).cuda(), {str(tmp_path / "net.pt")!r})
            print(torch.load({str(tmp_path / "net.pt")!r}, weights_only=False).weight.device)
    """
    assert main(["run", "--nproc", "2", program(text, before=SETUP)]) == 0
    out = capsys.readouterr().out
    assert "rank 0 | [Row(number=0), Row(number=1)]" in out
    assert "rank 0 | cuda:0" in out


def test_nccl_takes_nothing_from_the_cpu(program, capsys):
    path = program("dist.all_reduce(torch.ones(2))\n", before=SETUP)
    assert main(["run", "--nproc", "2", path]) == 1
    told = capsys.readouterr().err
    assert "No backend type associated with device type cpu" in told
    assert "program.py:14" in told


@pytest.mark.parametrize(("given", "shown"), [("sys.exit(-1)", 255), ("os._exit(6)", 6)])
def test_an_exit_code_comes_through(program, capsys, given, shown):
    text = f"if rank:\n    {given}\n"
    assert main(["run", "--nproc", "2", program(text, before=SETUP)]) == shown
    assert "rank 1" in capsys.readouterr().err


def test_a_hang_is_proven_with_ranks_and_lines(program, tmp_path, capsys):
    text = """
        import torch
        import torch.distributed as dist
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            dist.recv(torch.ones(1), src=0)
        dist.barrier()
    """
    out = tmp_path / "trace.html"
    assert main(["trace", "--nproc", "2", "--out", str(out), program(text)]) == 1
    told = capsys.readouterr().err
    assert told.strip().startswith("deadlock: ")
    assert "program.py:6" in told
    assert "program.py:7" in told
    page = out.read_text()
    assert "<svg" in page
    assert "http" not in page.replace("http://www.w3.org", "")


@pytest.mark.parametrize("command", [["torchrun"], ["python3", "-m", "torch.distributed.run"]])
def test_torchrun_s_command_line_is_understood(program, tmp_path, capsys, command):
    text = """
        import sys
        import torch
        import torch.distributed as dist
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(4))
        print(dist.get_world_size(), sys.argv[1:], torch.cuda.is_available())
    """
    out = tmp_path / "trace.json"
    asked = ["--out", str(out), "--", *command, "--standalone", "--nproc_per_node=2"]
    assert main(["trace", *asked, program(text), "--epochs", "1"]) == 0
    assert "rank 1 | 2 ['--epochs', '1'] False" in capsys.readouterr().out
    events = json.loads(out.read_text())["traceEvents"]
    calls = sorted((event["pid"], event["name"], event["args"]["bytes"]) for event in events)
    assert calls == [(0, "all_reduce", 16), (1, "all_reduce", 16)]
    assert all(event["dur"] >= 0 and event["args"]["line"] == "program.py:6" for event in events)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "--gpus", "0", "x.py"], "--gpus 0"),
        (["run", "--nproc", "2", "x.py"], "no file x.py"),
        (["run", "--nproc", "2", "--", "torchrun", "x.py"], "multigpu run --nproc N PROGRAM"),
        (["run", "--gpus", "2", "python", "-m", "torch.distributed.run", "x.py"], "--nproc N"),
        (["run", "--gpus", "1", "--out", "x.json", "x.py"], "--nproc"),
        (["trace", __file__], "--nproc"),
        (["run", "--nproc", "2", "--timeout", "0", __file__], "--timeout 0"),
        (["run", "--nproc", "1", "--out", "no/where/x.json", __file__], "no folder no/where"),
    ],
)
def test_wrong_usage_says_what_to_give(arguments, says, capsys):
    assert main(arguments) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "trace"])
def test_without_a_program_the_ways_to_call_it_are_shown(command, capsys):
    with pytest.raises(SystemExit) as exit_:
        main([command])
    assert exit_.value.code == 2
    said = capsys.readouterr().err
    assert f"multigpu {command} --nproc N [OPTIONS] PROGRAM [ARGUMENTS]" in said
    assert said.endswith("the following arguments are required: PROGRAM\n")


@pytest.mark.slow
def test_a_module_runs_like_python_m(tmp_path):
    """With its threads and what it has registered to run at exit."""
    text = """
        import atexit
        import threading
        import time
        import torch
        print(__name__, torch.cuda.device_count())
        atexit.register(print, "registered")
        threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
    """
    (tmp_path / "mine.py").write_text(textwrap.dedent(text))
    command = [sys.executable, "-m", "multigpu", "run", "--gpus", "2", "-m", "mine"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["__main__", "2", "thread", "registered"]


@pytest.mark.parametrize("mode", ["zero3", "pipeline"])
@pytest.mark.slow
def test_the_trainer_trains_on_virtual_gpus(capsys, mode):
    command = ["train", "--data", "tiny", "--mode", mode, "--epochs", "1", "--max-steps", "3"]
    assert main(["run", "--nproc", "2", "-m", "multigpu", *command]) == 0
    out = capsys.readouterr().out
    assert f"{mode} on 2 ranks (nccl on 2 GPUs)" in out
    assert "done: 3 steps" in out
