//! Executes a kernel's program for a warp: 32 threads in lockstep, which diverge at branches and reconverge.

use super::arithmetic::{Lanes, Type};
use super::fragment::Place;
use super::grid::Launch;
use super::program::{Address, Initial, Operation, Program, Register, Rows, Shuffle, Space, Step, Tile, window};
use crate::memory::{Ranges, UNSET};

/// The memory that all warps of a block share: its shared memory, the kernel's parameters, and global memory.
pub struct Block<'a> {
    pub shared: &'a mut [u8],
    pub parameters: &'a [u8],
    pub global: &'a Ranges,
}

/// A group of a warp's lanes (threads) at the same instruction. A branch divides the lanes into groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    at: usize,
    lanes: u32,
    /// The index of the instruction at which this group ends. Its lanes then continue in the next group on the stack.
    until: usize,
}

/// A running kernel's warp, with its registers and its stack of lane groups that branches have separated.
pub struct Warp {
    registers: Vec<Lanes>,
    /// The local memory of the warp's 32 threads, one thread after the other.
    local: Vec<u8>,
    /// The warp's lane groups at different instructions, as a stack: the last group runs first.
    groups: Vec<Group>,
    is_waiting: bool,
}

/// Returns the indices (0 to 31) of the lanes (threads) that a mask selects.
fn each(lanes: u32) -> impl Iterator<Item = usize> {
    (0..32).filter(move |lane| lanes >> lane & 1 == 1)
}

impl Warp {
    pub fn new(program: &Program) -> Self {
        let (registers, local) = (vec![[0; 32]; program.registers], vec![UNSET; program.local * 32]);
        Self { registers, local, groups: Vec::new(), is_waiting: false }
    }

    /// Sets the warp to the start of a program. `block` is its block's index in the grid, and `warp` is its own index
    /// in the block.
    pub fn start(&mut self, program: &Program, launch: &Launch, block: [u32; 3], warp: u32) {
        let [x, y, z] = launch.block;
        for (register, initial) in &program.initial {
            self.registers[*register] = std::array::from_fn(|lane| {
                let thread = warp * 32 + lane as u32;
                match *initial {
                    Initial::Number(number) => number,
                    Initial::Thread(axis) => u64::from([thread % x, thread / x % y, thread / x / y][axis]),
                    Initial::Threads(axis) => u64::from(launch.block[axis]),
                    Initial::Block(axis) => u64::from(block[axis]),
                    Initial::Blocks(axis) => u64::from(launch.grid[axis]),
                    Initial::Lane => lane as u64,
                    Initial::Warp => u64::from(warp),
                }
            });
        }
        let threads = (x * y * z - warp * 32).min(32);
        self.local.fill(UNSET);
        self.groups = vec![Group { at: 0, lanes: u32::MAX >> (32 - threads), until: program.steps.len() }];
    }

    pub fn is_done(&self) -> bool {
        self.groups.is_empty()
    }

    /// Lets the warp continue after a barrier that all threads of the block have reached.
    pub fn release(&mut self) {
        self.is_waiting = false;
    }

    /// Runs the warp until all its lanes have reached a barrier or the end of the kernel.
    pub fn run(&mut self, program: &Program, block: &mut Block<'_>) -> Result<(), String> {
        while !self.is_waiting
            && let Some(group) = self.groups.last().copied()
        {
            if group.at == group.until || group.lanes == 0 {
                self.groups.pop();
                continue;
            }
            let step = &program.steps[group.at];
            let failed = |error| format!("{}: `{}` {error}", program.name, step.text);
            self.advance(step, group, block).map_err(failed)?;
        }
        Ok(())
    }

    /// Executes the kernel's next instruction for the lane group on top of the warp's stack.
    fn advance(&mut self, step: &Step, group: Group, block: &mut Block<'_>) -> Result<(), String> {
        let lanes = self.selected(step) & group.lanes;
        let top = self.groups.len() - 1;
        match step.operation {
            Operation::Branch(to) if lanes == group.lanes => self.groups[top].at = to,
            Operation::Branch(to) if lanes != 0 => {
                self.groups[top].at = step.reconverges;
                let parts = [(group.at + 1, group.lanes & !lanes), (to, lanes)];
                self.groups.extend(parts.map(|(at, lanes)| Group { at, lanes, until: step.reconverges }));
            }
            Operation::Return => {
                self.groups.iter_mut().for_each(|group| group.lanes &= !lanes);
                self.groups[top].at += 1;
            }
            Operation::Barrier if lanes != 0 => {
                let all = self.live();
                if lanes != all {
                    return Err(format!("is reached by lanes {lanes:#x} of {all:#x} alone"));
                }
                self.groups[top].at += 1;
                self.is_waiting = true;
            }
            _ => {
                self.groups[top].at += 1;
                if lanes != 0 {
                    self.step(&step.operation, lanes, block)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the mask of the lanes that have not reached the end of the kernel.
    fn live(&self) -> u32 {
        self.groups.iter().fold(0, |all, group| all | group.lanes)
    }

    /// Returns the mask of the lanes in which an instruction's guard holds; all lanes if it has none.
    fn selected(&self, step: &Step) -> u32 {
        let Some((predicate, not)) = step.guard else { return u32::MAX };
        let lanes = self.registers[predicate];
        let mask = lanes.iter().enumerate().fold(0, |mask, (lane, value)| mask | ((value & 1) as u32) << lane);
        if not { !mask } else { mask }
    }

    fn set(&mut self, register: Register, lanes: u32, values: &Lanes) {
        let kept = &mut self.registers[register];
        match lanes {
            u32::MAX => *kept = *values,
            _ => each(lanes).for_each(|lane| kept[lane] = values[lane]),
        }
    }

    fn gathered(&self, registers: &[Register]) -> Vec<Lanes> {
        registers.iter().map(|register| self.registers[*register]).collect()
    }

    fn step(&mut self, operation: &Operation, lanes: u32, block: &mut Block<'_>) -> Result<(), String> {
        match operation {
            Operation::Compute { function, to, from: [a, b, c] } => {
                let values = function(&self.registers[*a], &self.registers[*b], &self.registers[*c]);
                self.set(*to, lanes, &values);
            }
            Operation::Split { from, to, bits } => {
                let from = self.registers[*from];
                let kept = u64::MAX >> (64 - bits);
                for (index, to) in to.iter().enumerate().filter_map(|(index, to)| Some((index as u32, to.as_ref()?))) {
                    self.set(*to, lanes, &from.map(|value| value >> (index * bits) & kept));
                }
            }
            Operation::Join { from, to, bits } => {
                let kept = u64::MAX >> (64 - bits);
                let parts = self.gathered(from);
                let joined = |lane: usize| {
                    parts.iter().rev().fold(0, |whole: u64, part| whole.unbounded_shl(*bits) | part[lane] & kept)
                };
                self.set(*to, lanes, &std::array::from_fn(joined));
            }
            Operation::Load { of, to, at } => self.load(*of, to, at, lanes, block)?,
            Operation::Store { of, from, at } => self.store(*of, from, at, lanes, block)?,
            Operation::Atomic { of, function, to, at, with } => {
                for lane in each(lanes) {
                    let pointer = self.pointer(at, lane, of.bits() as usize / 8, block)?;
                    let with = self.registers[*with][lane];
                    let before =
                        atomically(pointer, of.bits(), |value| function(&[value; 32], &[with; 32], &[0; 32])[0]);
                    to.iter().for_each(|to| self.registers[*to][lane] = before);
                }
            }
            Operation::LoadTile(tile) => self.load_tile(tile, lanes, block)?,
            Operation::StoreTile(tile) => self.store_tile(tile, lanes, block)?,
            Operation::Multiply { product, to, left, right, added } => {
                whole(lanes)?;
                let result = product.of(&self.gathered(left), &self.gathered(right), &self.gathered(added));
                to.iter().zip(&result).for_each(|(to, values)| self.set(*to, lanes, values));
            }
            Operation::Together(mask) => self.all_here(*mask, lanes)?,
            Operation::Shuffle { how, to, from, by, clamp, mask } => {
                self.all_here(*mask, lanes)?;
                let values = self.shuffled(*how, [*from, *by, *clamp], lanes)?;
                self.set(*to, lanes, &values);
            }
            Operation::ActiveMask(to) => self.set(*to, lanes, &[u64::from(lanes); 32]),
            Operation::Branch(_) | Operation::Return | Operation::Barrier | Operation::Nothing => {}
        }
        Ok(())
    }

    /// Returns an error unless all lanes in a mask have reached the current instruction or have ended. `mask` is the
    /// register with the mask. `lanes` has a bit for each lane that has reached the instruction.
    fn all_here(&self, mask: Register, lanes: u32) -> Result<(), String> {
        let named = each(lanes).fold(0, |named, lane| named | self.registers[mask][lane] as u32) & self.live();
        if named & !lanes == 0 {
            Ok(())
        } else {
            Err(format!("waits for lanes {named:#x}, but only {lanes:#x} are here"))
        }
    }

    /// Returns the value that each lane gets from another lane by the PTX instruction `shfl.sync`. The operand `clamp`
    /// has two fields. Bits 0 to 4 limit the lanes from which a value may come. Bits 8 to 12 are a mask that divides
    /// the warp into segments.
    fn shuffled(&self, how: Shuffle, [from, by, clamp]: [Register; 3], lanes: u32) -> Result<Lanes, String> {
        let mut values = [0; 32];
        for lane in each(lanes) {
            let [by, clamp] = [by, clamp].map(|register| self.registers[register][lane] as usize);
            let (by, last, segment) = (by & 31, clamp & 31, clamp >> 8 & 31);
            let end = lane & segment | last & !segment;
            let (source, inside) = match how {
                Shuffle::Xor => (lane ^ by, lane ^ by <= end),
                Shuffle::Down => (lane + by, lane + by <= end),
                Shuffle::Up => (lane.wrapping_sub(by), lane >= by && lane - by >= end),
                Shuffle::Index => (lane & segment | by & !segment, lane & segment | by & !segment <= end),
            };
            let source = if inside { source } else { lane };
            if lanes >> source & 1 == 0 {
                return Err(format!("reads lane {source}, which is not here"));
            }
            values[lane] = self.registers[from][source];
        }
        Ok(values)
    }

    /// Returns a pointer to the bytes that an instruction accesses in one lane of the warp.
    fn pointer(
        &mut self,
        address: &Address,
        lane: usize,
        bytes: usize,
        block: &mut Block<'_>,
    ) -> Result<*mut u8, String> {
        let at = self.registers[address.base][lane].wrapping_add(address.offset);
        self.pointer_to(address.space, at, lane, bytes, block)
    }

    fn pointer_to(
        &mut self,
        space: Space,
        at: u64,
        lane: usize,
        bytes: usize,
        block: &mut Block<'_>,
    ) -> Result<*mut u8, String> {
        if !at.is_multiple_of(bytes as u64) {
            return Err(format!("accesses {bytes} bytes at {at:#x}, which are not aligned"));
        }
        let within = |memory: &mut [u8], at: u64| {
            let range = at as usize..(at as usize).saturating_add(bytes);
            let length = memory.len();
            let found = memory.get_mut(range).map(<[u8]>::as_mut_ptr);
            found.ok_or_else(|| format!("accesses {bytes} bytes at {at:#x} of {length} in {space:?} memory"))
        };
        let inside = |space| window(space).filter(|first| (*first..2 * first).contains(&at));
        match space {
            Space::Global => block.global.pointer(at, bytes),
            Space::Shared => within(block.shared, at),
            Space::Local => {
                let each = self.local.len() / 32;
                within(&mut self.local[lane * each..][..each], at)
            }
            Space::Parameter => {
                let range = at as usize..(at as usize).saturating_add(bytes);
                let found = block.parameters.get(range).map(|bytes| bytes.as_ptr().cast_mut());
                found.ok_or_else(|| format!("accesses {bytes} bytes at {at:#x}, beyond the parameters"))
            }
            Space::Generic => match [Space::Shared, Space::Local].map(|space| (space, inside(space))) {
                [(space, Some(first)), _] | [_, (space, Some(first))] => {
                    self.pointer_to(space, at - first, lane, bytes, block)
                }
                _ => block.global.pointer(at, bytes),
            },
        }
    }

    fn load(
        &mut self,
        of: Type,
        to: &[Register],
        at: &Address,
        lanes: u32,
        block: &mut Block<'_>,
    ) -> Result<(), String> {
        let bytes = of.bits() as usize / 8;
        for lane in each(lanes) {
            let pointer = self.pointer(at, lane, bytes * to.len(), block)?;
            for (index, to) in to.iter().enumerate() {
                // Signed values are sign-extended.
                self.registers[*to][lane] = of.integer(read(pointer, index, bytes)) as u64;
            }
        }
        Ok(())
    }

    fn store(
        &mut self,
        of: Type,
        from: &[Register],
        at: &Address,
        lanes: u32,
        block: &mut Block<'_>,
    ) -> Result<(), String> {
        let bytes = of.bits() as usize / 8;
        for lane in each(lanes) {
            let pointer = self.pointer(at, lane, bytes * from.len(), block)?;
            for (index, from) in from.iter().enumerate() {
                write(pointer, index, bytes, self.registers[*from][lane]);
            }
        }
        Ok(())
    }

    /// Returns the memory addresses of a matrix's elements, in row-major order, for a warp's load or store.
    fn addresses(&self, tile: &Tile) -> Result<Vec<u64>, String> {
        let (rows, columns) = (tile.fragment.rows, tile.fragment.columns);
        let bytes = u64::from(tile.fragment.of.bits()) / 8;
        let base = |lane: usize| self.registers[tile.at.base][lane].wrapping_add(tile.at.offset);
        let address = |row: usize, column: usize| match tile.rows {
            Rows::Strided(stride, by_columns) => {
                let stride = self.registers[stride][0];
                let [far, near] = if by_columns { [column, row] } else { [row, column] };
                base(0).wrapping_add((far as u64 * stride + near as u64) * bytes)
            }
            Rows::ByLane => base(row).wrapping_add(column as u64 * bytes),
        };
        let is_one =
            |register: Register| self.registers[register].iter().all(|value| *value == self.registers[register][0]);
        match tile.rows {
            Rows::Strided(stride, _) if !is_one(tile.at.base) || !is_one(stride) => {
                return Err("gets a different matrix from each lane".to_owned());
            }
            Rows::ByLane if (0..rows).any(|row| !base(row).is_multiple_of(16)) => {
                return Err("gets a row that does not begin at a multiple of 16 bytes".to_owned());
            }
            _ => {}
        }
        Ok((0..rows * columns).map(|at| address(at / columns, at % columns)).collect())
    }

    /// Returns pointers to a matrix's elements in memory, each with the element's place in registers.
    fn elements(&mut self, tile: &Tile, lanes: u32, block: &mut Block<'_>) -> Result<Vec<(*mut u8, Place)>, String> {
        whole(lanes)?;
        let bytes = tile.fragment.of.bits() as usize / 8;
        let places = self.addresses(tile)?.into_iter().zip(tile.fragment.places.clone());
        places.map(|(at, place)| Ok((self.pointer_to(tile.at.space, at, 0, bytes, block)?, place))).collect()
    }

    fn load_tile(&mut self, tile: &Tile, lanes: u32, block: &mut Block<'_>) -> Result<(), String> {
        let bytes = tile.fragment.of.bits() as usize / 8;
        let mut values = vec![[0; 32]; tile.registers.len()];
        for (pointer, Place { lane, register, shift }) in self.elements(tile, lanes, block)? {
            values[register][lane] |= read(pointer, 0, bytes) << shift;
        }
        tile.registers.iter().zip(&values).for_each(|(to, values)| self.set(*to, lanes, values));
        Ok(())
    }

    fn store_tile(&mut self, tile: &Tile, lanes: u32, block: &mut Block<'_>) -> Result<(), String> {
        let bytes = tile.fragment.of.bits() as usize / 8;
        for (pointer, Place { lane, register, shift }) in self.elements(tile, lanes, block)? {
            write(pointer, 0, bytes, self.registers[tile.registers[register]][lane] >> shift);
        }
        Ok(())
    }
}

/// Checks that all lanes of the warp execute an instruction together, as matrix operations require.
fn whole(lanes: u32) -> Result<(), String> {
    if lanes == u32::MAX { Ok(()) } else { Err(format!("is reached by lanes {lanes:#x} alone")) }
}

fn read(pointer: *const u8, index: usize, bytes: usize) -> u64 {
    let mut value = [0; 8];
    // SAFETY: the bounds were checked when the pointer was made.
    unsafe { value.as_mut_ptr().copy_from_nonoverlapping(pointer.add(index * bytes), bytes) };
    u64::from_le_bytes(value)
}

fn write(pointer: *mut u8, index: usize, bytes: usize, value: u64) {
    // SAFETY: the bounds were checked when the pointer was made.
    unsafe { pointer.add(index * bytes).copy_from_nonoverlapping(value.to_le_bytes().as_ptr(), bytes) };
}

/// Atomically changes a value in memory and returns the old value. Other blocks of the kernel may change it
/// concurrently.
fn atomically(pointer: *mut u8, bits: u32, change: impl Fn(u64) -> u64) -> u64 {
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
    assert!((pointer as usize).is_multiple_of(bits as usize / 8), "memory begins at multiples of 16 bytes");
    if bits == 64 {
        // SAFETY: the bounds were checked when the pointer was made, and it is aligned.
        let value = unsafe { AtomicU64::from_ptr(pointer.cast()) };
        value.fetch_update(SeqCst, SeqCst, |value| Some(change(value))).expect("the closure always returns a value")
    } else {
        // SAFETY: the bounds were checked when the pointer was made, and it is aligned.
        let value = unsafe { AtomicU32::from_ptr(pointer.cast()) };
        let before = value.fetch_update(SeqCst, SeqCst, |value| Some(change(u64::from(value)) as u32));
        u64::from(before.expect("the closure always returns a value"))
    }
}
