//! Translates a kernel's PTX into a program that the emulation can run. An unsupported instruction or modifier is an
//! error.

use std::collections::HashMap;

use super::arithmetic::{Type, arity, function};
use super::flow::reconvergence_points;
use super::fragment::{Fragment, Product, Role};
use super::program::{Address, Initial, Operation, Program, Register, Rows, Shuffle, Space, Step, Tile, window};
use crate::ptx::{Entry, Instruction, declared, inside};

/// The alignment, in bytes, of shared variables and kernel parameters in the emulation.
const ALIGNMENT: usize = 16;

/// The registers, symbols and labels, by name, of the kernel whose PTX is being translated.
#[derive(Default)]
struct Names {
    registers: HashMap<String, Register>,
    initial: HashMap<Initial, Register>,
    symbols: HashMap<String, u64>,
    labels: HashMap<String, usize>,
    count: usize,
}

impl Program {
    /// Translates a kernel from PTX into a program that is ready to run.
    ///
    /// # Errors
    /// Returns a message that quotes the first unsupported statement.
    pub fn compile(entry: &Entry) -> Result<Self, String> {
        let unknown = |text: &str| format!("`{text}` in {} is not supported", entry.name);
        let mut names = Names::default();
        let parameters = names.parameters(entry).ok_or_else(|| unknown("a parameter"))?;
        let [mut local, mut shared] = [0; 2];
        let mut instructions = Vec::new();
        for statement in entry.statements() {
            for label in statement.labels {
                names.labels.insert(label.to_owned(), instructions.len());
            }
            let text = statement.text;
            let size = match text.split_whitespace().next() {
                Some(".local") => &mut local,
                Some(".shared") => &mut shared,
                Some(".reg") => {
                    names.declare(text).ok_or_else(|| unknown(text))?;
                    continue;
                }
                Some(".pragma") | None => continue,
                _ => {
                    instructions.push((Instruction::read(text).ok_or_else(|| unknown(text))?, text));
                    continue;
                }
            };
            let (name, bytes) = sized(text).ok_or_else(|| unknown(text))?;
            names.symbols.insert(name, *size as u64);
            *size += bytes.next_multiple_of(ALIGNMENT);
        }
        names.symbols.extend(entry.shared.iter().map(|name| (name.clone(), shared as u64)));
        let steps = instructions.into_iter().map(|(instruction, text)| {
            let guard = match instruction.guard {
                Some((predicate, not)) => Some((names.register(predicate).ok_or_else(|| unknown(text))?, not)),
                None => None,
            };
            let operation = names.operation(&instruction).ok_or_else(|| unknown(text))?;
            Ok(Step { guard, operation, reconverges: 0, text: text.to_owned() })
        });
        let mut steps = steps.collect::<Result<Vec<_>, String>>()?;
        let points = reconvergence_points(&steps.iter().map(Step::next).collect::<Vec<_>>());
        steps.iter_mut().zip(points).for_each(|(step, point)| step.reconverges = point);
        let initial = names.initial.into_iter().map(|(initial, register)| (register, initial)).collect();
        let (name, threads) = (entry.name.clone(), entry.threads);
        Ok(Self { name, steps, registers: names.count, initial, threads, parameters, local, shared })
    }
}

impl Names {
    fn parameters(&mut self, entry: &Entry) -> Option<Vec<(usize, usize)>> {
        let mut at = 0;
        let one = |parameter: &String| {
            let (name, bytes) = sized(parameter)?;
            self.symbols.insert(name, at as u64);
            let begins = at;
            at += bytes.next_multiple_of(ALIGNMENT);
            Some((begins, bytes))
        };
        entry.parameters.iter().map(one).collect()
    }

    /// Declares the registers that a PTX declaration names, such as `.reg .b32 %r<9>` or `.reg .b64 %SP`.
    fn declare(&mut self, text: &str) -> Option<()> {
        let (name, _) = declared(text)?;
        let all = match name.strip_suffix('>').and_then(|name| name.split_once('<')) {
            Some((name, count)) => (0..count.parse::<usize>().ok()?).map(|index| format!("{name}{index}")).collect(),
            None => vec![name],
        };
        for name in all {
            let register = self.new_register();
            self.registers.insert(name, register);
        }
        Some(())
    }

    fn new_register(&mut self) -> Register {
        self.count += 1;
        self.count - 1
    }

    /// Returns the number of a declared register, given its PTX name.
    fn register(&self, name: &str) -> Option<Register> {
        self.registers.get(name).copied()
    }

    fn holding(&mut self, initial: Initial) -> Register {
        if let Some(register) = self.initial.get(&initial) {
            return *register;
        }
        let register = self.new_register();
        self.initial.insert(initial, register);
        register
    }

    /// Returns the register for an operand of a PTX instruction: a declared register, or a new one that holds the
    /// operand's constant number or address.
    fn operand(&mut self, text: &str) -> Option<Register> {
        if let Some(special) = special(text) {
            return Some(self.holding(special));
        }
        if let Some(register) = self.register(text) {
            return Some(register);
        }
        let number = self.symbols.get(text).copied().or_else(|| number(text))?;
        Some(self.holding(Initial::Number(number)))
    }

    fn operands(&mut self, text: &str) -> Option<Vec<Register>> {
        inside(text).split(',').map(|part| self.operand(part.trim())).collect()
    }

    fn address(&mut self, space: Space, text: &str) -> Option<Address> {
        let text = inside(text);
        let (base, offset) = match text.split_once('+') {
            Some((base, offset)) => (base.trim(), number(offset.trim())?),
            None => (text, 0),
        };
        Some(Address { space, base: self.operand(base)?, offset })
    }

    fn operation(&mut self, instruction: &Instruction<'_>) -> Option<Operation> {
        let Instruction { name, operands, .. } = instruction;
        let parts: Vec<&str> = name.split('.').collect();
        Some(match (parts[0], operands.as_slice()) {
            ("bra", [label]) => Operation::Branch(*self.labels.get(*label)?),
            ("ret" | "exit", []) => Operation::Return,
            ("bar" | "barrier", ["0"]) if parts.contains(&"sync") && !parts.contains(&"warp") => Operation::Barrier,
            ("bar", [mask]) if parts.contains(&"warp") => Operation::Together(self.operand(mask)?),
            ("membar" | "fence", []) => Operation::Nothing,
            ("activemask", [to]) => Operation::ActiveMask(self.operand(to)?),
            ("shfl", [to, from, by, clamp, mask]) if !to.contains('|') => Operation::Shuffle {
                how: match *parts.get(2)? {
                    "bfly" => Shuffle::Xor,
                    "idx" => Shuffle::Index,
                    "up" => Shuffle::Up,
                    "down" => Shuffle::Down,
                    _ => return None,
                },
                to: self.operand(to)?,
                from: self.operand(from)?,
                by: self.operand(by)?,
                clamp: self.operand(clamp)?,
                mask: self.operand(mask)?,
            },
            ("mov", [to, from]) if to.starts_with('{') => {
                let to = inside(to).split(',').map(|part| self.target(part.trim())).collect::<Option<Vec<_>>>()?;
                let bits = Type::read(parts[1])?.bits() / to.len() as u32;
                Operation::Split { from: self.operand(from)?, to, bits }
            }
            ("mov", [to, from]) if from.starts_with('{') => {
                let from = self.operands(from)?;
                let bits = Type::read(parts[1])?.bits() / from.len() as u32;
                Operation::Join { from, to: self.operand(to)?, bits }
            }
            ("cvta", [to, from]) => self.convert_address(&parts, to, from)?,
            ("ld", [to, at]) => {
                let of = Type::read(parts.last()?)?;
                Operation::Load { of, at: self.address(space(&parts), at)?, to: self.operands(to)? }
            }
            ("st", [at, from]) => {
                let of = Type::read(parts.last()?)?;
                Operation::Store { of, at: self.address(space(&parts), at)?, from: self.operands(from)? }
            }
            ("atom", [to, at, with]) => self.atomic(&parts, Some(to), at, with)?,
            ("red", [at, with]) => self.atomic(&parts, None, at, with)?,
            ("mma" | "wmma" | "ldmatrix" | "stmatrix", _) => self.of_matrices(&parts, operands)?,
            (_, [to, from @ ..]) if from.len() == arity(name) => {
                let mut inputs = [0; 3];
                for (input, operand) in inputs.iter_mut().zip(from) {
                    *input = self.operand(operand)?;
                }
                Operation::Compute { function: function(name)?, to: self.register(to)?, from: inputs }
            }
            _ => return None,
        })
    }

    /// Returns the output register of a PTX instruction; `Some(None)` if the output is discarded, which PTX writes as
    /// `_`.
    fn target(&self, text: &str) -> Option<Option<Register>> {
        if text == "_" { Some(None) } else { self.register(text).map(Some) }
    }

    fn atomic(&mut self, parts: &[&str], to: Option<&str>, at: &str, with: &str) -> Option<Operation> {
        let of = Type::read(parts.last()?).filter(|of| matches!(of.bits(), 32 | 64))?;
        let operation = ["add", "min", "max", "and", "or", "xor"].into_iter().find(|name| parts.contains(name))?;
        Some(Operation::Atomic {
            of,
            function: function(&format!("{operation}.{}", parts.last()?))?,
            to: match to {
                Some(to) => Some(self.operand(to)?),
                None => None,
            },
            at: self.address(space(parts), at)?,
            with: self.operand(with)?,
        })
    }

    /// Translates the PTX instruction `cvta`, which converts an address in global, shared or local memory to a generic
    /// address, or back. Shared and local memory each have a range of generic addresses: a generic address is the
    /// original address plus the start of this range.
    fn convert_address(&mut self, parts: &[&str], to: &str, from: &str) -> Option<Operation> {
        let window = match space(parts) {
            Space::Global => 0,
            space => window(space)?,
        };
        let window = if parts.contains(&"to") { window.wrapping_neg() } else { window };
        let from = [self.operand(from)?, self.holding(Initial::Number(window)), 0];
        Some(Operation::Compute { function: function("add.u64")?, to: self.operand(to)?, from })
    }

    fn of_matrices(&mut self, parts: &[&str], operands: &[&str]) -> Option<Operation> {
        let has = |part: &str| parts.contains(&part);
        // A modifier that is not in the list means another layout or computation, which is not supported.
        if parts.iter().any(|part| !OF_MATRICES.contains(part)) {
            return None;
        }
        if has("ldmatrix") || has("stmatrix") {
            let [first, second] = operands else { return None };
            let count = [("x1", 1), ("x2", 2), ("x4", 4)].into_iter().find(|(name, _)| has(name))?.1;
            let fragment = Fragment::eights(count, has("trans"));
            let (registers, at) = if has("ldmatrix") { (first, second) } else { (second, first) };
            let at = self.address(space(parts), at)?;
            let registers = self.fragment(registers, &fragment)?;
            let tile = Tile { fragment, rows: Rows::ByLane, registers, at };
            return Some(if has("ldmatrix") { Operation::LoadTile(tile) } else { Operation::StoreTile(tile) });
        }
        let shape = parts.iter().position(|part| part.starts_with('m') && part.contains('k') && part.contains('n'))?;
        let [m, n, k] = sizes(parts[shape])?;
        let types: Vec<Type> = parts[shape + 1..].iter().filter_map(|part| Type::read(part)).collect();
        if has("load") || has("store") {
            let [rows, columns] = if has("a") {
                [m, k]
            } else if has("b") {
                [k, n]
            } else {
                [m, n]
            };
            let [first, second, stride] = operands else { return None };
            let (registers, at) = if has("load") { (first, second) } else { (second, first) };
            let [of] = types.as_slice() else { return None };
            let fragment = Fragment::opaque(rows, columns, *of);
            let tile = Tile {
                registers: self.fragment(registers, &fragment)?,
                fragment,
                rows: Rows::Strided(self.operand(stride)?, has("col")),
                at: self.address(space(parts), at)?,
            };
            return Some(if has("load") { Operation::LoadTile(tile) } else { Operation::StoreTile(tile) });
        }
        let [to, left, right, added] = operands else { return None };
        let [result, a, b, c] = match types.as_slice() {
            [d, a, b, c] => [*d, *a, *b, *c],
            [d, c] => [*d, Type::F16, Type::F16, *c],
            _ => return None,
        };
        let fragment = |role, rows, columns, of| match has("wmma") {
            true => Fragment::opaque(rows, columns, of),
            false => Fragment::documented(role, rows, columns, of),
        };
        let product = Product {
            left: fragment(Role::Left, m, k, a),
            right: fragment(Role::Right, k, n, b),
            added: fragment(Role::Accumulator, m, n, c),
            result: fragment(Role::Accumulator, m, n, result),
        };
        Some(Operation::Multiply {
            to: self.fragment(to, &product.result)?,
            left: self.fragment(left, &product.left)?,
            right: self.fragment(right, &product.right)?,
            added: self.fragment(added, &product.added)?,
            product,
        })
    }

    /// Returns the registers that a PTX instruction lists for one of its matrices; `None` if their number is wrong. An
    /// f16 matrix may also have eight registers, as the instruction `wmma` requires.
    fn fragment(&mut self, text: &str, fragment: &Fragment) -> Option<Vec<Register>> {
        let (registers, count) = (self.operands(text)?, fragment.registers());
        let is_whole = registers.len() == count || (fragment.of == Type::F16 && registers.len() == 8);
        is_whole.then_some(registers)
    }
}

/// Returns the variable name in a PTX memory declaration, and the number of bytes that it declares.
fn sized(declaration: &str) -> Option<(String, usize)> {
    let (name, count) = declared(declaration)?;
    let of = declaration.split(['.', ' ']).find_map(Type::read)?;
    Some((name, of.bits() as usize / 8 * count))
}

/// The words that a PTX matrix instruction's name may contain, separated by dots, such as `m16n8k16`. Any other word is
/// an error.
const OF_MATRICES: [&str; 33] = [
    "mma",
    "wmma",
    "ldmatrix",
    "stmatrix",
    "load",
    "store",
    "a",
    "b",
    "c",
    "d",
    "sync",
    "aligned",
    "row",
    "col",
    "x1",
    "x2",
    "x4",
    "trans",
    "shared",
    "global",
    "m8n8",
    "m16n8k8",
    "m16n8k16",
    "m16n16k8",
    "m16n16k16",
    "m32n8k16",
    "m8n32k16",
    "b16",
    "bf16",
    "f16",
    "tf32",
    "f32",
    "shared::cta",
];

fn space(parts: &[&str]) -> Space {
    let known =
        [("param", Space::Parameter), ("global", Space::Global), ("shared", Space::Shared), ("local", Space::Local)];
    // `shared::cta` is another name for `shared`.
    let found = known.into_iter().find(|(name, _)| parts.iter().any(|part| part.split("::").next() == Some(name)));
    found.map_or(Space::Generic, |(_, space)| space)
}

/// Returns the sizes m, n and k of a matrix product, given its shape's name: 16, 8 and 16 for `m16n8k16`.
fn sizes(shape: &str) -> Option<[usize; 3]> {
    let mut numbers = shape.split(['m', 'n', 'k']).skip(1).map(|number| number.parse().ok());
    Some([numbers.next()??, numbers.next()??, numbers.next()??])
}

fn special(text: &str) -> Option<Initial> {
    let (name, axis) = text.strip_prefix('%')?.split_once('.').unwrap_or((&text[1..], "x"));
    let axis = ["x", "y", "z"].iter().position(|one| *one == axis)?;
    Some(match name {
        "tid" => Initial::Thread(axis),
        "ntid" => Initial::Threads(axis),
        "ctaid" => Initial::Block(axis),
        "nctaid" => Initial::Blocks(axis),
        "laneid" => Initial::Lane,
        "warpid" => Initial::Warp,
        _ => return None,
    })
}

/// Parses a PTX number, such as `8`, `0x1F` or `0f3F800000` (an f32), and returns its bits.
fn number(text: &str) -> Option<u64> {
    let text = text.strip_suffix('U').unwrap_or(text);
    if let Some(bits) = text.strip_prefix("0f").or(text.strip_prefix("0F")) {
        return u64::from_str_radix(bits, 16).ok();
    }
    if let Some(bits) = text.strip_prefix("0d").or(text.strip_prefix("0D")).or(text.strip_prefix("0x")) {
        return u64::from_str_radix(bits, 16).ok();
    }
    text.parse::<i128>().ok().map(|number| number as u64)
}
