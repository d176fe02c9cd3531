//! Tests of the GPT example's checkpoints: stopped and killed runs resume, and end with the same bits as an undisturbed
//! run, and a resume that cannot work is refused with its cause.

use std::fs;
use std::io::{BufRead, BufReader};
use std::num::NonZero;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use stageline::checkpoint::{Saved, Store};

use crate::programs::{example, stdout_of};
use crate::runs::{Place, hash, reseal, steps_in, wait_for_lines};

#[test]
fn a_stopped_run_resumes_to_the_same_bits_on_any_cut() {
    let place = Place::new();
    let whole = place.said("--steps 6 --stages 4 --log @whole.jsonl");
    let flags = "--steps 6 --stages 4 --cores-per-stage 1 --peak-tflops 1";
    let first = place.said(&format!("{flags} --stop-after 3 --checkpoint @kept --log @parts.jsonl"));
    assert!(first.contains("checkpoint after 3 steps; to resume from it: --resume "), "{first}");
    assert!(!first.contains("sha256"), "it went on: {first}");
    let from = place.checkpoint("kept", 3);
    for (index, cut) in [
        "",
        "--stages 1",
        "--stages 3 --flush ahead",
        "--stages 2 --schedule gpipe",
        "--stages 2 --schedule interleaved",
    ]
    .into_iter()
    .enumerate()
    {
        let log = if index == 0 { "--log @parts.jsonl" } else { "" };
        let rest = place.said(&format!("--resume {from} --checkpoint @kept{index} {cut} {log}"));
        assert_eq!(hash(&rest), hash(&whole), "{cut}");
        for line in ["cores_per_stage = 1\n", "peak_tflops = 1\n"] {
            assert!(rest.contains(&format!("not taken from the checkpoint: {line}")), "{rest}");
        }
    }
    // A short run that resumes with more steps gives the same bits. A new run may not write into a folder with
    // checkpoints.
    place.said("--steps 3 --checkpoint @short");
    let again = place.refused("--steps 3 --checkpoint @short");
    assert_eq!(
        again,
        "Error: --checkpoint: @short has checkpoints of an earlier run; resume it with --resume @short, or give another folder\n"
    );
    assert_eq!(hash(&place.said("--resume @short --steps 6 --stages 3")), hash(&whole));
    // Resuming a finished run changes nothing and writes no checkpoint.
    let checkpoints = || fs::read_dir(place.path("short")).unwrap().count();
    let before = checkpoints();
    assert_eq!(hash(&place.said("--resume latest --checkpoint @short")), hash(&whole));
    assert_eq!(checkpoints(), before);
    // The log of the stopped run continues in the resumed run.
    let losses = |name: &str| -> Vec<(u64, Value)> {
        let text = fs::read_to_string(place.path(name)).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter_map(|line| Some((line["step"].as_u64()?, line["loss"].clone()))).collect()
    };
    assert_eq!(losses("parts.jsonl"), losses("whole.jsonl"));
    // A run also resumes with another M and the same global batch. The bits then depend on M, but not on the partition.
    let other = |index, stages| {
        let flags = "--micro-batches 2 --micro-batch-size 4";
        place.said(&format!("--resume {from} --checkpoint @other{index} {flags} --stages {stages}"))
    };
    assert_eq!(hash(&other(0, 1)), hash(&other(1, 3)));
}

/// Tests that the learning rate stays at its lowest value after the end of its schedule, also in a run that is resumed
/// with more steps.
#[test]
fn the_learning_rate_never_rises_after_warm_up() {
    let place = Place::new();
    place.said("--steps 14 --schedule-steps 10 --log @log.jsonl --checkpoint @kept");
    place.said("--steps 30 --resume latest --checkpoint @kept --log @log.jsonl");
    let text = fs::read_to_string(place.path("log.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let rates: Vec<_> = lines.filter_map(|line| line["step"].as_u64().and(line["learning_rate"].as_f64())).collect();
    assert_eq!(rates.len(), 30, "{rates:?}");
    assert!(rates[1..].is_sorted_by(|a, b| a >= b), "one step of warm-up, and then it only falls: {rates:?}");
    assert!(rates[1] == 2e-3 && rates[10..].iter().all(|rate| *rate == 2e-3 / 10.0), "{rates:?}");
}

#[test]
fn a_run_that_is_killed_at_any_time_resumes_to_the_same_bits() {
    const KILLS: usize = 20;
    let place = Place::new();
    let steps = |steps: usize| format!("--steps {steps} --schedule-steps 60");
    // No run reaches its last step before it is killed.
    let endless = steps(1_000_000);
    let mut last = 0;
    for kills in 0..KILLS {
        let from = if last == 0 { "" } else { "--resume latest" };
        let flags = format!("{endless} --checkpoint @kept --every 1 --keep 2 --log @log.jsonl {from}");
        let mut child = place.command(&flags).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Kills the run within the next few steps, a little later each time.
        wait_for_lines(&place.path("log.jsonl"), last + 2, &mut child);
        wait_for_a_checkpoint(&place.path("kept"), &mut child);
        (0..kills * 20_000).for_each(|spin| {
            std::hint::black_box(spin);
        });
        child.kill().unwrap();
        child.wait().unwrap();
        last = steps_in(&place.path("log.jsonl"));
        let shown = place.said("--checkpoint @kept --resume latest --print-config");
        assert!(shown.contains("schedule_steps = 60"), "{shown}");
    }
    let steps = steps(last + 3);
    let end = place.said(&format!("{steps} --checkpoint @kept --every 1 --keep 2 --resume latest"));
    assert_eq!(hash(&end), hash(&place.said(&steps)));
    let left: Vec<_> = fs::read_dir(place.path("kept")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.iter().filter(|name| name.to_string_lossy().contains("-step-")).count(), 2, "{left:?}");
}

fn wait_for_a_checkpoint(folder: &Path, child: &mut Child) {
    let names = || fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().file_name());
    while !names().any(|name| !name.to_string_lossy().starts_with('.')) {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(unix)]
fn signal(child: &Child, name: &str) {
    // The command fails if the process has already ended.
    Command::new("kill").args([name, &child.id().to_string()]).stderr(Stdio::null()).status().unwrap();
}

/// Micro-batches of a step that takes long enough to be interrupted.
#[cfg(unix)]
const LONG: usize = 64;

/// Micro-batches of a step that takes minutes.
#[cfg(unix)]
const ENDLESS: usize = 16_384;

/// Returns the flags for a run of the GPT example that writes checkpoints, and whose steps have this many micro-batches.
#[cfg(unix)]
fn steps_of(micro_batches: usize) -> String {
    format!("--steps 10 --micro-batches {micro_batches} --context 64 --width 64 --checkpoint @kept")
}

/// Reads the output of a run up to a line that begins with `start`.
#[cfg(unix)]
fn read_until(said: &mut impl BufRead, start: &str) {
    let mut line = String::new();
    while !line.starts_with(start) {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "it ended");
    }
}

/// Starts a run of the GPT example whose steps have this many micro-batches, and waits until its first step has begun.
/// Returns the process and its output.
#[cfg(unix)]
fn in_a_step_of(micro_batches: usize, place: &Place) -> (Child, BufReader<ChildStdout>) {
    let mut command = place.command(&steps_of(micro_batches));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    read_until(&mut said, "validation: ");
    (child, said)
}

#[cfg(unix)]
#[test]
fn the_first_signal_ends_the_run_with_a_checkpoint_and_the_second_at_once() {
    use std::io::Read;
    for name in ["-INT", "-TERM"] {
        let place = Place::new();
        let (mut child, mut said) = in_a_step_of(LONG, &place);
        signal(&child, name);
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{rest}");
        assert!(rest.contains("; to resume from it: --resume ") && !rest.contains("sha256"), "{rest}");
    }
    let place = Place::new();
    // A busy machine may send the second signal long after the first one, so no step may end between them.
    let (mut child, _said) = in_a_step_of(ENDLESS, &place);
    // The system may merge two signals that arrive together, so they are sent until the process ends.
    let status = loop {
        signal(&child, "-INT");
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    assert_eq!(status.code(), Some(130));
}

/// Tests a run whose output is piped to a program that ends, such as `head`: it ends with an error, and with a
/// checkpoint of the steps that were made.
#[cfg(unix)]
#[test]
fn a_closed_standard_output_ends_the_run_with_a_checkpoint() {
    let place = Place::new();
    let (child, said) = in_a_step_of(LONG, &place);
    drop(said);
    let ended = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{error}");
    assert!(error.contains("the standard output cannot be written; direct it to a file with room"), "{error}");
    assert!(error.contains("; to resume from it: --resume ") && !error.contains("are lost"), "{error}");
    assert!(Saved::open(&place.path("kept")).unwrap().manifest().progress.steps > 0, "{error}");
}

/// Tests a run whose stdout and stderr are piped to a program that ends, so that the run cannot even print its error.
/// It ends with a checkpoint all the same.
#[cfg(unix)]
#[test]
fn closed_outputs_end_the_run_with_a_checkpoint() {
    let place = Place::new();
    let (read, write) = std::io::pipe().unwrap();
    let mut command = place.command(&steps_of(LONG));
    let mut child = command.stdout(write.try_clone().unwrap()).stderr(write).spawn().unwrap();
    drop(command); // closes its copy of the pipe's writing end
    let mut said = BufReader::new(read);
    read_until(&mut said, "validation: ");
    drop(said);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(Saved::open(&place.path("kept")).unwrap().manifest().progress.steps > 0);
}

/// Tests that the log of a training is complete, whether or not the lines about its last step can be written.
#[cfg(unix)]
#[test]
fn a_standard_output_that_is_closed_at_the_end_does_not_harm_the_log() {
    let place = Place::new();
    let flags = "--steps 10 --sample 0 --checkpoint @kept --log @log.jsonl";
    let mut child = place.command(flags).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    read_until(&mut said, "step 9/10");
    drop(said);
    assert!(matches!(child.wait().unwrap().code(), Some(0 | 1)));
    let text = fs::read_to_string(place.path("log.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().filter(|line| line["step"].is_u64()).count(), 10, "{text}");
    let last = lines.last().unwrap();
    assert!(last["final"] == true && last["validation_loss"].is_f64(), "{last}");
}

/// Tests that `--print-config` prints settings only, which `--config` can read, also for a run that resumes.
#[test]
fn the_printed_settings_of_a_resumed_run_are_a_settings_file() {
    let place = Place::new();
    place.said("--steps 2 --checkpoint @kept");
    for resumed in ["--checkpoint @kept --resume latest --clip 2", "--checkpoint @new --resume auto"] {
        let printed = place.said(&format!("{resumed} --print-config"));
        fs::write(place.path("again.toml"), &printed).unwrap();
        let again = place.said("--config @again.toml --print-config");
        assert_eq!(again, printed, "{resumed}");
    }
}

#[test]
fn flags_override_set_and_set_overrides_the_settings_file() {
    let place = Place::new();
    fs::write(place.path("gpt.toml"), "width = 32\nlayers = 3\nlearning_rate = 1e-3\ndevice = [\"cpu\", \"cpu\"]\n")
        .unwrap();
    let mut command = example("gpt");
    let config = place.path("gpt.toml");
    command
        .args(["--layers", "5", "--set", "width=64", "--set", "layers=4", "--print-config", "--config"])
        .arg(&config);
    let printed = stdout_of(&mut command);
    for line in ["width = 64", "layers = 5", "learning_rate = 1e-3", "device = \"cpu,cpu\"", "micro_batches = 8"] {
        assert!(printed.lines().any(|printed| printed.replace("0.001", "1e-3") == line), "no {line} in {printed}");
    }
    // The printed settings leave out values that follow from other settings.
    assert!(!printed.contains("schedule_steps"), "{printed}");
    // A settings file with the printed settings gives the same settings again.
    fs::write(place.path("again.toml"), &printed).unwrap();
    let again = example("gpt").arg("--print-config").arg("--config").arg(place.path("again.toml")).output().unwrap();
    assert_eq!(String::from_utf8(again.stdout).unwrap(), printed);
}

#[test]
fn a_resume_that_cannot_work_is_refused_with_its_cause_and_a_fix() {
    let place = Place::new();
    place.said("--steps 2 --checkpoint @kept");
    let from = place.checkpoint("kept", 2);
    let resume = |flags: &str| place.refused(&format!("--resume {from} --checkpoint @other {flags}"));
    assert_eq!(
        resume("--micro-batches 5"),
        "Error: --resume: batch_size was 8 in the checkpoint and is 10; keep replicas x M x micro-batch size, or leave these flags out\n"
    );
    assert_eq!(resume("--steps 1"), "Error: --resume: the checkpoint is after 2 steps; --steps 1: give 2 or more\n");
    assert_eq!(resume("--seed 1"), "Error: --resume: seed was 0 in the checkpoint and is 1; leave --seed out\n");
    let other = resume("--width 32 --layers 1");
    assert!(other.contains("blocks.0.down.bias is F32 [32] in the model and F32 [16] in the checkpoint"), "{other}");
    assert!(resume("--layers 1").contains("blocks.1.attention.output.bias is not in the model"));

    fs::write(place.path("new"), "another text, and a longer one\n".repeat(3000)).unwrap();
    let text = resume("--data @new");
    let expected = "the data or its settings have changed: give the former ones, or start a new run";
    assert!(text.starts_with("Error: --resume: data was \"") && text.contains(expected), "{text}");

    // A run may not write into another run's folder, because it would remove the other run's checkpoints as the oldest
    // ones.
    place.said("--steps 1 --checkpoint @another");
    let text = place.refused(&format!("--resume {from} --checkpoint @another"));
    assert!(text.starts_with("Error: --checkpoint: @another has checkpoints of an earlier run; "), "{text}");

    assert_eq!(place.refused("--resume latest"), "Error: --resume latest: give --checkpoint the folder to look in\n");
    fs::create_dir(place.path("empty")).unwrap();
    assert_eq!(
        place.refused("--resume @empty"),
        "Error: --resume: no checkpoint in @empty; train with --checkpoint first\n"
    );
    let other = Store::open(&place.path("busy"), NonZero::new(1).unwrap()).unwrap();
    assert_eq!(
        place.refused("--checkpoint @busy"),
        "Error: --checkpoint: @busy is in use by another run that writes checkpoints; end it, or give another folder\n"
    );
    drop(other);
    let weights = place.path(&from[1..]).join("blocks.0.safetensors");
    let sound = fs::read(&weights).unwrap();
    let mut flipped = sound.clone();
    *flipped.last_mut().unwrap() ^= 1;
    fs::write(&weights, flipped).unwrap();
    let flipped = place.refused(&format!("--resume {from}"));
    assert!(flipped.contains("blocks.0.safetensors") && flipped.contains("SHA-256"), "{flipped}");
    fs::write(&weights, sound).unwrap();
    let bytes = fs::read(&weights).unwrap();
    fs::write(&weights, &bytes[..bytes.len() - 1]).unwrap();
    assert!(place.refused(&format!("--resume {from}")).contains("blocks.0.safetensors"));
    fs::write(place.path("file"), "").unwrap();
    assert!(place.refused("--checkpoint @file").contains("@file"));
}

/// Tests that a resumed run takes its devices, its token file (the secret for devices of other hosts) and its plan only
/// from the command line, and not from the checkpoint. The path of the text may come from the checkpoint, and is then
/// printed.
#[test]
fn a_manipulated_checkpoint_chooses_no_device_and_no_token_file() {
    let place = Place::new();
    let whole = place.said("--steps 3");
    let first = place.said("--steps 3 --stop-after 2 --checkpoint @kept");
    assert!(!first.contains("as in the checkpoint"), "{first}");
    let newest = Saved::open(&place.path("kept")).unwrap().path().to_owned();
    let resume = format!("--resume {} --steps 3", newest.display());
    let set = |name: &str, value: Value| reseal(&newest, |manifest| manifest["run"]["settings"][name] = value);
    set("device", "ws://127.0.0.1:9/0".into());
    set("token_file", place.path("text").display().to_string().into());
    set("schedule", place.path("no-plan.csv").display().to_string().into());
    assert_eq!(hash(&place.said(&resume)), hash(&whole));
    // Without `--data` the path of the text comes from the checkpoint and is printed.
    let mut command = example("gpt");
    let said = stdout_of(command.env("RUST_BACKTRACE", "0").args(resume.split_whitespace()));
    let text = place.path("text");
    assert!(said.contains(&format!("as in the checkpoint: data = \"{}\"", text.display())), "{said}");
    assert_eq!(hash(&said), hash(&whole));
    for (name, value) in [
        ("data", Value::from("/tmp/\u{1b}[2J\nfine")),
        ("data", Value::from("x".repeat(1 << 20))),
        ("width", Value::from("\u{9b}31m".repeat(100_000))),
        ("optimizer", Value::from("\u{202e}wmada")),
        ("optimizer", Value::from("a".repeat(4000))),
    ] {
        let before = fs::read(newest.join("manifest.json")).unwrap();
        set(name, value);
        let output = example("gpt").env("RUST_BACKTRACE", "0").args(resume.split_whitespace()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        let is_plain = |letter: char| letter == '\n' || !(letter.is_control() || letter == '\u{202e}');
        assert!(said.chars().all(is_plain) && said.len() < 1_500, "{said}");
        fs::write(newest.join("manifest.json"), before).unwrap();
    }
    reseal(&newest, |manifest| manifest["run"]["data"] = "\u{1b}".repeat(1 << 20).into());
    let said = place.refused(&resume);
    assert!(said.contains("Error: --resume: data was ") && said.len() < 1_200 && !said.contains('\u{1b}'), "{said}");
}

#[test]
fn a_folder_with_a_damaged_checkpoint_is_not_offered_for_resume() {
    let place = Place::new();
    place.said("--steps 2 --checkpoint @kept");
    let newest = Saved::open(&place.path("kept")).unwrap().path().to_owned();
    fs::write(newest.join("manifest.json"), "damage").unwrap();
    let said = place.refused("--steps 2 --checkpoint @kept");
    assert!(said.starts_with("Error: --checkpoint: @kept cannot be used; give another folder: "), "{said}");
    assert!(said.contains("manifest.json") && !said.contains("has checkpoints of a run"), "{said}");
}
