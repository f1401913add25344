"""Every error the library raises on purpose, and nothing else.

    GraceStoreError
    ├── DataError (ValueError)            the dataset cannot be read as asked
    │   ├── UnknownFormat                 no known format fits the records
    │   ├── NothingUsable                 every record was set aside
    │   └── DatasetChanged                the files differ from those the store was planned with
    ├── SettingError (ValueError)         a setting has no meaning
    ├── ModelError (ValueError)           the model folder cannot be used
    │   ├── UnsafeModel                   it holds pickles or code
    │   ├── OutOfMemory (MemoryError)     one sample alone does not fit on the device
    │   └── DeviceLost (RuntimeError)     the device can compute nothing more in this process
    ├── StoreError
    │   ├── NotAStore (FileNotFoundError) nothing, or something else, lies at that path
    │   ├── UnknownName (KeyError)        no such signal or sample in the store
    │   ├── ResumeMismatch (ValueError)   the store was planned with other settings
    │   ├── TargetMismatch (ValueError)   a target set was not made as the pool was
    │   ├── StoreBusy                     another run holds the store
    │   ├── StorageError                  the object store does not answer, or refuses
    │   ├── Corrupt                       bytes on disk are not those that were written
    │   └── Unfinished                    the store lacks units that the call needs
    ├── WorkerDied (RuntimeError)         a worker process ended before its work did
    ├── Interrupted                       the user asked to stop; everything committed is kept
    └── MissingExtra (ImportError)        an optional package is not installed

``Unusable``, in ``states``, stands apart: it is the verdict on one record, no failure, and never leaves the job.
"""


class GraceStoreError(Exception):
    """Base of all errors raised on purpose; its text is meant for the user."""

    def __str__(self) -> str:
        # KeyError shows repr(args); the message is prose everywhere else, so keep it prose here too.
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
    """Nothing, or something else, lies at that path."""


class UnknownName(StoreError, KeyError):
    """The store has no signal or sample of that name."""


class ResumeMismatch(StoreError, ValueError):
    """The store was planned with other settings than those given."""


class TargetMismatch(StoreError, ValueError):
    """A target set's signals were not made as the pool's were, so that they cannot be compared."""


class StoreBusy(StoreError):
    """Another run holds the store."""


class StorageError(StoreError):
    """The object store that a store lies in does not answer, or refuses."""


class Corrupt(StoreError):
    """Bytes on disk are not those that were written."""


class Unfinished(StoreError):
    """The store lacks units that the call needs."""


class WorkerDied(GraceStoreError, RuntimeError):
    """A worker process ended before its work did."""


class Interrupted(GraceStoreError):
    """The user asked to stop; everything committed is kept."""


class MissingExtra(GraceStoreError, ImportError):
    """An optional package is not installed."""


def how_to_install(extra: str) -> str:
    """Return the sentence that ends every message about a missing extra. Until there is a release, a clone has it.

    >>> how_to_install("report")
    "Install the extra `report`: run `pip install '.[report]'` in a clone of grace-store."
    """
    return f"Install the extra `{extra}`: run `pip install '.[{extra}]'` in a clone of grace-store."
