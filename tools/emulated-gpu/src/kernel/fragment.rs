//! Matrices that the lanes of a warp hold together.

use super::arithmetic::{Lanes, Type};

/// Where an element is: in which lane's so many-th register, and how many bits up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub lane: usize,
    pub register: usize,
    pub shift: u32,
}

/// A matrix in registers, by rows.
#[derive(Clone, Debug)]
pub struct Fragment {
    pub rows: usize,
    pub columns: usize,
    pub of: Type,
    pub places: Vec<Place>,
}

/// Which of the three a matrix is.
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

    /// Of `mma`, whose layout is NVIDIA's: "Matrix Fragments for mma.m16n8k16" and its like.
    pub fn documented(role: Role, rows: usize, columns: usize, of: Type) -> Self {
        let packed = 32 / of.bits() as usize;
        // Four lanes share a row of eight registers' width; what is further right, or below, is in later registers.
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

    /// Of `wmma`, whose layout is nobody's to know.
    pub fn opaque(rows: usize, columns: usize, of: Type) -> Self {
        Self::new(rows, columns, of, |row, column| {
            let at = row * columns + column;
            (at % 32, at / 32)
        })
    }

    /// So many matrices of eight times eight, one below the other, as `ldmatrix` has them.
    pub fn eights(count: usize, transposed: bool) -> Self {
        Self::new(8 * count, 8, Type::Unsigned(16), |row, column| {
            let (matrix, row) = (row / 8, row % 8);
            let (row, column) = if transposed { (column, row) } else { (row, column) };
            (row * 4 + column / 2, column % 2 + 2 * matrix)
        })
    }

    /// How many registers it takes.
    pub fn registers(&self) -> usize {
        self.places.iter().map(|place| place.register + 1).max().unwrap_or(0)
    }

    pub fn read(&self, registers: &[Lanes]) -> Vec<f64> {
        let read = |place: &Place| {
            let bits = registers[place.register][place.lane] >> place.shift;
            match self.of {
                // What has more bits behind the point than that loses them.
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

/// A product, and what it is added to.
#[derive(Clone, Debug)]
pub struct Product {
    pub left: Fragment,
    pub right: Fragment,
    pub added: Fragment,
    pub result: Fragment,
}

impl Product {
    /// Sums are exact to f64, where tensor cores have fewer bits than f32.
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
