//! The greeting ([`Greeting`]): a server's first answer to a client that connects a device. It contains the server's
//! version and the device's kernels. The client's further requests ask for the numbers that identify the server's
//! process, introduce other servers to it, and announce a session.
//!
//! The greeting is an operation that only Stageline's servers have, because burn itself compares only the versions of
//! its protocol.

use std::fmt;

use burn::backend::Remote;
use burn::tensor::{DType, Device, Shape, Tensor};
use burn_ir::ScalarIr;

use super::connected::{self, Process};
use super::within_server::session_name;
use stageline_nn::kernels::remote::{ServedKernels, ask, name};

/// The greeting: a server's first answer to a client that connects a device. It contains the version of the server's
/// program and the kernels of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) version: Version,
    /// The kernels that the server runs on the device; `None` if this program does not know these kernels.
    pub(super) kernels: Option<ServedKernels>,
}

/// The version of a server's or a client's program: its major, minor and patch number, and the version number of the
/// server's operations ([`OPERATIONS`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version([u16; 4]);

/// Number of values in a server's greeting (its first answer to a client): four for the version, and one for the
/// device's kernels. It is the same in all versions of Stageline, so that each version can read the greeting of any
/// other.
const NUMBERS: usize = 5;

/// The version number of the operations and kernels that a server runs for its clients. It is raised whenever one of
/// them takes different inputs or returns different bits, because client and server must agree on both.
const OPERATIONS: u16 = 7;

impl Version {
    /// The version of this program. A server sends its version to a client, and the client compares it with its own.
    pub(super) const OURS: Self = Self([
        number(env!("CARGO_PKG_VERSION_MAJOR")),
        number(env!("CARGO_PKG_VERSION_MINOR")),
        number(env!("CARGO_PKG_VERSION_PATCH")),
        OPERATIONS,
    ]);
}

impl Greeting {
    /// Encodes this server's greeting (its version and a device's kernels) as the values that the server sends to a
    /// client.
    #[cfg(feature = "serve")]
    pub(super) fn numbers(kernels: ServedKernels) -> [f32; NUMBERS] {
        let [major, minor, patch, operations] = Version::OURS.0.map(f32::from);
        [major, minor, patch, operations, kernels.number()]
    }

    /// Decodes a server's greeting from the values that the server has sent.
    fn from_numbers(numbers: [f32; NUMBERS]) -> Self {
        let [version @ .., kernels] = numbers;
        let version = Version(version.map(|number| number as u16));
        Self { version, kernels: ServedKernels::from_number(kernels) }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch, operations] = self.0;
        write!(f, "stageline {major}.{minor}.{patch} with operations {operations}")
    }
}

/// Parses one number of this program's version, such as the major version, at compile time. A string that is not a
/// number is a compile error.
const fn number(digits: &str) -> u16 {
    match u16::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => panic!("every part of a version is a number"),
    }
}

/// Draws random numbers that identify this server's process. A restarted server draws new ones, so that clients notice
/// the restart.
#[cfg(feature = "serve")]
pub(super) fn this_process() -> Process {
    let random = burn::remote::IrohIdentity::random().to_bytes();
    std::array::from_fn(|part| f32::from(u16::from_le_bytes([random[2 * part], random[2 * part + 1]])))
}

/// Asks a device's server for its greeting: the version of its program and the kernels of the device. The error is
/// burn's message, or describes an unexpected answer.
pub(super) fn request(device: &Device) -> Result<Greeting, String> {
    numbers::<NUMBERS>(device, name::HELLO).map(Greeting::from_numbers)
}

/// Asks the server of a device for the numbers that identify its process, which change when the server is restarted.
pub(super) fn process(device: &Device) -> Result<Process, String> {
    numbers(device, name::PROCESS)
}

/// Tells a device's server the ids (public keys) of the other servers of a training run, so that it accepts tensors
/// from them. The error says why this failed, for example because the server accepted only some of the ids.
pub(super) fn introduce(device: &Device, ids: &[[u8; 32]]) -> Result<(), String> {
    let words = ids.iter().flat_map(|id| id.as_chunks::<8>().0).map(|word| u64::from_le_bytes(*word));
    let [known] = answer::<1>(device, name::PEERS, words.map(ScalarIr::UInt).collect())?;
    if known as usize == ids.len() { Ok(()) } else { Err(format!("it took {known} of {} ids of servers", ids.len())) }
}

/// Announces the session `device` (a connection to a device) to its server. This is required before the session gives
/// tensors to other sessions: if an unannounced session gives a tensor, the server ends both sessions. The error says
/// why the server did not answer.
pub(super) fn join(device: &Device) -> Result<(), String> {
    let remote = connected::remote(device).ok_or_else(|| "it is not a device of another host".to_owned())?;
    answer::<1>(device, name::JOIN, session_name(&remote)).map(drop)
}

/// Sends the request `question`, without arguments, to a device's server, and returns the answer's `N` values. The
/// error is burn's message, or describes an answer with another number of values.
fn numbers<const N: usize>(device: &Device, question: &'static str) -> Result<[f32; N], String> {
    answer(device, question, Vec::new())
}

/// Sends the request `question`, with the arguments `scalars`, to a device's server, and returns the answer's `N`
/// values. The error is burn's message, or describes an answer with another number of values.
fn answer<const N: usize>(device: &Device, question: &'static str, scalars: Vec<ScalarIr>) -> Result<[f32; N], String> {
    let remote = connected::remote(device).ok_or_else(|| "it is not a device of another host".to_owned())?;
    let [answer] = ask(&remote, question, Vec::new(), scalars, [(Shape::new([N]), DType::F32)]);
    let answer = Tensor::<1>::from_primitive::<Remote>(answer).try_into_data().map_err(|error| error.to_string())?;
    let numbers: Vec<f32> = answer.iter().collect();
    numbers.try_into().map_err(|numbers| format!("it answered {numbers:?}"))
}
