"""`ottla completion bash|zsh|fish`: prints the script that lets a shell complete commands, options, topics, groups and broker ids."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

PROGRAM = "ottla"
VARIABLE = "_OTTLA_COMPLETE"
"""The script sets this variable when it calls `ottla`; click then prints completions instead of running a command."""

HOW = {
    "bash": 'eval "$(ottla completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(ottla completion zsh)"   in ~/.zshrc, after compinit',
    "fish": "ottla completion fish > ~/.config/fish/completions/ottla.fish",
}


class Bash(BashComplete):
    """Replaces click's script, which reads COMP_WORDS: bash splits it at colons, so `host:port` would be three words."""

    source_template = """\
%(complete_func)s() {
    local line="${COMP_LINE:0:$COMP_POINT}" words completion type value
    IFS=$' \\t\\n' read -ra words <<< "$line"
    local cword=${#words[@]}
    [[ "$line" == *[[:space:]] ]] || cword=$((cword - 1))
    while IFS=',' read -r type value; do
        case "$type" in
            dir) COMPREPLY=(); compopt -o dirnames ;;
            file) COMPREPLY=(); compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(env COMP_WORDS="$line" COMP_CWORD=$cword %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


SHELLS: dict[str, type[ShellComplete]] = {"bash": Bash, "zsh": ZshComplete, "fish": FishComplete}


@click.command(epilog="\b\n" + "\n".join(f"{shell}: {how}" for shell, how in HOW.items()))
@click.argument("shell", type=click.Choice(list(SHELLS)))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    Completion of topics, groups and broker ids asks the cluster in --bootstrap-server or --dir, if it comes earlier on the line, else in
    $OTTLA_BOOTSTRAP_SERVER, else the one in ./ottla-cluster.
    """
    script = SHELLS[shell](click.Command(PROGRAM), {}, PROGRAM, VARIABLE)
    # click's `source()` would start a bash to find its version.
    click.echo(script.source_template % script.source_vars())
