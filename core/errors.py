"""The error tree, ordered by what happens next: that is what the reader of a log wants to know.

HomunculusError
├── SettingsError    the worker doesn't start: names the setting, what it got and what it accepts
│   ├── TopicError       a topic exists with another shape, or can't be made
│   ├── DataFolderError  the data folder can't be read or written, or another worker holds it
│   ├── NotAdmittedError the broker doesn't take who we are, or we don't take who it is
│   └── RightsError      the broker knows us, but doesn't let us do what we must
├── UsageError       the code that calls us is at fault: raised at once, where it calls
├── RecordError      the record goes to dead-letters, its partition goes on
│   ├── DecodeError      not JSON, or not of the topic's type
│   ├── FieldError       a field is missing, null, not finite or of the wrong type, and has no default
│   ├── TimeError        its time can't be: more than a day ahead of the clock
│   ├── KeyMismatchError the record's key isn't the session that its value names
│   ├── UnknownModelError    the record asks for a model that no deployment knows
│   ├── UnknownVersionError  scores are of a version that neither a worker nor the store has
│   ├── NoModelError     no model is live yet, and the wait for one is over
│   │   └── HeldError        its old version had to go before the new one fits: the record waits, whatever is set
│   ├── FeedbackError    feedback says nothing that the version it is about could have answered
│   ├── ScoreError       the model gave no usable score for it
│   ├── OutputTooLargeError  what the record led to is larger than a record may be
│   ├── TemplateError    the model's chat template can't write the conversation
│   ├── ContextTooLongError  a context leaves the model no room for a reply
│   ├── AdapterError     the adapter that is asked for isn't there, or isn't one of the model's
│   ├── SamplingError    a reply is asked for in a way that there is none
│   ├── GenerationError  the model failed while it made the reply
│   └── DocumentError    a document is too large, too deep or too many-pieced to be read
├── ModelError       the version that was live stays live
│   ├── ModelNotFoundError   no such name or version in the store
│   ├── StoreAwayError       the store can't be read now; versions that are cached still load
│   ├── ManifestError        manifest.json is missing, unreadable or contradicts the ONNX graph
│   ├── TamperedError        a file's sha256 isn't the manifest's, or a path leaves the folder
│   ├── ProviderMissingError the device that was asked for isn't there
│   ├── ConversionError      an estimator can't be made an ONNX model that computes the same
│   ├── GoldenMismatchError  the model doesn't compute what its golden examples say
│   ├── NoRoomError          the device's memory, as declared, has no room for it
│   ├── UnsafeModelError     trying it crashed, didn't end, or took more memory than there is
│   └── TransitionError      a deployment can't go from this stage to that one
├── OverloadedError  too much waits already: the caller is told, and may come again
├── RequestRefusedError  a control request is answered by one alert; the running deployment stays
├── SummaryError     a session's oldest turns can't be summed up: they are dropped, and the reply says so
├── KnowledgeAwayError   the worker can't search now: ask again
├── QdrantError      Qdrant doesn't do what it is asked: answers come from words alone, and what is to be written waits
│   └── CollectionError      its collection isn't one of ours: says what to do
├── RerankError      a question's passages can't be reranked: they stay in the order in which they were found
├── BackupError      state is neither saved nor restored: what was there before is there still
│   └── DamagedFileError     a file of state isn't what its manifest says
├── TrialError       a test of an application (engine/testing) can't go on: says what it waits for
├── TaskError        the partition's task is dropped and opened again from what is committed
│   └── CorruptStoreError    its store is damaged: rebuilt from the changelogs
└── FatalError       the process exits at once, non-zero
    ├── FencedError      another worker has its partitions now
    │   └── NotAMemberError    the group said so, before anything was written
    ├── WatchdogError    the consumer died quietly: no assignment, no progress, no commit
    ├── NewerStateError  a newer release wrote the state (found when a partition opens: that one stays closed)
    └── MigrationError   a value of an older version can't be made one of today's
"""

from __future__ import annotations


class HomunculusError(Exception):
    """Everything that this project raises on purpose."""


class SettingsError(HomunculusError):
    """The worker doesn't start."""


class TopicError(SettingsError):
    """A topic exists with another shape than ours, or can't be created."""


class DataFolderError(SettingsError):
    """The data folder can't be used."""


class NotAdmittedError(SettingsError):
    """Password or certificate: one side doesn't take the other for what it says it is."""


class RightsError(SettingsError):
    """The broker doesn't let us do what we must; its message names what is missing, and on what."""


class UsageError(HomunculusError):
    """The calling code is at fault; raised where it calls."""


class RecordError(HomunculusError):
    """One record can't be processed: it goes to dead-letters, its partition goes on."""


class DecodeError(RecordError):
    """The record's bytes aren't a value of its topic's type."""


class FieldError(RecordError):
    """A field that the model needs has no usable value."""

    def __init__(self, field: str, got: object, wanted: str | None = None) -> None:
        """wanted: what its input can hold, where a value is there but doesn't fit: no default would fill that."""
        send = (
            "send a finite number (or the type that the manifest names), or give the field a default in manifest.json"
        )
        if wanted is not None:
            send = f"its input in manifest.json takes {wanted}"
        super().__init__(f"field {field!r} is {_shown(got)}; {send}")
        self.field = field


class TimeError(RecordError):
    """The event's time can't be."""

    def __init__(self, ts: int) -> None:
        super().__init__(f"ts is {ts}, more than a day ahead of the clock; send ms since epoch, UTC")


class KeyMismatchError(RecordError):
    """The record's key isn't the session that its value names."""

    def __init__(self, key: bytes | None, session: str) -> None:
        got = "missing" if key is None else _shown(key.decode("utf-8", "backslashreplace"))
        super().__init__(
            f"the record's key is {got} but its session is {_shown(session)}; the key must be the session "
            "as UTF-8, or another partition holds that session's state"
        )


class UnknownModelError(RecordError):
    """The record asks for a model that no deployment knows."""

    def __init__(self, model: str | None, known: list[str]) -> None:
        what = (
            "the record names no model, and HOMUNCULUS_DEFAULT_MODEL doesn't choose one"
            if model is None
            else f"model {_shown(model)} is not deployed"
        )
        super().__init__(f"{what}; deployed are {', '.join(known) or 'none'}")


class UnknownVersionError(RecordError):
    """Scores name a version that can't be found."""

    def __init__(self, version: str, why: str) -> None:
        super().__init__(f"nothing is known of {version}, so its scores can't be judged: {why}")


class NoModelError(RecordError):
    """No model is live on the worker."""


class HeldError(NoModelError):
    """The model's events wait while one version makes room for the next."""


class ScoreError(RecordError):
    """A model gave something that is not finite, or no probability."""

    def __init__(self, model: str) -> None:
        super().__init__(
            f"{model} gave no usable score for it (not finite, or no probability); its session keeps the event"
        )


class FeedbackError(RecordError):
    """Feedback that can't be what a version should have answered."""


class OutputTooLargeError(RecordError):
    """What the record led to doesn't fit into a record."""


class TemplateError(RecordError):
    """A chat template refuses the messages, or does too much for them."""


class ContextTooLongError(RecordError):
    """A context leaves no room for a reply in the decoder's window."""


class AdapterError(RecordError):
    """The adapter that was asked for isn't there, or isn't one of the model's."""


class SamplingError(RecordError):
    """A sampling setting is out of range, or a schema can't be followed."""


class GenerationError(RecordError):
    """Computing the reply failed."""


class DocumentError(RecordError):
    """A document can't be read within its limits; nothing of it becomes knowledge."""


class ModelError(HomunculusError):
    """A version can't go live; the one that was live stays."""


class ModelNotFoundError(ModelError):
    """No such model or version in the store."""


class StoreAwayError(ModelError):
    """The model store can't be read now; what is cached of it still can."""


class ManifestError(ModelError):
    """manifest.json is missing, unreadable or contradicts the ONNX graph."""


class TamperedError(ModelError):
    """A file isn't what the manifest's sha256 says, or a path leaves the model's folder."""


class ProviderMissingError(ModelError):
    """The device that was asked for isn't there."""


class ConversionError(ModelError):
    """An estimator can't be made an ONNX model that computes the same; names the estimator."""


class GoldenMismatchError(ModelError):
    """The model doesn't compute what its golden examples say."""


class NoRoomError(ModelError):
    """Versions would hold more of the device's memory than is declared."""


class UnsafeModelError(ModelError):
    """Trying the version crashed, didn't end in time, or took more memory than this machine has to spare."""


class TransitionError(ModelError):
    """A deployment can't go from this stage to that one."""


class OverloadedError(HomunculusError):
    """Too much waits already."""


class RequestRefusedError(HomunculusError):
    """A control request is refused; the running deployment stays."""


class SummaryError(HomunculusError):
    """There is no summary; it says why."""


class KnowledgeAwayError(HomunculusError):
    """What is known can't be searched yet."""


class QdrantError(HomunculusError):
    """Qdrant is away, or refuses: what it doesn't have yet waits in the library."""


class CollectionError(QdrantError):
    """A collection of that name has vectors of another kind."""


class RerankError(HomunculusError):
    """A question's passages stay in the order in which they were found."""


class BackupError(HomunculusError):
    """State is neither saved nor restored; nothing has changed."""


class DamagedFileError(BackupError):
    """A file of state isn't what its manifest says."""


class TrialError(HomunculusError):
    """An application under test doesn't do what its test waits for."""


class TaskError(HomunculusError):
    """The partition's task is dropped and opened again from what is committed."""


class CorruptStoreError(TaskError):
    """A partition's store has turned out to be damaged: it is rebuilt from the changelogs."""


class FatalError(HomunculusError):
    """The process exits at once, non-zero."""


class FencedError(FatalError):
    """The group has given this worker's partitions to another one."""

    def __init__(self, answer: str) -> None:
        """answer: what the broker said to a write."""
        super().__init__(
            f"another worker has the partitions of this one by now (the broker says {answer}); this process stops so "
            "that nothing is written twice (its supervisor may restart it)"
        )


class NotAMemberError(FencedError):
    """The group refuses us: it has given our partitions to another worker, or is about to."""


class WatchdogError(FatalError):
    """The consumer died quietly."""


class NewerStateError(FatalError):
    """State that a newer release has written. Found when a partition opens, that one alone stays closed."""

    def __init__(self, table: str | None, found: int, known: int, partition: int | None, key: bytes | None) -> None:
        """table: None where it is the form of all values that isn't known. key: one of those concerned, if known."""
        where = [] if partition is None else [f"partition {partition}"]
        where += [] if key is None else [f"key {_shown(key.decode('utf-8', 'backslashreplace'))}"]
        what = "all tables" if table is None else f"table {table!r}"
        kind = "format" if table is None else "version"
        super().__init__(
            f"{', '.join([what, *where])}: a newer release wrote values of {kind} {found}, this one knows {known} at "
            "most, and leaves them as they are. Start the newer release again, or restore a backup from before it "
            "(docs/state.md)"
        )
        self.table, self.found, self.known, self.partition, self.key = table, found, known, partition, key


class MigrationError(FatalError):
    """A migration of a table failed on a value: it stays as it is until the migration is mended."""

    def __init__(self, table: str, version: int, known: int, key: bytes | None, reason: str) -> None:
        """version: of the value that the migration was given. reason: what went wrong, without the value."""
        which = "a value" if key is None else f"key {_shown(key.decode('utf-8', 'backslashreplace'))}"
        super().__init__(
            f"table {table!r}: {which} of version {version} can't be made one of version {known} ({reason}): mend the "
            "table's migrations; nothing was written over it"
        )
        self.table, self.version, self.key = table, version, key


def _shown(value: object, limit: int = 80) -> str:
    """A value as an error shows it: short, and never megabytes of somebody's payload."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
