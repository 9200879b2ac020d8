"""Errors a person can act on: each message names the thing and, where there is one, the fix."""


class StrataError(Exception):
    """Base of every error that Strata raises on purpose; its text is shown to the user as it is."""


class UsageError(StrataError):
    """The command line, or what is piped in, is not what the command takes; exit code 2."""


class ModelFileError(StrataError):
    """A model file is missing, damaged or inconsistent; the text names file, tensor and numbers."""


class UnsupportedModelError(StrataError):
    """A sound file asks for something Strata does not have (architecture, quant type, pre-tokenizer)."""


class DownloadError(StrataError):
    """A model cannot be fetched: not found, no access, no room, or the transfer broke. Says how to go on."""


class EngineError(StrataError):
    """The engine cannot go on, and must be started again: a card or its driver failed."""


class RequestError(StrataError):
    """A request cannot be served as it was written.

    Args:
        message: what is wrong and what would be right.
        field: the request's field at fault, as the client wrote it.
        code: machine-readable error code of the protocol, if it has one.
    """

    def __init__(self, message: str, field: str | None = None, code: str | None = None):
        super().__init__(message)
        self.field = field
        self.code = code
