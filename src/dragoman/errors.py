"""What can go wrong that is not our bug, and how a process ends.

A ``UserError`` is something the reader of the message can put right: it says what is wrong, where, and how to
fix it, and never shows a traceback. Any other exception is our bug and keeps its traceback.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """The promises a script can rely on."""

    DONE = 0
    BUG = 1
    USER = 2
    INTERRUPTED = 130  # Ctrl-C, state saved
    TERMINATED = 143  # SIGTERM, state saved


class UserError(Exception):
    """An error the user can fix: what, where, and the fix, one line each."""

    def __init__(self, what: str, *, where: str, fix: str) -> None:
        super().__init__(what)
        self.what, self.where, self.fix = what, where, fix

    def __str__(self) -> str:
        return f"error: {self.what}\n  where: {self.where}\n  fix:   {self.fix}"

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments do not survive the default pickling, and workers of a pool raise this.
        return _rebuild_user_error, (self.what, self.where, self.fix)


class UserErrors(UserError):
    """Several user errors found together, so that they are fixed in one go."""

    def __init__(self, errors: list[UserError]) -> None:
        first = errors[0]
        super().__init__(first.what, where=first.where, fix=first.fix)
        self.errors = errors

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)

    def __reduce__(self) -> tuple[object, ...]:
        return UserErrors, (self.errors,)


def _rebuild_user_error(what: str, where: str, fix: str) -> UserError:
    return UserError(what, where=where, fix=fix)
