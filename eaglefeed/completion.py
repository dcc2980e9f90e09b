"""Prints a completion script for bash, zsh or fish, made from the verbs' own parsers.

The script is static: completing starts no Python. Print it again after an upgrade.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from eaglefeed import cli
from eaglefeed.errors import EaglefeedError

EXAMPLE = """examples:
  eaglefeed completion bash > ~/.local/share/bash-completion/completions/eaglefeed
  eaglefeed completion zsh > ~/.zfunc/_eaglefeed        (with fpath+=~/.zfunc before compinit)
  eaglefeed completion fish > ~/.config/fish/completions/eaglefeed.fish
"""


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a verb; ``choices`` are what may follow it, empty where anything (a file) may."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VerbWords:
    """What can be completed behind one verb; ``words`` are its actions and its arguments' choices."""

    name: str
    help: str
    options: tuple[Option, ...]
    words: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=sorted(_SHELLS), help="bash, zsh or fish")


def main(parsed: argparse.Namespace) -> int:
    print(_SHELLS[parsed.shell](read_verbs()), end="")
    return 0


def read_verbs() -> list[VerbWords]:
    """Every verb whose module is installed here; the wheel alone has fewer than a checkout."""
    found = []
    for name, verb in cli.VERBS.items():
        try:
            parser = cli.verb_parser(name)
        except (EaglefeedError, ImportError):
            continue
        options, words = _read_parser(parser)
        found.append(VerbWords(name, verb.help, tuple(options), tuple(dict.fromkeys(words))))
    return found


def _read_parser(parser: argparse.ArgumentParser) -> tuple[list[Option], list[str]]:
    options: list[Option] = []
    words: list[str] = []
    for action in parser._actions:  # argparse has no public way to read a parser
        choices = tuple(map(str, action.choices or ()))
        if isinstance(action, argparse._SubParsersAction):
            words += choices
            for sub_parser in action.choices.values():
                more_options, more_words = _read_parser(sub_parser)
                options += [option for option in more_options if option not in options]
                words += more_words
        elif action.option_strings:
            help_text = "" if action.help in (None, argparse.SUPPRESS) else str(action.help) % _values(action, parser)
            options.append(Option(tuple(action.option_strings), help_text, action.nargs != 0, choices))
        else:
            words += choices
    return options, words


def _values(action: argparse.Action, parser: argparse.ArgumentParser) -> dict[str, object]:
    return {**vars(action), "prog": parser.prog}


def bash(verbs: list[VerbWords]) -> str:
    """Verbs first, then the verb's options; values with known choices, else files."""
    cases = "".join(f'    {verb.name}) options="{_flags(verb)}" words="{" ".join(verb.words)}" ;;\n' for verb in verbs)
    values = "".join(
        f'    {verb.name}:{name}) COMPREPLY=($(compgen -W "{" ".join(option.choices)}" -- "$current")); return ;;\n'
        for verb in verbs
        for option in verb.options
        for name in option.names
        if option.choices
    )
    return f"""# bash completion of eaglefeed
_eaglefeed() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" verb="${{COMP_WORDS[1]}}"
  local options="" words=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(verb.name for verb in verbs)} --help --version" -- "$current"))
    return
  fi
  case "$verb:$previous" in
{values}    *) ;;
  esac
  case "$verb" in
{cases}    *) ;;
  esac
  case "$current" in
    -*) COMPREPLY=($(compgen -W "$options" -- "$current")) ;;
    *) COMPREPLY=($(compgen -W "$words" -- "$current") $(compgen -f -- "$current")) ;;
  esac
}}
complete -o filenames -F _eaglefeed eaglefeed
"""


def zsh(verbs: list[VerbWords]) -> str:
    """The same with each option's help beside it."""
    listed = "".join(f"    {_quoted(f'{verb.name}:{verb.help}')}\n" for verb in verbs)
    cases = "".join(f"    {verb.name})\n      _arguments \\\n{_zsh_specs(verb)} ;;\n" for verb in verbs)
    return f"""#compdef eaglefeed
_eaglefeed_words() {{ _alternative "words:word:($*)" 'files:file:_files' }}
_eaglefeed() {{
  local -a verbs
  verbs=(
{listed}  )
  if (( CURRENT == 2 )); then
    _describe verb verbs
    return
  fi
  local verb=$words[2]
  shift words
  (( CURRENT-- ))
  case $verb in
{cases}  esac
}}
if [ "$funcstack[1]" = _eaglefeed ]; then _eaglefeed "$@"; else compdef _eaglefeed eaglefeed; fi
"""


def _zsh_specs(verb: VerbWords) -> str:
    specs = []
    for option in verb.options:
        text = option.help.replace("[", "(").replace("]", ")").replace(":", " ")
        values = f":value:({' '.join(option.choices)})" if option.choices else ":value:_files"
        specs += [_quoted(f"{name}[{text}]{values if option.takes_value else ''}") for name in option.names]
    words = f"{{_eaglefeed_words {' '.join(verb.words)}}}" if verb.words else "_files"
    return "".join(f"        {spec} \\\n" for spec in specs) + f"        {_quoted(f'*:argument:{words}')}"


def fish(verbs: list[VerbWords]) -> str:
    """One `complete` line a verb and an option."""
    names = " ".join(verb.name for verb in verbs)
    lines = ["# fish completion of eaglefeed"]
    for verb in verbs:
        lines.append(f"complete -c eaglefeed -f -n __fish_use_subcommand -a {verb.name} -d {_quoted(verb.help)}")
        seen = f"-n '__fish_seen_subcommand_from {verb.name}'"
        if verb.words:
            lines.append(f"complete -c eaglefeed {seen} -a {_quoted(' '.join(verb.words))}")
        lines += [f"complete -c eaglefeed {seen} {_fish_option(option)}" for option in verb.options]
    lines.append(
        f"complete -c eaglefeed -n 'not __fish_seen_subcommand_from {names}' -l version -d 'print the version'"
    )
    return "\n".join(lines) + "\n"


def _fish_option(option: Option) -> str:
    flags = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
    values = ["-x", "-a", _quoted(" ".join(option.choices))] if option.choices else ["-r"] * option.takes_value
    return " ".join([*flags, *values, "-d", _quoted(option.help)])


def _flags(verb: VerbWords) -> str:
    return " ".join(name for option in verb.options for name in option.names)


def _quoted(text: str) -> str:
    """Within single quotes, as all three shells read them."""
    one_line = " ".join(text.split())
    return "'" + one_line.replace("\\", "").replace("'", "’") + "'"


_SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}
