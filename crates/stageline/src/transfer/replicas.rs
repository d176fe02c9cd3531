//! Data parallelism: every stage sends its gradient sum to the same stage of the first replica. That stage adds up the
//! sums, steps its optimizer and sends back the new parameter values.
//!
//! Gradient sums are added in replica order, and go through host memory between GPUs. NCCL's own all-reduce adds in an
//! order that depends on how the GPUs are connected. Its sums would therefore differ in the last bits from the sums of
//! one replica.

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Device;

use crate::failure::stop::{Stopped, Waits};
use crate::transfer::copies::{Held, Owned, add, share};

/// A stage's role in data parallelism, with its connections to the same stage of other replicas. The first replica
/// (`Root`) sums the gradients of all replicas and updates the parameters; the others (`Leaf`) receive the new values.
pub(crate) enum Collective {
    /// The stage belongs to the first data-parallel replica, which has the optimizer. The value lists its connections
    /// to the same stage of the other replicas, in replica order.
    Root(Vec<Owned>),
    /// The stage belongs to a data-parallel replica after the first. It has no optimizer, and computes with copies of
    /// the first replica's parameters. The value is its connection to the first replica.
    Leaf(Held),
}

impl Default for Collective {
    /// Returns the role of a stage without data parallelism: it has the optimizer, and no connections to other
    /// replicas.
    fn default() -> Self {
        Self::Root(Vec::new())
    }
}

impl Collective {
    /// Returns one stage's role in each data-parallel replica, with the connections between these roles. `ids` lists
    /// the parameters that the stage trains, and `devices` lists the stage's device in each replica.
    pub(crate) fn of_stage(ids: &[ParamId], devices: &[&Device]) -> Vec<Self> {
        let [root, leaves @ ..] = devices else { return Vec::new() };
        // A leaf (a stage of a later replica) sends its gradients once a step, so room for one message is enough.
        let (owned, held): (Vec<_>, Vec<_>) = leaves.iter().map(|leaf| share(ids.to_vec(), root, leaf, 1)).unzip();
        [Self::Root(owned)].into_iter().chain(held.into_iter().map(Self::Leaf)).collect()
    }

    /// Whether this stage belongs to the first data-parallel replica. Only that replica has optimizers.
    pub(crate) fn is_root(&self) -> bool {
        matches!(self, Self::Root(_))
    }

    /// Returns how often this stage adds up the gradients of all replicas in one step: once in the first of several
    /// replicas, and never (0) in any other stage.
    pub(crate) fn reductions(&self) -> usize {
        match self {
            Self::Root(leaves) => usize::from(!leaves.is_empty()),
            Self::Leaf(_) => 0,
        }
    }

    /// Adds up one stage's gradient sums over all data-parallel replicas, in replica order. In the first replica,
    /// receives the sums of the others and returns the total. In every other replica, sends its sums to the first and
    /// returns those that were not sent.
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

    /// Sends this stage's parameter values to the same stage of all other replicas, if this stage belongs to the first
    /// data-parallel replica. Otherwise does nothing.
    pub(crate) fn broadcast<M: Module>(&self, module: &M, waits: &Waits) -> Result<(), Stopped> {
        match self {
            Self::Root(leaves) => leaves.iter().try_for_each(|leaf| leaf.publish(module, waits)),
            Self::Leaf(_) => Ok(()),
        }
    }

    /// Waits for the first data-parallel replica's parameter values, and writes them to this replica's copies. Returns
    /// the changed module. In the first replica, returns the module unchanged. If the pipeline stops during the wait,
    /// the error contains the unchanged module.
    pub(crate) fn follow<M: Module>(&self, module: M, waits: &Waits) -> Result<M, (M, Stopped)> {
        match self {
            Self::Root(_) => Ok(module),
            Self::Leaf(held) => held.follow(module, waits),
        }
    }
}
