"""URLs as records show them: without the user and the password that they may hold."""

import re

MASKED = "***"
_USERINFO = re.compile(r'(://)[^/\s"\'\\<>]*@')
_USERINFO_BYTES = re.compile(_USERINFO.pattern.encode())
_PASSWORD = re.compile(r'://[^/\s"\'\\<>:@]*:[^/\s"\'\\<>]+@')


def masked(text: str) -> str:
    """Return a text in which no URL shows its user and password: ``s3://***@bucket/run``."""
    return _USERINFO.sub(rf"\1{MASKED}@", text)


def masked_bytes(data: bytes) -> bytes:
    """Return encoded text, such as JSON, likewise."""
    return _USERINFO_BYTES.sub(rb"\1" + MASKED.encode() + b"@", data)


def has_password(text: str) -> bool:
    """Return whether a text shows a URL with a user's password; a name of a user alone is none."""
    return _PASSWORD.search(text) is not None
