//! The variants of operations that share a kernel: two normalisations ([`Norm`]) and two forms of GELU ([`GeluForm`]).

/// The normalisation of a row of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Norm {
    /// Layer normalisation: the row minus its mean, divided by its standard deviation.
    Layer,
    /// RMS normalisation: the row divided by its root mean square.
    RootMeanSquare,
}

/// The function by which GELU weights its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum GeluForm {
    /// The cumulative distribution function of the standard normal distribution.
    Exact,
    /// The approximation of the standard normal distribution's cumulative distribution function by the hyperbolic
    /// tangent of a cubic polynomial.
    Tanh,
}

impl GeluForm {
    /// The factor 2 sqrt(2 / pi) in `x * sigmoid(2 u)` with `u = sqrt(2 / pi) * (x + CUBIC * x^3)`, which is GELU's
    /// approximation by a hyperbolic tangent, because `1 + tanh(u) = 2 sigmoid(2 u)`.
    pub(crate) const TWICE: f64 = 1.595_769_121_605_731;
    /// The factor of the cubic term in GELU's approximation by a hyperbolic tangent.
    pub(crate) const CUBIC: f64 = 0.044_715;
}
