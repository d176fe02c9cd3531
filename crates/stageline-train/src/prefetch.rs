//! Reads the batches of a training ahead of the steps, on threads of their own.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use stageline::Batch;

use crate::data::Data;

/// The largest number of batches that are read, or being read, ahead of the step that trains. There are as many reading
/// threads, so reading a batch may take as long as 16 steps before a step has to wait.
const AHEAD: usize = 16;

/// The interval at which a training step that waits for its batch checks the stop signal.
const LOOK: Duration = Duration::from_millis(50);

/// The time, after the stop signal, for which the end of a training waits for threads that are still reading a batch.
const PATIENCE: Duration = Duration::from_secs(2);

/// The batches of a range of training steps, in order, which several threads read ahead of the steps.
pub struct Batches<In, Target> {
    /// The numbers of the steps whose batches the threads may read, in ascending order. Every batch that the training
    /// takes allows one more, so that at most [`AHEAD`] batches are in memory. `None` once the reading has ended.
    allowed: Option<Sender<usize>>,
    read: Receiver<(usize, Result<Batch<In, Target>>)>,
    /// The batches that were read ahead, while the batch of an earlier step is still missing, by the numbers of their
    /// steps.
    early: BTreeMap<usize, Result<Batch<In, Target>>>,
    /// The range of steps whose batches the training has not taken from the reading threads yet.
    untaken: Range<usize>,
    /// The range of steps whose batches the reading threads may not read yet.
    unread: Range<usize>,
    /// Whether a batch could not be read; no further batches are then returned.
    failed: bool,
    /// Whether the reading has ended, so that the threads read none of the batches that they may still read.
    ended: Arc<AtomicBool>,
    /// Whether a signal asks the training to stop, so that no step waits for its batch any longer.
    stop: Arc<AtomicBool>,
    /// The total time for which training steps were blocked because their batches had not been read yet.
    waited: Duration,
}

impl<In: Send, Target: Send> Batches<In, Target> {
    /// Starts the threads that read the batches of the range `steps`, with `samples` samples in each batch. The threads
    /// end when all batches are read, or when the returned value is dropped. A wait for a batch ends when `stop`
    /// becomes true.
    pub fn start<'scope, 'env, D>(
        scope: &'scope Scope<'scope, 'env>,
        data: &'env D,
        steps: Range<usize>,
        samples: usize,
        stop: Arc<AtomicBool>,
    ) -> Self
    where
        D: Data<Input = In, Target = Target> + ?Sized,
        In: 'scope,
        Target: 'scope,
    {
        // Neither channel is ever full, because at most this number of batches is allowed and not taken.
        let (allowed, to_read) = bounded::<usize>(AHEAD);
        let (done, read) = bounded(AHEAD);
        let ended = Arc::new(AtomicBool::new(false));
        for _ in 0..AHEAD.min(steps.len()) {
            let (to_read, done, ended) = (to_read.clone(), done.clone(), Arc::clone(&ended));
            scope.spawn(move || {
                for step in to_read.into_iter().take_while(|_| !ended.load(Ordering::Acquire)) {
                    let batch = catch_unwind(AssertUnwindSafe(|| data.batch(step, samples)));
                    let panicked = |_| Err(anyhow!("the batch of step {step} cannot be made: `Data::batch` panicked"));
                    if done.send((step, batch.unwrap_or_else(panicked))).is_err() {
                        break;
                    }
                }
            });
        }
        let (untaken, unread, early) = (steps.clone(), steps, BTreeMap::new());
        let mut batches = Self {
            allowed: Some(allowed),
            read,
            early,
            untaken,
            unread,
            failed: false,
            ended,
            stop,
            waited: Duration::ZERO,
        };
        (0..AHEAD).for_each(|_| batches.allow_next());
        batches
    }

    /// Allows the reading threads to read one more batch, if there is one.
    fn allow_next(&mut self) {
        if let (Some(allowed), Some(step)) = (&self.allowed, self.unread.next()) {
            // The threads end before this sender only if they panic, and then `next` returns an error.
            let _ = allowed.send(step);
        }
    }

    /// Returns the batch of the next training step; waits until a thread has read it. Returns `None` after the last
    /// batch, and if the stop signal comes during the wait.
    pub fn next(&mut self) -> Result<Option<Batch<In, Target>>> {
        if self.failed {
            bail!("no batch was read for this step, because an earlier one could not be read");
        }
        let Some(step) = self.untaken.clone().next() else { return Ok(None) };
        let began = Instant::now();
        let batch = self.wait_for(step);
        self.waited += began.elapsed();
        let Some(batch) = batch else { return Ok(None) };
        self.untaken.next();
        self.failed = batch.is_err();
        self.allow_next();
        batch.map(Some)
    }

    /// Waits until the batch of a training step is read, and returns it; `None` if the stop signal comes first.
    fn wait_for(&mut self, step: usize) -> Option<Result<Batch<In, Target>>> {
        loop {
            if let Some(batch) = self.early.remove(&step) {
                return Some(batch);
            }
            match self.read.recv_timeout(LOOK) {
                Ok((step, batch)) => drop(self.early.insert(step, batch)),
                Err(RecvTimeoutError::Timeout) if self.stop.load(Ordering::Acquire) => return None,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Some(Err(anyhow!("the batch of step {step} was not read: the reading threads have ended")));
                }
            }
        }
    }

    /// Ends the reading of batches ahead, and waits until no thread is in `Data::batch`. Returns false if a thread is
    /// still there some time after the stop signal.
    /// Calls `is_waiting` once if a thread is there for longer than that, with or without a signal.
    pub fn end(&mut self, is_waiting: impl FnOnce()) -> bool {
        self.allowed = None;
        self.ended.store(true, Ordering::Release);
        let (began, mut signalled, mut is_waiting) = (Instant::now(), None, Some(is_waiting));
        loop {
            match self.read.recv_timeout(LOOK) {
                // Nobody needs a batch that is read after the end.
                Ok(_) => continue,
                Err(RecvTimeoutError::Disconnected) => return true,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if began.elapsed() > PATIENCE {
                is_waiting.take().into_iter().for_each(|is_waiting| is_waiting());
            }
            if self.stop.load(Ordering::Acquire) && signalled.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return false;
            }
        }
    }

    /// Returns the total time for which training steps were blocked because their batches had not been read yet.
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use anyhow::ensure;
    use burn::tensor::{Device, Tensor};

    use super::*;

    /// A source of batches for tests. Each batch contains the number of its step, every third batch takes longer to
    /// read, and the batch of the step `fails_at` cannot be read.
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

    fn never() -> Arc<AtomicBool> {
        Arc::default()
    }

    #[test]
    fn batches_come_in_the_order_of_their_steps_until_an_error() {
        let data = Numbers { fails_at: 17, read: AtomicUsize::new(0) };
        let found: Vec<_> = thread::scope(|scope| {
            let mut batches = Batches::start(scope, &data, 5..40, 2, never());
            (5..20).map_while(|_| batches.next().ok().flatten().map(number)).collect()
        });
        assert_eq!(found, (5..17).map(|step| step as f32).collect::<Vec<_>>());
    }

    #[test]
    fn readers_end_when_the_batches_are_dropped() {
        let data = Numbers { fails_at: usize::MAX, read: AtomicUsize::new(0) };
        thread::scope(|scope| {
            let mut batches = Batches::start(scope, &data, 0..1_000_000, 1, never());
            assert_eq!(number(batches.next().unwrap().unwrap()), 0.0);
        });
        assert!(data.read.load(Ordering::Relaxed) <= 1 + AHEAD);
    }

    /// A source of batches for tests whose first batches are read only when the largest allowed number of threads reads
    /// at the same time. It counts the batches that were requested too far ahead of the training.
    struct Together {
        all_read: Barrier,
        asked: AtomicUsize,
        too_early: AtomicUsize,
    }

    impl Data for Together {
        type Input = Tensor<1>;
        type Target = ();

        fn batch(&self, step: usize, samples: usize) -> Result<Batch<Tensor<1>, ()>> {
            if step < AHEAD {
                self.all_read.wait();
            }
            let is_too_early = step >= AHEAD + self.asked.load(Ordering::SeqCst);
            self.too_early.fetch_add(usize::from(is_too_early), Ordering::SeqCst);
            Ok(Batch::new(Tensor::full([samples], step as f32, &Device::flex()), ()))
        }
    }

    /// Tests that 16 batches, the limit for reading ahead of the training, are read at the same time, and never more.
    #[test]
    fn sixteen_batches_are_read_ahead_and_no_more() {
        let (asked, too_early) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let data = Together { all_read: Barrier::new(AHEAD), asked, too_early };
        thread::scope(|scope| {
            let mut batches = Batches::start(scope, &data, 0..200, 1, never());
            for step in 0..200 {
                data.asked.fetch_add(1, Ordering::SeqCst);
                assert_eq!(number(batches.next().unwrap().unwrap()), step as f32);
            }
            assert!(batches.next().unwrap().is_none());
            assert!(batches.end(|| {}));
        });
        assert_eq!(data.too_early.into_inner(), 0);
    }

    /// A source of batches for tests that returns a batch only when the test permits it.
    struct Hangs(Arc<AtomicBool>);

    impl Data for Hangs {
        type Input = Tensor<1>;
        type Target = ();

        fn batch(&self, _: usize, samples: usize) -> Result<Batch<Tensor<1>, ()>> {
            while !self.0.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            Ok(Batch::new(Tensor::zeros([samples], &Device::flex()), ()))
        }
    }

    #[test]
    fn the_stop_signal_ends_the_wait_for_a_batch_that_hangs() {
        let data = Hangs(Arc::default());
        let stop = Arc::new(AtomicBool::new(false));
        thread::scope(|scope| {
            let mut batches = Batches::start(scope, &data, 0..100, 1, Arc::clone(&stop));
            scope.spawn(|| stop.store(true, Ordering::SeqCst));
            assert!(batches.next().unwrap().is_none(), "a batch that hangs was read");
            assert!(!batches.end(|| {}), "all threads have ended, although they hang");
            data.0.store(true, Ordering::SeqCst);
            assert!(batches.end(|| {}));
        });
    }
}
