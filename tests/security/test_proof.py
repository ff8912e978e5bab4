"""The handshake's machine: both ends prove the key, and no message of an observer or of a rogue opens anything."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dtrain.cluster import JOINING
from dtrain.errors import PeerRefusedError
from dtrain.messages import Challenge, Hello, Opening, Proof, Proven
from dtrain.wire.security import proof
from dtrain.wire.security.proof import SALT_BYTES, Keyring

SALT = b"s" * SALT_BYTES
HELLO = Hello(run_id="run", cluster_hash="hash", task="worker:1")
SECRET = "dtrain1-" + "5a" * 32
OTHER = "dtrain1-" + "5b" * 32


class Server:
    def __init__(self, task="ps:0", secret=SECRET, own=b"o" * 32, salt=SALT):
        self.keyring, self.salt = Keyring(secret, salt), salt
        self.examiner = proof.Examiner(task, own)
        self.asked = 0

    def challenge(self, opening, now_s=100.0):
        self.asked += 1
        random = self.asked.to_bytes(proof.RANDOM_BYTES, "big")
        return self.examiner.challenge(opening, self.salt, random, now_s)

    def prove(self, answer, now_s=100.5):
        return self.examiner.prove(answer, self.keyring.key, now_s)

    def admit(self, answer, now_s=101.0):
        return self.examiner.admit(answer, self.keyring.key, now_s)


def opening(nonce=b"c" * proof.NONCE_BYTES, task="worker:1"):
    return Opening(task=task, nonce=nonce)


def answered(server, secret=SECRET, peer="ps:0", hello=HELLO, said=None):
    """The client's last proof; None: the server has not proven itself to the client's satisfaction."""
    said, key_of = said or opening(task=hello.task), Keyring(secret, SALT).key
    challenge = server.challenge(said)
    first = proof.answer(said, peer, challenge, key_of)
    if not proof.is_proven(first, peer, server.prove(first), key_of):
        return None
    return proof.answer(said, peer, challenge, key_of, hello)


@pytest.mark.parametrize("secret", [None, SECRET])
def test_two_ends_with_one_key_let_each_other_in(secret):
    server = Server(secret=secret)
    assert server.admit(answered(server, secret)) == HELLO


@pytest.mark.parametrize(("here", "there"), [(SECRET, OTHER), (SECRET, None), (None, SECRET)])
def test_neither_end_says_more_to_one_with_another_key(here, there):
    server, said, key_of = Server(secret=there), opening(), Keyring(here, SALT).key
    first = proof.answer(said, "ps:0", server.challenge(said), key_of)
    assert first.hello is None
    with pytest.raises(PeerRefusedError, match="its secret is another"):
        server.prove(first)
    made_up = Proven(proof=proof._server_proof(server.keyring.key(SALT), b"whatever"))
    assert not proof.is_proven(first, "ps:0", made_up, key_of)


def test_a_challenge_says_nothing_of_the_key():
    """Nobody who has proven nothing can try secrets without asking this server each time."""
    said = opening()
    own, other = (Server(secret=secret).challenge(said) for secret in (SECRET, OTHER))
    assert own == other


def test_a_first_proof_lets_nobody_in():
    server, said = Server(), opening()
    first = proof.answer(said, "ps:0", server.challenge(said), server.keyring.key)
    for claimed in (None, HELLO):
        with pytest.raises(PeerRefusedError):
            server.admit(msgspec.structs.replace(first, hello=claimed))


def test_a_hello_of_another_task_than_the_opening_s_is_refused():
    server, said = Server(), opening(task="worker:2")
    answer = proof.answer(said, "ps:0", server.challenge(said), server.keyring.key, HELLO)
    with pytest.raises(PeerRefusedError, match="no hello of its task"):
        server.admit(answer)


def test_a_server_of_the_run_cannot_pass_for_another_one():
    """Neither believes the other one: what they have told differs."""
    with pytest.raises(PeerRefusedError, match="its secret is another"):
        answered(Server("ps:1"), peer="ps:0")
    said, server = opening(), Server("ps:1")
    challenge, key_of = server.challenge(said), server.keyring.key
    there = server.prove(proof.answer(said, "ps:1", challenge, key_of))
    assert not proof.is_proven(proof.answer(said, "ps:0", challenge, key_of), "ps:0", there, key_of)


def test_a_worker_that_joins_knows_no_server_and_takes_any_of_the_run():
    hello = Hello(run_id="", cluster_hash="", task=str(JOINING))
    server = Server("ps:1")
    answer = answered(server, hello=hello, peer="the server")
    assert server.admit(answer) == hello
    with pytest.raises(PeerRefusedError, match="its secret is another"):
        answered(Server("ps:1", OTHER), hello=hello, peer="the server")
    with pytest.raises(PeerRefusedError, match="its secret is another"):
        server.admit(msgspec.structs.replace(answer, hello=HELLO))
    with pytest.raises(PeerRefusedError, match="answers no challenge"):
        server.admit(msgspec.structs.replace(answer, hello=HELLO, task=HELLO.task))


def test_a_proof_for_one_server_opens_no_other_one():
    first, second = Server("ps:0"), Server("ps:1", own=b"p" * 32)
    with pytest.raises(PeerRefusedError, match="answers no challenge of this server"):
        second.admit(answered(first))
    again = Server("ps:1")  # even if it knew its nonces
    with pytest.raises(PeerRefusedError, match="its secret is another"):
        again.admit(answered(first))


def test_a_server_s_own_proof_is_not_one_of_a_client():
    server = Server()
    said = opening()
    first = proof.answer(said, "ps:0", server.challenge(said), server.keyring.key)
    theirs = server.prove(first).proof
    with pytest.raises(PeerRefusedError, match="its secret is another"):
        server.prove(msgspec.structs.replace(first, proof=theirs))
    with pytest.raises(PeerRefusedError, match="its secret is another"):
        server.admit(msgspec.structs.replace(first, proof=theirs, hello=HELLO))


def test_a_proof_is_good_once_and_not_for_long():
    server = Server()
    answer = answered(server)
    assert server.admit(answer) == HELLO
    with pytest.raises(PeerRefusedError, match="used before"):
        server.admit(answer)
    later = 100.0 + proof.PROOF_LIMIT_S
    with pytest.raises(PeerRefusedError, match="used before"):
        server.admit(answer, later)
    for now_s in (later + 0.01, 99.9):
        with pytest.raises(PeerRefusedError, match="more than 10 s after the challenge"):
            server.admit(answer, now_s)


def test_a_server_remembers_used_proofs_only_as_long_as_they_could_be_used_again():
    server = Server()
    for second in range(100):
        said = opening()
        challenge = server.challenge(said, float(second))
        server.admit(proof.answer(said, "ps:0", challenge, server.keyring.key, HELLO), float(second))
    assert len(server.examiner._taken) <= proof.PROOF_LIMIT_S + 1


def test_a_server_keeps_nothing_for_those_who_have_proven_nothing():
    server = Server()
    for _ in range(100):
        answer = answered(server, SECRET)  # this far every task comes that is then refused
        with pytest.raises(PeerRefusedError):
            server.admit(msgspec.structs.replace(answer, proof=b"x" * 32))
    assert not server.examiner._taken


@given(data=st.data())
def test_a_changed_proof_is_refused(data):
    server = Server()
    answer = answered(server)
    encoded = bytearray(msgspec.msgpack.encode(answer))
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] ^= data.draw(st.integers(1, 255))
    try:
        changed = msgspec.msgpack.decode(bytes(encoded), type=type(answer))
    except (msgspec.DecodeError, ValueError):
        return
    if changed == answer or changed == msgspec.structs.replace(answer, version=changed.version):
        return  # another form of the same; the version is compared when the message is read
    with pytest.raises(PeerRefusedError):
        server.admit(changed)


@given(salt=st.binary(max_size=40), nonce=st.binary(max_size=80), said=st.binary(max_size=40))
@example(salt=SALT, nonce=b"n" * 40, said=b"p" * 32)
def test_no_made_up_server_is_believed(salt, nonce, said):
    key_of = Keyring(SECRET, SALT).key
    made_up = Challenge(salt=salt, nonce=nonce)
    if (len(salt), len(nonce)) != (SALT_BYTES, 40):
        with pytest.raises(PeerRefusedError, match=proof.STRANGER):
            proof.answer(opening(), "ps:0", made_up, key_of)
    else:
        first = proof.answer(opening(), "ps:0", made_up, key_of)
        assert not proof.is_proven(first, "ps:0", Proven(proof=said), key_of)


@given(nonce=st.binary(max_size=80), proved=st.binary(max_size=40), salt=st.binary(max_size=20))
def test_no_made_up_proof_lets_anybody_in(nonce, proved, salt):
    made_up = Proof(task=HELLO.task, hello=HELLO, salt=salt, challenge=nonce, nonce=b"c" * 32, proof=proved)
    for claim in (Server().admit, Server().prove):
        with pytest.raises(PeerRefusedError):
            claim(made_up)


@pytest.mark.parametrize(
    "said", [opening(b""), opening(b"c" * 31), opening(b"c" * 33), opening(task="worker:" + "9" * 99)]
)
def test_what_is_no_opening_is_not_answered(said):
    with pytest.raises(PeerRefusedError, match="not dtrain's"):
        Server().challenge(said)


def test_a_key_depends_on_secret_and_salt_and_a_person_s_is_slow_to_guess():
    person = Keyring("correct-horse-battery", SALT)
    keys = {
        person.key(SALT),
        person.key(b"t" * SALT_BYTES),
        Keyring(SECRET, SALT).key(SALT),
        Keyring(SECRET, SALT).key(b"t" * SALT_BYTES),
        Keyring(None, SALT).key(SALT),
    }
    assert len(keys) == 5
    assert person.is_slow
    assert not Keyring(SECRET, SALT).is_slow


def test_a_rogue_s_salts_take_no_more_memory_than_a_few_keys():
    keyring = Keyring(SECRET, SALT)
    for number in range(100):
        keyring.key(number.to_bytes(SALT_BYTES, "big"))
    assert len(keyring._keys) <= 16


def test_a_server_takes_over_the_salt_of_the_first_proven_server():
    keyring = Keyring(SECRET, SALT)
    for salt in (b"1" * SALT_BYTES, b"2" * SALT_BYTES):
        keyring.adopt(salt)
    assert keyring.salt == b"1" * SALT_BYTES


def test_a_name_says_nothing_of_a_person_s_secret_and_cannot_be_computed_without_a_made_one():
    names = [Keyring(secret, SALT).named("ps:0", "run") for secret in (None, "letmein123letmein", "a" * 16)]
    assert len(set(names)) == 1
    made = [Keyring(secret, SALT).named("ps:0", "run") for secret in (SECRET, OTHER)]
    assert len({*names, *made}) == 3
