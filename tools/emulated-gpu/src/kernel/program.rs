//! A decoded kernel: the steps of its program, which operate on numbered registers.

use super::arithmetic::{Function, Type};
use super::flow::Next;
use super::fragment::{Fragment, Product};

/// The number of a register of a decoded kernel.
pub type Register = usize;

/// The value that a register has before the first instruction of a kernel, such as the index of the thread. Indices and
/// sizes have an axis: x, y or z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Initial {
    Number(u64),
    /// The start value of a register is the index of the thread in its block, along one axis (x, y or z).
    Thread(usize),
    /// The start value of a register is the size of a block in threads, along one axis (x, y or z).
    Threads(usize),
    /// The start value of a register is the index of the block in the grid of the launch, along one axis (x, y or z).
    Block(usize),
    /// The start value of a register is the size of the launch's grid in blocks, along one axis (x, y or z).
    Blocks(usize),
    Lane,
    Warp,
}

/// The kind of memory in which an address of a kernel lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Parameter,
    Global,
    Shared,
    Local,
    /// The address of a kernel's access may lie in any kind of memory; the value of the address determines which.
    Generic,
}

#[derive(Clone, Copy, Debug)]
pub struct Address {
    pub space: Space,
    pub base: Register,
    pub offset: u64,
}

/// The layout of a matrix that an instruction loads from memory or stores there.
#[derive(Clone, Copy, Debug)]
pub enum Rows {
    /// The rows of the matrix are equally far apart in memory, or its columns if the second value is true. The first
    /// value is the register with that distance: the number of elements from the start of a row, or column, to the
    /// start of the next.
    Strided(Register, bool),
    /// Each lane of the warp gives the address of one row of the matrix.
    ByLane,
}

/// The load or the store of a matrix, which all lanes of a warp make together.
#[derive(Debug)]
pub struct Tile {
    pub fragment: Fragment,
    pub rows: Rows,
    pub registers: Vec<Register>,
    pub at: Address,
}

/// The way in which a shuffle instruction chooses, for each lane of a warp, the lane from which it gets its value.
#[derive(Clone, Copy, Debug)]
pub enum Shuffle {
    Xor,
    Index,
    Up,
    Down,
}

/// The operation of a decoded instruction, which a warp executes in its active lanes.
pub enum Operation {
    Compute {
        function: Function,
        to: Register,
        from: [Register; 3],
    },
    /// The operation splits the value of a register into parts of `bits` bits, from the lowest on, and writes them to
    /// registers.
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
    /// The operation reads a value in memory and replaces it atomically by a function of that value and of a register's
    /// value.
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
    /// The operation is a barrier for those lanes of a warp that a mask names; the value is the register that has the
    /// mask.
    Together(Register),
    /// The operation (such as a memory fence) has no effect in the emulation, because warps run one after another.
    Nothing,
}

/// A decoded instruction of a kernel, with the guard that says in which lanes it runs.
pub struct Step {
    /// The guard of the instruction: the predicate register that decides whether a lane runs the instruction, and true
    /// if the predicate is negated.
    pub guard: Option<(Register, bool)>,
    pub operation: Operation,
    /// The index of the instruction at which the lanes of a warp reconverge after a branch in this instruction has
    /// separated them.
    pub reconverges: usize,
    /// The text of the instruction in PTX, which error messages quote.
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

/// A kernel that is decoded from PTX and ready to run on the CPU.
pub struct Program {
    pub name: String,
    pub steps: Vec<Step>,
    pub registers: usize,
    pub initial: Vec<(Register, Initial)>,
    /// The size of a block that the kernel requires, in threads along x, y and z; `None` if the kernel requires no
    /// size.
    pub threads: Option<[u32; 3]>,
    /// The offset and the size of each kernel parameter, in bytes.
    pub parameters: Vec<(usize, usize)>,
    /// The size in bytes of the local memory of each thread of the kernel.
    pub local: usize,
    /// The size in bytes of the shared memory of each block of the kernel, without the part that a launch adds.
    pub shared: usize,
}

/// Returns the first generic address of a kind of memory (such as shared memory), if that kind has a window of generic
/// addresses of its own.
pub fn window(space: Space) -> Option<u64> {
    match space {
        Space::Shared => Some(1 << 60),
        Space::Local => Some(1 << 61),
        _ => None,
    }
}
