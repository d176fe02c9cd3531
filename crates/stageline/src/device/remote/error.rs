//! Why a device of another host cannot be used.

use super::name::RemoteName;

/// Why a device of another host cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// Nobody answered there.
    #[error(
        "`{device}` cannot be reached: {cause}; look whether `stageline serve` runs there, prints this id, and whether its port is \
         open"
    )]
    Unreachable {
        /// The device.
        device: RemoteName,
        /// What happened.
        cause: String,
    },
    /// Somebody answered there, and no session came of it; or this program cannot open one.
    #[error(
        "no session with `{device}` comes about: {cause}; look whether the same version is installed on both hosts"
    )]
    Broken {
        /// The device.
        device: RemoteName,
        /// What happened.
        cause: String,
    },
    /// The host asks for a token, and this is another one.
    #[error("`{device}` refuses this program; give the token that `stageline serve` was given there (`--token-file`)")]
    WrongToken {
        /// The device.
        device: RemoteName,
    },
    /// The host has fewer devices.
    #[error("`{device}` is not served: there are {served} devices, from 0 to {}; name one of them", served.saturating_sub(1))]
    NotServed {
        /// The device.
        device: RemoteName,
        /// How many there are.
        served: usize,
    },
    /// The host runs another version, which may compute other bits.
    #[error("`{device}` is served by {theirs}, and this program is {ours}; install the same version on both hosts")]
    OtherVersion {
        /// The device.
        device: RemoteName,
        /// What the host speaks.
        theirs: String,
        /// What this program speaks.
        ours: String,
    },
    /// A server of burn's that does not know this crate.
    #[error(
        "`{device}` is served by something else than `stageline serve`, or by a version that says nothing of itself: {cause}"
    )]
    NoStageline {
        /// The device.
        device: RemoteName,
        /// What came instead of an answer.
        cause: String,
    },
}
