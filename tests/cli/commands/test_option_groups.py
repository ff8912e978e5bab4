"""The help of commands with many options lists them in groups, by what they are for, and leaves none out."""

import click
from row_by_row import every_row

from dtrain_cli.main import cli


@every_row("name", ["launch", "plan", "chief", "worker", "ps", "evaluator", "task"])
def test_the_help_shows_every_option_in_a_group(name):
    command = cli.commands[name]
    shown = command.get_help(click.Context(command, info_name=name)).splitlines()
    assert "\nThe cluster:\n" in "\n".join(shown)
    assert "\nHow long to wait:\n" in "\n".join(shown)
    for option in command.params:
        lines = [line for line in shown if line.split()[:1] in ([option.opts[0]], [f"{option.opts[0]},"])]
        assert len(lines) == isinstance(option, click.Option), option.opts
