"""Makes text from outside safe for one line of a log or a terminal.

A client chooses its client id, group id and member id, the names it requests and the values it sets. A newline in such a text could
forge a log line, an escape sequence could control the terminal that shows it, and a bidi control could reorder the visible text.
"""

from __future__ import annotations


def escaped(text: str) -> str:
    r"""`text` with everything unprintable written as Python does: `\n`, `\x1b`, `\u2028`, `\udc80`.

    Unprintable are control characters (C0, DEL, C1), line and paragraph separators, bidi controls and other invisible characters,
    surrogates, and blanks other than the space. Backslashes are kept, because paths and regular expressions contain them.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def escaped_lines(text: str) -> str:
    """Like `escaped`, but keeps newlines: for texts of several lines, such as a traceback."""
    return "\n".join(map(escaped, text.split("\n")))


def shortened(text: str, length_max: int) -> str:
    """At most `length_max` characters of `text`, and the number of characters that were left out."""
    if len(text) <= length_max:
        return text
    return f"{text[:length_max]}... ({len(text) - length_max:,} more characters)"


def _escape(char: str) -> str:
    return repr(char)[1:-1]
