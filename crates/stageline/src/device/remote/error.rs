//! The errors of connecting a device of another host ([`RemoteError`]).

use super::name::RemoteName;

/// An error in connecting a device of another host. The message names the device and a remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The device's host did not answer a connection attempt, or its address is wrong. Check that `stageline serve`
    /// runs there, that the id in the name is right, and that the port is open.
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
    /// A session (a connection to the device) could not be opened, although the host can be reached. Examples are a
    /// failed handshake and a panic in this program. Check that the same version is installed on both hosts.
    #[error(
        "no session with `{device}` could be opened: {cause}; check that the same version is installed on both hosts"
    )]
    Broken {
        /// The name of the device with which no session (connection) could be opened.
        device: RemoteName,
        /// The error message of the failed attempt to open a session (connection) with the device.
        cause: String,
    },
    /// The device's host requires a token, and the given token is wrong or missing. Give the token that `stageline
    /// serve` was given there.
    #[error("`{device}` refuses this program; give the token that `stageline serve` was given there (`--token-file`)")]
    WrongToken {
        /// The name of the device whose host accepts only programs with the right token (a secret string).
        device: RemoteName,
    },
    /// Two device names have the same iroh id and different addresses. An id belongs to one server, so both names would
    /// mean devices of the server that is connected first. Start each server with a key file of its own, or use one
    /// address for all devices of a server.
    #[error(
        "`{}` and `{}` have one id, so they would be devices of one server; start each server with a key file of its own \
         (`stageline serve --key`), or name all devices of a server by one address", devices[0], devices[1]
    )]
    OneIdForTwoAddresses {
        /// The two device names, which have the same id and different addresses.
        devices: Box<[RemoteName; 2]>,
    },
    /// The index in the device's name is too large, because the host serves fewer devices. Use an index below `served`.
    #[error("`{device}` is not served: there are {served} devices, from 0 to {}; name one of them", served.saturating_sub(1))]
    NotServed {
        /// The name of the device that the host does not serve.
        device: RemoteName,
        /// The number of devices that the host serves. The zero-based index in a device's name must be below it.
        served: usize,
    },
    /// The device's host runs another version of this program, whose results may differ in some bits. Install the same
    /// version on both hosts.
    #[error("`{device}` is served by {theirs}, and this program is {ours}; install the same version on both hosts")]
    OtherVersion {
        /// The name of the device whose host runs another version of this program.
        device: RemoteName,
        /// The version of Stageline that serves the device on the other host.
        theirs: String,
        /// The version of Stageline in this program, the client.
        ours: String,
    },
    /// The server on the device's host does not answer Stageline's requests, for example because it is a plain server
    /// of the library burn. Run `stageline serve` of this program's version there.
    #[error(
        "`{device}` is served by something else than `stageline serve`, or by one that does not report its version: {cause}; \
         run `stageline serve` of the same version there"
    )]
    NoStageline {
        /// The name of the device whose server does not answer Stageline's requests.
        device: RemoteName,
        /// The server's error message or unexpected answer to one of Stageline's first requests, such as the one for
        /// its version.
        cause: String,
    },
}
