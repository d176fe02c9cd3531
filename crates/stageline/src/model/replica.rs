//! Which of several pipelines with one plan, among which a batch is divided.

/// A replica of a pipeline: its own stages, workers and channels, and its own part of every batch.
///
/// The stages of the first one have the optimizers, and are those of checkpoints and modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Replica {
    /// Which one, from 0.
    pub index: usize,
    /// How many there are.
    pub of: usize,
}

impl Default for Replica {
    /// The only one.
    fn default() -> Self {
        Self { index: 0, of: 1 }
    }
}

impl Replica {
    /// All of so many.
    pub(crate) fn all(of: usize) -> impl Iterator<Item = Self> {
        (0..of).map(move |index| Self { index, of })
    }

    /// Whether its stages have the optimizers, and are those of checkpoints and modules.
    pub(crate) fn is_first(self) -> bool {
        self.index == 0
    }

    /// What messages call one of its stages.
    pub(crate) fn stage(self, stage: usize) -> String {
        self.name(format!("stage {stage}"))
    }

    /// What messages call one of its micro-batches.
    pub(crate) fn micro_batch(self, micro_batch: usize) -> String {
        self.name(format!("micro-batch {micro_batch}"))
    }

    /// What messages call something of it: where there is only one, nobody asks which.
    pub(crate) fn name(self, what: String) -> String {
        if self.of > 1 { format!("{what} of replica {}", self.index) } else { what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_is_named_where_there_are_several() {
        let names: Vec<_> = Replica::all(2).map(|replica| replica.stage(3)).collect();
        assert_eq!(names, ["stage 3 of replica 0", "stage 3 of replica 1"]);
        assert_eq!(Replica::default().micro_batch(5), "micro-batch 5");
    }
}
