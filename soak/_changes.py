"""What is done to whole files before they are read: damage by chance, and changes by somebody who means it."""

import hashlib
import json
import random
import zlib
from typing import Any

from feta.files import container, sparse_file

ODD = (None, True, -1, 0, 2**31, 2**63, 10**30, 0.5, 1e308, "", "x", "\x1b[2J", "é", [], {}, [[]], [1, 2], {"a": 1})
RAW = ("1" * 5000, "Infinity", "NaN", "1e999", '"\\ud800"', "[" * 5000 + "]" * 5000, "[" * 70 + "]" * 70, "9" * 19)
TOML = (
    "inf", "nan", "1" * 5000, "9" * 400, "[" * 5000 + "]" * 5000, "[" * 80 + "]" * 80, "{}", "[]", "-1", "0", '"x"',
    "1979-05-27", '"\\u001b[2J"', "true", '["a", 1]', "{a = 1}",
)  # fmt: skip


def flipped(draw: random.Random, whole: bytes) -> bytes:
    """One bit is another."""
    content = bytearray(whole)
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    return bytes(content)


def damaged(draw: random.Random, whole: bytes) -> bytes:
    """Bytes flipped, cut, repeated, moved or replaced, a few times over."""
    content = bytearray(whole)
    for _ in range(draw.choice((1, 1, 1, 2, 5, 20))):
        a, b = sorted(draw.randrange(len(content) + 1) for _ in range(2))
        match draw.randrange(6):
            case 0 if a < len(content):
                content[a] ^= 1 << draw.randrange(8)
            case 1:
                del content[a : min(b, a + draw.choice((1, 8, 1000)))]
            case 2:
                content[a:a] = content[a : min(b, a + 64)]
            case 3:
                content[a:a] = draw.randbytes(draw.choice((1, 4, 64)))
            case 4 if a < len(content):
                content[a] = draw.choice((0, 255, 34, 44, 48, 91, 123, 128))
            case _:
                content[: draw.choice((0, 8))] = draw.choice((0, 1, 100, 2**40, 2**63)).to_bytes(8, "little")
        if not content:
            return b""
    return bytes(content)


def inside(draw: random.Random, whole: bytes) -> bytes:
    """A safetensors file with a text of its metadata or its index changed, and all checksums right."""
    end = 8 + int.from_bytes(whole[:8], "little")
    header, body = json.loads(whole[8:end]), whole[end:]
    about = header["__metadata__"]
    if draw.random() < 0.2:  # another name of a tensor, in its place
        old = draw.choice([name for name in header if name != "__metadata__"])
        new = draw.choice(("\x1b[2J", "x" * 9999, "a\nb", "fc1.weight"))
        header = {new if name == old else name: value for name, value in header.items()}
    key = draw.choice([key for key in about if key not in (container.HEADER, "format")])
    if key == sparse_file.INDEX:
        length = int(about[key].split()[0])
        index = zlib.compress(text_changed(draw, zlib.decompress(body[:length]).decode()))
        body, about[key] = index + body[length:], f"{len(index)} {zlib.crc32(index)}"
        entry = header.get(container.ARCHIVE, {})
        entry["shape"], entry["data_offsets"] = [len(body)], [0, len(body)]
    else:
        about[key] = text_changed(draw, about[key]).decode(errors="replace")
    about[container.HEADER] = container.BLANK
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    return head.replace(container._entry(container.BLANK), container._entry(f"{zlib.crc32(head):08x}"), 1) + body


def json_changed(draw: random.Random, whole: bytes) -> bytes:
    return text_changed(draw, whole.decode())


def lines_changed(draw: random.Random, whole: bytes) -> bytes:
    lines = whole.decode().splitlines()
    at = draw.randrange(len(lines))
    lines[at] = text_changed(draw, lines[at]).decode(errors="replace")
    return "\n".join(lines).encode(errors="replace") + b"\n"


def text_changed(draw: random.Random, text: str) -> bytes:
    """A JSON text with a value somewhere in it replaced, taken out or doubled."""
    value = [json.loads(text)]
    places: list[tuple[Any, Any]] = []

    def walk(inside: Any) -> None:
        for key in list(inside) if isinstance(inside, dict) else range(len(inside)):
            places.append((inside, key))
            if isinstance(inside[key], dict | list):
                walk(inside[key])

    walk(value)
    inside, key = draw.choice(places)
    match draw.randrange(5):
        case 0:
            inside[key] = draw.choice(ODD)
        case 4 if isinstance(inside, dict):
            inside[draw.choice(("\x1b[2J", "x" * 9999, "a\nb", ""))] = inside.pop(key)
        case 1 if isinstance(inside[key], int | float):
            inside[key] = inside[key] * draw.choice((-1, 0, 2, 10**6, 10**12, 0.5))
        case 2 if inside is not value:
            del inside[key]
        case _:
            inside[key] = "@raw@"
            return json.dumps(value[0]).replace('"@raw@"', draw.choice(RAW)).encode()
    return json.dumps(value[0]).encode()


def toml_changed(draw: random.Random, whole: bytes) -> bytes:
    if draw.random() < 0.5:
        return damaged(draw, whole)
    lines = whole.decode().splitlines()
    at = draw.choice([at for at, line in enumerate(lines) if "=" in line])
    lines[at] = f"{lines[at].partition('=')[0]}= {draw.choice(TOML)}"
    return "\n".join(lines).encode()


def signed(draw: random.Random, whole: bytes) -> bytes:
    """A checkpoint's progress with a value changed and the checksum right."""
    about = json.loads(whole)
    del about["checksum"]
    text = text_changed(draw, json.dumps(about)).decode()
    try:
        text = json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text.encode()
    if not text.startswith("{") or text == "{}":
        return text.encode()
    return f'{text[:-1]}, "checksum": "{hashlib.sha256(text.encode()).hexdigest()}"}}'.encode()
