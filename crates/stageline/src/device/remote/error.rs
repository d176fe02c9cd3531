//! The errors of connecting a device of another host ([`RemoteError`]).

use super::name::RemoteName;

/// An error in connecting a device of another host. The message names the device and a remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The host of the device did not answer a connection attempt, or its address is wrong.
    #[error(
        "`{device}` cannot be reached: {cause}; check that `stageline serve` runs there and prints this id, and that its port is \
         open"
    )]
    Unreachable {
        /// The name of the device whose host cannot be reached.
        device: RemoteName,
        /// The error message of the failed connection to the device's host, as the network library words it.
        cause: String,
    },
    /// A session (a connection to the device) could not be opened, for another reason than an unreachable host.
    /// Examples are a failed handshake and a panic in this program.
    #[error(
        "no session with `{device}` could be opened: {cause}; check that the same version is installed on both hosts"
    )]
    Broken {
        /// The name of the device to which no session (connection) could be opened.
        device: RemoteName,
        /// Why no session (connection) with the device could be opened, as an error message.
        cause: String,
    },
    /// The device's host requires a token, and the given token is wrong or missing.
    #[error("`{device}` refuses this program; give the token that `stageline serve` was given there (`--token-file`)")]
    WrongToken {
        /// The name of the device whose host accepts only programs with the right token (a secret text).
        device: RemoteName,
    },
    /// The host serves fewer devices than the index in the device's name requires.
    #[error("`{device}` is not served: there are {served} devices, from 0 to {}; name one of them", served.saturating_sub(1))]
    NotServed {
        /// The name of the device that the host does not serve.
        device: RemoteName,
        /// The number of devices that the host serves. The index in a device's name, counted from 0, must be below this
        /// number.
        served: usize,
    },
    /// The device's host runs another version of this program. The results of two versions may differ in some bits.
    #[error("`{device}` is served by {theirs}, and this program is {ours}; install the same version on both hosts")]
    OtherVersion {
        /// The name of the device whose host runs another version of this program.
        device: RemoteName,
        /// The version of the program on the device's host.
        theirs: String,
        /// The version of this program.
        ours: String,
    },
    /// The server on the device's host is a server of the library burn that does not know Stageline's operations.
    #[error(
        "`{device}` is served by something else than `stageline serve`, or by one that does not report its version: {cause}; \
         run `stageline serve` of the same version there"
    )]
    NoStageline {
        /// The name of the device whose server is not a server of Stageline.
        device: RemoteName,
        /// The error or the text that the server returned when it was asked for its version.
        cause: String,
    },
}
