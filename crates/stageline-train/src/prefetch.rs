//! Reads batches ahead of the steps on threads of their own.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::Scope;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use crossbeam_channel::{Receiver, bounded};
use stageline::Batch;

use crate::data::Data;

/// The number n of threads that read batches. Each reads every n-th batch and keeps one ready, so reading a batch may
/// take as long as n steps before a step has to wait.
const READERS: usize = 4;

/// The batches of a range of training steps, in order, which several threads read ahead of the steps.
pub struct Batches<In, Target> {
    /// The receiver of each reading thread's batches; with n threads, a thread reads the batches of every n-th step.
    readers: Vec<Receiver<Result<Batch<In, Target>>>>,
    /// The number of batches that the training has taken so far.
    taken: usize,
    /// The total time for which training steps were blocked because their batches had not been read yet.
    waited: Duration,
}

impl<In: Send, Target: Send> Batches<In, Target> {
    /// Starts the threads that read the batches of the range `steps`, with `samples` samples in each batch. A thread
    /// ends when it has read all its batches, when a batch cannot be read, or when the returned value is dropped.
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
        let reader = |first: usize| {
            let (sender, receiver) = bounded(1);
            let steps = steps.clone().skip(first).step_by(READERS);
            scope.spawn(move || {
                for step in steps {
                    let read = catch_unwind(AssertUnwindSafe(|| data.batch(step, samples)));
                    let panicked = |_| Err(anyhow!("the batch of step {step} cannot be made: `Data::batch` panicked"));
                    let batch = read.unwrap_or_else(panicked);
                    let failed = batch.is_err();
                    if sender.send(batch).is_err() || failed {
                        break;
                    }
                }
            });
            receiver
        };
        Self { readers: (0..READERS).map(reader).collect(), taken: 0, waited: Duration::ZERO }
    }

    /// Returns the batch of the next training step; blocks until a reading thread has it ready.
    pub fn next(&mut self) -> Result<Batch<In, Target>> {
        let began = Instant::now();
        let batch = self.readers[self.taken % READERS].recv();
        self.waited += began.elapsed();
        self.taken += 1;
        batch.unwrap_or_else(|_| {
            Err(anyhow!("no batch was read for this step, because an earlier one could not be read"))
        })
    }

    /// Returns the total time for which training steps were blocked because their batches had not been read yet.
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use anyhow::ensure;
    use burn::tensor::{Device, Tensor};

    use super::*;

    /// A data source for tests. Each batch contains the number of its step, every third batch takes longer to read, and
    /// the batch of the step `fails_at` cannot be read.
    struct Numbers {
        fails_at: usize,
        read: AtomicUsize,
    }

    impl Data for Numbers {
        type Input = Tensor<1>;
        type Target = ();

        fn batch(&self, step: usize, samples: usize) -> Result<Batch<Tensor<1>, ()>> {
            thread::sleep(Duration::from_millis(if step.is_multiple_of(3) { 20 } else { 1 }));
            self.read.fetch_add(1, Ordering::Relaxed);
            ensure!(step != self.fails_at, "step {step} cannot be read");
            Ok(Batch::new(Tensor::full([samples], step as f32, &Device::flex()), ()))
        }
    }

    fn number(batch: Batch<Tensor<1>, ()>) -> f32 {
        let (input, ()) = batch.into_micro_batches(1).unwrap().pop().unwrap();
        input.into_data().iter::<f32>().next().unwrap()
    }

    #[test]
    fn batches_come_in_the_order_of_their_steps_until_an_error() {
        let data = Numbers { fails_at: 17, read: AtomicUsize::new(0) };
        let found: Vec<_> = thread::scope(|scope| {
            let mut batches = Batches::start(scope, &data, 5..40, 2);
            (5..20).map_while(|_| batches.next().map(number).ok()).collect()
        });
        assert_eq!(found, (5..17).map(|step| step as f32).collect::<Vec<_>>());
    }

    #[test]
    fn readers_end_when_the_batches_are_dropped() {
        let data = Numbers { fails_at: usize::MAX, read: AtomicUsize::new(0) };
        thread::scope(|scope| {
            let mut batches = Batches::start(scope, &data, 0..1_000_000, 1);
            assert_eq!(number(batches.next().unwrap()), 0.0);
        });
        assert!(data.read.load(Ordering::Relaxed) <= 1 + 3 * READERS);
    }
}
