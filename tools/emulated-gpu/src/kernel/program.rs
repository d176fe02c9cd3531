//! A kernel, as it is run.

use super::arithmetic::{Function, Type};
use super::flow::Next;
use super::fragment::{Fragment, Product};

/// By its number.
pub type Register = usize;

/// What a register holds before the first instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Initial {
    Number(u64),
    /// This thread's place in its block: x, y or z.
    Thread(usize),
    /// How many threads a block has.
    Threads(usize),
    /// This block's place.
    Block(usize),
    /// How many blocks there are.
    Blocks(usize),
    Lane,
    Warp,
}

/// Which memory an address is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Parameter,
    Global,
    Shared,
    Local,
    /// By the address itself.
    Generic,
}

#[derive(Clone, Copy, Debug)]
pub struct Address {
    pub space: Space,
    pub base: Register,
    pub offset: u64,
}

/// Where a matrix in memory has its elements.
#[derive(Clone, Copy, Debug)]
pub enum Rows {
    /// So many elements apart; or columns are.
    Apart(Register, bool),
    /// Where the lanes say.
    Said,
}

/// A matrix on its way between registers and memory.
#[derive(Debug)]
pub struct Tile {
    pub fragment: Fragment,
    pub rows: Rows,
    pub registers: Vec<Register>,
    pub at: Address,
}

/// Which lane a value comes from.
#[derive(Clone, Copy, Debug)]
pub enum Shuffle {
    Xor,
    Index,
    Up,
    Down,
}

pub enum Operation {
    Compute {
        function: Function,
        to: Register,
        from: [Register; 3],
    },
    /// Parts of so many bits, from the lowest.
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
    /// Gives what was there, and puts there what is computed of that and another.
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
    /// All lanes of that mask have to be here.
    Together(Register),
    /// What threads that run one after the other need not do.
    Nothing,
}

pub struct Step {
    /// The predicate that it is for, and whether for where that does not hold.
    pub guard: Option<(Register, bool)>,
    pub operation: Operation,
    /// Where those that it parts come together.
    pub meets: usize,
    /// As it is written.
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

pub struct Program {
    pub name: String,
    pub steps: Vec<Step>,
    pub registers: usize,
    pub initial: Vec<(Register, Initial)>,
    /// How many threads a block has to have, where that is said.
    pub threads: Option<[u32; 3]>,
    /// Where each parameter begins, and its bytes.
    pub parameters: Vec<(usize, usize)>,
    /// Memory of each thread, in bytes.
    pub local: usize,
    /// Memory of a block, beside that which a launch asks for.
    pub shared: usize,
}

/// Where generic addresses of a space begin.
pub fn window(space: Space) -> Option<u64> {
    match space {
        Space::Shared => Some(1 << 60),
        Space::Local => Some(1 << 61),
        _ => None,
    }
}
