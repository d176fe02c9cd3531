//! Devices of other hosts: serving them, connecting to them, transferring tensors between them, and detecting lost
//! hosts.
//!
//! A server on each host serves the host's devices (`Server`, or `stageline serve`). The stages' threads in this
//! program drive them through burn's remote backend. As with a GPU, such a thread runs ahead of its device until it
//! needs a number. Tensors go from server to server, and the autodiff graphs of stages stay here. A stage computes the
//! same bits on another host as here, because a server runs this crate's own kernels as single operations.
//!
//! - [`RemoteName`]: the name of a device of another host. [`DeviceName::open_all`](crate::DeviceName::open_all)
//!   connects devices by their names.
//! - [`Token`]: the secret that a server requires of programs that use its devices.
//! - [`RemoteError`]: an error in connecting a device.
//! - [`LostHost`], [`LostWay`]: a host that no longer answers, and a broken link between two hosts that do.
//! - [`link_speeds`]: the measured speed of the network between devices.
//!
//! The files behind these types:
//!
//! - `name`, `token`, `error`, `link_speed`: names and addresses, the secret, the errors, and a measured network speed.
//! - `serve`: the server, and its limits for clients without a session.
//! - `connect`, `connected`, `greeting`: opening sessions with a device, the registry of connected devices, and the
//!   check of the server's version.
//! - `route`: the way of tensors between two neighbouring stages, directly or through this host.
//! - `ask`, `lost`, `way`, `pending`: liveness checks of hosts, tests of links, and questions with a time limit.
//! - `probe`: the measurement of latency and bandwidth between devices.

mod error;
mod link_speed;
mod lost;
mod name;
mod route;
mod token;
mod way;

#[cfg(feature = "remote")]
mod ask;
#[cfg(feature = "remote")]
pub(crate) mod connect;
#[cfg(feature = "remote")]
mod connected;
#[cfg(feature = "remote")]
mod greeting;
#[cfg(feature = "remote")]
mod pending;
#[cfg(feature = "remote")]
mod probe;
#[cfg(feature = "serve")]
mod serve;

pub use error::RemoteError;
pub use link_speed::LinkSpeed;
#[cfg(not(feature = "remote"))]
pub use link_speed::link_speeds;
pub use lost::LostHost;
pub(crate) use lost::{hosts_of, lost_hosts, stuck};
pub use name::{HostName, Reach, RemoteName};
#[cfg(feature = "remote")]
pub use probe::link_speeds;
pub(crate) use route::{Lanes, Route, by_the_host, moved};
#[cfg(feature = "serve")]
pub use serve::{Admission, Listen, ServeError, Server};
pub use token::Token;
pub use way::LostWay;
pub(crate) use way::lost_ways;

#[cfg(feature = "serve")]
pub use burn::remote::IrohRelays as Relays;
