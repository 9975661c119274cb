"""Carries out one rank's part of a random program with torch.distributed."""

import os
import signal
import threading
import time

import torch
import torch.distributed as dist


def carry_out(program):
    """Every rank calls this; returns how many steps it has done."""
    steps = program["ranks"][dist.get_rank()]
    groups = [dist.group.WORLD, *(dist.new_group(members) for members in program["groups"][1:])]
    handles = {}
    for number, step in enumerate(steps):
        if step["kind"] == "return":
            return number
        if step.get("threaded"):
            thread = threading.Thread(target=do, args=(step, program, groups, handles))
            thread.start()
            thread.join()
        else:
            do(step, program, groups, handles)
    return len(steps)


def do(step, program, groups, handles):
    kind = step["kind"]
    if kind == "sleep":
        time.sleep(step["seconds"])
    elif kind == "wait":
        handles.pop(step["handle"]).wait()
    elif kind == "raise":
        raise ValueError("planted")
    elif kind == "exit":
        os._exit(0)
    elif kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "batch":
        _batch(step)
    elif kind in ("collective", "start"):
        members = program["groups"][step["group"]]
        work = _collective(step, groups[step["group"]], members, later=kind == "start")
        if kind == "start":
            handles[step["handle"]] = work
    else:
        _message(step, handles)


def _message(step, handles):
    kind, tag = step["kind"], step["tag"]
    tensor = torch.ones(step["numel"], dtype=getattr(torch, step["dtype"]))
    if kind == "recv_any":
        dist.recv(tensor, tag=tag)
    elif kind in ("send", "recv"):
        getattr(dist, kind)(tensor, step["peer"], tag=tag)
    else:
        handles[step["handle"]] = getattr(dist, kind)(tensor, step["peer"], tag=tag)


def _batch(step):
    numel = step["numel"]
    operations = [
        dist.P2POp(dist.isend, torch.ones(numel), step["to"], tag=step["tag"]),
        dist.P2POp(dist.irecv, torch.ones(numel), step["source"], tag=step["tag"]),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def _collective(step, group, members, *, later):
    op, root, numel = step["op"], step["root"], step["numel"]
    tensor = torch.ones(numel, dtype=getattr(torch, step["dtype"]))
    many = [torch.zeros_like(tensor) for _ in members]
    at_root = many if root == dist.get_rank() else None
    how = {"group": group, "async_op": later}
    if op == "all_reduce":
        return dist.all_reduce(tensor, getattr(dist.ReduceOp, step["reduce"]), **how)
    if op == "broadcast":
        return dist.broadcast(tensor, root, **how)
    if op == "reduce":
        return dist.reduce(tensor, root, getattr(dist.ReduceOp, step["reduce"]), **how)
    if op == "all_gather":
        return dist.all_gather(many, tensor, **how)
    if op == "gather":
        return dist.gather(tensor, at_root, root, **how)
    if op == "scatter":
        return dist.scatter(tensor, at_root, root, **how)
    if op == "all_to_all":
        both = torch.ones(numel * len(members)), torch.ones(numel * len(members))
        return dist.all_to_all_single(*both, **how)
    if op == "barrier":
        return dist.barrier(group)
    if op == "all_gather_object":
        return dist.all_gather_object([None] * len(members), {"size": numel}, group)
    return dist.broadcast_object_list([numel], root, group)
