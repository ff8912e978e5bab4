"""The code that a launcher sends: once a host, kept by its digest, and laid out for each run."""

from pathlib import Path

from dtrain.errors import DtrainError
from dtrain_cli.agent.messages import CodePart, CodeThere, WantCode
from dtrain_cli.agent.run_folders import WORK, code_store
from dtrain_cli.code import users
from dtrain_cli.code.unpacking import link_farm, unpack


class SentCode:
    """The archive that is being received."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def take(self, order: WantCode | CodePart, run_dir: Path | None) -> CodeThere | None:
        """Carry out an order about code; None while parts are missing."""
        assert run_dir is not None, "Begin comes first"
        store = code_store()
        if isinstance(order, CodePart):
            self._parts.append(order.data)
            if not order.last:
                return None
        try:
            with users.locked(store):
                if isinstance(order, CodePart):
                    data = b"".join(self._parts)
                    self._parts.clear()
                    unpack(data, order.digest, store)
                if not (store / order.digest).is_dir():
                    return CodeThere(None)
                work = run_dir / WORK
                link_farm(store / order.digest, work, store)
                users.use(store, order.digest, run_dir)
                return CodeThere(str(work))
        except DtrainError as error:
            return CodeThere(None, str(error))
        except OSError as error:
            return CodeThere(None, f"the code cannot be written to {store}: {error.strerror}")
