"""Planted bugs of the handshake: what lets in who has proven nothing, or believes another server."""

from mutant import bug

PROOF = "wire/security/proof.py"
HANDSHAKE = "wire/handshake.py"
TLS = "wire/security/tls.py"

FOUND = [
    bug(PROOF, "Examiner.admit", "self._taken.setdefault(proof.challenge, begun_s) is not begun_s", "False"),
    bug(
        PROOF,
        "Examiner.admit",
        "proof.hello is None or proof.hello.task != proof.task",
        "proof.hello is None",
    ),
    bug(
        PROOF,
        "Examiner._checked",
        "not hmac.compare_digest(proof.proof, _client_proof(key_of(proof.salt), told, proof.hello))",
        "False",
    ),
    bug(PROOF, "Examiner._checked", "not 0.0 <= now_s - begun_s <= PROOF_LIMIT_S", "False"),
    bug(
        PROOF,
        "Examiner._checked",
        "len(nonce) != _SERVER_NONCE_BYTES or not hmac.compare_digest(tag, own)",
        "False",
    ),
    bug(
        PROOF,
        "_transcript",
        "(PROTOCOL_VERSION, salt, client_nonce, server_nonce, client, server)",
        "(PROTOCOL_VERSION, salt, client_nonce, server_nonce, client)",
    ),
    bug(HANDSHAKE, "last_proof", "not proof.is_proven(first, peer, proven, keyring.key)", "False"),
    bug(HANDSHAKE, "refusal", "hello.cluster_hash not in (expected.cluster_hash, '')", "False"),
    bug(HANDSHAKE, "read_greeting", "len(data) <= GREETING_LIMIT_BYTES", "True"),
    bug(TLS, "Tls.refusal", "expected & set(named)", "True"),
    bug(TLS, "Tls.covers", "self.everywhere or not is_loopback(address)", "not is_loopback(address)"),
]
