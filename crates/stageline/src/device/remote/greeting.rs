//! What a server says of itself.

use std::fmt;

use burn::backend::Remote;
use burn::tensor::{DType, Device, Shape, Tensor};

use super::connected::{self, Process};
use super::operations::{ask, name};

/// Its version, with that of what is asked of it, and whether its devices have kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) version: [u16; 4],
    pub(super) has_kernels: bool,
}

/// How many numbers it is, in any version.
pub(super) const NUMBERS: usize = 5;

/// Of operations and kernels: another one where they take something else, or give other bits.
const OPERATIONS: u16 = 2;

impl Greeting {
    /// Of this program.
    pub(super) const OURS: Self = Self {
        version: [
            number(env!("CARGO_PKG_VERSION_MAJOR")),
            number(env!("CARGO_PKG_VERSION_MINOR")),
            number(env!("CARGO_PKG_VERSION_PATCH")),
            OPERATIONS,
        ],
        has_kernels: cfg!(feature = "flex"),
    };

    /// As they are sent.
    #[cfg(feature = "serve")]
    pub(super) fn numbers(self) -> [f32; NUMBERS] {
        let [major, minor, patch, operations] = self.version.map(f32::from);
        [major, minor, patch, operations, f32::from(u8::from(self.has_kernels))]
    }

    fn of_numbers(numbers: [f32; NUMBERS]) -> Self {
        let [version @ .., has_kernels] = numbers;
        Self { version: version.map(|number| number as u16), has_kernels: has_kernels != 0.0 }
    }
}

impl fmt::Display for Greeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch, operations] = self.version;
        write!(f, "stageline {major}.{minor}.{patch} with operations {operations}")
    }
}

const fn number(digits: &str) -> u16 {
    match u16::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => panic!("a version is numbers"),
    }
}

/// Of this process.
#[cfg(feature = "serve")]
pub(super) fn this_process() -> Process {
    let random = burn::remote::IrohIdentity::random().to_bytes();
    std::array::from_fn(|part| f32::from(u16::from_le_bytes([random[2 * part], random[2 * part + 1]])))
}

/// Asks a device of another host.
pub(super) fn of(device: &Device) -> Result<Greeting, String> {
    numbers::<NUMBERS>(device, name::HELLO).map(Greeting::of_numbers)
}

/// By which process it is served.
pub(super) fn process(device: &Device) -> Result<Process, String> {
    numbers(device, name::PROCESS)
}

fn numbers<const N: usize>(device: &Device, question: &'static str) -> Result<[f32; N], String> {
    let remote = connected::remote(device).ok_or_else(|| "it is no device of another host".to_owned())?;
    let [answer] = ask(&remote, question, Vec::new(), Vec::new(), [(Shape::new([N]), DType::F32)]);
    let answer = Tensor::<1>::from_primitive::<Remote>(answer).try_into_data().map_err(|error| error.to_string())?;
    let numbers: Vec<f32> = answer.iter().collect();
    numbers.try_into().map_err(|numbers| format!("it says {numbers:?}"))
}
