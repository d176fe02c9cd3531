//! The errors of connecting a device of another host.

use super::name::RemoteName;

/// An error in connecting a device of another host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The host did not answer, or its address is wrong.
    #[error(
        "`{device}` cannot be reached: {cause}; check that `stageline serve` runs there and prints this id, and that its port is \
         open"
    )]
    Unreachable {
        /// The name of the device.
        device: RemoteName,
        /// The error of the connection.
        cause: String,
    },
    /// The host answered, but no session could be opened; or this program failed in opening one.
    #[error(
        "no session with `{device}` could be opened: {cause}; check that the same version is installed on both hosts"
    )]
    Broken {
        /// The name of the device.
        device: RemoteName,
        /// The error of the connection.
        cause: String,
    },
    /// The host requires a token, and the given one is wrong or missing.
    #[error("`{device}` refuses this program; give the token that `stageline serve` was given there (`--token-file`)")]
    WrongToken {
        /// The name of the device.
        device: RemoteName,
    },
    /// The host serves fewer devices than the index requires.
    #[error("`{device}` is not served: there are {served} devices, from 0 to {}; name one of them", served.saturating_sub(1))]
    NotServed {
        /// The name of the device.
        device: RemoteName,
        /// The number of devices that the host serves.
        served: usize,
    },
    /// The host runs another version, which may compute other bits.
    #[error("`{device}` is served by {theirs}, and this program is {ours}; install the same version on both hosts")]
    OtherVersion {
        /// The name of the device.
        device: RemoteName,
        /// The version of the host's server.
        theirs: String,
        /// The version of this program.
        ours: String,
    },
    /// The server is one of burn's that does not know Stageline's operations.
    #[error(
        "`{device}` is served by something else than `stageline serve`, or by one that does not report its version: {cause}; \
         run `stageline serve` of the same version there"
    )]
    NoStageline {
        /// The name of the device.
        device: RemoteName,
        /// The error or the text that came instead of a greeting.
        cause: String,
    },
}
