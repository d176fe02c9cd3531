//! The errors of a server that makes this host's devices available to other hosts ([`ServeError`]).

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use burn::server::ServeError as BurnError;

/// An error of a server that makes this host's devices available to other hosts: the server cannot start, or has
/// failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The server cannot listen at its address, most often because another program uses the port. Choose an address of
    /// this host and a free port.
    #[error("{address} cannot be bound: {cause}; give an address of this host, and a port that no other program uses")]
    Address {
        /// The address at which the server could not listen.
        address: SocketAddr,
        /// The error message that says why the server could not listen at the address.
        cause: String,
    },
    /// The file with the server's secret key cannot be read or written. Name a file of 32 bytes, or a path where a new
    /// file can be created.
    #[error("the key in {} cannot be used: {cause}; give a file of 32 bytes, or the path of a new file", path.display())]
    Identity {
        /// The file with the secret key of the server.
        path: PathBuf,
        /// The operating system's error in reading or writing the file with the server's secret key.
        cause: io::Error,
    },
    /// Another server uses the file with the secret key. The key is the server's id, and two servers with one id cannot
    /// be told apart. Name a key file of its own for each server.
    #[error("another server uses the key in {}; give each server a key file of its own (`--key`)", path.display())]
    KeyInUse {
        /// The file with the secret key, which the other server has locked.
        path: PathBuf,
    },
    /// The server does not start, because it requires no token (a shared secret) but programs on other hosts could
    /// reach it. Require a token, or listen on `127.0.0.1` or `[::1]` without relays.
    #[error(
        "a server that anyone may use listens on this host only: leave the relays disabled, and the address 127.0.0.1 or [::1], or \
         require a token"
    )]
    AnyoneElsewhere,
    /// The server could not start, because the operating system refused it a thread, a socket or a signal handler. The
    /// value is the operating system's error.
    #[error("the server could not be started: {0}")]
    Runtime(io::Error),
    /// burn's server, on which the device server is built, failed. The value is the error message of burn's server.
    #[error("the devices cannot be served: {0}")]
    Burn(String),
}

impl From<BurnError> for ServeError {
    fn from(error: BurnError) -> Self {
        Self::Burn(error.to_string())
    }
}
