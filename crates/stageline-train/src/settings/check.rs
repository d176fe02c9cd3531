//! Validates a training run's flags ([`check`]).

use anyhow::{Result, bail, ensure};

use super::flags::TrainingFlags;
use super::places::is_same_place;
use super::values::{CutBy, DecayName, OptimizerName, is_f32_above_0};

/// Maximum of `--stages`, `--chunks`, `--micro-batches` and `--micro-batch-size`.
pub const LARGEST: usize = 65_536;

/// Maximum of `--cores-per-stage`. With more, starting the threads would take longer than training.
const MOST_CORES: usize = 1024;

/// Maximum of `--replicas`. With more, starting their threads would take longer than training.
const MOST_REPLICAS: usize = 1024;

/// Maximum of `--read-ahead`, which is also the number of threads that read batches.
const MOST_READERS: usize = 1024;

/// Validates a run's flags before a device is opened: their ranges, and contradictions between them. The error names
/// the flag and its allowed values.
pub fn check(flags: &TrainingFlags) -> Result<()> {
    for (flag, value) in [
        ("--stages", flags.stages),
        ("--chunks", flags.chunks.unwrap_or(1)),
        ("--micro-batches", flags.micro_batches),
        ("--micro-batch-size", flags.micro_batch_size),
    ] {
        ensure!((1..=LARGEST).contains(&value), "{flag} {value}: give 1 to {LARGEST}");
    }
    ensure!((1..=MOST_REPLICAS).contains(&flags.replicas), "--replicas {}: give 1 to {MOST_REPLICAS}", flags.replicas);
    check_groups(flags)?;
    ensure!(
        (1..=MOST_READERS).contains(&flags.read_ahead),
        "--read-ahead {}: give 1 to {MOST_READERS}",
        flags.read_ahead
    );
    let cores = flags.cores_per_stage.unwrap_or(1);
    ensure!((1..=MOST_CORES).contains(&cores), "--cores-per-stage {cores}: give 1 to {MOST_CORES}");
    ensure!(flags.every > 0, "--every 0: give 1 or more");
    ensure!(flags.schedule_steps() > 0, "--schedule-steps 0: give 1 or more");
    if flags.checkpoint.is_none() {
        ensure!(flags.stop_after.is_none(), "--stop-after: give --checkpoint a folder, or the trained steps are lost");
    }
    check_best(flags)?;
    if let (Some(_), CutBy::List(cut)) = (&flags.speeds, &flags.cut) {
        bail!("--speeds: --cut {cut} gives the layers of every stage; leave one of the two out");
    }
    ensure!(flags.verify != Some(0), "--verify 0: give 1 or more");
    ensure!(flags.tuned_for != Some(0), "--tuned-for 0: give 1 or more");
    ensure!(
        flags.verify.is_none() || flags.resume.is_none(),
        "--verify proves a training from its beginning: leave --resume out"
    );
    ensure!(
        flags.learning_rate > 0.0 && flags.learning_rate <= 1.0,
        "--learning-rate {}: give a number above 0 and at most 1",
        flags.learning_rate
    );
    let epochs = flags.epochs;
    ensure!((0.0..=1e6).contains(&epochs), "--epochs {epochs}: give 0 to 1000000");
    let decay = flags.weight_decay;
    ensure!(decay >= 0.0 && decay.is_finite(), "--weight-decay {decay}: give 0 or more");
    check_adamw(flags)?;
    if flags.decay == DecayName::None {
        let without =
            [("--lowest-rate", flags.lowest_rate.is_some()), ("--decay-length", flags.decay_length.is_some())];
        if let Some((flag, _)) = without.into_iter().find(|(_, is_given)| *is_given) {
            bail!("{flag}: with --decay none the learning rate does not fall; leave it out, or give another --decay");
        }
    }
    ensure!(flags.clip >= 0.0 && flags.clip.is_finite(), "--clip {}: give 0 or more", flags.clip);
    let peak = flags.peak_tflops.unwrap_or(1.0);
    ensure!(peak > 0.0 && peak.is_finite(), "--peak-tflops {peak}: give a number above 0");
    let memory = flags.memory.unwrap_or(1.0);
    ensure!(memory > 0.0 && memory.is_finite(), "--memory {memory}: give a number of GB above 0");
    Ok(())
}

/// Checks the flags for AdamW's betas and epsilon (`--beta1`, `--beta2`, `--epsilon`): they must be in range, and the
/// optimizer must be AdamW, or Muon, which uses AdamW for some parameters.
fn check_adamw(flags: &TrainingFlags) -> Result<()> {
    let numbers = [("--beta1", flags.beta1), ("--beta2", flags.beta2), ("--epsilon", flags.epsilon)];
    let has_adamw = matches!(flags.optimizer, OptimizerName::Adamw | OptimizerName::Muon);
    for (flag, number) in numbers.into_iter().filter_map(|(flag, number)| Some((flag, number?))) {
        ensure!(has_adamw, "{flag}: only adamw and muon have it; leave it out, or give one of them as --optimizer");
        if flag == "--epsilon" {
            ensure!(is_f32_above_0(number), "{flag} {number}: give a number above 0 that f32 can represent");
        } else {
            ensure!((0.0..1.0).contains(&number), "{flag} {number}: give 0 or more, and less than 1");
        }
    }
    Ok(())
}

/// Checks `--patience` and `--best-checkpoint`, which compare validation losses: they need `--validate-every`, and the
/// best checkpoint needs its own folder.
fn check_best(flags: &TrainingFlags) -> Result<()> {
    let given = [("--patience", flags.patience > 0), ("--best-checkpoint", flags.best_checkpoint.is_some())];
    for (flag, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
        ensure!(flags.validate_every > 0, "{flag}: give --validate-every the number of steps between two evaluations");
    }
    if let (Some(latest), Some(best)) = (&flags.checkpoint, &flags.best_checkpoint) {
        ensure!(
            !is_same_place(latest, best),
            "--checkpoint and --best-checkpoint are both {}: give each a folder of its own",
            best.display()
        );
    }
    Ok(())
}

/// Validates `--gradient-groups`. With several replicas, it must equal the number of replicas. Otherwise it must divide
/// the number of micro-batches.
fn check_groups(flags: &TrainingFlags) -> Result<()> {
    let (replicas, micro_batches) = (flags.replicas, flags.micro_batches);
    let groups = flags.gradient_groups.unwrap_or(replicas);
    if replicas > 1 {
        ensure!(
            groups == replicas,
            "--gradient-groups {groups}: {replicas} replicas sum gradients in {replicas} groups; give \
             --gradient-groups {replicas}, which gives other bits, or --replicas {groups}"
        );
    } else {
        ensure!(
            groups > 0 && micro_batches.is_multiple_of(groups),
            "--gradient-groups {groups}: give a number that divides --micro-batches {micro_batches}"
        );
    }
    Ok(())
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use crate::settings::job::Job;

    #[test]
    fn useless_values_and_contradictions_are_refused_with_the_flag() {
        for (flags, expected) in [
            ("--verify 0", "--verify 0: give 1 or more"),
            ("--tuned-for 0", "--tuned-for 0: give 1 or more"),
            ("--beta2 1", "--beta2 1: give 0 or more, and less than 1"),
            ("--decay none --lowest-rate 0", "--lowest-rate: with --decay none the learning rate does not fall"),
            ("--epsilon 0", "--epsilon 0: give a number above 0 that f32 can represent"),
            ("--epsilon 1e-46", "give a number above 0 that f32 can represent"),
            ("--optimizer sgd --beta1 0.8", "--beta1: only adamw and muon have it"),
            ("--loss-scale 1e300", "`1e300` is not a loss scale; give a number above 0 that f32 can represent"),
            ("--loss-scale 1e-300", "`1e-300` is not a loss scale"),
            ("--patience 3", "--patience: give --validate-every the number of steps"),
            ("--best-checkpoint a", "--best-checkpoint: give --validate-every the number of steps"),
            (
                "--best-checkpoint ./b --checkpoint b --validate-every 1",
                "--checkpoint and --best-checkpoint are both ./b",
            ),
        ] {
            let refused = Job::of_line(flags).err().unwrap_or_default();
            assert!(refused.contains(expected), "{flags}: {refused}");
        }
        assert!(Job::of_line("--log a --loss-scale 1024 --verify 1").is_ok());
    }

    #[test]
    fn a_comparison_of_trainings_refuses_what_it_cannot_do() {
        let checked = |flags: &str| Job::of_line(flags).unwrap().check_verified().map_err(|error| error.to_string());
        let refused = checked("--verify 2 --recompute auto").unwrap_err();
        assert!(refused.contains("give --recompute selective or full"), "{refused}");
        assert!(checked("--recompute auto").is_ok() && checked("--verify 2 --log a").is_ok());
    }
}
