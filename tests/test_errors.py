"""Every error is a FetaError; unknown names come with the nearest known one."""

from pathlib import Path

import pytest

from feta import errors


@pytest.mark.parametrize("kind", [errors.ConfigError, errors.DataError, errors.FileError, errors.ModelError])
def test_one_base_and_the_message_as_it_was_given(kind):
    assert issubclass(kind, errors.FetaError)
    assert str(kind("fc1: must be whole, got 0.5")) == "fc1: must be whole, got 0.5"
    builtin = {errors.ConfigError: ValueError, errors.FileError: OSError}  # what people catch
    assert issubclass(kind, builtin.get(kind, Exception))


def test_unknown_name_suggests_the_nearest_if_one_is_near():
    error = errors.unknown_name("method", "thresold", ["threshold", "alps"])
    assert str(error) == "unknown method 'thresold'; did you mean 'threshold'? Known: alps, threshold"
    assert str(errors.unknown_name("method", "xyz", ["alps"])) == "unknown method 'xyz'. Known: alps"


@pytest.mark.parametrize("kind", [errors.FetaError, errors.ConfigError, errors.FileError])
def test_a_message_cannot_steer_a_terminal_and_has_an_end(kind):
    error = kind("tensor '\x1b[2J\u202e' is none,\nor " + "x" * 100_000 + "; the cure")
    assert str(error).startswith("tensor '\\x1b[2J\\u202e' is none,\nor xxx")
    assert str(error).endswith("xxx; the cure")
    assert len(str(error)) < 2100
    assert str(kind("plain – words")) == "plain – words"


def test_the_page_lists_every_error():
    page = (Path(__file__).parents[1] / "docs" / "engine.md").read_text()
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.FetaError)]
    assert [kind.__name__ for kind in kinds if f"`{kind.__name__}`" not in page] == []
