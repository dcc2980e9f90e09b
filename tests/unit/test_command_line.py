"""The one command: help with an example for every verb, exit codes, one-line errors, completion in real shells."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from eaglefeed import cli, completion

CHECKOUT = Path(__file__).resolve().parents[2]
VERBS = [name for name, verb in cli.VERBS.items() if importlib.util.find_spec(verb.module) is not None]
SAME_EVERYWHERE = {
    "--json": 0,
    "--quiet": 0,
    "--yes": 0,
    "--store": None,
    "--redis": None,
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`eaglefeed VERB --help` says what it does, explains its options and shows a command to copy."""
    with pytest.raises(SystemExit) as ended:
        cli.main([verb, "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert f"eaglefeed {verb}" in text.partition("example")[2], "no example"


@pytest.mark.parametrize("verb", VERBS)
def test_options_of_one_name_take_the_same_in_every_verb(verb: str) -> None:
    """--json, --quiet and --yes are switches; --store and --redis take one value."""
    for action in cli.verb_parser(verb)._actions:
        for name in set(action.option_strings) & set(SAME_EVERYWHERE):
            assert action.nargs == SAME_EVERYWHERE[name], name


def test_a_misspelt_verb_suggests_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, one line."""
    assert cli.main(["produse", "x"]) == 2
    assert capsys.readouterr().err == "eaglefeed: there is no verb 'produse'; did you mean `eaglefeed produce`?\n"


@pytest.mark.parametrize(
    ("arguments", "near"),
    [(["status", "--jsno"], "--json"), (["init", "--presett=x"], "--preset"), (["doctor", "--stor", "x"], "--store")],
)
def test_a_misspelt_option_suggests_the_right_one(
    arguments: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, one line, and no abbreviation is taken for an option."""
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert f"did you mean {near}?" in error
    assert error.count("\n") == 1


def test_a_misspelt_key_of_a_run_file_suggests_the_right_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file, the key and the nearest known one."""
    path = tmp_path / "run.toml"
    path.write_text('name = "x"\n[model]\npath = "m"\n[data]\nmax_lenght = 4\n')
    assert cli.main(["doctor", "--run", str(path), "--only", "files"]) == 2
    assert "unknown key 'data.max_lenght'; did you mean 'max_length'?" in capsys.readouterr().err


def test_a_silent_redis_is_the_environments_fault(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3, and the password of the address is not printed."""
    assert cli.main(["status", "--redis", "redis://:secret-word@127.0.0.1:1/0"]) == 3
    error = capsys.readouterr().err
    assert "does not answer" in error
    assert "secret-word" not in error


def test_no_arguments_and_help_list_all_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    """The overview has every verb, its line, and the exit codes."""
    assert cli.main([]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in cli.VERBS)
    assert "Exit codes: 0 done" in text


def test_output_that_nobody_reads_is_no_error() -> None:
    """`eaglefeed … | head -1` ends quietly."""
    command = f"{sys.executable} -m eaglefeed.cli completion zsh | head -1"
    ended = subprocess.run(
        ["bash", "-c", command], cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stdout == "#compdef eaglefeed\n"
    assert ended.stderr == ""


def test_output_has_no_colour_outside_a_terminal() -> None:
    """Scripts read plain text."""
    command = [sys.executable, "-m", "eaglefeed.cli", "doctor", "--only", "files", "python"]
    ended = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False)
    assert "\x1b" not in ended.stdout + ended.stderr
    assert "ok      python" in ended.stdout


@pytest.fixture(scope="module")
def verbs() -> list[completion.VerbWords]:
    return completion.read_verbs()


def run_shell(shell: str, script: str, folder: Path) -> str:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"no {shell} on this machine")
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "dumb"}
    options = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    ended = subprocess.run(
        [path, *options, "-c", script], capture_output=True, text=True, timeout=60, env=environment, check=True
    )
    return ended.stdout


def test_bash_completes(verbs: list[completion.VerbWords], tmp_path: Path) -> None:
    """Verbs, options, the values of an option, and actions of a verb."""
    (tmp_path / "c").write_text(completion.bash(verbs))
    ask = 'source $HOME/c; ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _eaglefeed; echo "${COMPREPLY[*]}"; }; '
    ask += "ask eaglefeed sta; ask eaglefeed status --w; ask eaglefeed init --preset kim; ask eaglefeed completion fi"
    assert run_shell("bash", ask, tmp_path).split() == ["status", "--watch", "kimi-k2.5", "fish"]


def test_fish_completes(verbs: list[completion.VerbWords], tmp_path: Path) -> None:
    """The same in fish, with each option's help beside it."""
    (tmp_path / "c").write_text(completion.fish(verbs))
    ask = 'source $HOME/c; complete -C "eaglefeed sta"; complete -C "eaglefeed status --w"'
    lines = run_shell("fish", ask, tmp_path).splitlines()
    assert [line.partition("\t")[0] for line in lines] == ["status", "--watch"]
    assert lines[1].partition("\t")[2] == "renew until Ctrl-C"


def test_zsh_takes_the_script(verbs: list[completion.VerbWords], tmp_path: Path) -> None:
    """zsh loads it through compinit and knows the command."""
    (tmp_path / "_eaglefeed").write_text(completion.zsh(verbs))
    script = (
        "fpath=($HOME $fpath); autoload -U compinit; compinit -D -u; echo $_comps[eaglefeed]; zsh -n $HOME/_eaglefeed"
    )
    assert run_shell("zsh", script, tmp_path).split() == ["_eaglefeed"]


ZSH_LINE_EDITOR = r"""
PROMPT= ; fpath=($HOME $fpath)
autoload -U compinit && compinit -D -u
bindkey -e; bindkey '^I' complete-word
tell() { print -r -- "$BUFFER" >> $HOME/told; BUFFER= }
zle -N tell; bindkey '^T' tell
"""
ZSH_TYPIST = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'source $HOME/line-editor; : > $HOME/ready'
while [[ ! -e $HOME/ready ]]; do sleep 0.05; done
integer number
: > $HOME/told
while read -r typed; do
  zpty -w -n shell "$typed"$'\t\x14'
  (( ++number ))
  while (( $(wc -l < $HOME/told) < number )); do zpty -r -t shell seen; sleep 0.05; done
done < $HOME/typed
cat $HOME/told
"""


def test_zsh_completes(verbs: list[completion.VerbWords], tmp_path: Path) -> None:
    """Typed into a real zsh with a tab behind it: verbs, options, the values of an option, and actions of a verb."""
    completed = {
        "eaglefeed sta": "eaglefeed status ",
        "eaglefeed status --w": "eaglefeed status --watch ",
        "eaglefeed init --preset kim": "eaglefeed init --preset kimi-k2.5 ",
        "eaglefeed dead ret": "eaglefeed dead retry ",
        "eaglefeed no-such-verb x": "eaglefeed no-such-verb x",
    }
    (tmp_path / "_eaglefeed").write_text(completion.zsh(verbs))
    (tmp_path / "line-editor").write_text(ZSH_LINE_EDITOR)
    (tmp_path / "typed").write_text("".join(f"{typed}\n" for typed in completed))
    told = run_shell("zsh", ZSH_TYPIST, tmp_path).splitlines()
    assert [line.rstrip() for line in told] == [line.rstrip() for line in completed.values()]


def test_an_option_is_read_with_its_choices() -> None:
    """Choices, whether a value follows, and help without argparse's own marks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=["a", "b"], default="a", help="which (%(default)s)")
    parser.add_argument("word", choices=["x"])
    options, words = completion._read_parser(parser)
    assert options[-1] == completion.Option(("--kind",), "which (a)", True, ("a", "b"))
    assert words == ["x"]
