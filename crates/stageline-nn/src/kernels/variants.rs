//! The variants of operations that share a kernel: two normalisations ([`Normalisation`]) and two forms of GELU
//! ([`GeluForm`]).

/// The kind of normalisation that a layer applies to every row of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Norm {
    /// Layer normalisation of a row: `(row - mean) / sqrt(variance + epsilon)`.
    Layer,
    /// RMS normalisation of a row: `row / sqrt(mean square + epsilon)`. The mean is not subtracted.
    RootMeanSquare,
}

/// A normalisation of rows: its kind, and the epsilon that prevents a division by zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalisation {
    pub kind: Norm,
    /// Epsilon: the small value that a normalisation adds to the variance or mean square of a row before it takes the
    /// square root.
    pub epsilon: f32,
}

/// The form of the activation function GELU, `x Phi(x)`, where `Phi` is the cumulative distribution function of the
/// standard normal distribution or an approximation of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum GeluForm {
    /// The exact GELU: `x Phi(x)`, where `Phi` is the cumulative distribution function of the standard normal
    /// distribution, computed by the error function: `Phi(x) = 0.5 (1 + erf(x / sqrt(2)))`.
    Exact,
    /// GELU's tanh approximation: `0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`. GPT-2 uses it.
    Tanh,
}

#[cfg(any(feature = "flex", feature = "gpu"))]
impl GeluForm {
    /// Coefficient `2 sqrt(2 / pi)` of GELU's tanh approximation. The approximation is `x * sigmoid(2 u)` with `u =
    /// sqrt(2 / pi) * (x + CUBIC * x^3)`, because `1 + tanh(u) = 2 sigmoid(2 u)`.
    pub(crate) const TWICE: f64 = 1.595_769_121_605_731;
    /// Coefficient of the cubic term `x^3` in GELU's tanh approximation.
    pub(crate) const CUBIC: f64 = 0.044_715;
}
