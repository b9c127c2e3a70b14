"""What files say is read with limits, and every fault is a ValueError with a short reason."""

import json

import pytest

from feta.files.plain import DEEPEST, LONGEST, from_json, from_toml, object_from_json, shortened


def nested(depth):
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("text", [nested(DEEPEST + 2), nested(100_000), '{"a":' * 2000 + "1" + "}" * 2000])
def test_nesting(text):
    with pytest.raises(ValueError, match="nested deeper than 64"):
        from_json(text)
    assert from_json(nested(DEEPEST)) is not None


@pytest.mark.parametrize("text", ["1" * 5000, "-" + "9" * 20, "[1, " + "7" * 4301 + "]"])
def test_whole_numbers(text):
    with pytest.raises(ValueError, match=r"a number of .* digits, more than 19"):
        from_json(text)
    assert from_json(str(2**63 - 1)) == 2**63 - 1


@pytest.mark.parametrize("text", ["NaN", '{"a": [Infinity]}', "-Infinity", "1e999"])
def test_numbers_that_json_does_not_have(text):
    with pytest.raises(ValueError, match=r"the number -?(nan|inf)"):
        from_json(text)
    from_json(text, finite=False)


@pytest.mark.parametrize("text", ['"\\ud800"', '{"\\udfff": 1}', json.dumps(["a\udc80"])])
def test_half_characters(text):
    with pytest.raises(ValueError, match="surrogates not allowed"):
        from_json(text)
    assert from_json('"\\ud83e\\uddc0"') == "🧀"


def test_length_and_objects():
    with pytest.raises(ValueError, match="more than 67,108,864"):
        from_json(" " * (LONGEST + 1))
    with pytest.raises(ValueError, match="no object"):
        object_from_json("[1]")


@pytest.mark.parametrize(
    "text",
    [
        "a = " + nested(100_000),
        "a = " + "1" * 5000,
        "a = inf",
        "a = nan",
        "a.b = [[1",
        "a = 1e999",
        'a = "\\u001b[2J"',
    ],
)
def test_toml(text):
    with pytest.raises(ValueError, match=r"nested|digits|the number|nclosed|the text"):
        from_toml(text)
    assert from_toml("a = [1, 2.5]\n[b]\nc = true") == {"a": [1, 2.5], "b": {"c": True}}


def test_values_in_messages_are_short_and_tame():
    assert shortened("\x1b[31m") == "'\\x1b[31m'"
    assert len(shortened("long" * 1000)) < 100
    assert shortened(10**5000) == "a huge number"
