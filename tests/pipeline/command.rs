//! Tests that run the examples as a user does, with small settings, and check their logs, reports and messages.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use stageline::schedule::{Schedule, ZbH1};

use crate::programs::{example, stdout_of};

/// Tests the logged model FLOP utilisation against the formula. Training on a token takes 3 times the FLOPs of a
/// forward. A forward takes 2 FLOPs for each weight of a matrix, and 4 x context x width for the attention of a block
/// (Chowdhery et al., 2022, arXiv:2204.02311, appendix B).
#[test]
fn model_flop_utilisation_matches_the_formula() {
    const PEAK_TFLOPS: f64 = 0.5;
    let (layers, width, context) = (2.0, 16.0, 16.0);
    let forward = layers * (24.0 * width * width + 4.0 * context * width) + 2.0 * width * 256.0;
    let steps = logged("utilisation", &format!("--peak-tflops {PEAK_TFLOPS}"));
    let steps: Vec<_> = steps.iter().filter(|line| line["step"].is_u64() && line["tokens_per_s"].is_number()).collect();
    assert!(!steps.is_empty());
    for step in steps {
        let found = step["model_flop_utilisation"].as_f64().unwrap();
        let expected = step["tokens_per_s"].as_f64().unwrap() * 3.0 * forward / (PEAK_TFLOPS * 1e12);
        // Operations other than matrix products are few, so the figures are nearly equal.
        assert!((found / expected - 1.0).abs() < 0.01, "{found}, expected {expected}");
    }
}

/// Runs the GPT example with small settings and the flags `flags`, and returns its output.
fn gpt(flags: &str) -> Output {
    small_gpt(flags).output().unwrap()
}

/// Returns the command that runs the GPT example with small settings and the given flags. If a flag is given twice, the
/// later one counts.
fn small_gpt(flags: &str) -> Command {
    let small = "--layers 2 --width 16 --context 16 --steps 3 --micro-batch-size 2 --micro-batches 3 --sample 0";
    let mut command = example("gpt");
    command.args(small.split_whitespace()).args(flags.split_whitespace());
    command
}

/// Trains the GPT example on the sources of the examples with the given flags, and returns the lines of its log, a
/// JSON-lines file.
fn logged(name: &str, flags: &str) -> Vec<Value> {
    let log = tempfile::tempdir().unwrap();
    let log = log.path().join(name);
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples");
    stdout_of(&mut small_gpt(&format!("{flags} --data {} --log {}", data.display(), log.display())));
    let text = std::fs::read_to_string(log).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn hash(lines: &[Value]) -> &str {
    lines.last().unwrap()["parameters_sha256"].as_str().unwrap()
}

#[test]
fn the_log_has_one_line_per_step_and_a_final_line() {
    let lines = logged("log", "--stages 2 --health-every 2");
    // The log has the run's settings, a validation, three steps, a validation, and the result.
    assert_eq!(lines.len(), 7);
    assert_eq!((&lines[0]["schedule"], &lines[0]["configuration"]["stages"]), (&json!("1f1b"), &json!(2)));
    assert_eq!((&lines[1]["after_steps"], &lines[5]["after_steps"]), (&json!(0), &json!(3)));
    for (step, line) in lines[2..5].iter().enumerate() {
        assert_eq!(line["step"], step);
        assert_eq!(line["weight"], 3.0 * 2.0 * 16.0);
        for field in
            ["loss", "tokens_per_s", "step_seconds", "bubble", "bubble_ideal", "learning_rate", "gradient_norm"]
        {
            assert!(line[field].as_f64().is_some_and(|value| value >= 0.0), "{field} of {line}");
        }
        assert!((line["bubble_ideal"].as_f64().unwrap() - 1.0 / 4.0).abs() < 1e-12);
        // Every second step reports the health of every parameter.
        let parameters = line["health"].as_array().map_or(0, Vec::len);
        assert_eq!(parameters, if step % 2 == 0 { 2 + 2 * 12 + 3 } else { 0 });
    }
    let last = lines.last().unwrap();
    assert_eq!(last["final"], true);
    assert!(last["validation_loss"].as_f64().is_some_and(|nats| (0.0..6.2).contains(&nats)), "{last}");
    // The model has embeddings of 256 x 16 and 16 x 16, two blocks of 12 x 16² + 13 x 16, a norm and a head.
    assert_eq!(last["parameters"], 4096 + 256 + 2 * (3072 + 208) + 32 + 4096);
    assert_eq!(hash(&lines).len(), 64);
}

#[test]
fn the_hash_depends_on_the_seed_and_not_on_the_cut() {
    let whole = logged("whole", "--stages 1");
    for flags in [
        "--stages 2",
        "--stages 4 --schedule gpipe",
        "--stages 3 --schedule eager-1f1b",
        "--stages 2 --schedule looped-breadth-first",
        "--stages 3 --channel-capacity 1 --cores-per-stage 2",
        "--stages 3 --flush ahead",
        "--stages 2 --flush ahead --schedule zb-v --clip 1.0",
    ] {
        assert_eq!(hash(&logged("cut", flags)), hash(&whole), "{flags}");
    }
    let lower = logged("lower", "--stages 1 --precision bf16");
    assert_ne!(hash(&lower), hash(&whole));
    assert_eq!(hash(&logged("cut", "--stages 4 --precision bf16")), hash(&lower));
    assert_ne!(hash(&logged("seed", "--stages 1 --seed 1")), hash(&whole));
    assert_ne!(hash(&logged("micro", "--stages 1 --micro-batches 2")), hash(&whole));
}

/// Tests that the GPT example trains to the same parameters for every partition into stages and every plan: given and
/// measured partitions, several stages per worker, a plan from a file, and the plan that a search finds.
#[test]
fn every_plan_gives_the_hash_of_one_stage() {
    let whole = logged("whole", "--stages 1");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.csv");
    std::fs::write(&file, ZbH1.plan(3, 3).unwrap().to_csv()).unwrap();
    for (flags, stages) in [
        ("--stages 2 --cut 0,1".to_owned(), 2),
        ("--stages 3 --cut 0,1,3".to_owned(), 3),
        ("--stages 3 --cut measured".to_owned(), 3),
        ("--stages 1 --schedule interleaved --chunks 4".to_owned(), 4),
        ("--stages 2 --schedule zb-v".to_owned(), 4),
        ("--stages 2 --schedule search".to_owned(), 2),
        (format!("--stages 3 --schedule {}", file.display()), 3),
    ] {
        let lines = logged("cut", &flags);
        assert_eq!(hash(&lines), hash(&whole), "{flags}");
        let layers = lines[0]["layers"].as_array().unwrap().iter();
        let used: BTreeSet<_> = layers.map(|layer| layer["stage"].as_u64()).collect();
        assert!(used.len() >= stages, "{flags}: {used:?}");
    }
    for (flags, message) in [
        (
            "--stages 2 --schedule zb-v --chunks 3".to_owned(),
            "with zb-v, a worker has 2 stage(s); leave --chunks out, or give interleaved",
        ),
        (format!("--stages 2 --schedule {}", file.display()), "give --stages 3 --micro-batches 3"),
        ("--stages 2 --cut 0,1,2".to_owned(), "it has 3 stages, and the plan has 2"),
        ("--stages 2 --cut 0,9".to_owned(), "the model has 4 layers"),
        ("--stages 2 --cut 1,2".to_owned(), "the first stage begins with layer 0"),
        ("--stages 2 --loss-scale 0".to_owned(), "give a number above 0 that f32 can represent, or `dynamic`"),
    ] {
        let output = gpt(&flags);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(message), "{flags}: {error}");
    }
}

/// Tests the example `own_model`: its metric is in the log and improves, and its settings come from a TOML file.
#[test]
fn an_own_model_trains_with_its_own_metric() {
    let folder = tempfile::tempdir().unwrap();
    let [log, kept] = ["log", "kept"].map(|name| folder.path().join(name));
    let settings = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples/own_model.toml");
    let run = |flags: &[&str]| {
        let mut command = example("own_model");
        stdout_of(command.arg("--log").arg(&log).arg("--checkpoint").arg(&kept).args(flags));
    };
    run(&["--config", settings.to_str().unwrap(), "--stop-after", "150"]);
    run(&["--resume", "latest", "--schedule", "zb-h1", "--stages", "2"]);
    let text = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let accuracies: Vec<f64> = lines.iter().filter_map(|line| line["metrics"]["accuracy"].as_f64()).collect();
    // The metric is logged in 300 steps, and in validations before, after, and every 100 steps of both runs.
    assert!(accuracies.len() >= 300 + 4, "{}", accuracies.len());
    assert!(accuracies[0] < 0.8 && accuracies[accuracies.len() - 1] > 0.95, "{accuracies:?}");
    assert_eq!(lines[0]["configuration"]["micro_batch_size"], 32);
}

/// Tests that R data-parallel replicas and R gradient groups (micro-batches whose gradients are summed separately) give
/// the same hash of the parameters. This also holds if a run with replicas is resumed with groups, or the other way
/// round.
#[test]
fn replicas_give_the_hash_of_as_many_gradient_groups() {
    let groups = logged("groups", "--stages 1 --micro-batches 4 --gradient-groups 2");
    assert_ne!(hash(&groups), hash(&logged("sum", "--stages 1 --micro-batches 4")));
    for flags in ["--stages 1", "--stages 3 --schedule zb-h1", "--stages 2 --schedule interleaved --flush ahead"] {
        let lines = logged("replicas", &format!("{flags} --replicas 2 --micro-batches 2"));
        assert_eq!(hash(&lines), hash(&groups), "{flags}");
        assert_eq!((&lines[0]["replicas"], &lines[0]["configuration"]["replicas"]), (&json!(2), &json!(2)));
        for (line, expected) in lines[2..5].iter().zip(&groups[2..5]) {
            assert_eq!([&line["loss"], &line["weight"]], [&expected["loss"], &expected["weight"]]);
            let workers = lines[0]["plan"].as_str().unwrap().lines().count();
            assert_eq!(line["workers"].as_array().unwrap().len(), workers, "those of the first replica");
        }
    }
    let kept = tempfile::tempdir().unwrap();
    let folder = kept.path().display();
    let stopped = gpt(&format!("--replicas 2 --micro-batches 2 --stop-after 1 --checkpoint {folder}"));
    assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    let resume = format!("--resume latest --checkpoint {folder} --stop-after 2");
    let stopped = gpt(&format!("{resume} --replicas 1 --micro-batches 4"));
    assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    let undisturbed = gpt("--replicas 2 --micro-batches 2");
    let resumed = gpt(&format!("--resume latest --checkpoint {folder} --replicas 2 --micro-batches 2 --stages 3"));
    let last_hash = |output: &Output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().find(|line| line.contains("parameters, sha256")).map(str::to_owned)
    };
    let found = last_hash(&resumed);
    assert!(found.is_some() && found == last_hash(&undisturbed), "{}", String::from_utf8_lossy(&resumed.stderr));
}

/// The titles of the charts on the report page of a training run, in the order of the page.
const CHARTS: &str = "Loss, Throughput, Learning rate, Gradient norm, Bubble, Idle time by cause, timeline, Peak memory, \
    Memory in use during step 2, Noise scale, Noise scale of each stage, Noise of each stage, Update of each layer, \
    Update and gradient of each layer, Second moment of each layer, Sizes of gradient elements";

/// Renders a page in the browser that the environment variable `STAGELINE_BROWSER` names, and returns the resulting
/// HTML. Asserts that the browser's console is empty. Returns `None` if the variable is unset.
fn rendered(page: &Path) -> Option<String> {
    let browser = env::var_os("STAGELINE_BROWSER")?;
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new(browser)
        .args(
            "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-quic --no-first-run --dump-dom"
                .split(' '),
        )
        .args(
            "--disable-background-networking --disable-component-update --disable-sync --enable-logging=stderr"
                .split(' '),
        )
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !said.contains(":CONSOLE"), "{said}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// Asserts that TensorBoard's own reader finds the logged values in an event file. The environment variable
/// `STAGELINE_TENSORBOARD` names the Python program that has TensorBoard; nothing is checked if it is unset.
fn read_by_tensorboard(board: &Path, lines: &[Value]) {
    let Some(python) = env::var_os("STAGELINE_TENSORBOARD") else { return };
    let log = board.with_extension("jsonl");
    std::fs::write(&log, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scripts/read-tensorboard.py");
    let output = Command::new(python).arg(script).args([board, &log]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("loss: 3 steps agree"));
}

#[test]
fn a_run_writes_a_trace_a_report_page_and_tensorboard_events() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let [page, trace, board] = ["run.html", "run.json", "board"].map(path);
    let flags = format!("--report {} --trace {} --tensorboard {}", page.display(), trace.display(), board.display());
    let lines = logged("log", &format!("--stages 2 --health-every 1 {flags}"));

    // The timeline of the drawn step and the trace have the same events.
    let drawn = lines.iter().find(|line| line["timeline"].is_array()).unwrap();
    let events: usize = drawn["timeline"].as_array().unwrap().iter().map(|row| row.as_array().unwrap().len()).sum();
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(trace).unwrap()).unwrap();
    let slices = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X").count();
    assert_eq!((slices, drawn["step"].as_u64()), (events, Some(2)));
    assert_eq!(std::fs::read_dir(&board).unwrap().count(), 1);
    read_by_tensorboard(&board, &lines);

    let html = std::fs::read_to_string(&page).unwrap();
    let shown = format!("Validation loss {}", &lines[5]["validation_loss"].to_string()[..3]);
    for part in ["The timeline", "<title>0F2: ", "<title>1B2: ", "attention_norm.gamma", "Idle time by cause", &shown] {
        assert!(html.contains(part), "{part}");
    }
    if let Some(dom) = rendered(&page) {
        let charts = dom
            .split("class=\"chart\"")
            .skip(1)
            .filter_map(|chart| chart.split("aria-label=\"").nth(1)?.split('"').next());
        assert_eq!(charts.collect::<Vec<_>>().join(", "), CHARTS);
        assert!(dom.contains("<title>0F2: ") && dom.contains("<td>0: embeddings.bytes.weight</td>"));
    }
}

#[test]
fn a_sound_configuration_passes_verification() {
    for flags in ["--stages 3 --verify 2", "--stages 2 --precision bf16 --verify"] {
        let output = gpt(flags);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("they train the same"), "{flags}: {text}");
    }
}

#[test]
fn a_single_file_is_a_valid_training_text() {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("crates/stageline-gpt/src/model.rs");
    let output = gpt(&format!("--sample 16 --data {}", file.display()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("the entropy of single bytes is") && text.contains("--- continued by the model:"), "{text}");
}

#[test]
fn impossible_flags_are_refused_with_a_fix() {
    for (flags, message) in [
        ("--stages 0", "--stages 0: give 1 to 65536"),
        ("--stages 9", "4 layers cannot be cut into 9 stages; ask for 1 to 4 stages"),
        ("--micro-batches 0", "--micro-batches 0: give 1 to 65536"),
        ("--context 99999999999", "--context 99999999999: give 1 to 65536"),
        ("--device ,", "no devices: name at least one"),
        ("--device tpu", "`tpu` is no device; write `cpu`"),
        ("--data /does/not/exist", "/does/not/exist"),
        ("--stages 2 --channel-capacity 0", "raise the channel capacity to 1"),
        ("--schedule 2f2b", "there is no schedule `2f2b`; there are gpipe, 1f1b"),
    ] {
        let output = gpt(flags);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(message), "{flags}: {error}");
        assert!(!error.contains("panicked"), "{flags}: {error}");
    }
}

/// Tests the flag `--speeds` of the GPT example, which gives the relative speed of each device. A faster device gets
/// more layers. The example ends with an error if the speeds do not fit the devices or the partition.
#[test]
fn a_faster_device_gets_more_layers() {
    let two = "--layers 4 --device cpu,cpu --steps 1";
    let cut = |speeds: &str| {
        let said = stdout_of(&mut small_gpt(&format!("{two} --speeds {speeds}")));
        said.lines().filter(|line| line.starts_with("stage ")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(cut("1,9"), ["stage 0: embeddings", "stage 1: blocks.0 to head"]);
    assert_eq!(cut("9,1"), ["stage 0: embeddings to blocks.3", "stage 1: head"]);
    for (flags, message) in [
        ("--speeds 1,2,3", "--speeds: 3 speeds for 2 devices; give one for each entry of --device"),
        ("--speeds 1,2 --cut 0,2", "--speeds: --cut 0,2 gives the layers of every stage"),
        ("--speeds 1,fast", "`fast` is not a speed; give a number above 0"),
    ] {
        let output = gpt(&format!("{two} {flags}"));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(message), "{flags}: {error}");
    }
}

#[test]
fn the_custom_split_learns_to_add() {
    let output = example("custom_split").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("100 of 100 sums are right"), "{text}");
}
