//! The greeting ([`Greeting`]): the answer of a server on another host to the first request of a client that connects a
//! device. The greeting contains the server's version and the kernels of the device. Other requests of a client ask for
//! the numbers that identify the server's process, introduce other servers to it, and announce a session.
//!
//! A client requests a greeting by an operation that only a server of this crate has. burn itself compares only the
//! versions of its protocol.

use std::fmt;

use burn::backend::Remote;
use burn::tensor::{DType, Device, Shape, Tensor};
use burn_ir::ScalarIr;

use super::connected::{self, Process};
use super::within_server::session_name;
use stageline_nn::kernels::remote::{ServedKernels, ask, name};

/// The greeting: the first answer of a server to a client that connects a device. It contains the version of the
/// server's program and the kernels of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) version: Version,
    /// The kernels that the server runs on the device; `None` if this program does not know these kernels.
    pub(super) kernels: Option<ServedKernels>,
}

/// The version of the program of a server or a client: its major, minor and patch number, and the version number of the
/// server's operations ([`OPERATIONS`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version([u16; 4]);

/// The number of values in a server's greeting (its first answer to a client): four numbers of the version, and one for
/// the device's kernels. It is the same in all versions, so that each can read the greeting of any other.
const NUMBERS: usize = 5;

/// The version number of the operations and kernels that a server runs for its clients. The number is raised whenever
/// one of them takes other inputs or returns other bits.
const OPERATIONS: u16 = 6;

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
    /// Returns the greeting of this program's server for a device with the given kernels, as the numbers that the
    /// server sends to a client.
    #[cfg(feature = "serve")]
    pub(super) fn numbers(kernels: ServedKernels) -> [f32; NUMBERS] {
        let [major, minor, patch, operations] = Version::OURS.0.map(f32::from);
        [major, minor, patch, operations, kernels.number()]
    }

    /// Converts numbers that a server has sent into the server's greeting.
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

/// Parses one number of this program's version at compile time. A text that is not a number is a compile error.
const fn number(digits: &str) -> u16 {
    match u16::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => panic!("every part of a version is a number"),
    }
}

/// Draws random numbers that identify a server's process. A restarted server draws new ones, so clients notice the
/// restart.
#[cfg(feature = "serve")]
pub(super) fn this_process() -> Process {
    let random = burn::remote::IrohIdentity::random().to_bytes();
    std::array::from_fn(|part| f32::from(u16::from_le_bytes([random[2 * part], random[2 * part + 1]])))
}

/// Asks the server of a device for its greeting: the version of its program and the kernels of the device. The error is
/// burn's message, or the text of an unexpected answer.
pub(super) fn request(device: &Device) -> Result<Greeting, String> {
    numbers::<NUMBERS>(device, name::HELLO).map(Greeting::from_numbers)
}

/// Asks the server of a device for the numbers that identify its process, which change when the server is restarted.
pub(super) fn process(device: &Device) -> Result<Process, String> {
    numbers(device, name::PROCESS)
}

/// Tells the server of a device the ids (public keys) of the other servers of a run, so that it accepts tensors from
/// them. The error says why that failed, for example because the server accepted only some of the ids.
pub(super) fn introduce(device: &Device, ids: &[[u8; 32]]) -> Result<(), String> {
    let words = ids.iter().flat_map(|id| id.as_chunks::<8>().0).map(|word| u64::from_le_bytes(*word));
    let [known] = answer::<1>(device, name::PEERS, words.map(ScalarIr::UInt).collect())?;
    if known as usize == ids.len() { Ok(()) } else { Err(format!("it took {known} of {} ids of servers", ids.len())) }
}

/// Announces the session `device` (a connection to a device) to its server. If a session that was not announced gives a
/// tensor to another session, the server ends both. The error says why the server did not answer.
pub(super) fn join(device: &Device) -> Result<(), String> {
    let remote = connected::remote(device).ok_or_else(|| "it is not a device of another host".to_owned())?;
    answer::<1>(device, name::JOIN, session_name(&remote)).map(drop)
}

/// Sends the request `question`, without arguments, to the server of a device. Returns the N numbers of the answer. The
/// error is burn's message, or the text of an answer with another count of numbers.
fn numbers<const N: usize>(device: &Device, question: &'static str) -> Result<[f32; N], String> {
    answer(device, question, Vec::new())
}

/// Sends the request `question`, with the arguments `scalars`, to the server of a device. Returns the N numbers of the
/// answer. The error is burn's message, or the text of an answer with another count of numbers.
fn answer<const N: usize>(device: &Device, question: &'static str, scalars: Vec<ScalarIr>) -> Result<[f32; N], String> {
    let remote = connected::remote(device).ok_or_else(|| "it is not a device of another host".to_owned())?;
    let [answer] = ask(&remote, question, Vec::new(), scalars, [(Shape::new([N]), DType::F32)]);
    let answer = Tensor::<1>::from_primitive::<Remote>(answer).try_into_data().map_err(|error| error.to_string())?;
    let numbers: Vec<f32> = answer.iter().collect();
    numbers.try_into().map_err(|numbers| format!("it answered {numbers:?}"))
}
