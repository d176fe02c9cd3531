//! Prefetches a training run's batches on separate threads.
//!
//! Nothing joins these threads, so that a thread that hangs in `Data::batch` cannot hang the end of a training run.
//! Each thread shares the data and, once the [`Batches`] are dropped, ends after its current read. A panic in
//! `Data::batch` after the end of the training run may still print its message, but is harmless.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use stageline::{Batch, Payload};

use crate::data::Data;

/// The polling interval at which a wait for a batch checks for a stop signal.
const LOOK: Duration = Duration::from_millis(50);

/// A prefetch thread's main function.
type Reader = Box<dyn FnOnce() + Send>;

/// The batches of a range of training steps, prefetched by several threads and returned in order.
pub struct Batches<In, Target> {
    /// Sends step indices to the prefetch threads; a thread reads the batch of each index that it receives. After the
    /// first indices, one is sent whenever the training run takes a batch, which bounds the number of batches in
    /// memory.
    allowed: Sender<usize>,
    read: Receiver<(usize, Result<Batch<In, Target>>)>,
    /// Batches that were read before the batch of an earlier step, by step, until their turn comes.
    early: BTreeMap<usize, Result<Batch<In, Target>>>,
    /// The range of steps whose batches the training run has not taken yet.
    untaken: Range<usize>,
    /// The range of steps whose batches have not been requested from the prefetch threads yet.
    unread: Range<usize>,
    /// Whether reading a batch has failed. Every later call of `next` then returns an error.
    failed: bool,
    /// Becomes true when a signal asks the training run to stop; also ends a wait for a batch.
    stop: Arc<AtomicBool>,
    /// The total time that training steps have waited for their batches.
    waited: Duration,
}

impl<In: Payload, Target: Payload> Batches<In, Target> {
    /// Starts `ahead` threads, but at most one for each step, that prefetch the batches of the range `steps`. Each
    /// batch has `samples` samples. At most `ahead` batches are in flight: being read, or read but not yet taken by the
    /// training run. The threads end when all batches are read, or when the returned value is dropped. A wait for a
    /// batch ends early when `stop` becomes true.
    ///
    /// # Errors
    /// Returns an error if the operating system cannot start that many threads.
    pub fn start<D>(
        data: &Arc<D>,
        steps: Range<usize>,
        samples: usize,
        ahead: usize,
        stop: Arc<AtomicBool>,
    ) -> Result<Self>
    where
        D: Data<Input = In, Target = Target>,
    {
        // Nothing joins the threads (see the module documentation).
        let spawn = |reader: Reader| thread::Builder::new().name("read-ahead".to_owned()).spawn(reader).map(drop);
        Self::start_on(data, steps, samples, ahead, stop, spawn)
    }

    /// Starts the prefetch threads like [`start`](Self::start), but with the given `spawn`, so that a test can make it
    /// fail.
    fn start_on<D>(
        data: &Arc<D>,
        steps: Range<usize>,
        samples: usize,
        ahead: usize,
        stop: Arc<AtomicBool>,
        mut spawn: impl FnMut(Reader) -> io::Result<()>,
    ) -> Result<Self>
    where
        D: Data<Input = In, Target = Target>,
    {
        // Sending on either channel never blocks: their capacity is `ahead`, the maximum number of batches in flight.
        let (allowed, to_read) = bounded::<usize>(ahead);
        let (done, read) = bounded(ahead);
        for started in 0..ahead.min(steps.len()) {
            let (data, to_read, done) = (Arc::clone(data), to_read.clone(), done.clone());
            let reader = move || {
                for step in to_read {
                    let batch = catch_unwind(AssertUnwindSafe(|| data.batch(step, samples)));
                    let panicked = |_| Err(anyhow!("the batch of step {step} cannot be made: `Data::batch` panicked"));
                    // Sending fails if the training run has ended, and nobody needs the batch.
                    if done.send((step, batch.unwrap_or_else(panicked))).is_err() {
                        break;
                    }
                }
            };
            // Threads already started end by themselves, because the early return drops `allowed`.
            let missing = || {
                format!("--read-ahead {ahead}: only {started} threads that read batches could be started; give fewer")
            };
            spawn(Box::new(reader)).with_context(missing)?;
        }
        let (untaken, unread, early) = (steps.clone(), steps, BTreeMap::new());
        let mut batches = Self { allowed, read, early, untaken, unread, failed: false, stop, waited: Duration::ZERO };
        (0..ahead).for_each(|_| batches.allow_next());
        Ok(batches)
    }

    /// Requests the next step's batch from the prefetch threads. Does nothing after the last step.
    fn allow_next(&mut self) {
        if let Some(step) = self.unread.next() {
            // Sending fails only if all threads have panicked; `next` then returns an error.
            let _ = self.allowed.send(step);
        }
    }

    /// Waits for the next training step's batch, and returns it. Returns `None` after the last batch, or if the stop
    /// signal comes during the wait.
    ///
    /// # Errors
    /// Returns an error if this batch or an earlier one could not be read, or if the reading threads have ended.
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

    /// Waits until the batch of the training step `step` has been read, and returns it. Returns `None` if the stop
    /// signal comes first.
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

    /// Returns the total time for which training steps waited for their batches.
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;

    use anyhow::ensure;
    use burn::tensor::{Device, Tensor};

    use super::*;

    const AHEAD: usize = 16;

    /// A source of batches for tests. Each batch contains the index of its step. Every third batch takes longer to
    /// read. The batch of the step `fails_at` cannot be read.
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

    /// Waits until all threads that read batches from `data` have ended, so that none of them has a reference to it.
    fn wait_for_the_end_of_readers<D>(data: &Arc<D>) {
        while Arc::strong_count(data) > 1 {
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn batches_come_in_the_order_of_their_steps_until_an_error() {
        let data = Arc::new(Numbers { fails_at: 17, read: AtomicUsize::new(0) });
        let mut batches = Batches::start(&data, 5..40, 2, AHEAD, never()).unwrap();
        let found: Vec<_> = (5..20).map_while(|_| batches.next().ok().flatten().map(number)).collect();
        assert_eq!(found, (5..17).map(|step| step as f32).collect::<Vec<_>>());
    }

    #[test]
    fn readers_end_when_the_batches_are_dropped() {
        let data = Arc::new(Numbers { fails_at: usize::MAX, read: AtomicUsize::new(0) });
        let mut batches = Batches::start(&data, 0..1_000_000, 1, AHEAD, never()).unwrap();
        assert_eq!(number(batches.next().unwrap().unwrap()), 0.0);
        drop(batches);
        wait_for_the_end_of_readers(&data);
        assert!(data.read.load(Ordering::Relaxed) <= 1 + AHEAD);
    }

    /// Tests reading ahead on a system that allows only 3 threads. The start returns an error that names the flag
    /// `--read-ahead`, and the started threads end.
    #[test]
    fn a_limit_on_threads_is_an_error_that_names_the_flag() {
        let data = Arc::new(Numbers { fails_at: usize::MAX, read: AtomicUsize::new(0) });
        let mut allowed = 3;
        let spawn = |reader: Reader| {
            allowed = usize::checked_sub(allowed, 1).ok_or(io::ErrorKind::WouldBlock)?;
            thread::Builder::new().spawn(reader).map(drop)
        };
        let error = Batches::start_on(&data, 0..100, 1, AHEAD, never(), spawn).err().unwrap();
        let expected = "--read-ahead 16: only 3 threads that read batches could be started; give fewer";
        assert_eq!(error.to_string(), expected);
        wait_for_the_end_of_readers(&data);
        assert_eq!(data.read.load(Ordering::Relaxed), 0);
    }

    /// A source of batches for tests. The reads of the first `AHEAD` batches wait for each other, so all must run at
    /// the same time. The source also counts reads that begin too early: more than `AHEAD` batches ahead of the
    /// training.
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

    /// Tests that 16 batches are read ahead at the same time, and never more.
    #[test]
    fn sixteen_batches_are_read_ahead_and_no_more() {
        let (asked, too_early) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let data = Arc::new(Together { all_read: Barrier::new(AHEAD), asked, too_early });
        let mut batches = Batches::start(&data, 0..200, 1, AHEAD, never()).unwrap();
        for step in 0..200 {
            data.asked.fetch_add(1, Ordering::SeqCst);
            assert_eq!(number(batches.next().unwrap().unwrap()), step as f32);
        }
        assert!(batches.next().unwrap().is_none());
        assert_eq!(data.too_early.load(Ordering::SeqCst), 0);
    }

    /// A source of batches for tests. It returns a batch only when the test permits it.
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

    /// Tests a source of batches whose reads hang. The stop signal ends the wait for a batch, and nothing waits for the
    /// reading threads.
    #[test]
    fn the_stop_signal_ends_the_wait_for_a_batch_that_hangs() {
        let data = Arc::new(Hangs(Arc::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let mut batches = Batches::start(&data, 0..100, 1, AHEAD, Arc::clone(&stop)).unwrap();
        thread::spawn(move || stop.store(true, Ordering::SeqCst));
        assert!(batches.next().unwrap().is_none(), "a batch that hangs was read");
        drop(batches);
        assert!(Arc::strong_count(&data) > 1, "no thread hangs");
        data.0.store(true, Ordering::SeqCst);
        wait_for_the_end_of_readers(&data);
    }
}
