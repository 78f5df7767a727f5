//! Events: past facts, one file a family, frozen once written.
//!
//! An event is stored as {kind number, version, body}; the body is postcard, which is positional, so a body that has
//! ever been written never changes: a new shape is a new version beside the old one, and `migrations/kinds.lock` holds
//! each one's shape hash and golden bytes. Bodies own their nested types, which live in the same file, so that a change
//! made for today's state cannot silently change yesterday's bytes. The alternative, one persisted Rust enum, breaks on
//! the first reordered variant.
//!
//! Earlier versions of a body stand in the table's second part: they are read, become today's body at once, and are
//! never written again. Nothing past this module knows that they were.
//!
//! To add an event: write its body in the family's file, add one line to the table below with the next free number,
//! say in `state/` what it does, and run `UPDATE_KINDS=1 cargo test -p tidemill-tests --test golden` to freeze it.

pub mod breaker;
pub mod cell;
pub mod credential;
pub mod evidence;
pub mod instance;
pub mod node;
pub mod placement;
pub mod service;
pub mod switch;
pub mod worker;

use postcard_schema::Schema;
use postcard_schema::schema::NamedType;
use serde::Deserialize;

/// Kind and version of a stored event, and how its body looks.
#[derive(Clone, Copy)]
pub struct KindInfo {
    /// Frozen number.
    pub kind: u16,
    /// Version of the body.
    pub version: u16,
    /// Name as users see it.
    pub name: &'static str,
    /// The body's shape.
    pub schema: &'static NamedType,
}

/// Why stored bytes are not an event this build can read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Written by a newer build. Readers stop here rather than skip.
    #[error(
        "event kind {kind} version {version} is unknown to this build: it was written by a newer release; \
         upgrade this one to read on"
    )]
    UnknownKind {
        /// Stored kind number.
        kind: u16,
        /// Stored version.
        version: u16,
    },
    /// The bytes do not have the shape of their kind.
    #[error("the body of {name} cannot be decoded: {reason}")]
    Body {
        /// Name of the kind.
        name: &'static str,
        /// postcard's reason.
        reason: String,
    },
    /// The bytes around the events are broken.
    #[error("a commit cannot be decoded: {0}")]
    Commit(String),
}

/// A body and nothing after it.
fn whole<'a, T: Deserialize<'a>>(name: &'static str, bytes: &'a [u8]) -> Result<T, DecodeError> {
    let body = |reason: String| DecodeError::Body { name, reason };
    let (value, rest) = postcard::take_from_bytes::<T>(bytes).map_err(|error| body(error.to_string()))?;
    match rest.len() {
        0 => Ok(value),
        left => Err(body(format!("{left} bytes left over"))),
    }
}

macro_rules! event_kinds {
    (
        $($kind:literal $version:literal $name:ident = $body:path;)*
        earlier:
        $($old_kind:literal $old_version:literal $old_name:ident = $old_body:path;)*
    ) => {
        /// What happened. One variant a kind, in its newest version; never persisted in this form.
        #[derive(Debug, Clone, PartialEq)]
        #[allow(missing_docs)]
        pub enum Event {
            $($name($body),)*
        }

        /// Every kind this build writes.
        pub const KINDS: &[KindInfo] = &[
            $(KindInfo {
                kind: $kind,
                version: $version,
                name: stringify!($name),
                schema: <$body as Schema>::SCHEMA,
            },)*
        ];

        /// Earlier versions that this build reads still.
        pub const EARLIER: &[KindInfo] = &[
            $(KindInfo {
                kind: $old_kind,
                version: $old_version,
                name: stringify!($old_name),
                schema: <$old_body as Schema>::SCHEMA,
            },)*
        ];

        impl Event {
            /// Frozen kind number and version.
            pub fn kind(&self) -> (u16, u16) {
                match self {
                    $(Event::$name(_) => ($kind, $version),)*
                }
            }

            /// The kind's name as users see it.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Event::$name(_) => stringify!($name),)*
                }
            }

            /// Appends the body's bytes.
            pub fn encode_body(&self, out: Vec<u8>) -> Vec<u8> {
                let encoded = match self {
                    $(Event::$name(body) => postcard::to_extend(body, out),)*
                };
                encoded.expect("a Vec takes any number of bytes and event bodies hold no unsized sequences")
            }

            /// Reads a body of the given kind and version.
            pub fn decode(kind: u16, version: u16, bytes: &[u8]) -> Result<Event, DecodeError> {
                match (kind, version) {
                    $(($kind, $version) => Ok(Event::$name(whole::<$body>(stringify!($name), bytes)?)),)*
                    $(($old_kind, $old_version) => {
                        Ok(Event::$old_name(whole::<$old_body>(stringify!($old_name), bytes)?.into()))
                    })*
                    _ => Err(DecodeError::UnknownKind { kind, version }),
                }
            }

            /// The body as JSON: what `events` shows as `data`.
            pub fn to_json(&self) -> serde_json::Value {
                let value = match self {
                    $(Event::$name(body) => serde_json::to_value(body),)*
                };
                value.unwrap_or(serde_json::Value::Null)
            }
        }

        $(impl From<$body> for Event {
            fn from(body: $body) -> Event {
                Event::$name(body)
            }
        })*
    };
}

event_kinds! {
    1 1 LedgerCreated = cell::LedgerCreated;
    2 1 EpochStarted = cell::EpochStarted;
    3 1 StateSealed = cell::StateSealed;
    4 1 FeatureActivated = cell::FeatureActivated;
    10 1 CredentialCreated = credential::CredentialCreated;
    11 1 CredentialRevoked = credential::CredentialRevoked;
    15 1 WorkerTermGranted = worker::WorkerTermGranted;
    20 2 NodeJoined = node::NodeJoined;
    21 1 NodeReady = node::NodeReady;
    22 1 NodeSuspected = node::NodeSuspected;
    23 1 NodeRecovered = node::NodeRecovered;
    24 1 NodeLost = node::NodeLost;
    25 1 NodeLeft = node::NodeLeft;
    26 1 NodeInspected = node::NodeInspected;
    30 1 NodeCordoned = node::NodeCordoned;
    31 1 NodeUncordoned = node::NodeUncordoned;
    32 1 NodeDrainRequested = node::NodeDrainRequested;
    33 1 NodeDrained = node::NodeDrained;
    40 2 ServiceApplied = service::ServiceApplied;
    41 1 ServiceStopRequested = service::ServiceStopRequested;
    42 1 ServiceStarted = service::ServiceStarted;
    43 1 ServiceDeleteRequested = service::ServiceDeleteRequested;
    44 1 ServiceDeleted = service::ServiceDeleted;
    45 1 ServiceScaleOverridden = service::ServiceScaleOverridden;
    46 1 ServiceScaleReleased = service::ServiceScaleReleased;
    47 1 ServiceDesiredChanged = service::ServiceDesiredChanged;
    48 1 ServiceRolledOut = service::ServiceRolledOut;
    49 1 ServiceRolloutHalted = service::ServiceRolloutHalted;
    50 2 ServiceRolledBack = service::ServiceRolledBack;
    60 2 InstancesRequested = instance::InstancesRequested;
    61 2 InstancesPlaced = instance::InstancesPlaced;
    62 2 PlacementDeferred = instance::PlacementDeferred;
    63 1 InstanceStarted = instance::InstanceStarted;
    64 1 InstanceReady = instance::InstanceReady;
    65 1 InstanceUnready = instance::InstanceUnready;
    66 1 InstancesInRotation = instance::InstancesInRotation;
    67 2 InstancesDrainRequested = instance::InstancesDrainRequested;
    68 1 InstancesStopRequested = instance::InstancesStopRequested;
    69 1 InstanceStopped = instance::InstanceStopped;
    70 1 InstanceFailed = instance::InstanceFailed;
    71 1 InstancesLost = instance::InstancesLost;
    72 2 InstancesCancelled = instance::InstancesCancelled;
    73 1 InstanceMoveRequested = instance::InstanceMoveRequested;
    90 1 TrafficMinuteClosed = evidence::TrafficMinuteClosed;
    91 1 ObservationWindowSealed = evidence::ObservationWindowSealed;
    100 1 SwitchOpened = switch::SwitchOpened;
    101 1 SwitchReplacementChosen = switch::SwitchReplacementChosen;
    102 1 SwitchClosed = switch::SwitchClosed;
    120 1 StandbysPromoted = instance::StandbysPromoted;
    121 1 BreakerTripped = breaker::BreakerTripped;
    122 1 BreakerConfirmed = breaker::BreakerConfirmed;
    123 1 BreakerReset = breaker::BreakerReset;

    earlier:
    20 1 NodeJoined = node::v1::NodeJoined;
    40 1 ServiceApplied = service::v1::ServiceApplied;
    50 1 ServiceRolledBack = service::v1::ServiceRolledBack;
    60 1 InstancesRequested = instance::v1::InstancesRequested;
    61 1 InstancesPlaced = placement::v1::InstancesPlaced;
    62 1 PlacementDeferred = placement::v1::PlacementDeferred;
    67 1 InstancesDrainRequested = instance::v1::InstancesDrainRequested;
    72 1 InstancesCancelled = instance::v1::InstancesCancelled;
}
