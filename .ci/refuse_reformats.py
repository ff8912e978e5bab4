"""Refuse commits that only reformat: python .ci/refuse_reformats.py SINCE.

A commit does more where it changes the syntax, a docstring or a comment of a Python file, or any other file.
"""

import ast
import io
import subprocess
import sys
import tokenize


def git(*arguments: str) -> str:
    """Return what git prints."""
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def meaning(commit: str, path: str) -> object:
    """Return the syntax and the comments of a Python file in a commit, whatever its layout."""
    text = git("show", f"{commit}:{path}")
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return ast.dump(ast.parse(text)), [token.string for token in tokens if token.type == tokenize.COMMENT]


def only_reformats(commit: str) -> bool:
    """Return whether all that a commit does is to lay out Python files anew."""
    rows = [
        row.split("\t")
        for row in git("diff-tree", "-r", "--no-commit-id", "--name-status", commit).splitlines()
    ]
    return bool(rows) and all(
        change == "M" and path.endswith(".py") and meaning(f"{commit}^", path) == meaning(commit, path)
        for change, path in rows
    )


def main() -> str | None:
    """Return what is to be said of commits that only reformat, if there are any."""
    since = sys.argv[1]
    refused = [
        each for each in git("rev-list", "--no-merges", f"{since}..HEAD").split() if only_reformats(each)
    ]
    return "\n".join(["these commits only reformat; leave them out:", *refused]) if refused else None


if __name__ == "__main__":
    sys.exit(main())
