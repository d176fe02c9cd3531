//! A decoded kernel: steps on numbered registers.

use super::arithmetic::{Function, Type};
use super::flow::Next;
use super::fragment::{Fragment, Product};

/// The number of a register.
pub type Register = usize;

/// The value of a register before the first instruction. Indices and sizes have an axis: x, y or z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Initial {
    Number(u64),
    /// The index of the thread in its block.
    Thread(usize),
    /// The size of a block in threads.
    Threads(usize),
    /// The index of the block in the grid.
    Block(usize),
    /// The size of the grid in blocks.
    Blocks(usize),
    Lane,
    Warp,
}

/// The memory of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Parameter,
    Global,
    Shared,
    Local,
    /// Any memory: the address itself tells which.
    Generic,
}

#[derive(Clone, Copy, Debug)]
pub struct Address {
    pub space: Space,
    pub base: Register,
    pub offset: u64,
}

/// The layout of a matrix in memory.
#[derive(Clone, Copy, Debug)]
pub enum Rows {
    /// The distance between rows in elements; between columns if the flag is true.
    Strided(Register, bool),
    /// Each lane gives the address of a row.
    ByLane,
}

/// The load or store of a matrix.
#[derive(Debug)]
pub struct Tile {
    pub fragment: Fragment,
    pub rows: Rows,
    pub registers: Vec<Register>,
    pub at: Address,
}

/// The choice of the lane from which a value comes.
#[derive(Clone, Copy, Debug)]
pub enum Shuffle {
    Xor,
    Index,
    Up,
    Down,
}

/// The operation of an instruction.
pub enum Operation {
    Compute {
        function: Function,
        to: Register,
        from: [Register; 3],
    },
    /// Splits a register into parts of so many bits, from the lowest.
    Split {
        from: Register,
        to: Vec<Option<Register>>,
        bits: u32,
    },
    Join {
        from: Vec<Register>,
        to: Register,
        bits: u32,
    },
    Load {
        of: Type,
        to: Vec<Register>,
        at: Address,
    },
    Store {
        of: Type,
        from: Vec<Register>,
        at: Address,
    },
    /// Returns the value in memory, and replaces it with a function of it and another.
    Atomic {
        of: Type,
        function: Function,
        to: Option<Register>,
        at: Address,
        with: Register,
    },
    LoadTile(Tile),
    StoreTile(Tile),
    Multiply {
        product: Product,
        to: Vec<Register>,
        left: Vec<Register>,
        right: Vec<Register>,
        added: Vec<Register>,
    },
    Shuffle {
        how: Shuffle,
        to: Register,
        from: Register,
        by: Register,
        clamp: Register,
        mask: Register,
    },
    ActiveMask(Register),
    Branch(usize),
    Return,
    Barrier,
    /// A barrier of the lanes in this mask.
    Together(Register),
    /// An operation without effect here, such as a fence: warps run one after the other.
    Nothing,
}

/// An instruction of a program.
pub struct Step {
    /// The predicate of the instruction; true if it is negated.
    pub guard: Option<(Register, bool)>,
    pub operation: Operation,
    /// The step at which lanes that a branch separates reconverge.
    pub reconverges: usize,
    /// The text of the instruction.
    pub text: String,
}

impl Step {
    pub fn next(&self) -> Next {
        let is_for_all = self.guard.is_none();
        match self.operation {
            Operation::Branch(to) => Next { on: !is_for_all, to: Some(to), ends: false },
            Operation::Return => Next { on: !is_for_all, to: None, ends: true },
            _ => Next { on: true, to: None, ends: false },
        }
    }
}

/// A kernel that is ready to run.
pub struct Program {
    pub name: String,
    pub steps: Vec<Step>,
    pub registers: usize,
    pub initial: Vec<(Register, Initial)>,
    /// The required size of a block, in threads.
    pub threads: Option<[u32; 3]>,
    /// The offset and the bytes of each parameter.
    pub parameters: Vec<(usize, usize)>,
    /// The local memory of a thread, in bytes.
    pub local: usize,
    /// The shared memory of a block in bytes, without that which a launch adds.
    pub shared: usize,
}

/// Returns the first generic address of a space, if it has a window of its own.
pub fn window(space: Space) -> Option<u64> {
    match space {
        Space::Shared => Some(1 << 60),
        Space::Local => Some(1 << 61),
        _ => None,
    }
}
