"""Where commands write to: a pipe or a device is refused before any work, and stays what it is."""

import os
import stat

import pytest

COMMANDS = {
    "prune": "prune {net} -o {place}",
    "records": "prune {net} -o out.safetensors --records {place}",
    "onnx": "export {net} --onnx {place}",
    "export": "export {net} --torch-export {place}",
    "plain": "export {net} --safetensors {place}",
    "speed": "speed {net} --report {place}.html",
    "retrain": "retrain {net} -o {place}",
    "train": "train 5FC-10SM --data mnist-mini -o {place}",
}


@pytest.mark.parametrize("line", COMMANDS.values(), ids=COMMANDS)
def test_only_files_are_written_to(run, trained, line):
    pipe, link = (f"{name}.html" if line.endswith(".html") else name for name in ("pipe", "link"))
    os.mkfifo(pipe)
    os.symlink("/dev/null", link)
    for place, what in (("pipe", f"{pipe}: it is a pipe"), ("link", f"{link}: it is a device")):
        run(line.format(net=trained, place=place)).refused(f"cannot write {what}; choose another name")
    assert stat.S_ISFIFO(os.lstat(pipe).st_mode)
    assert stat.S_ISLNK(os.lstat(link).st_mode)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert sorted(os.listdir()) == [link, pipe]


def test_a_link_and_a_mode_outlive_what_is_written(run, trained):
    with open("old.safetensors", "w"):
        os.chmod("old.safetensors", 0o640)
    os.symlink("old.safetensors", "link.safetensors")
    run(f"prune {trained} -o link.safetensors --force").says()
    assert os.path.islink("link.safetensors")
    assert stat.S_IMODE(os.stat("old.safetensors").st_mode) == 0o640
    assert os.path.getsize("old.safetensors") > 1000


def test_what_a_kill_left_is_removed_even_where_the_file_is_there_already(run, trained):
    """Killed between the last two steps: the file is whole, and the same command has nothing to do."""
    os.mkdir(".out.safetensors.abcd1234.part")
    with open("out.safetensors", "w"):
        pass
    run(f"prune {trained} -o out.safetensors").refused("is there already; --force replaces it")
    assert os.listdir() == ["out.safetensors"]
