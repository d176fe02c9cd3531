//! [`Replica`]: the index of a data-parallel replica, and the names of its stages and micro-batches in messages.
//! [`ReplicaStage`]: one stage of one replica.

/// A data-parallel replica of a pipeline. Each replica has its own stages, workers and channels, and trains on its own
/// part of every batch.
///
/// All replicas follow the same plan: the order of forward and backward passes on each worker. Only the stages of
/// replica 0 have optimizers. Checkpoints and returned modules are taken from replica 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Replica {
    /// Zero-based index of this data-parallel replica.
    pub index: usize,
    /// R, the number of data-parallel replicas of the whole pipeline.
    pub of: usize,
}

impl Default for Replica {
    /// Returns the one replica of a pipeline without data parallelism: replica 0 of 1.
    fn default() -> Self {
        Self { index: 0, of: 1 }
    }
}

impl Replica {
    pub(crate) fn all(of: usize) -> impl Iterator<Item = Self> {
        (0..of).map(move |index| Self { index, of })
    }

    /// Whether this data-parallel replica is replica 0, whose stages have the optimizers. Checkpoints and trained
    /// modules are taken from replica 0.
    pub(crate) fn is_first(self) -> bool {
        self.index == 0
    }

    /// Returns the name of a stage for messages to the user, such as `stage 1`, or `stage 1 of replica 0` if there are
    /// several replicas.
    pub(crate) fn stage(self, stage: usize) -> String {
        self.name(format!("stage {stage}"))
    }

    /// Returns the name of a micro-batch for messages to the user, such as `micro-batch 5`, or `micro-batch 5 of
    /// replica 0` if there are several replicas.
    pub(crate) fn micro_batch(self, micro_batch: usize) -> String {
        self.name(format!("micro-batch {micro_batch}"))
    }

    /// Returns `what`, the name of a stage or a micro-batch. If the pipeline has several replicas, appends the index of
    /// this one.
    pub(crate) fn name(self, what: String) -> String {
        if self.of > 1 { format!("{what} of replica {}", self.index) } else { what }
    }
}

/// One stage of one data-parallel replica. Errors use it to name the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReplicaStage {
    /// The data-parallel replica that contains the stage.
    pub replica: Replica,
    /// Zero-based index of the stage in the pipeline.
    pub stage: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_contain_the_replica_only_if_there_are_several() {
        let names: Vec<_> = Replica::all(2).map(|replica| replica.stage(3)).collect();
        assert_eq!(names, ["stage 3 of replica 0", "stage 3 of replica 1"]);
        assert_eq!(Replica::default().micro_batch(5), "micro-batch 5");
    }
}
