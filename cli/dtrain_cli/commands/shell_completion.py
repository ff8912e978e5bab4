"""The completions of a shell: runs, their tasks, and in bash words with a colon such as `worker:0`.

bash cuts words at colons (COMP_WORDBREAKS), so that click's own script never sees `worker:0` as one word.
This script hands over the line up to the cursor, and removes from each answer its part before the last colon,
which is there.
"""

import os
from pathlib import Path

import click
from click.shell_completion import BashComplete, add_completion_class, split_arg_string

VARIABLE = "_DTRAIN_COMPLETE"

_BASH = r"""
%(complete_func)s() {
    local IFS=$'\n'
    local line="${COMP_LINE:0:COMP_POINT}" completion type value typed=""
    local word="${line##*[[:space:]]}"
    if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then
        typed="${word%%:*}:"
    fi
    COMPREPLY=()
    for completion in $(env COMP_WORDS="$line" %(complete_var)s=bash_complete "$1"); do
        IFS=',' read -r type value <<< "$completion"
        if [[ $type == 'dir' ]]; then
            compopt -o dirnames
        elif [[ $type == 'file' ]]; then
            compopt -o default
        elif [[ $type == 'plain' ]]; then
            COMPREPLY+=("${value#"$typed"}")
        fi
    done
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class BashWithColons(BashComplete):
    """Completion in bash from the line itself instead of bash's words."""

    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor's, and the beginning of that one."""
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)
        begun = words.pop() if line and not line[-1].isspace() else ""
        return words[1:], begun


def install() -> None:
    """Make click answer bash so."""
    add_completion_class(BashWithColons)


def complete_run(context: click.Context, _parameter: click.Parameter, begin: str) -> list[str]:
    """Return the ids and names of runs."""
    from dtrain_cli.runs.index import known_runs

    words = {word for run in known_runs(_runs_dir(context)) for word in (run.record.run, run.record.name)}
    return sorted(word for word in words if word.startswith(begin))


def complete_task(context: click.Context, _parameter: click.Parameter, begin: str) -> list[str]:
    """Return the tasks of the run that stands before, or of the newest."""
    return _tasks(context, context.params.get("run"), begin)


def complete_run_or_task(context: click.Context, parameter: click.Parameter, begin: str) -> list[str]:
    """Return runs for the first word, and tasks of the run that it names, else of the newest one."""
    words = context.params.get("run_and_tasks") or ()
    runs = complete_run(context, parameter, begin) if not words else []
    return runs + _tasks(context, words[0] if words and ":" not in words[0] else None, begin)


def _tasks(context: click.Context, run: str | None, begin: str) -> list[str]:
    from dtrain.errors import RunError
    from dtrain_cli.runs.index import find_run
    from dtrain_cli.runs.joined_tasks import with_joined

    try:
        found = find_run(run, _runs_dir(context))
        tasks = [task.task for task in with_joined(found.files, found.record.tasks)]
    except RunError:
        return []
    return sorted(task for task in tasks if task.startswith(begin))


def _runs_dir(context: click.Context) -> Path:
    from dtrain.runs.files import default_runs_dir

    return context.params.get("runs_dir") or default_runs_dir()
