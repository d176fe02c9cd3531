//! A decoded kernel: the steps of its program, which operate on numbered registers.

use super::arithmetic::{Function, Type};
use super::flow::Next;
use super::fragment::{Fragment, Product};

/// The index, from 0, of a decoded kernel's register.
pub type Register = usize;

/// The value that a register has before a kernel's first instruction, such as the thread index. Indices and sizes have
/// an axis: 0 for x, 1 for y, 2 for z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Initial {
    Number(u64),
    /// The index of the thread in its block, along one axis (x, y or z).
    Thread(usize),
    /// The size of a block in threads, along one axis (x, y or z).
    Threads(usize),
    /// The index of the block in the grid, along one axis (x, y or z).
    Block(usize),
    /// The size of the grid in blocks, along one axis (x, y or z).
    Blocks(usize),
    Lane,
    Warp,
}

/// The state space (kind of memory) of an address in a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Parameter,
    Global,
    Shared,
    Local,
    /// Generic memory: the value of the address decides in which kind of memory it is.
    Generic,
}

#[derive(Clone, Copy, Debug)]
pub struct Address {
    pub space: Space,
    pub base: Register,
    pub offset: u64,
}

/// How the rows of a matrix that an instruction loads or stores are laid out in memory.
#[derive(Clone, Copy, Debug)]
pub enum Rows {
    /// The rows are equally far apart in memory, or the columns if the second value is true. The first value is the
    /// register with the stride, as a number of elements.
    Strided(Register, bool),
    /// Each row has its own address, which one lane of the warp gives.
    ByLane,
}

/// A load or a store of a matrix, which all lanes of a warp execute together.
#[derive(Debug)]
pub struct Tile {
    pub fragment: Fragment,
    pub rows: Rows,
    pub registers: Vec<Register>,
    pub at: Address,
}

/// How a shuffle instruction chooses, for each lane of a warp, the lane from which it gets its value.
#[derive(Clone, Copy, Debug)]
pub enum Shuffle {
    Xor,
    Index,
    Up,
    Down,
}

/// A decoded instruction's operation, which a warp executes in its active lanes.
pub enum Operation {
    Compute {
        function: Function,
        to: Register,
        from: [Register; 3],
    },
    /// Splits a register's value into parts of `bits` bits each, the lowest bits first, and writes each part to a
    /// register. `None` discards the part.
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
    /// Atomically replaces a value in memory by a function of the old value and a register's value.
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
    /// A barrier within a warp: all lanes in a mask must have reached it. The value is the register with the mask.
    Together(Register),
    /// Has no effect in the emulation, such as a memory fence: the warps of a block run one after another, so they need
    /// none.
    Nothing,
}

/// A kernel's decoded instruction, with the guard that says in which lanes it runs.
pub struct Step {
    /// The instruction's guard: a predicate register, and true if the predicate is negated. The instruction runs only
    /// in the lanes in which the guard holds, or in all lanes if the guard is `None`.
    pub guard: Option<(Register, bool)>,
    pub operation: Operation,
    /// The index of the instruction at which the lanes of a warp reconverge, if this instruction is a branch that
    /// separates them.
    pub reconverges: usize,
    /// The instruction's PTX text, which error messages quote.
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

/// A kernel that was decoded from PTX and is ready to run on the CPU.
pub struct Program {
    pub name: String,
    pub steps: Vec<Step>,
    pub registers: usize,
    pub initial: Vec<(Register, Initial)>,
    /// The block size that the kernel requires, in threads along x, y and z; `None` if it accepts any size.
    pub threads: Option<[u32; 3]>,
    /// The offset and the size of each kernel parameter, in bytes.
    pub parameters: Vec<(usize, usize)>,
    /// The size of each thread's local memory, in bytes.
    pub local: usize,
    /// The size, in bytes, of the shared memory that the kernel declares for each block. A launch may add more.
    pub shared: usize,
}

/// Returns the start of the range of generic addresses that is reserved for a kind of memory, such as shared memory;
/// `None` if the kind has no such range. The value of a generic address decides in which kind of memory it is.
pub fn window(space: Space) -> Option<u64> {
    match space {
        Space::Shared => Some(1 << 60),
        Space::Local => Some(1 << 61),
        _ => None,
    }
}
