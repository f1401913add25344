"""All errors that this package raises on purpose.

    GraceStoreError
    ├── DataError (ValueError)            the dataset cannot be read as asked
    │   ├── UnknownFormat                 no known format fits the records
    │   ├── NothingUsable                 every record was set aside
    │   └── DatasetChanged                the files differ from those the store was planned with
    ├── SettingError (ValueError)         a setting has no meaning
    │   └── SettingNeeded                 the default of a setting would set aside most records
    ├── ModelError (ValueError)           the model folder cannot be used
    │   ├── UnsafeModel                   it holds pickles or code
    │   ├── OutOfMemory (MemoryError)     one sample alone does not fit on the device
    │   └── DeviceLost (RuntimeError)     the device can compute nothing more in this process
    ├── StoreError
    │   ├── NotAStore (FileNotFoundError) there is no store at that path
    │   ├── UnknownName (KeyError)        no such signal or sample in the store
    │   ├── ResumeMismatch (ValueError)   the store was planned with other settings
    │   ├── TargetMismatch (ValueError)   a target set was not made as the pool was
    │   ├── StoreBusy                     another run holds the store
    │   ├── StorageError                  the object store does not answer, or refuses a request
    │   ├── Corrupt                       bytes on disk differ from the bytes that were written
    │   └── Unfinished                    the store lacks units that the call needs
    ├── WorkerDied (RuntimeError)         a worker process ended before its work did
    ├── Interrupted                       the user asked to stop; everything committed is kept
    └── MissingExtra (ImportError)        an optional package is not installed

``Unusable``, in ``states``, is no failure: it says that one record cannot be used, and functions of the API catch it.
"""


class GraceStoreError(Exception):
    """Base of all errors raised on purpose; the message is written for users."""

    def __str__(self) -> str:
        # KeyError would show the message with quotes.
        return str(self.args[0]) if self.args else ""


class DataError(GraceStoreError, ValueError):
    """The dataset cannot be read as asked."""


class UnknownFormat(DataError):
    """No known format fits the records."""


class NothingUsable(DataError):
    """Every record was set aside."""


class DatasetChanged(DataError):
    """The files differ from those the store was planned with."""


class SettingError(GraceStoreError, ValueError):
    """A setting has no meaning."""


class SettingNeeded(SettingError):
    """The default of a setting would set aside most records, so the user must choose a value."""


class ModelError(GraceStoreError, ValueError):
    """The model folder cannot be used."""


class UnsafeModel(ModelError):
    """The model folder holds pickles or code."""


class OutOfMemory(ModelError, MemoryError):
    """One sample alone does not fit on the device."""


class DeviceLost(ModelError, RuntimeError):
    """The device can compute nothing more in this process."""


class StoreError(GraceStoreError):
    """Something is wrong with a store."""


class NotAStore(StoreError, FileNotFoundError):
    """There is no store at that path."""


class UnknownName(StoreError, KeyError):
    """The store has no signal or sample of that name."""


class ResumeMismatch(StoreError, ValueError):
    """The store was planned with other settings."""


class TargetMismatch(StoreError, ValueError):
    """The signals of a target set and of the pool were made differently, so they cannot be compared."""


class StoreBusy(StoreError):
    """Another run holds the store."""


class StorageError(StoreError):
    """The object store that holds a store does not answer, or refuses a request."""


class Corrupt(StoreError):
    """Bytes on disk differ from the bytes that were written."""


class Unfinished(StoreError):
    """The store lacks units that the call needs."""


class WorkerDied(GraceStoreError, RuntimeError):
    """A worker process ended before its work did."""


class Interrupted(GraceStoreError):
    """The user asked to stop; everything committed is kept."""


class MissingExtra(GraceStoreError, ImportError):
    """An optional package is not installed."""


def how_to_install(extra: str) -> str:
    """Return the last sentence of a message about a missing extra; without a release, extras come from a clone.

    >>> how_to_install("report")
    "Install the extra `report`: run `pip install '.[report]'` in a clone of grace-store."
    """
    return f"Install the extra `{extra}`: run `pip install '.[{extra}]'` in a clone of grace-store."
