//! The transformer block of all families ([`Block`]): attention and an MLP, each with a norm before it and a residual
//! connection around it.

use burn::module::{Module, ModuleDisplay};
use burn::tensor::Tensor;
use stageline::nn::{Operation, block, feed_forward, selective};
use stageline::{Halves, Stage};

use crate::attention::Scope;
use crate::families::initial::rows;

/// The data passed between two layers of a language model: activations, `[batch, length, width]`, and the scope of
/// attention.
pub type Activations = (Tensor<3>, Scope);

/// A transformer block: `hidden = input + attention(input)` and `output = hidden + mlp(hidden)`. Input and output are
/// [`Activations`]. A stage boundary may divide a block into its two halves, attention and MLP.
#[derive(Module, Debug)]
pub struct Block<A: Residual, M: Residual> {
    /// The attention half of the transformer block; `None` if this is only the second half of a divided block.
    attention: Option<A>,
    /// The MLP half of the transformer block; `None` if this is only the first half of a divided block.
    mlp: Option<M>,
}

/// One half of a pre-norm transformer block: `output = input + f(norm(input))`, where `f` is attention or an MLP.
pub trait Residual: Module + ModuleDisplay + 'static {
    /// Applies the norm at the start of this half of a transformer block to the activations `input`, `[batch x length,
    /// width]`.
    fn normalise(&self, input: Tensor<2>) -> Tensor<2>;

    /// Computes this half's residual branch (attention or MLP) from its normalised input. The caller adds the result,
    /// `[batch x length, width]`, to the half's input. `dims` is `[batch, length, width]`, and `scope` is the attention
    /// scope: the earlier tokens that a token attends to.
    fn forward(&self, normalised: Tensor<2>, dims: [usize; 3], scope: Scope) -> Tensor<2>;

    /// Returns this half's operations with kernels in [`stageline::nn`], so that a pipeline can check, when it is
    /// built, that the stage's device has these kernels.
    fn operations(&self) -> Vec<Operation>;
}

impl<A: Residual, M: Residual> Block<A, M> {
    /// Creates a whole transformer block.
    pub fn new(attention: A, mlp: M) -> Self {
        Self { attention: Some(attention), mlp: Some(mlp) }
    }

    fn compute(&self, input: Tensor<3>, scope: &Scope) -> Tensor<3> {
        let dims = input.dims();
        let mut hidden = rows(input);
        if let Some(attention) = &self.attention {
            let scope = scope.clone();
            let attend = move |attention: &A, input| attention.forward(input, dims, scope.clone());
            hidden = hidden.clone() + selective(attention, attention.normalise(hidden), attend);
        }
        if let Some(mlp) = &self.mlp {
            let scope = scope.clone();
            let feed = move |mlp: &M, input| mlp.forward(input, dims, scope.clone());
            hidden = hidden.clone() + feed_forward(mlp, mlp.normalise(hidden), feed);
        }
        hidden.reshape(dims)
    }
}

impl<A: Residual, M: Residual> Stage for Block<A, M> {
    type Input = Activations;
    type Output = Activations;

    fn forward(&self, (input, scope): Activations) -> Activations {
        let within = scope.clone();
        (block(self, input, move |block, input| block.compute(input, &within)), scope)
    }

    fn operations(&self) -> Vec<Operation> {
        let attention = self.attention.iter().flat_map(Residual::operations);
        attention.chain(self.mlp.iter().flat_map(Residual::operations)).collect()
    }
}

impl<A: Residual, M: Residual> Halves for Block<A, M> {
    const NAMES: [&'static str; 2] = ["attention", "mlp"];

    fn halves(self) -> [Self; 2] {
        [Self { attention: self.attention, mlp: None }, Self { attention: None, mlp: self.mlp }]
    }

    fn join(self, second: Self) -> Self {
        Self { attention: self.attention, mlp: second.mlp }
    }

    fn is_first_half(&self) -> bool {
        self.mlp.is_none()
    }
}
