"""Subjects as authorities sign them: each is written as Java's X500Principal.getName() writes it, or is refused (CLI-5)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.security.certificate_subject import NAMES, SUBJECT_BYTES_MAX, BadSubject, shown, subject_of
from tests.support.thorough import thorough

UTF8, PRINTABLE, T61, IA5, VISIBLE, UNIVERSAL, BMP = 0x0C, 0x13, 0x14, 0x16, 0x1A, 0x1C, 0x1E
CN, OU, EMAIL, GIVEN_NAME = "2.5.4.3", "2.5.4.11", "1.2.840.113549.1.9.1", "2.5.4.42"

JAVA = """
import java.io.*;
import java.util.HexFormat;
import javax.security.auth.x500.X500Principal;

public class Subjects {
    public static void main(String[] args) throws Exception {
        BufferedReader names = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = names.readLine()) != null; ) {
            String shown = new X500Principal(HexFormat.of().parseHex(line)).getName();
            System.out.println(HexFormat.of().formatHex(shown.getBytes("UTF-16BE")));
        }
    }
}
"""


def element(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def identifier(number: str) -> bytes:
    first, second, *arcs = map(int, number.split("."))
    content = bytearray()
    for arc in (40 * first + second, *arcs):
        digits = [arc & 0x7F]
        while arc := arc >> 7:
            digits.insert(0, 0x80 | arc & 0x7F)
        content += bytes(digits)
    return element(0x06, bytes(content))


def attribute(number: str, value: bytes, tag: int = UTF8) -> bytes:
    return element(0x30, identifier(number) + element(tag, value))


def name(*parts: bytes) -> bytes:
    """`parts`: the attributes of each, as many as it has."""
    return element(0x30, b"".join(element(0x31, part) for part in parts))


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (b"a=b#c", "CN=a\\=b\\#c"),
        (b"  a  b \r", "CN=\\ \\ a  b\\ \\\r"),
        (b"  ", "CN=\\ \\ "),
        (b"\ta\n", "CN=\ta\n"),
        (b"alice\0,CN=admin", "CN=alice\\00\\,CN\\=admin"),
        (b"", "CN="),
        (b"\xff", "CN=\ufffd"),
        (b"\\", "CN=\\\\"),
    ],
)
def test_values_that_are_no_names(value: bytes, written: str) -> None:
    assert shown(name(attribute(CN, value))) == written


def test_parts_of_several_attributes_keep_their_order() -> None:
    """Also one that DER forbids: OpenSSL accepts it, and so does Kafka."""
    for first, second, written in ((b"z", b"a", "OU=x,CN=z+OU=a"), (b"a", b"z", "OU=x,CN=a+OU=z")):
        both = attribute(CN, first) + attribute(OU, second)
        assert shown(name(both, attribute(OU, b"x"))) == written


def test_texts_that_java_does_not_show() -> None:
    assert shown(name(attribute(CN, b"a", VISIBLE))) == "CN=#1a0161"
    assert shown(name(attribute(CN, b"\0\0\0a", UNIVERSAL))) == "CN=#1c0400000061"
    assert shown(name(attribute(CN, b"\0a", BMP))) == "CN=\\00a"
    assert (
        shown(name(attribute(GIVEN_NAME, b""), attribute(EMAIL, b"a@b", IA5)))
        == f"{EMAIL}=#1603614062,{GIVEN_NAME}=#0c00"
    )
    assert shown(name()) == ""


def test_a_subject_has_a_limit() -> None:
    """Long subjects are what slow rules need, and 10,000 users with such names."""
    longest = name(attribute(CN, b"x" * (SUBJECT_BYTES_MAX - 21)))
    assert len(longest) == SUBJECT_BYTES_MAX
    assert len(shown(longest)) > SUBJECT_BYTES_MAX - 21
    with pytest.raises(BadSubject, match="has 2049 bytes, and may have 2048"):
        shown(name(attribute(CN, b"x" * (SUBJECT_BYTES_MAX - 20))))


@given(st.binary(max_size=60) | st.binary(max_size=40).map(lambda data: name(element(0x30, data))))
def test_what_is_no_name_is_refused(data: bytes) -> None:
    for read in (shown, subject_of):
        try:
            read(data)
        except BadSubject:
            continue


names = st.lists(
    st.lists(
        st.builds(
            attribute,
            st.sampled_from([*NAMES, EMAIL, GIVEN_NAME, "2.5.4.5", "1.3.6.1.4.1.311.60.2.1.3"]),
            st.text(st.sampled_from('ab,+"\\<>;=# \t\r\n\0\x7fé中😀'), max_size=8).map(str.encode),
            st.sampled_from([UTF8, PRINTABLE, T61, IA5, 0x1B, BMP, VISIBLE, UNIVERSAL]),
        ),
        min_size=1,
        max_size=3,
    ).map(b"".join),
    max_size=3,
).map(lambda parts: name(*parts))


@thorough
def test_java_writes_the_same(tmp_path: Path) -> None:
    if shutil.which("javac") is None:
        pytest.skip("no JDK: subjects were not compared with Java's")
    (tmp_path / "Subjects.java").write_text(JAVA)
    subprocess.run(["javac", "Subjects.java"], cwd=tmp_path, check=True)
    seen: list[bytes] = []

    @given(names)
    def collect(drawn: bytes) -> None:
        seen.append(drawn)

    collect()
    asked = "".join(f"{one.hex()}\n" for one in seen)
    java = subprocess.run(
        ["java", "-cp", str(tmp_path), "Subjects"], input=asked, capture_output=True, text=True, check=True
    )
    written = [bytes.fromhex(line).decode("utf-16-be") for line in java.stdout.split("\n")[:-1]]
    assert [shown(one) for one in seen] == written
