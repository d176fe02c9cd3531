//! The runner of one stage ([`StageRunner`]), from the start of a step to the optimizer step and its commit or
//! rollback. The stage's forward and backward passes are in `compute`, its gradient sums in `sums`, and its optimizer
//! steps and shared parameters in `parameters`.

use std::collections::HashSet;
use std::sync::Arc;

use burn::module::{Module, ParamId};
use burn::tensor::Device;
use stageline_schedule::{Action, Carried, Compute, Instruction, Transfer};

use crate::failure::stop::{Stopped, Waits};
use crate::model::loss_weight::Weight;
use crate::model::replica::Replica;
use crate::runner::input::AnySource;
use crate::runner::neighbour::Neighbour;
use crate::runner::output::Sink;
use crate::runner::parameters::StageParameters;
use crate::runner::pass::{Context, Pass};
use crate::runner::slots::Slots;
use crate::runner::sums::{Numbers, StageSums};
use crate::runner::warnings::Warned;
use crate::runner::{Conclusion, ErasedModule, Interrupt, Runner};
use crate::state::frozen::FrozenFrom;
use crate::state::layout::StageState;
use crate::transfer::hand_over::hand_over_module;
use crate::transfer::leaves::Leaves;
use crate::transfer::order::Turns;
use crate::transfer::replicas::Collective;
use crate::transfer::ties::Ties;
use crate::update::flush::{Outcome, Verdict};
use crate::update::micro_batch_gradients::MicroBatchGradients;
use crate::update::not_finite::Culprit;
use crate::update::optimizer_step::Trained;
use stageline_nn::Fallback;

/// The kind of work that a stage currently does (none, training or evaluation), with the data needed for it.
pub(super) enum Mode<M> {
    /// The stage runs no step, evaluation or inference.
    Idle,
    /// The stage runs a training step or an inspection (a second run of a non-finite step), both with forward and
    /// backward passes.
    Training {
        context: Arc<Context>,
        /// The non-finite results that an inspection (a second run of a step with NaN or infinity, to find the cause)
        /// has found so far; `None` in a training step.
        inspection: Option<Vec<Culprit>>,
    },
    /// The stage runs an evaluation or inference, with this copy of its module without autodiff.
    Evaluating(M),
}

/// A stage on its device: its module with its optimizer, its gradient sums, and its connections to other stages.
pub(crate) struct StageRunner<M, K: Sink<M>> {
    pub(super) replica: Replica,
    pub(super) stage: usize,
    pub(super) device: Device,
    pub(super) parameters: StageParameters<M>,
    pub(super) sums: StageSums,
    pub(super) source: AnySource<K::Input>,
    pub(super) sink: K,
    pub(super) mode: Mode<M>,
    /// The autodiff graphs of the live micro-batches: those between their forward pass and their backward pass on this
    /// stage.
    pub(super) tape: Slots<Taped<K::Residual>>,
    /// The gradients of the micro-batches that are between the two halves (B and W) of their split backward pass.
    pub(super) halves: Slots<Differentiated>,
    pub(super) turns: Arc<Turns>,
    pub(super) warned: Warned,
    /// Whether an operation without a Stageline kernel is an error: if true, the stage's first forward pass fails on
    /// such an operation instead of logging a warning.
    pub(super) refuses_fallbacks: bool,
}

/// A live micro-batch on a stage, between its forward pass and its backward pass: both ends of its autodiff graph.
pub(super) struct Taped<R> {
    /// The step number, loss weights and loss scale of the step that ran the micro-batch's forward pass.
    pub(super) context: Arc<Context>,
    /// The float tensors of the stage's input for this micro-batch, whose gradients the backward pass returns to the
    /// previous stage. Empty on the first stage.
    pub(super) input: Leaves,
    /// The tensors from which the micro-batch's backward pass starts: the float tensors of the stage's output, or the
    /// loss on the last stage.
    pub(super) residual: R,
    /// The ids of the parameters that layers used exactly once in the micro-batch's forward pass. Their gradients can
    /// be added to the stage's sum during the backward pass.
    pub(super) used_once: HashSet<ParamId>,
    pub(super) weight: Weight,
}

/// The result of a micro-batch's backward pass, or of the first half of a split backward pass (B in zero-bubble
/// schedules).
pub(super) struct Differentiated {
    /// The micro-batch's gradients, and the weight gradients that a split backward pass has deferred and not yet
    /// computed.
    pub(super) gradients: MicroBatchGradients,
    /// Whether the gradient of the stage's output, received for this micro-batch's backward pass, was finite. Checked
    /// only in an inspection (a second run of a non-finite step); otherwise false.
    pub(super) came_finite: bool,
}

/// A stage's place in the pipeline: its replica, index and device, and its exchanges of shared parameters.
pub(crate) struct StageSlot {
    pub(crate) replica: Replica,
    pub(crate) stage: usize,
    pub(crate) device: Device,
    pub(crate) ties: Ties,
    /// The stage's connections to the same stage of other data-parallel replicas, for gradient sums and parameter
    /// values.
    pub(crate) collective: Collective,
    /// Number of consecutive micro-batches whose gradients are summed as one group, before the groups' sums are added
    /// up.
    pub(crate) per_group: usize,
    /// The stage's operations without a Stageline kernel for its device that `build` has found and already named in a
    /// warning. The first forward pass may find more of them.
    pub(crate) fallbacks: Vec<Fallback>,
    /// Whether an operation without a Stageline kernel is an error: if true, the stage's first forward pass fails on
    /// such an operation instead of logging a warning.
    pub(crate) refuses_fallbacks: bool,
}

impl<M: Module + 'static, K: Sink<M>> StageRunner<M, K> {
    pub(crate) fn new(slot: StageSlot, trained: Trained<M>, source: AnySource<K::Input>, sink: K) -> Self {
        let StageSlot { replica, stage, device, ties, collective, per_group, fallbacks, refuses_fallbacks } = slot;
        let sums = StageSums::new(trained.precision().of_sums(), per_group);
        Self {
            replica,
            stage,
            device,
            parameters: StageParameters::new(trained, ties, collective),
            sums,
            source,
            sink,
            mode: Mode::Idle,
            tape: Slots::new(),
            halves: Slots::new(),
            turns: Arc::default(),
            warned: Warned { named: fallbacks, ..Warned::default() },
            refuses_fallbacks,
        }
    }

    /// Returns the connection to the neighbouring stage for a transfer of the kind `carried`, which this stage sends
    /// (if `is_sent`) or receives. Activations come from the previous stage, and gradients from the next stage.
    fn neighbour(&mut self, carried: Carried, is_sent: bool) -> &mut dyn Neighbour {
        let neighbour = match (carried, is_sent) {
            (Carried::Activation, false) | (Carried::Gradient, true) => self.source.neighbour(),
            (Carried::Activation, true) | (Carried::Gradient, false) => self.sink.neighbour(),
        };
        neighbour.expect("a checked plan has no transfer before the first stage or behind the last one")
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
        self.source.begin(pass, waits)?;
        self.parameters.settle(waits)?;
        self.sink.begin(pass, waits)?;
        self.turns = Arc::clone(&pass.context().turns);
        if matches!(pass, Pass::Train(context) if context.measures_noise) {
            self.sums.measure_each();
        }
        self.mode = match pass {
            Pass::Train(context) => Mode::Training { context: Arc::clone(context), inspection: None },
            Pass::Inspect(context) => Mode::Training { context: Arc::clone(context), inspection: Some(Vec::new()) },
            Pass::Evaluate(_) | Pass::Infer(_) => Mode::Evaluating(self.parameters.trained.computing().valid()),
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
            Instruction::Receive(Transfer { carried, micro_batch, .. }) => {
                self.neighbour(carried, false).receive(micro_batch, waits)?;
            }
            Instruction::Send(transfer) => {
                let turns = Arc::clone(&self.turns);
                return Ok(self.neighbour(transfer.carried, true).send(transfer, &turns, waits)?);
            }
        }
        Ok(0)
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn reduce(&mut self, step: usize, waits: &Waits) -> Result<(), Stopped> {
        self.sums.reduce(self.parameters.trained.module(), &self.parameters.collective, step, waits)
    }

    fn finish(&mut self, waits: &Waits) -> Result<Outcome, Stopped> {
        let mode = std::mem::replace(&mut self.mode, Mode::Idle);
        let loss_scale = match &mode {
            Mode::Training { context, .. } => context.loss_scale,
            Mode::Evaluating(_) | Mode::Idle => 1.0,
        };
        let (squares, culprits) = match mode {
            Mode::Training { inspection: None, context } if self.parameters.collective.is_root() => {
                (Some(self.sums.unscale(self.parameters.trained.module(), context.loss_scale)), Vec::new())
            }
            Mode::Training { inspection: Some(culprits), .. } => (None, culprits),
            Mode::Training { .. } | Mode::Evaluating(_) | Mode::Idle => (None, Vec::new()),
        };
        let results = self.sink.finish(waits)?;
        let Numbers { squared_norms, squared_norm_of_each, losses, metrics } =
            self.sums.read(&squares.unwrap_or_default(), results, loss_scale);
        Ok(Outcome {
            replica: self.replica,
            stage: self.stage,
            squared_norms,
            squared_norm_of_each,
            reductions: self.sums.take_reductions(),
            culprits,
            ledger: self.sums.ledger(),
            losses,
            metrics,
        })
    }

    fn ignore(&mut self, waits: &Waits) -> Result<(), Stopped> {
        self.parameters.ties.ignore(waits)
    }

    fn keep_sums(&mut self) {
        self.sums.keep(self.parameters.trained.module());
    }

    fn forget(&mut self) {
        self.mode = Mode::Idle;
        self.sink.forget();
        self.sums.take();
    }

    fn publish(&mut self, waits: &Waits) -> Result<(), Stopped> {
        self.parameters.publish(waits)
    }

    fn conclude(&mut self, verdict: Verdict, waits: &Waits) -> Result<Conclusion, Stopped> {
        let gradients_beside = self.sums.beside();
        let conclusion = self.parameters.conclude(self.stage, self.sums.take(), verdict, waits)?;
        Ok(Conclusion { gradients_beside, ..conclusion })
    }

    fn follow(&mut self, verdict: Verdict, waits: &Waits) -> Result<(), Stopped> {
        self.parameters.follow(verdict, waits)
    }

    fn commit(&mut self) {
        self.sums.drop_kept();
        self.parameters.trained.commit();
    }

    fn roll_back(&mut self) {
        self.sums.put_back();
        self.parameters.trained.roll_back();
    }

    fn state(&self, frozen_from: FrozenFrom) -> StageState {
        self.parameters.trained.state(self.stage, frozen_from)
    }

    fn copy(&self) -> ErasedModule {
        ErasedModule::new(hand_over_module(self.parameters.trained.module().valid(), &self.device))
    }

    fn is_whole(&self) -> bool {
        self.parameters.trained.is_whole()
    }

    fn is_torn(&self) -> bool {
        self.parameters.trained.is_torn()
    }

    fn into_module(self: Box<Self>) -> Option<ErasedModule> {
        if self.parameters.trained.is_torn() {
            return None;
        }
        Some(ErasedModule::new(self.parameters.trained.into_module()?))
    }
}
