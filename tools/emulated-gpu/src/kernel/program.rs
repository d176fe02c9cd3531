//! A decoded kernel: the steps of its program, which operate on numbered registers.

use super::arithmetic::{Function, Type};
use super::flow::Next;
use super::fragment::{Fragment, Product};

/// The index, from 0, of a register of a decoded kernel.
pub type Register = usize;

/// The value that a register has before the first instruction of a kernel, such as the index of the thread. Indices and
/// sizes have an axis: 0 for x, 1 for y, 2 for z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Initial {
    Number(u64),
    /// The start value of a register: the index of the thread in its block, along one axis (x, y or z).
    Thread(usize),
    /// The start value of a register: the size of a block in threads, along one axis (x, y or z).
    Threads(usize),
    /// The start value of a register: the index of the block in the grid of the launch, along one axis (x, y or z).
    Block(usize),
    /// The start value of a register: the size of the launch's grid in blocks, along one axis (x, y or z).
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
    /// Generic memory: the value of an address determines in which kind of memory the address lies.
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
    /// A layout in which the rows of the matrix lie equally far apart in memory. If the second value is true, the
    /// columns do instead. The first value is the register with the distance, as a number of elements.
    Strided(Register, bool),
    /// A layout with a separate address for each row of the matrix. Each lane of the warp gives the address of one row.
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
    /// An operation that splits the value of a register into parts of `bits` bits each, the lowest bits first. It
    /// writes each part to a register; `None` discards the part.
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
    /// An atomic update of a value in memory. The new value is a function of the old value and of a register's value.
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
    /// A barrier within a warp: the operation waits until all lanes that a mask names have reached it. The value is the
    /// register with the mask.
    Together(Register),
    /// An operation without effect in the emulation, such as a memory fence. Warps run one after another, so they need
    /// no fence.
    Nothing,
}

/// A decoded instruction of a kernel, with the guard that says in which lanes it runs.
pub struct Step {
    /// The guard of the instruction: a predicate register, and true if the predicate is negated. The instruction runs
    /// only in the lanes whose guard holds; `None` runs it in all lanes.
    pub guard: Option<(Register, bool)>,
    pub operation: Operation,
    /// The index of the instruction at which the lanes of a warp reconverge, if a branch in this instruction separates
    /// them.
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
    /// The size of each thread's local memory in the kernel, in bytes.
    pub local: usize,
    /// The size in bytes of the shared memory that the kernel declares for each block. A launch may add more.
    pub shared: usize,
}

/// Returns the start of the range of generic addresses that is reserved for a kind of memory, such as shared memory. A
/// generic address tells by its value in which kind of memory it lies. `None` if the kind has no such range.
pub fn window(space: Space) -> Option<u64> {
    match space {
        Space::Shared => Some(1 << 60),
        Space::Local => Some(1 << 61),
        _ => None,
    }
}
