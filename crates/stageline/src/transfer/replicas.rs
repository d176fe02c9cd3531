//! One stage in all replicas, at the end of a step: gradients are reduced to the first one, whose optimizer steps, and the new
//! values are broadcast.
//!
//! Sums are added in replica order, and go by the host between GPUs: NCCL's own reduction adds in an order that depends on how
//! GPUs are connected, and so comes to other bits than one replica.

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Device;

use crate::failure::stop::{Stopped, Waits};
use crate::transfer::copies::{Held, Owned, add, share};

/// A stage's part in that.
pub(crate) enum Collective {
    /// It has the optimizer: of the first replica, with the others in order.
    Root(Vec<Owned>),
    /// It has copies.
    Leaf(Held),
}

impl Default for Collective {
    /// Of the only replica.
    fn default() -> Self {
        Self::Root(Vec::new())
    }
}

impl Collective {
    /// Of a stage that trains these parameters, on its device in every replica.
    pub(crate) fn of_stage(ids: &[ParamId], devices: &[&Device]) -> Vec<Self> {
        let [root, leaves @ ..] = devices else { return Vec::new() };
        // A leaf sends once a step.
        let (owned, held): (Vec<_>, Vec<_>) = leaves.iter().map(|leaf| share(ids.to_vec(), root, leaf, 1)).unzip();
        [Self::Root(owned)].into_iter().chain(held.into_iter().map(Self::Leaf)).collect()
    }

    /// Whether it is this stage whose optimizer steps.
    pub(crate) fn is_root(&self) -> bool {
        matches!(self, Self::Root(_))
    }

    /// How many reductions this stage makes of one step's sums.
    pub(crate) fn reductions(&self) -> usize {
        match self {
            Self::Root(leaves) => usize::from(!leaves.is_empty()),
            Self::Leaf(_) => 0,
        }
    }

    /// Adds up the sums of a step, in replica order; the root has them all then, and leaves have none.
    pub(crate) fn reduce<M: Module>(
        &self,
        module: &M,
        step: usize,
        mut sums: GradientsParams,
        waits: &Waits,
    ) -> Result<GradientsParams, Stopped> {
        match self {
            Self::Root(leaves) => {
                for leaf in leaves {
                    add(module, &mut sums, vec![leaf.receive(step, waits)?]);
                }
            }
            Self::Leaf(held) => held.send(module, step, &mut sums, waits)?,
        }
        Ok(sums)
    }

    /// From the root: gives the leaves the values of its parameters.
    pub(crate) fn broadcast<M: Module>(&self, module: &M, waits: &Waits) -> Result<(), Stopped> {
        match self {
            Self::Root(leaves) => leaves.iter().try_for_each(|leaf| leaf.publish(module, waits)),
            Self::Leaf(_) => Ok(()),
        }
    }

    /// In a leaf: waits for the root's values.
    pub(crate) fn follow<M: Module>(&self, module: M, waits: &Waits) -> Result<M, (M, Stopped)> {
        match self {
            Self::Root(_) => Ok(module),
            Self::Leaf(held) => held.follow(module, waits),
        }
    }
}
