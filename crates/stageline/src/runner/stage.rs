//! What one stage does at each instruction: its module, between where its input comes from and where its output goes.

use std::any::type_name;
use std::collections::HashSet;
use std::sync::Arc;

use burn::module::{Module, ParamId};
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
use crate::threads::failure::BoxError;
use crate::transfer::hand_over::place;
use crate::transfer::leaves::{LeafGradients, Leaves, track};
use crate::transfer::link::{Upstream, Weighted};
use crate::transfer::order::Turns;
use crate::transfer::replicas::Collective;
use crate::transfer::ties::Ties;
use crate::update::clip::Scaling;
use crate::update::finite::{Culprit, Origin, Soundness, soundness};
use crate::update::flush::{Outcome, Trained, Verdict};
use crate::update::gradient_sum::{GradientSum, Half, joined};
use crate::update::health::Examination;
use crate::update::norm::SquaredNorms;
use crate::update::parameter_gradient::show;
use stageline_nn::autograd::recompute::{Recompute, gather};
use stageline_nn::autograd::split_backward::collect;
use stageline_nn::params::visit::describe;

/// Where a stage's input comes from.
pub(crate) enum Source<T> {
    /// The batch: the caller's micro-batches, all at once.
    Batch(Receiver<Vec<T>>),
    /// The stage before.
    Link(Box<Upstream<T>>),
}

/// What a stage is in the middle of.
enum Mode<M> {
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
    replica: Replica,
    stage: usize,
    device: Device,
    trained: Trained<M>,
    source: Source<K::Input>,
    sink: K,
    mode: Mode<M>,
    arrived: Slots<Weighted<K::Input>>,
    tape: Slots<Taped<K::Residual>>,
    departing: Slots<LeafGradients>,
    /// Micro-batches whose input has its gradient, and some of whose parameters have not; and whether what came back was finite.
    halves: Slots<(Half, bool)>,
    gradients: GradientSum,
    /// Of a step that was made ahead of its verdict.
    kept: Option<GradientsParams>,
    ties: Ties,
    collective: Collective,
    /// How often it has reduced the sums of this step.
    reductions: usize,
    /// Of the pass.
    turns: Arc<Turns>,
    warned: Warned,
    /// Whether its parameters are its thread's own, and copies of other stages' have had their first value.
    settled: bool,
}

/// The warnings that a stage has given, each of which comes once.
#[derive(Default)]
struct Warned {
    recompute: bool,
    split: bool,
}

/// One live micro-batch.
struct Taped<R> {
    input: Leaves,
    residual: R,
    weight: Weight,
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

    fn forward(&mut self, micro_batch: usize) -> Result<(), BoxError> {
        let Weighted { payload, weight } = self.arrived.take(micro_batch);
        if let Mode::Evaluating(module) = &self.mode {
            let payload = self.placed(payload);
            return self.sink.evaluate(module, Weighted { payload, weight }, micro_batch);
        }
        let given = self.inspects().then(|| soundness(&payload));
        let (payload, input) = match self.source {
            Source::Batch(_) => (track(self.placed(payload)), Leaves::default()),
            Source::Link(_) => Leaves::of_input(payload),
        };
        let Mode::Training { context, .. } = &self.mode else { unreachable!("a forward is part of a pass") };
        let samples = context.weights.samples(context.step, micro_batch);
        let (sink, module) = (&mut self.sink, self.trained.computing());
        let weighted = Weighted { payload, weight: weight.clone() };
        let recompute = context.recompute[self.stage];
        let forward = || samples.during(|| sink.forward(module, weighted, micro_batch));
        let (residual, parts) = recompute.counting(forward);
        let residual = residual?;
        if recompute != Recompute::Nothing
            && let Some(complaint) = parts.complaint().filter(|_| !std::mem::replace(&mut self.warned.recompute, true))
        {
            let (stage, replica) = (self.stage, self.replica.index);
            if parts.are_none() {
                tracing::info!(stage, replica, %recompute, "stage {stage} recomputes nothing: {complaint}");
            } else {
                tracing::warn!(stage, replica, %recompute, "stage {stage} recomputes nothing: {complaint}");
            }
        }
        self.tape.put(micro_batch, Taped { input, residual, weight });
        match given {
            Some(Soundness::NaN) if matches!(self.source, Source::Batch(_)) => self.blame(micro_batch, Origin::Input),
            Some(given) if self.sink.output_soundness(micro_batch) > given => self.blame(micro_batch, Origin::Forward),
            _ => {}
        }
        Ok(())
    }

    /// A batch's input, as the stage computes with it.
    fn placed(&self, input: K::Input) -> K::Input {
        match self.source {
            Source::Batch(_) => self.trained.precision().round_input(place(input, &self.device)),
            Source::Link(_) => input,
        }
    }

    fn inspects(&self) -> bool {
        matches!(self.mode, Mode::Training { inspection: Some(_), .. })
    }

    fn blame(&mut self, micro_batch: usize, origin: Origin) {
        if let Mode::Training { inspection: Some(culprits), .. } = &mut self.mode {
            culprits.push(Culprit { replica: self.replica, stage: self.stage, micro_batch, origin });
        }
    }

    /// The whole backward.
    fn backward(&mut self, micro_batch: usize, waits: &Waits) -> Result<(), Stopped> {
        let (half, _) = self.differentiate(micro_batch, waits, None)?;
        self.gradients.add(self.trained.module(), micro_batch, half);
        Ok(())
    }

    /// The gradient of the input, and of what has to be known at once.
    fn input_gradient(&mut self, micro_batch: usize, waits: &Waits) -> Result<(), Stopped> {
        // What other stages wait for does not wait.
        let exempt = self.ties.ids().collect();
        let half = self.differentiate(micro_batch, waits, Some(exempt))?;
        if !std::mem::replace(&mut self.warned.split, true) {
            self.warn_of_whole_backwards(&half.0);
        }
        self.halves.put(micro_batch, half);
        Ok(())
    }

    /// Warns once of parameters whose gradients are computed in the first half of a backward that the plan splits: their layers, such
    /// as burn's own, cannot split it, and the second half has nothing to fill idle time with. A few, such as a table of positions
    /// that is added, do not matter.
    fn warn_of_whole_backwards(&self, half: &Half) {
        let shared: HashSet<_> = self.ties.ids().collect();
        let module = self.trained.computing();
        let computed = half.computed(module);
        let (mut all, mut whole, mut paths) = (0, 0, Vec::new());
        for found in describe(module).into_iter().filter(|found| found.trained) {
            let elements: usize = found.shape.iter().product();
            all += elements;
            if computed.contains(&found.id) && !shared.contains(&found.id) {
                whole += elements;
                paths.push(found.path);
            }
        }
        if let Some(first) = paths.first().filter(|_| whole > all / 10) {
            let (stage, replica, more) = (self.stage, self.replica.index, paths.len() - 1);
            tracing::warn!(
                stage,
                replica,
                "the backward of `{first}` in stage {stage}, and of {more} more of its parameters, is not split: make the layers \
                 that have them from `stageline::nn::{{Linear, Embedding, LayerNorm}}` (adapters of LoRA are never split), or take a \
                 schedule without split backwards"
            );
        }
    }

    /// The rest.
    fn weight_gradient(&mut self, micro_batch: usize) {
        let (mut half, came_finite) = self.halves.take(micro_batch);
        if came_finite {
            half.complete();
            if !SquaredNorms::of(self.trained.computing(), &half.gradients).are_finite() {
                self.blame(micro_batch, Origin::Backward);
            }
        }
        self.gradients.add(self.trained.module(), micro_batch, half);
    }

    /// Runs a backward, whole, or leaving for later what it can but for some parameters.
    fn differentiate(
        &mut self,
        micro_batch: usize,
        waits: &Waits,
        all_but: Option<HashSet<ParamId>>,
    ) -> Result<(Half, bool), Stopped> {
        let Mode::Training { context, .. } = &self.mode else { unreachable!("an evaluation has no backwards") };
        let context = Arc::clone(context);
        let Taped { input, residual, weight } = self.tape.take(micro_batch);
        let came_finite = self.inspects() && self.sink.gradient_is_finite(micro_batch);
        let root = self.sink.root(residual, micro_batch, &context);
        let backward = || root.map(|root| root.backward());
        let ((mut gradients, deferred), beside) = gather(|| match all_but {
            None => (backward(), Vec::new()),
            Some(exempt) => collect(exempt, backward),
        });
        if let Source::Link(_) = self.source {
            self.departing.put(micro_batch, input.gradients(gradients.as_mut()));
        }
        let module = self.trained.computing();
        let gradients = gradients.map(|gradients| GradientsParams::from_grads(gradients, module)).unwrap_or_default();
        let gradients = joined(module, gradients, beside);
        let left_finite = !came_finite || {
            let to_input = matches!(self.source, Source::Batch(_)) || self.departing.get(micro_batch).is_finite();
            to_input && SquaredNorms::of(module, &gradients).are_finite()
        };
        let gradients = self.ties.exchange(module, micro_batch, gradients, waits)?;
        if !left_finite {
            self.blame(micro_batch, Origin::Backward);
        }
        Ok((Half { gradients, deferred, weight }, came_finite))
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
