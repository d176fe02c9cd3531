//! Matrices that the lanes (threads) of a warp hold together in their registers, and products of such matrices.

use super::arithmetic::{Lanes, Type};

/// Where a matrix element is in a warp's registers: its lane, the register of this lane, and the bit offset in the
/// register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub lane: usize,
    pub register: usize,
    pub shift: u32,
}

/// The layout of a matrix in the registers of a warp's lanes (threads).
#[derive(Clone, Debug)]
pub struct Fragment {
    pub rows: usize,
    pub columns: usize,
    pub of: Type,
    /// The place of each matrix element in the warp's registers, in row-major order.
    pub places: Vec<Place>,
}

/// The role of a matrix in a matrix product: left factor, right factor or accumulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Left,
    Right,
    Accumulator,
}

impl Fragment {
    fn new(rows: usize, columns: usize, of: Type, place: impl Fn(usize, usize) -> (usize, usize)) -> Self {
        let packed = 32 / of.bits() as usize;
        let places = (0..rows * columns).map(|at| {
            let (lane, element) = place(at / columns, at % columns);
            Place { lane, register: element / packed, shift: (element % packed) as u32 * of.bits() }
        });
        Self { rows, columns, of, places: places.collect() }
    }

    /// Returns the register layout of a matrix for the instruction `mma`, which the PTX ISA specifies in "Matrix
    /// Fragments for mma.m16n8k16" and similar sections.
    pub fn documented(role: Role, rows: usize, columns: usize, of: Type) -> Self {
        let packed = 32 / of.bits() as usize;
        // Eight rows are distributed over the warp, each over four lanes. Elements further to the right or below are in
        // later registers of the same lanes.
        let across = 4 * packed;
        match role {
            Role::Left => Self::new(rows, columns, of, |row, column| {
                let lane = row % 8 * 4 + column % across / packed;
                (lane, column % packed + packed * (row / 8) + 2 * packed * (column / across))
            }),
            Role::Right => Self::new(rows, columns, of, |row, column| {
                (column * 4 + row % across / packed, row % packed + packed * (row / across))
            }),
            Role::Accumulator => {
                Self::new(rows, columns, of, |row, column| (row % 8 * 4 + column / 2, column % 2 + 2 * (row / 8)))
            }
        }
    }

    /// Returns a register layout of a matrix for the instruction `wmma`, for which NVIDIA specifies no layout.
    pub fn opaque(rows: usize, columns: usize, of: Type) -> Self {
        Self::new(rows, columns, of, |row, column| {
            let at = row * columns + column;
            (at % 32, at / 32)
        })
    }

    /// Returns the register layout of the `count` matrices of 8 x 8 elements that the instruction `ldmatrix` loads.
    /// They form one matrix, one below the other.
    pub fn eights(count: usize, transposed: bool) -> Self {
        Self::new(8 * count, 8, Type::Unsigned(16), |row, column| {
            let (matrix, row) = (row / 8, row % 8);
            let (row, column) = if transposed { (column, row) } else { (row, column) };
            (row * 4 + column / 2, column % 2 + 2 * matrix)
        })
    }

    /// Returns the number of registers that the matrix takes in each lane.
    pub fn registers(&self) -> usize {
        self.places.iter().map(|place| place.register + 1).max().unwrap_or(0)
    }

    pub fn read(&self, registers: &[Lanes]) -> Vec<f64> {
        let read = |place: &Place| {
            let bits = registers[place.register][place.lane] >> place.shift;
            match self.of {
                // TF32 has 10 mantissa bits, so the lower ones are ignored.
                Type::Tf32 => self.of.float(bits & !0x1FFF),
                of => of.float(bits),
            }
        };
        self.places.iter().map(read).collect()
    }

    pub fn write(&self, values: &[f64]) -> Vec<Lanes> {
        let mut registers = vec![[0; 32]; self.registers()];
        for (place, value) in self.places.iter().zip(values) {
            registers[place.register][place.lane] |= self.of.of_float(*value) << place.shift;
        }
        registers
    }
}

/// The register layouts of the four matrices of a product: two factors, the matrix that is added to their product, and
/// the result.
#[derive(Clone, Debug)]
pub struct Product {
    pub left: Fragment,
    pub right: Fragment,
    pub added: Fragment,
    pub result: Fragment,
}

impl Product {
    /// Computes the matrix product of `left` and `right`, plus `added`, all in registers of a warp. The sums are in
    /// f64, which is more exact than a GPU's tensor cores.
    pub fn of(&self, left: &[Lanes], right: &[Lanes], added: &[Lanes]) -> Vec<Lanes> {
        let [a, b] = [self.left.read(left), self.right.read(right)];
        let mut sums = self.added.read(added);
        let (inner, columns) = (self.left.columns, self.right.columns);
        for (row, sums) in sums.chunks_mut(columns).enumerate() {
            for (at, b) in b.chunks(columns).enumerate() {
                let a = a[row * inner + at];
                sums.iter_mut().zip(b).for_each(|(sum, b)| *sum += a * b);
            }
        }
        self.result.write(&sums)
    }
}
