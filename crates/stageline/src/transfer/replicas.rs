//! Data parallelism: one stage's copies in all replicas reduce their gradients to the first replica, whose optimizer
//! steps, and receive the new values.
//!
//! Gradient sums are added in replica order, and go through the host's memory between GPUs. NCCL's own reduction adds
//! in an order that depends on how the GPUs are connected, so its sums would differ in the last bits from those of one
//! replica.

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Device;

use crate::failure::stop::{Stopped, Waits};
use crate::transfer::copies::{Held, Owned, add, share};

/// The role of one replica's stage in the reduction and broadcast at the end of a step.
pub(crate) enum Collective {
    /// The first replica's stage, which has the optimizer; with the exchanges to the other replicas in order.
    Root(Vec<Owned>),
    /// Another replica's stage, which computes with copies of the root's parameters.
    Leaf(Held),
}

impl Default for Collective {
    /// Returns the root of a single replica, which has nothing to exchange.
    fn default() -> Self {
        Self::Root(Vec::new())
    }
}

impl Collective {
    /// Returns the roles of one stage that trains the parameters `ids`, one for each replica, given its device there.
    pub(crate) fn of_stage(ids: &[ParamId], devices: &[&Device]) -> Vec<Self> {
        let [root, leaves @ ..] = devices else { return Vec::new() };
        // A leaf sends its gradients once a step, so room for one message is enough.
        let (owned, held): (Vec<_>, Vec<_>) = leaves.iter().map(|leaf| share(ids.to_vec(), root, leaf, 1)).unzip();
        [Self::Root(owned)].into_iter().chain(held.into_iter().map(Self::Leaf)).collect()
    }

    /// Whether this replica's stage has the optimizer that steps.
    pub(crate) fn is_root(&self) -> bool {
        matches!(self, Self::Root(_))
    }

    /// The number of reductions that this stage makes in one step: 1 on the root of several replicas, else 0.
    pub(crate) fn reductions(&self) -> usize {
        match self {
            Self::Root(leaves) => usize::from(!leaves.is_empty()),
            Self::Leaf(_) => 0,
        }
    }

    /// Adds up a step's gradient sums in replica order: a leaf sends its sum to the root, and the root returns the
    /// total.
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

    /// Sends the root's parameter values to all leaves; does nothing on a leaf.
    pub(crate) fn broadcast<M: Module>(&self, module: &M, waits: &Waits) -> Result<(), Stopped> {
        match self {
            Self::Root(leaves) => leaves.iter().try_for_each(|leaf| leaf.publish(module, waits)),
            Self::Leaf(_) => Ok(()),
        }
    }

    /// Waits for the root's values on a leaf and writes them to its copies; returns the module unchanged on the root.
    pub(crate) fn follow<M: Module>(&self, module: M, waits: &Waits) -> Result<M, (M, Stopped)> {
        match self {
            Self::Root(_) => Ok(module),
            Self::Leaf(held) => held.follow(module, waits),
        }
    }
}
