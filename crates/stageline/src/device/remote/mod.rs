//! Devices of other hosts.
//!
//! A server on each host serves its devices ([`Server`], or `stageline serve`); the stages' threads here drive them, by burn's remote
//! backend. Tensors go from server to server, and the graphs of stages stay here. A stage has the same bits there as here:
//! what this crate computes in one piece is one operation on a server, too.
//!
//! - [`RemoteName`]: what a device is called. [`DeviceName::open_all`](crate::DeviceName::open_all) connects devices.
//! - [`Token`]: what a server asks for.

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
mod operations;
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
