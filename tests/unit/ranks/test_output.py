"""What ranks print: shown as it comes, with the rank in front, and kept."""

import io
import sys
import time

import torch.distributed as dist
from said import numbers_in

from multigpu import run_ranks


def chatter():
    print("first line of", dist.get_rank())
    print("to the other stream", file=sys.stderr)
    print("no newline", end="")


def test_every_line_has_its_rank_in_front(capsys):
    results = run_ranks(chatter, 2)
    shown = capsys.readouterr().out.splitlines()
    assert numbers_in(shown[0])[0] == 2
    assert results.backend in shown[0]
    for rank in range(2):
        mine = [line for line in shown if line.startswith(f"rank {rank} | ")]
        assert mine == [
            f"rank {rank} | first line of {rank}",
            f"rank {rank} | to the other stream",
            f"rank {rank} | no newline",
        ]


def test_nothing_is_shown_if_so_asked_and_all_is_kept(capsys):
    results = run_ranks(chatter, 2, show=False)
    assert capsys.readouterr().out == ""
    assert results.outputs[1] == "first line of 1\nto the other stream\nno newline"


def test_output_is_shown_while_the_ranks_run(tmp_path, monkeypatch):
    class Screen(io.StringIO):
        def write(self, text):
            if "here I am" in text:
                (tmp_path / "seen").touch()
            return len(text)

    def wait_until_it_is_seen(path):
        print("here I am")
        while not path.exists():
            time.sleep(0.01)

    monkeypatch.setattr(sys, "stdout", Screen())
    run_ranks(wait_until_it_is_seen, 1, tmp_path / "seen", timeout=20)


def test_output_in_other_alphabets_survives_being_cut_in_pieces(capsys):
    run_ranks(lambda: print("ü€" * 50_000), 1)
    assert capsys.readouterr().out.splitlines()[1] == "rank 0 | " + "ü€" * 50_000
