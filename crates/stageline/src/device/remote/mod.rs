//! Devices of other hosts: serving them, connecting to them, routing tensors between them, and detecting lost hosts.
//!
//! A server on each host serves the host's devices (`Server`, or `stageline serve`). The stages' threads in this
//! program drive them through burn's remote backend. As with a GPU, such a thread runs ahead of its device until it
//! reads a value from it. Tensors go from server to server, and the autodiff graphs of stages stay here. A stage
//! computes the same bits on another host as here, because a server runs this crate's own kernels as single operations.
//!
//! Input: names and tokens. Output: opened devices, routes of tensors, and errors that name hosts. This folder owns
//! sessions (queues of requests to one device), sockets, tokens, queries about servers, and time limits for answers. It
//! must not know plans or steps, and must not decide what happens to a training run whose host is lost. `pipeline` asks
//! for lost hosts after an error or in a stall, and makes a `StepError` of them.
//!
//! - [`RemoteName`], [`HostName`], [`Reach`] (`name`): the name of a device of another host, the address of the host,
//!   and how a client finds it on the network. [`DeviceName::open_all`](crate::DeviceName::open_all) connects devices
//!   by their names.
//! - [`Token`] (`token`): the secret that a server requires of programs that use its devices, in a file that only its
//!   owner can read.
//! - [`RemoteError`] (`error`): an error in connecting a device.
//! - [`LostHost`] (`lost`, `liveness`): a host that no longer answers a liveness check (`LivenessCheck`) or whose
//!   server was restarted, listed with the replicas and stages on it. `stuck` finds the stages whose device does not
//!   answer.
//! - [`LostLink`] (`lost_link`): a broken network link between two hosts that do answer.
//! - `with_time_limit` waits with a time limit for a request that the server may never answer (`Pending`).
//! - [`link_speeds`], [`LinkSpeed`] (`link_speed`, `probe`): the measured latency and bandwidth between devices.
//! - `connect`: opens sessions, each on a thread of its own (`Opening`), and introduces servers to each other by their
//!   iroh ids.
//! - `connected`: the registry of connected devices (`Connected`) with their sessions for transfers (`Lane`).
//! - `greeting`: a program's first requests to a server: for its version (`Version`, `Greeting`), for the identity of
//!   its process (`Process`), and to accept tensors from other servers.
//! - `route`: the route of tensors between two neighbouring stages (`Route`, `Lanes`), directly or through this host.
//!   `moved` and `by_the_host` move a single tensor along its route; `transfer` calls them.
//! - `within_server`: moves tensors between two sessions with one server, inside the server.
//! - `serve`: the server, its limits for clients without a session, and its shutdown by a signal.

mod error;
mod link_speed;
mod lost;
mod lost_link;
mod name;
mod route;
mod token;

#[cfg(feature = "remote")]
pub(crate) mod connect;
#[cfg(feature = "remote")]
mod connected;
#[cfg(feature = "remote")]
mod greeting;
#[cfg(feature = "remote")]
mod liveness;
#[cfg(feature = "remote")]
mod probe;
#[cfg(feature = "serve")]
mod serve;
#[cfg(feature = "remote")]
mod with_time_limit;
#[cfg(feature = "remote")]
mod within_server;

pub use error::RemoteError;
pub use link_speed::LinkSpeed;
#[cfg(not(feature = "remote"))]
pub use link_speed::link_speeds;
pub use lost::LostHost;
pub(crate) use lost::{hosts_of, lost_hosts, stuck};
pub use lost_link::LostLink;
pub(crate) use lost_link::lost_links;
pub use name::{HostName, Reach, RemoteName};
pub(crate) use name::{digits, one_id_for_two_addresses};
#[cfg(feature = "remote")]
pub use probe::link_speeds;
pub(crate) use route::{Lanes, Route, by_the_host, goes_through_this_host, moved, one_lent_gpu};
#[cfg(feature = "serve")]
pub use serve::{Admission, Listen, ServeError, Server};
pub use token::Token;

#[cfg(feature = "serve")]
pub use burn::remote::IrohRelays as Relays;
