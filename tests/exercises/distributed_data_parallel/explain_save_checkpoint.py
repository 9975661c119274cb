"""What is wrong with the file that ``distributed_data_parallel.save_checkpoint`` writes."""

import os

from multigpu.checking import Wrong
from multigpu.checking.verdicts import count, listed

from .interrupting import NOT_RANK_ZERO, content, fingerprint


def in_own_words(refused, exercise="save_checkpoint"):
    """The refusal of a run in which a rank other than 0 wrote a file, whichever is checked."""
    if refused.message_id != "exception" or NOT_RANK_ZERO not in refused.message:
        return refused
    came, _, where = refused.message.partition("\nwhere: ")
    blamed = (
        "" if exercise == "save_checkpoint" else f"in save_checkpoint, which {exercise} needs, "
    )
    return Wrong(
        f"{exercise}.every_rank_writes",
        expected="only rank 0 writes; the other ranks wait until the file is complete",
        came=came.partition("PermissionError: ")[2] or came,
        usually=f"{blamed}`if dist.get_rank() == 0:` is missing. Ranks that write one file at the"
        " same time garble it.",
        where=where or None,
    )


def examine(case, folder, notes, old, wheres):
    """Raise Wrong unless the file at the path was complete for every rank, and never missing.

    ``notes`` are those of each rank (resuming.py), ``old`` the bytes of the file before, if any.
    """
    examine_complete(case, folder, notes, old, wheres)
    examine_never_missing(notes[0], old, teller(case, notes, wheres))


def teller(case, notes, wheres):
    def wrong(mistake, expected, came, usually, rank=0):
        kind = "Path" if case.as_path else "str"
        return Wrong(
            f"save_checkpoint.{mistake}",
            expected=f"{expected} ({count(len(notes), 'rank')}, {kind} {case.file})",
            came=came,
            usually=usually,
            where=wheres[rank],
        )

    return wrong


def examine_complete(case, folder, notes, old, wheres):
    """Every rank saw the whole new file when it returned."""
    path, wrong = case.path_in(folder), teller(case, notes, wheres)
    final = fingerprint(path)
    if final is None or (old is not None and content(path) == old):
        others = listed(sorted(os.listdir(folder)))
        raise wrong(
            "no_file",
            "a file at the path that was given",
            f"{'the old file' if final else 'no file'} there; in the folder: {others}",
            "the file was written under another name, or never renamed to the path.",
        )
    for rank, note in enumerate(notes):
        if note["seen"] != final:
            raise wrong(
                "returned_too_early",
                "the file is complete when save_checkpoint returns, on every rank",
                f"rank {rank} returned, and "
                + (
                    "there was no file yet"
                    if note["seen"] is None
                    else "the old file was still at the path"
                ),
                "nothing makes the other ranks wait for rank 0, or they wait before it writes."
                " dist.barrier() after the file has its name. time.sleep is no help, however long:"
                " rank 0 may need longer, so here it is cut short.",
                rank,
            )


def examine_never_missing(note, old, wrong):
    """``note`` of rank 0: at every moment one whole file was at the path."""
    if note["gap"]:
        raise wrong(
            "gap_between_old_and_new",
            "at every moment the old file or the new one is at the path",
            "for a while there was none: the old one was gone, the new one not there yet",
            "the old file was removed or renamed first. os.replace puts the new one in its place"
            " in one step.",
        )
    if note["from_afar"]:
        raise wrong(
            "from_another_folder",
            "the new file is written in the folder of the path, or below it, and renamed there",
            f"{note['from_afar']} was renamed to the path",
            "os.replace and os.rename work within one file system only. On a cluster the current"
            " folder or /tmp is often on another one, and two jobs there take each other's file."
            ' f"{path}.unfinished" lies beside the path.',
        )
    if old is not None and bytes.fromhex(note["old"]) != old:
        raise wrong(
            "written_in_place",
            "the old file stays whole until the new one takes its place",
            "the new checkpoint was written into the old file: who is killed meanwhile has neither",
            "open, torch.save or copy on the path itself empty the old file first. Write to another"
            " name in the same folder, then os.replace.",
        )


def examine_killed(case, folder, old, size, limit):
    """Raise Wrong unless the old file is whole after a job that was killed while it wrote."""
    path = case.path_in(folder)
    now = content(path)
    if now == old:
        return
    left = "no file" if now is None else f"a file of {len(now)} bytes"
    raise Wrong(
        "save_checkpoint.old_file_destroyed",
        expected=f"a job that is killed while it writes leaves the old file whole ({len(old)} bytes"
        f" in {case.file})",
        came=f"killed after {limit} of {size} bytes, and at the path there is {left}: half of the"
        " new checkpoint, and the old one is lost",
        usually="torch.save or open on the path itself empty the old file first. Write to another"
        " name in the same folder, then os.replace.",
    )
