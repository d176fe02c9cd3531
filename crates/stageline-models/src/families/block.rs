//! The transformer block of all families ([`Block`]): attention and a feed-forward part, each with a normalisation
//! before it and a residual connection around it.

use burn::module::{Module, ModuleDisplay};
use burn::tensor::Tensor;
use stageline::nn::{Operation, block, feed_forward, selective};
use stageline::{Halves, Stage};

use crate::attention::Scope;
use crate::families::initial::rows;

/// The type of the value between two layers of a language model: activations, `[batch, length, width]`, and the scope
/// of attention.
pub type Activations = (Tensor<3>, Scope);

/// A transformer block: `hidden = input + attention(input)` and `output = hidden + mlp(hidden)`. Input and output are
/// [`Activations`]. A stage may end between the two halves of a block, attention and feed-forward part.
#[derive(Module, Debug)]
pub struct Block<A: Residual, M: Residual> {
    /// The attention of the block; `None` in the second half of a divided block.
    attention: Option<A>,
    /// The feed-forward part of the block; `None` in the first half of a divided block.
    mlp: Option<M>,
}

/// A half of a transformer block: a normalisation, and then attention or a feed-forward part, whose output is added to
/// the input of the half.
pub trait Residual: Module + ModuleDisplay + 'static {
    /// Normalises activations `[batch x length, width]`.
    fn normalise(&self, input: Tensor<2>) -> Tensor<2>;

    /// Returns what this half adds to its input, `[batch x length, width]`, from its normalised input. `dims` has the
    /// sizes batch, length and width. `scope` says which earlier tokens a token attends to.
    fn forward(&self, normalised: Tensor<2>, dims: [usize; 3], scope: Scope) -> Tensor<2>;

    /// Returns the operations of this half that [`stageline::nn`] has kernels for. A pipeline checks them for the
    /// stage's device when it is built.
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
