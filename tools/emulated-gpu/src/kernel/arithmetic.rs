//! The functions of PTX instructions that compute in each lane (thread of a warp) separately.

use half::{bf16, f16};

/// The bits of one register in each of the 32 lanes (threads) of a warp.
pub type Lanes = [u64; 32];
/// The function that a PTX instruction computes in every lane of a warp, with up to three input registers.
pub type Function = Box<dyn Fn(&Lanes, &Lanes, &Lanes) -> Lanes + Send + Sync>;

/// The type of a value in a kernel's register: an integer (with its width in bits) or a float.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Unsigned(u32),
    Signed(u32),
    F16,
    Bf16,
    Tf32,
    F32,
    F64,
}

impl Type {
    pub fn read(name: &str) -> Option<Self> {
        Some(match name {
            "pred" => Self::Unsigned(1),
            "u8" | "b8" => Self::Unsigned(8),
            "u16" | "b16" => Self::Unsigned(16),
            "u32" | "b32" => Self::Unsigned(32),
            "u64" | "b64" => Self::Unsigned(64),
            "s8" => Self::Signed(8),
            "s16" => Self::Signed(16),
            "s32" => Self::Signed(32),
            "s64" => Self::Signed(64),
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "tf32" => Self::Tf32,
            "f32" => Self::F32,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    fn is_float(self) -> bool {
        !matches!(self, Self::Unsigned(_) | Self::Signed(_))
    }

    pub fn bits(self) -> u32 {
        match self {
            Self::Unsigned(bits) | Self::Signed(bits) => bits,
            Self::F16 | Self::Bf16 => 16,
            Self::Tf32 | Self::F32 => 32,
            Self::F64 => 64,
        }
    }

    /// Returns the smallest and the largest value of this integer type.
    fn bounds(self) -> [i128; 2] {
        match self {
            Self::Signed(bits) => [-(1 << (bits - 1)), (1 << (bits - 1)) - 1],
            _ => [0, (1 << self.bits()) - 1],
        }
    }

    pub fn integer(self, bits: u64) -> i128 {
        match self {
            Self::Signed(64) => i128::from(bits as i64),
            Self::Signed(32) => i128::from(bits as i32),
            Self::Signed(16) => i128::from(bits as i16),
            Self::Signed(_) => i128::from(bits as i8),
            _ => i128::from(bits & mask(self.bits())),
        }
    }

    pub fn of_integer(self, value: i128) -> u64 {
        value as u64 & mask(self.bits())
    }

    /// Converts the bits of a float of this type to f64, which is exact for all types.
    #[inline(always)]
    pub fn float(self, bits: u64) -> f64 {
        match self {
            Self::F16 => f16::from_bits(bits as u16).to_f64(),
            Self::Bf16 => bf16::from_bits(bits as u16).to_f64(),
            Self::F64 => f64::from_bits(bits),
            _ => f64::from(f32::from_bits(bits as u32)),
        }
    }

    /// Rounds an f64 to the nearest value of this float type, and returns its bits. Ties go to the even value, or for
    /// TF32 away from zero. 16-bit types are rounded to f32 first. For a single sum, product, quotient or square root
    /// in f64, this still gives the result of the type's own arithmetic (Figueroa, 1995).
    #[inline(always)]
    pub fn of_float(self, value: f64) -> u64 {
        match self {
            Self::F16 => u64::from(f16::from_f32(value as f32).to_bits()),
            Self::Bf16 => u64::from(bf16::from_f32(value as f32).to_bits()),
            Self::Tf32 if value.is_nan() => u64::from(f32::NAN.to_bits()),
            // Like `cvt.rna`: rounds to 10 mantissa bits, with ties away from zero.
            Self::Tf32 => u64::from((value as f32).to_bits().wrapping_add(0x1000) & !0x1FFF),
            Self::F64 => value.to_bits(),
            _ => u64::from((value as f32).to_bits()),
        }
    }
}

fn mask(bits: u32) -> u64 {
    u64::MAX >> (64 - bits)
}

fn lanes(f: impl Fn(u64, u64, u64) -> u64 + Send + Sync + 'static) -> Function {
    Box::new(move |a, b, c| std::array::from_fn(|lane| f(a[lane], b[lane], c[lane])))
}

fn integers(of: Type, f: impl Fn(i128, i128, i128) -> i128 + Send + Sync + 'static) -> Function {
    lanes(move |a, b, c| of.of_integer(f(of.integer(a), of.integer(b), of.integer(c))))
}

fn floats(of: Type, f: impl Fn(f64, f64, f64) -> f64 + Send + Sync + 'static) -> Function {
    // A constant type makes the loop faster for f32, the most frequent type.
    if of == Type::F32 {
        const OF: Type = Type::F32;
        return lanes(move |a, b, c| OF.of_float(f(OF.float(a), OF.float(b), OF.float(c))));
    }
    lanes(move |a, b, c| of.of_float(f(of.float(a), of.float(b), of.float(c))))
}

/// Returns a function that applies an operation on 16-bit floats to both halves of a 32-bit register separately.
fn halves(of: Type, f: impl Fn(f64, f64, f64) -> f64 + Send + Sync + 'static) -> Function {
    let part = move |a: u64, b: u64, c: u64| of.of_float(f(of.float(a), of.float(b), of.float(c)));
    lanes(move |a, b, c| part(a, b, c) | part(a >> 16, b >> 16, c >> 16) << 16)
}

/// The supported modifiers in PTX instruction names, such as `rn` in `add.rn.f32`. Denormal numbers are kept, even with
/// `ftz`.
const KNOWN: [&str; 9] = ["rn", "rm", "approx", "full", "ftz", "NaN", "lo", "hi", "wide"];

/// Returns the Rust function that computes the PTX instruction `name`; `None` if it is not supported.
pub fn function(name: &str) -> Option<Function> {
    let parts: Vec<&str> = name.split('.').collect();
    let (&operation, modifiers) = parts.split_first()?;
    let (last, rest) = modifiers.split_last()?;
    match operation {
        "cvt" => return convert(modifiers),
        "setp" => return compare(modifiers),
        // Any other modifier would change the result, and is not supported.
        _ if rest.iter().any(|modifier| !KNOWN.contains(modifier)) => return None,
        _ => {}
    }
    let has = |modifier: &str| rest.contains(&modifier);
    match (operation, *last) {
        (_, "bf16x2") => return Some(halves(Type::Bf16, float_operation(operation, has("NaN"))?)),
        (_, "f16x2") => return Some(halves(Type::F16, float_operation(operation, has("NaN"))?)),
        _ => {}
    }
    let of = Type::read(last)?;
    match operation {
        "fma" if of == Type::F32 && has("rm") => return Some(lanes(|a, b, c| fma_down([a, b, c]))),
        "fma" if of == Type::F32 => return Some(floats(of, fused)),
        _ if has("rm") => return None,
        "selp" => return Some(lanes(move |a, b, c| if c & 1 == 1 { a } else { b } & mask(of.bits()))),
        "mov" => return Some(lanes(move |a, _, _| a & mask(of.bits()))),
        _ => {}
    }
    if of.is_float() {
        let f = float_operation(operation, has("NaN"))?;
        return Some(floats(of, f));
    }
    integer_operation(operation, rest, of)
}

/// Computes `a * b + c` for three f32 numbers, and returns an f64. Converted to f32, it is the exact result rounded
/// only once, as a fused multiply-add requires. The product is exact in f64, and an inexact sum is rounded to odd
/// (Boldo and Melquiond, 2008, "Emulation of FMA and correctly rounded sums").
#[inline(always)]
fn fused(a: f64, b: f64, c: f64) -> f64 {
    let product = a * b;
    let sum = product + c;
    // The rounding error of the sum (Knuth's TwoSum).
    let of_product = sum - c;
    let lost = (product - of_product) + (c - (sum - of_product));
    let bits = sum.to_bits();
    let is_odd = bits & 1 == 1 || lost == 0.0 || !sum.is_finite() || !lost.is_finite();
    let away = (lost > 0.0) == (sum > 0.0);
    f64::from_bits(if is_odd {
        bits
    } else if away {
        bits + 1
    } else {
        bits - 1
    })
}

/// Computes `a * b + c` in f32 with a single rounding, toward negative infinity. The arguments and the result are the
/// bits of f32 numbers.
fn fma_down(bits: [u64; 3]) -> u64 {
    let [a, b, c] = bits.map(|bits| f64::from(f32::from_bits(bits as u32)));
    let sum = fused(a, b, c);
    let near = sum as f32;
    let down = if f64::from(near) > sum { near.next_down() } else { near };
    u64::from(down.to_bits())
}

/// Returns the larger of two floats. NaN counts as less than all numbers, and -0 as less than 0.
fn larger(a: f64, b: f64) -> f64 {
    let is_first = b.is_nan() || a > b || (a == b && a.is_sign_positive());
    if is_first { a } else { b }
}

/// Returns the number of input operands of a PTX instruction.
pub fn arity(name: &str) -> usize {
    let parts: Vec<&str> = name.split('.').collect();
    let has = |part: &str| parts.contains(&part);
    match parts[0] {
        "cvt" if has("bf16x2") || has("f16x2") => 2,
        "setp" if has("and") || has("or") || has("xor") => 3,
        "mov" | "cvt" | "neg" | "abs" | "not" | "sqrt" | "rsqrt" | "rcp" | "ex2" | "lg2" | "sin" | "cos" | "tanh"
        | "popc" | "clz" | "brev" => 1,
        "fma" | "mad" | "selp" | "bfe" | "prmt" => 3,
        _ => 2,
    }
}

fn float_operation(operation: &str, nan: bool) -> Option<fn(f64, f64, f64) -> f64> {
    Some(match operation {
        "add" => |a, b, _| a + b,
        "sub" => |a, b, _| a - b,
        "mul" => |a, b, _| a * b,
        "div" => |a, b, _| a / b,
        "fma" | "mad" => |a, b, c| a.mul_add(b, c),
        "neg" => |a, _, _| -a,
        "abs" => |a, _, _| a.abs(),
        "max" if nan => |a, b, _| if a.is_nan() || b.is_nan() { f64::NAN } else { larger(a, b) },
        "min" if nan => |a, b, _| if a.is_nan() || b.is_nan() { f64::NAN } else { -larger(-a, -b) },
        "max" => |a, b, _| larger(a, b),
        "min" => |a, b, _| -larger(-a, -b),
        "sqrt" => |a, _, _| a.sqrt(),
        "rsqrt" => |a, _, _| 1.0 / a.sqrt(),
        "rcp" => |a, _, _| 1.0 / a,
        "ex2" => |a, _, _| a.exp2(),
        "lg2" => |a, _, _| a.log2(),
        "sin" => |a, _, _| a.sin(),
        "cos" => |a, _, _| a.cos(),
        "tanh" => |a, _, _| a.tanh(),
        "copysign" => |a, b, _| b.copysign(a),
        _ => return None,
    })
}

fn integer_operation(operation: &str, modifiers: &[&str], of: Type) -> Option<Function> {
    let bits = of.bits();
    let has = |modifier: &str| modifiers.contains(&modifier);
    let high = move |a: i128, b: i128| match of {
        Type::Signed(_) => a.wrapping_mul(b) >> bits,
        _ => (a.wrapping_mul(b) as u128 >> bits) as i128,
    };
    let shift = move |by: i128| by.clamp(0, i128::from(bits));
    let wide = match of {
        Type::Signed(bits) => Type::Signed(2 * bits.min(32)),
        _ => Type::Unsigned(2 * bits.min(32)),
    };
    Some(match operation {
        "add" => integers(of, |a, b, _| a + b),
        "sub" => integers(of, |a, b, _| a - b),
        "mul" if has("wide") => lanes(move |a, b, _| wide.of_integer(of.integer(a) * of.integer(b))),
        "mad" if has("wide") => lanes(move |a, b, c| wide.of_integer(of.integer(a) * of.integer(b) + wide.integer(c))),
        "mul" if has("hi") => integers(of, move |a, b, _| high(a, b)),
        "mad" if has("hi") => integers(of, move |a, b, c| high(a, b).wrapping_add(c)),
        "mul" => integers(of, |a, b, _| a.wrapping_mul(b)),
        "mad" => integers(of, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        "div" => integers(of, |a, b, _| a.checked_div(b).unwrap_or(-1)),
        "rem" => integers(of, |a, b, _| a.checked_rem(b).unwrap_or(a)),
        "min" => integers(of, |a, b, _| a.min(b)),
        "max" => integers(of, |a, b, _| a.max(b)),
        "abs" => integers(of, |a, _, _| a.abs()),
        "neg" => integers(of, |a, _, _| -a),
        "not" => integers(of, |a, _, _| !a),
        "and" => integers(of, |a, b, _| a & b),
        "or" => integers(of, |a, b, _| a | b),
        "xor" => integers(of, |a, b, _| a ^ b),
        // The shift distance has 32 bits, whatever the type of the value.
        "shl" => lanes(move |a, by, _| of.of_integer(of.integer(a) << shift(i128::from(by as u32)))),
        "shr" => lanes(move |a, by, _| of.of_integer(of.integer(a) >> shift(i128::from(by as u32)))),
        "popc" => lanes(move |a, _, _| u64::from((a & mask(bits)).count_ones())),
        "clz" => lanes(move |a, _, _| u64::from((a & mask(bits)).leading_zeros() - (64 - bits))),
        "brev" => lanes(move |a, _, _| a.reverse_bits() >> (64 - bits)),
        "bfe" if matches!(of, Type::Unsigned(_)) => lanes(move |a, from, length| {
            let [from, length] = [from, length].map(|number| (number & 0xFF).min(u64::from(bits)) as u32);
            let shifted = (u128::from(a & mask(bits)) >> from) as u64;
            if length == 0 { 0 } else { shifted & mask(length.min(64)) }
        }),
        "prmt" if modifiers.is_empty() => lanes(|a, b, selector| {
            let bytes = a & mask(32) | b << 32;
            let byte = |at: u32| {
                let control = (selector >> (4 * at)) as u32;
                let byte = bytes >> (8 * (control & 7)) & 0xFF;
                // If bit 3 of the control is set, the byte's sign bit is replicated.
                let byte = if control & 8 == 0 { byte } else { (byte >> 7) * 0xFF };
                byte << (8 * at)
            };
            (0..4).map(byte).sum()
        }),
        _ => return None,
    })
}

fn convert(modifiers: &[&str]) -> Option<Function> {
    let (rest, [to, from]) = modifiers.split_last_chunk()?;
    const ROUNDINGS: [&str; 8] = ["rn", "rna", "rni", "rzi", "rmi", "rpi", "sat", "ftz"];
    if rest.iter().any(|modifier| !ROUNDINGS.contains(modifier)) {
        return None;
    }
    let has = |modifier: &str| rest.contains(&modifier);
    let from = Type::read(from)?;
    let saturates = has("sat");
    let pair = match *to {
        "bf16x2" => Some(Type::Bf16),
        "f16x2" => Some(Type::F16),
        _ => None,
    };
    if let Some(half) = pair {
        let part = move |bits: u64| half.of_float(from.float(bits));
        return has("rn").then(|| lanes(move |high, low, _| part(high) << 16 | part(low)));
    }
    // Conversions to tf32 require `rna`; others do not support it.
    let to = Type::read(to).filter(|to| (*to == Type::Tf32) == has("rna"))?;
    let whole: fn(f64) -> f64 = match rest.first() {
        Some(&"rni") => f64::round_ties_even,
        Some(&"rzi") => f64::trunc,
        Some(&"rmi") => f64::floor,
        Some(&"rpi") => f64::ceil,
        _ => |value| value,
    };
    let [least, greatest] = to.bounds();
    Some(match (from.is_float(), to.is_float()) {
        (false, false) if saturates => lanes(move |a, _, _| to.of_integer(from.integer(a).clamp(least, greatest))),
        (false, false) => lanes(move |a, _, _| to.of_integer(from.integer(a))),
        (false, true) if to == Type::F64 => lanes(move |a, _, _| to.of_float(from.integer(a) as f64)),
        (false, true) => lanes(move |a, _, _| to.of_float(f64::from(from.integer(a) as f32))),
        // NaN becomes 0, and values out of range saturate, as with `as`. Conversions from f64 or to 64 bits are not
        // supported.
        (true, false) if from == Type::F64 || to.bits() > 32 => return None,
        (true, false) => lanes(move |a, _, _| to.of_integer((whole(from.float(a)) as i128).clamp(least, greatest))),
        (true, true) if saturates => {
            // With `sat`, NaN becomes 0.
            lanes(move |a, _, _| to.of_float(whole(from.float(a)).max(0.0).clamp(0.0, 1.0)))
        }
        (true, true) => lanes(move |a, _, _| to.of_float(whole(from.float(a)))),
    })
}

fn compare(modifiers: &[&str]) -> Option<Function> {
    let (&[how], rest) = modifiers.split_first_chunk()?;
    let of = Type::read(rest.last()?)?;
    let combine: fn(bool, bool) -> bool = match rest {
        ["and", _] => |held, also| held && also,
        ["or", _] => |held, also| held || also,
        ["xor", _] => |held, also| held != also,
        [_] => |held, _| held,
        _ => return None,
    };
    use std::cmp::Ordering::{Equal, Greater, Less};
    // For each comparison, the orders for which it holds, and whether it holds for unordered operands (if one of them
    // is NaN).
    let (orders, without): (&'static [std::cmp::Ordering], bool) = match how {
        "eq" => (&[Equal], false),
        "ne" => (&[Less, Greater], false),
        "lt" | "lo" => (&[Less], false),
        "le" | "ls" => (&[Less, Equal], false),
        "gt" | "hi" => (&[Greater], false),
        "ge" | "hs" => (&[Greater, Equal], false),
        "equ" => (&[Equal], true),
        "neu" => (&[Less, Greater], true),
        "ltu" => (&[Less], true),
        "leu" => (&[Less, Equal], true),
        "gtu" => (&[Greater], true),
        "geu" => (&[Greater, Equal], true),
        "num" => (&[Less, Equal, Greater], false),
        "nan" => (&[], true),
        _ => return None,
    };
    Some(lanes(move |a, b, c| {
        let order = match of.is_float() {
            true => of.float(a).partial_cmp(&of.float(b)),
            false => Some(of.integer(a).cmp(&of.integer(b))),
        };
        u64::from(combine(order.map_or(without, |order| orders.contains(&order)), c & 1 == 1))
    }))
}
