//! Reads batches ahead of the steps on a thread of its own.

use std::ops::Range;
use std::thread::Scope;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use crossbeam_channel::{Receiver, bounded};
use stageline::Batch;

use crate::data::Data;

/// The number of batches that are read ahead of the step that needs them.
const AHEAD: usize = 2;

/// The batches of a range of steps, in order, which a thread reads ahead of the steps.
pub struct Batches<In, Target> {
    read: Receiver<Result<Batch<In, Target>>>,
    /// The total time for which steps have waited for their batches.
    waited: Duration,
}

impl<In: Send, Target: Send> Batches<In, Target> {
    /// Starts the thread that reads the batches of these steps. It ends when all are read, one cannot be read, or the
    /// batches are dropped.
    pub fn start<'scope, 'env, D>(
        scope: &'scope Scope<'scope, 'env>,
        data: &'env D,
        steps: Range<usize>,
        samples: usize,
    ) -> Self
    where
        D: Data<Input = In, Target = Target> + ?Sized,
        In: 'scope,
        Target: 'scope,
    {
        let (sender, read) = bounded(AHEAD);
        scope.spawn(move || {
            for step in steps {
                let batch = data.batch(step, samples);
                let failed = batch.is_err();
                if sender.send(batch).is_err() || failed {
                    break;
                }
            }
        });
        Self { read, waited: Duration::ZERO }
    }

    /// Returns the batch of the next step.
    pub fn next(&mut self) -> Result<Batch<In, Target>> {
        let began = Instant::now();
        let batch = self.read.recv();
        self.waited += began.elapsed();
        batch.unwrap_or_else(|_| Err(anyhow!("the thread that reads the batches has panicked; its message is above")))
    }

    /// Returns the total time for which steps have waited for their batches.
    pub fn waited(&self) -> Duration {
        self.waited
    }
}
