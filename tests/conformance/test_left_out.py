"""Few cases of the golden files m are left out, beside what their README calls a defect of TensorFlow."""

from conformance.golden import load_json
from conformance.left_out import LEFT_OUT
from conformance.test_replica_context_golden import FILES, name_of
from conformance.test_threads_golden import SERVERS_ONLY

MOST = 40
LISTS = ("cases", "extras", "loops", "misc")


def names_of(case):
    """The names by which a case may be left out."""
    return [str(case[key]) for key in ("id", "op", "what", "args") if key in case] + [name_of(case)]


def left_out(file, reasons):
    golden = load_json(file)
    wanted = {key for key, reason in reasons.items() if not reason.endswith("a defect")} - set(SERVERS_ONLY)
    cases = [case for key in LISTS for case in golden.get(key, ())]
    return [case for case in cases if any(key in name for key in wanted for name in names_of(case))]


def test_few_cases_are_left_out():
    found = {}
    for file, reasons in LEFT_OUT.items():
        if file.startswith("m"):
            files = FILES if file.startswith("m4") else (file,)
            found[file] = sum(len(left_out(each, reasons)) for each in files)
    assert sum(found.values()) <= MOST, found
