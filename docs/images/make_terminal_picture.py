"""The moving picture of the README: a leader is killed, the timeline tells it, `ottla verify run` judges.

    python docs/images/make_terminal_picture.py            draws terminal.svg from terminal.txt
    python docs/images/make_terminal_picture.py --record   runs the commands on a cluster of its own first, and writes terminal.txt

terminal.txt has what the commands printed. Of the timeline it has the lines that SHOWN names; `...` marks where others were.
The picture moves by CSS alone. It stands still, with everything in it, where a reader has asked for less motion.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from html import escape
from itertools import accumulate
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RECORD, PICTURE = HERE / "terminal.txt", HERE / "terminal.svg"
OTTLA = (sys.executable, "-c", "from tools.cli import main; main()")

COMMANDS = (
    "ottla fault kill leader orders-0",
    "ottla timeline --topic orders",
    "ottla fault heal",
    'ottla verify run --dir ottla-cluster --topic orders:6 --fault "kill leader of orders-0 at 5s" -- python examples/python/orders.py',
)
BEFORE = (
    "ottla cluster start",
    "ottla topic create orders --partitions 6 --replication-factor 3 --config min.insync.replicas=2",
)
RULES = re.compile(r"\[[A-Z]{3}-[^\]]*\]$")
SHOWN = re.compile(r"kill the process|so the process is dead|elects broker|becomes the leader|high watermark move")

COLUMNS, LINE, LEFT, TOP = 118, 19, 18, 52
CHARACTER = 7.83
"""The width of a character of 13 px, in px."""
TYPED_S, LINE_S, THINK_S, END_S = 0.03, 0.3, 0.9, 8.0
"""How long a character of a command, a line of output, the pause before a command, and the last picture last."""
STYLE = """
  text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre; fill: #c9d1d9; }
  .command { fill: #ffffff; font-weight: 600; } .prompt { fill: #3fb950; } .time { fill: #8b949e; } .rule { fill: #79c0ff; }
  .harm { fill: #ff7b72; } .good { fill: #56d364; font-weight: 600; } .left-out { fill: #6e7681; }
  .window { fill: #0d1117; stroke: #30363d; }
"""


def main() -> None:
    if "--record" in sys.argv[1:]:
        RECORD.write_text(recorded(), encoding="utf-8")
    PICTURE.write_text(drawn(RECORD.read_text(encoding="utf-8")), encoding="utf-8")


def recorded() -> str:
    """What COMMANDS print on a new cluster, each behind its `$ ` line."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "examples").symlink_to(ROOT / "examples")
        try:
            for command in BEFORE:
                printed(command, directory)
            texts = []
            for command in COMMANDS:
                texts.append(f"$ {command}\n{shortened(command, printed(command, directory))}")
                if command.endswith("heal"):
                    printed("ottla cluster health --watch --exit-when-healthy --timeout 60", directory)
            return "\n".join(texts)
        finally:
            printed("ottla cluster destroy --yes", directory)


def printed(command: str, directory: str) -> str:
    words = [*OTTLA, *shlex.split(command)[1:]]
    environment = {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    return subprocess.run(words, cwd=directory, env=environment, check=True, capture_output=True, text=True).stdout


def shortened(command: str, output: str) -> str:
    """The output; of a timeline the lines that SHOWN names, as long as each says something new."""
    if "timeline" not in command:
        return output
    kept: list[str] = []
    for line in output.splitlines():
        if SHOWN.search(line):
            kept.append(line)
        elif kept and kept[-1] != "...":
            kept.append("...")
    return "\n".join(kept[:11]) + "\n"


def drawn(record: str) -> str:
    """A complete SVG file, without references to other files. The same record makes the same picture."""
    lines = [line for line in record.splitlines() if line.strip()]
    durations = [
        THINK_S + TYPED_S * len(line) + 0.4 if line.startswith("$ ") else LINE_S for line in lines
    ]  # fmt: skip
    ends = list(accumulate(durations))
    total = ends[-1] + END_S
    width = round(2 * LEFT + COLUMNS * CHARACTER)
    height = TOP + LINE * len(lines) + 8
    moving, texts = [], []
    for number, (line, end, duration) in enumerate(zip(lines, ends, durations, strict=True)):
        y = TOP + LINE * number
        if line.startswith("$ "):
            begin, shown = end - duration + THINK_S, cut(line)[2:]
            moving.append(appears(f"p{number}", end - duration, total))
            moving.append(typed(f"c{number}", begin, begin + TYPED_S * len(shown), len(shown), total))
            texts.append(f'<text id="p{number}" class="prompt" x="{LEFT}" y="{y}">$</text>')
            x = LEFT + 2 * CHARACTER
            texts.append(f'<text id="c{number}" class="command" x="{x:.1f}" y="{y}">{escape(shown)}</text>')
        else:
            moving.append(appears(f"p{number}", end - duration, total))
            texts.append(f'<text id="p{number}" x="{LEFT}" y="{y}">{coloured(cut(line))}</text>')
    dots = "".join(
        f'<circle cx="{LEFT + 4 + 18 * number}" cy="20" r="6" fill="{colour}"/>'
        for number, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    title = (
        "A leader is killed, the timeline tells what the brokers did, and the verdict says what became of each record"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
            f"<title>{title}</title>",
            f"<style>{STYLE}  @media (prefers-reduced-motion: no-preference) {{",
            *moving,
            "  }",
            "</style>",
            f'<rect class="window" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="9"/>{dots}',
            *texts,
            "</svg>\n",
        ]
    )


def cut(line: str) -> str:
    """The line, as wide as the window; the rules at its end stay."""
    if len(line) <= COLUMNS:
        return line
    rules = RULES.search(line)
    end = f"…  {rules[0]}" if rules else "…"
    return line[: COLUMNS - len(end)] + end


def appears(name: str, at_s: float, total_s: float) -> str:
    at = 100 * at_s / total_s
    frames = f"0%, {at:.2f}% {{ opacity: 0 }} {at + 0.01:.2f}%, 100% {{ opacity: 1 }}"
    return f"  @keyframes {name} {{ {frames} }} #{name} {{ animation: {name} {total_s:.1f}s infinite }}"


def typed(name: str, begin_s: float, end_s: float, characters: int, total_s: float) -> str:
    begin, end = 100 * begin_s / total_s, 100 * end_s / total_s
    nothing, all_of_it = "clip-path: inset(-4px 100% -4px 0)", "clip-path: inset(-4px 0 -4px 0)"
    steps = f"animation-timing-function: steps({characters})"
    frames = f"0% {{ {nothing} }} {begin:.2f}% {{ {nothing}; {steps} }} {end:.2f}%, 100% {{ {all_of_it} }}"
    return f"  @keyframes {name} {{ {frames} }} #{name} {{ animation: {name} {total_s:.1f}s infinite }}"


def coloured(line: str) -> str:
    """The line as markup: times, rules, harm and verdicts in their colours."""
    if line == "...":
        return f'<tspan class="left-out">{line}</tspan>'
    text = escape(line, quote=False)
    if text.startswith("PASSED"):
        return f'<tspan class="good">{text}</tspan>'
    text = re.sub(r"^( *[+]?[\d.]+ s)(?=  )", r'<tspan class="time">\1</tspan>', text)
    text = RULES.sub(r'<tspan class="rule">\g<0></tspan>', text)
    return re.sub(r"(kill (?:the process of broker \d|leader of [\w-]+))", r'<tspan class="harm">\1</tspan>', text)


if __name__ == "__main__":
    main()
