"""A field that is sent is read: each costs every message its bytes, and a reader its time."""

from pathlib import Path

from messages.reading import fields_read

import dtrain
import dtrain_cli.launch.join
from dtrain import messages

RUNTIME = Path(dtrain.__file__).parent
JOIN = Path(dtrain_cli.launch.join.__file__)
READERS = ("protocol", "steps", "control", "wire", "parameters", "roles", "strategies", "training")
KINDS = {
    name: kind.__struct_fields__
    for name, kind in vars(messages).items()
    if isinstance(kind, type) and getattr(kind, "__struct_fields__", ())
}


def never_read(texts):
    read = fields_read(texts, set(KINDS))
    return {(name, field) for name, fields in KINDS.items() for field in fields} - read


def test_every_field_of_every_message_is_read_outside_messages():
    texts = [path.read_text() for room in READERS for path in (RUNTIME / room).rglob("*.py")]
    texts.append(JOIN.read_text())
    assert not never_read(texts), (
        "delete these fields, or annotate the variables that hold the messages where they are read"
    )


def test_a_field_that_only_another_class_has_read_is_found():
    text = """
def hold(message: Hold) -> None:
    print(message.generation, message.number)

def obey(message: Control, stop: bool) -> None:
    print(message.stop, message.until)
    Refusal(reason=stop)
"""
    dead = never_read([text])
    assert not {("Hold", "generation"), ("Hold", "number"), ("Control", "stop"), ("Control", "until")} & dead
    assert {("Control", "generation"), ("Refusal", "reason"), ("Refusal", "kind")} <= dead


def test_reads_are_found_by_annotations_tests_cases_and_assignments():
    text = """
Question = Pull | LookupRows
answers: list[HeartbeatReply] = []

def ask(message: Question, other: object, replies: Sequence[Reply]) -> None:
    print(message.wait_s, [reply.version for reply in replies])
    term, first = 1, answers[0]
    print(first.heard_of)
    if isinstance(other, Values):
        print(other.ticket)
    match other:
        case Refusal(reason=reason):
            print(reason)
        case Rows() | Push() as push:
            print(push.sums)
"""
    read = fields_read([text], set(KINDS))
    assert read >= {
        ("Pull", "wait_s"),
        ("LookupRows", "wait_s"),
        ("Reply", "version"),
        ("HeartbeatReply", "heard_of"),
        ("Values", "ticket"),
        ("Refusal", "reason"),
        ("Push", "sums"),
    }
