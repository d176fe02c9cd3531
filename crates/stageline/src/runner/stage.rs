//! What one stage does at each instruction: its module, between where its input comes from and where its output goes.

use std::any::type_name;
use std::sync::Arc;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Device;
use stageline_schedule::{Action, Carried, Compute, Instruction, Transfer};

use crate::failure::stop::{Stopped, Waits};
use crate::model::loss_weight::Weight;
use crate::model::replica::Replica;
use crate::runner::output::Sink;
use crate::runner::pass::{Context, Pass};
use crate::runner::slots::Slots;
use crate::runner::{Conclusion, ErasedModule, Interrupt, Runner};
use crate::state::layout::StageState;
use crate::threads::Receiver;
use crate::transfer::leaves::{LeafGradients, Leaves};
use crate::transfer::link::{Upstream, Weighted};
use crate::transfer::order::Turns;
use crate::transfer::replicas::Collective;
use crate::transfer::ties::Ties;
use crate::update::clip::Scaling;
use crate::update::finite::Culprit;
use crate::update::flush::{Outcome, Verdict};
use crate::update::gradient_sum::{GradientSum, Half};
use crate::update::health::Examination;
use crate::update::optimizer_step::Trained;
use crate::update::parameter_gradient::show;

/// Where a stage's input comes from.
pub(crate) enum Source<T> {
    /// The batch: the caller's micro-batches, all at once.
    Batch(Receiver<Vec<T>>),
    /// The stage before.
    Link(Box<Upstream<T>>),
}

/// What a stage is in the middle of.
pub(super) enum Mode<M> {
    Idle,
    Training {
        context: Arc<Context>,
        /// What an inspection has found so far.
        inspection: Option<Vec<Culprit>>,
    },
    /// With the module without autodiff.
    Evaluating(M),
}

/// A stage in its place.
pub(crate) struct StageRunner<M, K: Sink<M>> {
    pub(super) replica: Replica,
    pub(super) stage: usize,
    pub(super) device: Device,
    pub(super) trained: Trained<M>,
    pub(super) source: Source<K::Input>,
    pub(super) sink: K,
    pub(super) mode: Mode<M>,
    pub(super) arrived: Slots<Weighted<K::Input>>,
    pub(super) tape: Slots<Taped<K::Residual>>,
    pub(super) departing: Slots<LeafGradients>,
    /// Micro-batches whose input has its gradient, and some of whose parameters have not; and whether what came back was finite.
    pub(super) halves: Slots<(Half, bool)>,
    pub(super) gradients: GradientSum,
    /// Of a step that was made ahead of its verdict.
    pub(super) kept: Option<GradientsParams>,
    pub(super) ties: Ties,
    pub(super) collective: Collective,
    /// How often it has reduced the sums of this step.
    pub(super) reductions: usize,
    /// Of the pass.
    pub(super) turns: Arc<Turns>,
    pub(super) warned: Warned,
    /// Whether its parameters are its thread's own, and copies of other stages' have had their first value.
    pub(super) settled: bool,
}

/// The warnings that a stage has given, each of which comes once.
#[derive(Default)]
pub(super) struct Warned {
    pub(super) recompute: bool,
    pub(super) split: bool,
}

/// One live micro-batch.
pub(super) struct Taped<R> {
    pub(super) input: Leaves,
    pub(super) residual: R,
    pub(super) weight: Weight,
}

/// A stage's place among all.
pub(crate) struct StageSlot {
    pub(crate) replica: Replica,
    pub(crate) stage: usize,
    pub(crate) device: Device,
    /// What it shares with other stages of its replica,
    pub(crate) ties: Ties,
    /// and with the same stage of other replicas.
    pub(crate) collective: Collective,
    /// How many micro-batches are summed before their sum is added to those before.
    pub(crate) per_group: usize,
}

impl<M: Module + 'static, K: Sink<M>> StageRunner<M, K> {
    pub(crate) fn new(seat: StageSlot, trained: Trained<M>, source: Source<K::Input>, sink: K) -> Self {
        let StageSlot { replica, stage, device, ties, collective, per_group } = seat;
        let sums = trained.precision().of_sums();
        Self {
            ties,
            collective,
            reductions: 0,
            turns: Arc::default(),
            settled: false,
            warned: Warned::default(),
            replica,
            stage,
            device,
            trained,
            source,
            sink,
            mode: Mode::Idle,
            arrived: Slots::new(),
            tape: Slots::new(),
            departing: Slots::new(),
            halves: Slots::new(),
            gradients: GradientSum::new(sums, per_group),
            kept: None,
        }
    }

    /// Takes over the parameters of the replica that steps them.
    fn follow_root(&mut self, waits: &Waits) -> Result<(), Stopped> {
        self.trained.change(|module| self.collective.follow(module, waits))
    }

    fn follow_owners(&mut self, waits: &Waits) -> Result<(), Stopped> {
        if self.ties.follows() { self.trained.change(|module| self.ties.follow(module, waits)) } else { Ok(()) }
    }

    fn receive(&mut self, micro_batch: usize, waits: &Waits) -> Result<(), Stopped> {
        match &self.source {
            Source::Link(upstream) => self.arrived.put(micro_batch, upstream.receive(waits, micro_batch)?),
            Source::Batch(_) => unreachable!("lowering gives the first stage no previous one"),
        }
        Ok(())
    }

    /// What the root makes of a step is made here.
    fn conclude_as_leaf(&mut self, verdict: Verdict, waits: &Waits) -> Result<Conclusion, Stopped> {
        if verdict.counts() {
            self.follow_root(waits)?;
            self.publish(waits)?;
        }
        Ok(Conclusion::default())
    }

    fn send_gradient(&mut self, transfer: Transfer, waits: &Waits) -> Result<u64, Stopped> {
        match &mut self.source {
            Source::Link(upstream) => {
                let gradients = self.departing.take(transfer.micro_batch);
                upstream.send_gradient(waits, &self.turns, transfer, gradients)
            }
            Source::Batch(_) => unreachable!("lowering gives the first stage no previous one"),
        }
    }
}

impl<M: Module + 'static, K: Sink<M>> Runner for StageRunner<M, K> {
    fn replica(&self) -> Replica {
        self.replica
    }

    fn stage(&self) -> usize {
        self.stage
    }

    fn begin(&mut self, pass: &Pass, waits: &Waits) -> Result<(), Stopped> {
        if let Source::Batch(feed) = &self.source {
            let micro_batches = waits.receive(feed)?.into_iter().zip(pass.context().weights.each.iter().cloned());
            self.arrived = micro_batches.map(|(payload, weight)| Weighted { payload, weight }).collect();
        }
        if !self.settled {
            match self.collective.is_root() {
                true => self.trained.settle(),
                false => self.follow_root(waits)?,
            }
            self.publish(waits)?;
            self.follow_owners(waits)?;
            self.settled = true;
        }
        self.sink.begin(waits)?;
        self.turns = Arc::clone(&pass.context().turns);
        self.mode = match pass {
            Pass::Train(context) => Mode::Training { context: Arc::clone(context), inspection: None },
            Pass::Inspect(context) => Mode::Training { context: Arc::clone(context), inspection: Some(Vec::new()) },
            Pass::Evaluate(_) => Mode::Evaluating(self.trained.computing().valid()),
        };
        Ok(())
    }

    fn run(&mut self, instruction: Instruction, waits: &Waits) -> Result<u64, Interrupt> {
        match instruction {
            Instruction::Compute(Action { compute, micro_batch, .. }) => match compute {
                Compute::Forward => self.forward(micro_batch).map_err(Interrupt::Failed)?,
                Compute::Backward => self.backward(micro_batch, waits)?,
                Compute::InputGradient => self.input_gradient(micro_batch, waits)?,
                Compute::WeightGradient => self.weight_gradient(micro_batch),
            },
            Instruction::Receive(Transfer { carried, micro_batch, .. }) => match carried {
                Carried::Activation => self.receive(micro_batch, waits)?,
                Carried::Gradient => self.sink.receive_gradient(micro_batch, waits)?,
            },
            Instruction::Send(transfer) => {
                return Ok(match transfer.carried {
                    Carried::Activation => self.sink.send(transfer, &self.turns, waits)?,
                    Carried::Gradient => self.send_gradient(transfer, waits)?,
                });
            }
        }
        Ok(0)
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn reduce(&mut self, step: usize, waits: &Waits) -> Result<(), Stopped> {
        let (module, collective) = (self.trained.module(), &self.collective);
        let reductions = &mut self.reductions;
        self.gradients.end(module, |sums| {
            *reductions += collective.reductions();
            collective.reduce(module, step, sums, waits)
        })
    }

    fn finish(&mut self) -> Outcome {
        let mode = std::mem::replace(&mut self.mode, Mode::Idle);
        let (squares, culprits) = match mode {
            Mode::Training { inspection: None, context } if self.collective.is_root() => {
                let module = self.trained.module();
                self.gradients.unscale(module, context.loss_scale);
                (Some(self.gradients.squared_norms(module)), Vec::new())
            }
            Mode::Training { inspection: Some(culprits), .. } => (None, culprits),
            Mode::Training { .. } | Mode::Evaluating(_) | Mode::Idle => (None, Vec::new()),
        };
        let (squared_norms, losses) = squares.unwrap_or_default().read_with(&self.sink.losses());
        Outcome {
            replica: self.replica,
            stage: self.stage,
            squared_norms,
            reductions: std::mem::take(&mut self.reductions),
            culprits,
            ledger: self.gradients.ledger(),
            losses,
        }
    }

    fn ignore(&mut self, waits: &Waits) -> Result<(), Stopped> {
        self.ties.ignore(waits)
    }

    fn keep_sums(&mut self) {
        self.kept = Some(self.gradients.copy(self.trained.module()));
    }

    fn forget(&mut self) {
        self.mode = Mode::Idle;
        self.sink.forget();
        self.gradients.take();
    }

    fn publish(&mut self, waits: &Waits) -> Result<(), Stopped> {
        self.ties.publish(self.trained.module(), waits)?;
        self.collective.broadcast(self.trained.module(), waits)
    }

    fn conclude(&mut self, verdict: Verdict, waits: &Waits) -> Result<Conclusion, Stopped> {
        let gradients = self.gradients.take();
        if !self.collective.is_root() {
            return self.conclude_as_leaf(verdict, waits);
        }
        let module = self.trained.module();
        let (scaling, examine) = match verdict {
            Verdict::Step { scaling, examine } => (scaling, examine),
            Verdict::Show { scaling } => {
                let gradients = show(self.stage, module, gradients, scaling, |id| self.ties.holds(*id));
                return Ok(Conclusion { gradients, ..Conclusion::default() });
            }
            Verdict::Rehearse { examine } => (Scaling::Keep, examine),
            Verdict::Skip => return Ok(Conclusion::default()),
        };
        let examination = examine.then(|| Examination::before(module, &gradients));
        let gradients = scaling.apply(module, gradients);
        let learning_rate = Some(self.trained.step(gradients, !verdict.counts()));
        let module = self.trained.module();
        let health = examination.map(|before| before.after(self.stage, module, &self.trained.second_moments()));
        if verdict.counts() {
            self.publish(waits)?;
        }
        Ok(Conclusion { learning_rate, health: health.unwrap_or_default(), gradients: Vec::new() })
    }

    fn follow(&mut self, verdict: Verdict, waits: &Waits) -> Result<(), Stopped> {
        match verdict {
            Verdict::Step { .. } => self.follow_owners(waits)?,
            Verdict::Rehearse { .. } => self.trained.roll_back(),
            Verdict::Show { .. } | Verdict::Skip => {}
        }
        Ok(())
    }

    fn commit(&mut self) {
        self.kept = None;
        self.trained.commit();
    }

    fn roll_back(&mut self) {
        if let Some(kept) = self.kept.take() {
            self.gradients.put_back(kept);
        }
        self.trained.roll_back();
    }

    fn state(&self) -> StageState {
        self.trained.state(self.stage)
    }

    fn is_whole(&self) -> bool {
        self.trained.is_whole()
    }

    fn is_torn(&self) -> bool {
        self.trained.is_torn()
    }

    fn into_module(self: Box<Self>) -> Option<ErasedModule> {
        if self.trained.is_torn() {
            return None;
        }
        let module = self.trained.into_module()?;
        Some(ErasedModule { module: Box::new(module), type_name: type_name::<M>() })
    }
}
