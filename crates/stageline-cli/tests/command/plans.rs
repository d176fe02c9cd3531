//! Tests the subcommands of `stageline` that need no log of a run: `plan`, `simulate`, `search` and `check`.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{error, json, text};

const PAPERS_COSTS: &str = "--forward 18.522 --input-grad 18.086 --weight-grad 9.337 --transfer 0.601";

#[test]
fn a_plan_is_printed_as_text_or_as_csv() {
    let picture = "stage 0 F0 F1 .. B0 .. B1\nstage 1 .. F0 B0 F1 B1 ..\n";
    assert_eq!(text("plan --stages 2 --micro-batches 2 --input-grad 0"), picture);
    let csv = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";
    assert_eq!(text("plan --stages 2 --micro-batches 2 --csv"), csv);
    let lowered = "0F0,0SEND_F0,0RECV_B0,0I0,0WAIT_SEND_F0,0W0\n1RECV_F0,1F0,1I0,1SEND_B0,1W0,1WAIT_SEND_B0\n";
    assert_eq!(text("plan --schedule zb-h1 --stages 2 --micro-batches 1 --csv --lowered"), lowered);
}

#[test]
fn a_picture_with_too_few_columns_says_so() {
    let note = "--svg FILE draws all of them\n";
    assert!(text("plan --stages 4 --micro-batches 200").ends_with(note));
    assert!(!text("plan --stages 4 --micro-batches 50").contains(note));
}

#[test]
fn a_picture_without_actions_that_take_no_time_says_so() {
    let plan = "plan --schedule zb-h1 --stages 2 --micro-batches 2";
    let picture = text(&format!("{plan} --weight-grad 0"));
    assert!(picture.ends_with("\npasses that take no time, and are therefore missing: 4\n"), "{picture}");
    assert!(!text(plan).contains("no time"));
}

#[test]
fn wrong_costs_leave_no_file_behind() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("plan.csv");
    let message = error(&format!("plan --stages 2 --micro-batches 2 --csv {} --forward 1,2,3", path.display()));
    assert!(message.contains("--forward has 3 entries") && !path.exists(), "{message}");
}

#[test]
fn a_plan_is_drawn_as_svg() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("plan.svg");
    assert_eq!(text(&format!("plan --schedule zb-v --stages 4 --micro-batches 8 --svg {}", path.display())), "");
    let svg = fs::read_to_string(path).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains("<title>7W7</title>"), "{svg}");
}

#[test]
fn a_picture_does_not_replace_the_plan_that_it_shows() {
    let directory = tempfile::tempdir().unwrap();
    let plan = directory.path().join("plan.csv");
    fs::write(&plan, "0F0,0B0\n").unwrap();
    let refused = error(&format!("simulate --plan {0} --svg {0}", plan.display()));
    assert!(refused.contains("the output would replace the file that is read; give another file"), "{refused}");
    assert_eq!(fs::read_to_string(plan).unwrap(), "0F0,0B0\n");
}

/// Tests that simulated bubbles are those of the Zero Bubble paper (arXiv:2401.10241), for 8 workers and 24
/// micro-batches.
#[test]
fn simulated_bubbles_are_those_of_the_zero_bubble_paper() {
    for (schedule, bubble) in [("1f1b", 0.2431), ("zb-h1", 0.1585), ("zb-h2", 0.1083)] {
        let report =
            json(&format!("simulate --schedule {schedule} --stages 8 --micro-batches 24 {PAPERS_COSTS} --json"));
        let simulated = report["bubble_span"].as_f64().unwrap();
        assert_eq!((simulated * 1e4).round() / 1e4, bubble, "{schedule}");
    }
}

#[test]
fn the_report_of_a_simulation_has_all_its_fields() {
    let report = json("simulate --stages 4 --micro-batches 8 --optimizer 0,2,0,0 --json");
    // The step takes (M + P - 1) (F + B) + 2 ms, of which 8 x 3 are busy.
    assert_eq!((report["step_ms"].as_f64(), report["span_ms"].as_f64()), (Some(35.0), Some(33.0)));
    let total = (4.0 * 35.0 - (4.0 * 24.0 + 2.0)) / (4.0 * 35.0);
    assert!((report["bubble_total"].as_f64().unwrap() - total).abs() < 1e-9);
    assert!((report["bubble_span"].as_f64().unwrap() - 3.0 / 11.0).abs() < 1e-9);
    assert_eq!(report["bound_ms"].as_f64(), Some(3.0 + 24.0 + 2.0));
    assert_eq!(report["peak_live"], serde_json::json!([4, 3, 2, 1]));
    let first = serde_json::json!({"fill": 6.0, "drain": 3.0, "imbalance": 0.0, "transfer": 0.0, "flush": 2.0});
    assert_eq!(report["idle_ms"][0], first);
    assert_eq!(report["idle_ms"].as_array().unwrap().len(), 4);
    assert!(report.get("schedule").is_none() && report.get("peak_bytes").is_none());
}

#[test]
fn a_whole_backward_without_its_halves_is_two_equal_halves() {
    let bound = |flags: &str| {
        let report = json(&format!("simulate --schedule zb-h1 --stages 4 --micro-batches 8 --json {flags}"));
        (report["step_ms"].as_f64(), report["bound_ms"].as_f64())
    };
    let whole = bound("--forward 20,10,20,30 --backward 40,20,40,60");
    assert_eq!(whole, bound("--forward 20,10,20,30 --input-grad 20,10,20,30 --weight-grad 20,10,20,30"));
    assert!(whole.0.unwrap() >= 8.0 * 90.0, "the dearest worker computes 8 times 90 ms");
    for (one, other) in [("input", "weight"), ("weight", "input")] {
        let error = error(&format!("simulate --stages 2 --micro-batches 2 --backward 4 --{one}-grad 2"));
        assert!(error.contains(&format!("--{one}-grad and --backward need --{other}-grad")), "{error}");
    }
}

#[test]
fn costs_are_given_for_all_stages_or_for_each() {
    let step = |flags: &str| json(&format!("simulate --stages 2 --micro-batches 1 --json {flags}"))["step_ms"].as_f64();
    assert_eq!(step("--forward 2 --input-grad 3 --weight-grad 4"), Some(2.0 * (2.0 + 7.0)));
    assert_eq!(step("--forward 2,3 --backward 5,1 --transfer 0.5,0.25"), Some(2.0 + 0.5 + 3.0 + 1.0 + 0.25 + 5.0));
    // Chunks share the costs of their stage; worker 1 has no transfer between its two chunks.
    let step = |flags: &str| {
        json(&format!("simulate --schedule zb-v --stages 2 --micro-batches 1 --json {flags}"))["step_ms"].as_f64()
    };
    assert_eq!(step("--forward 2 --input-grad 0 --weight-grad 0 --transfer 1"), Some(4.0 + 4.0));
    assert_eq!(step("--forward 1,2,4,8 --input-grad 0 --weight-grad 0"), Some(15.0));
    // A link takes 3 ms for a micro-batch in each direction: GPipe waits for five forward and five back.
    let step = |flags: &str| {
        let step = "simulate --schedule gpipe --stages 2 --micro-batches 5 --forward 1 --backward 2 --json";
        json(&format!("{step} {flags}"))["step_ms"].as_f64()
    };
    assert_eq!(step("--bytes 6e6 --bandwidth 2 --transfer 0.5"), Some(6.0 + 2.0 * 5.0 * 3.0 + 2.0 * 0.5));
    assert!(
        error("simulate --stages 2 --micro-batches 2 --bytes 1 --bandwidth 0").contains("must be from 1e-15 to 1e15")
    );
    let message = error("simulate --stages 4 --micro-batches 4 --forward 1,2");
    assert!(
        message.contains("--forward has 2 entries; for 4 workers with 4 stages in all, give a list of 1 or 4"),
        "{message}"
    );
    for flag in [
        "--forward=-1",
        "--forward -1",
        "--forward -1,2",
        "--weight-grad -2e3",
        "--transfer -0.5",
        "--memory-per-forward -1",
    ] {
        assert!(error(&format!("simulate --stages 4 --micro-batches 4 {flag}")).contains("must be from 0 to 1e15"));
    }
    assert!(
        error("simulate --stages 2 --micro-batches 2 --bytes 1 --bandwidth -1").contains("must be from 1e-15 to 1e15")
    );
    assert!(error("simulate --stages 4 --micro-batches 4 --forward nan").contains("must be from 0 to 1e15"));
}

#[test]
fn memory_is_reported_and_limits_the_search() {
    let flags = "--stages 4 --micro-batches 8 --memory-per-forward 100 --json";
    assert_eq!(json(&format!("simulate {flags}"))["peak_bytes"], serde_json::json!([400.0, 300.0, 200.0, 100.0]));
    assert_eq!(
        json(&format!("simulate --schedule zb-v {flags}"))["peak_bytes"],
        serde_json::json!([400.0, 400.0, 400.0, 400.0])
    );
    let found = json(&format!("search {flags} --memory-limit 250"));
    let peaks = found["peak_bytes"].as_array().unwrap();
    assert!(peaks.iter().all(|peak| peak.as_f64().unwrap() <= 250.0), "{found}");
    let message = error(&format!("simulate {flags} --memory-limit 300"));
    assert!(message.contains("the plan needs 400 bytes on a worker, and the limit is 300"), "{message}");
    let message = error(&format!("search {flags} --memory-limit 50"));
    assert!(message.contains("no plan fits into 50 a worker; raise the limit to 100"), "{message}");
}

#[test]
fn the_memory_that_an_error_asks_for_is_enough() {
    for bytes in ["0.3333333", "0.1", "1e-7", "123456789.123456789", "2.5e14"] {
        let simulate = format!("simulate --stages 4 --micro-batches 8 --memory-per-forward {bytes} --memory-limit");
        let message = error(&format!("{simulate} 0"));
        let (_, needed) = message.split_once("the plan needs ").unwrap();
        let needed = needed.split(' ').next().unwrap();
        let report = text(&format!("{simulate} {needed}"));
        assert!(report.contains(&format!("  {needed} ")), "{report}");
    }
}

#[test]
fn memory_is_reported_without_rounding_errors() {
    let simulate = "simulate --stages 3 --micro-batches 3 --memory-per-forward 0.1";
    assert_eq!(json(&format!("{simulate} --json"))["peak_bytes"], serde_json::json!([0.3, 0.2, 0.1]));
    let report = text(simulate);
    assert!(report.contains("\nworker  peak live   peak memory  idle ms: fill  "), "{report}");
    assert!(report.contains("\n     0          3           0.3          4.000  "), "{report}");
    // The column is as wide as its widest number.
    let report = text("simulate --stages 3 --micro-batches 3 --memory-per-forward 0.1234567890123456");
    assert!(report.contains("\nworker  peak live     peak memory  idle"), "{report}");
    assert!(report.contains("\n     0          3  0.370370367037  "), "{report}");
}

/// Tests the report of a step whose times are much smaller or larger than a millisecond. Relative to the step, all
/// times are those of a step with forwards of 1 ms.
#[test]
fn times_of_any_size_are_reported() {
    for scale in ["1e-20", "1e-12", "1e-4", "1e6", "1e14"] {
        let factor: f64 = scale.parse().unwrap();
        let simulate = format!("simulate --stages 3 --micro-batches 3 --forward {scale} --backward {scale}");
        let report = json(&format!("{simulate} --json"));
        let is_near = |found: &Value, expected: f64| (found.as_f64().unwrap() / factor - expected).abs() < 1e-9;
        assert!(is_near(&report["step_ms"], 10.0) && is_near(&report["bound_ms"], 8.0), "{report}");
        assert!(
            is_near(&report["idle_ms"][1]["fill"], 2.0) && is_near(&report["idle_ms"][0]["flush"], 0.0),
            "{report}"
        );
    }
    let short = "simulate --stages 3 --micro-batches 3 --forward 1e-5 --backward 1e-5";
    let report = text(short);
    assert!(report.starts_with("step           0.000100 ms, 25.0% above the bound of 0.000080 ms\n"), "{report}");
    assert!(report.contains("\n     0          3       0.000020    0.000020    0.000000"), "{report}");
}

#[test]
fn the_search_writes_the_best_plan() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("best.csv");
    let flags = format!("--stages 4 --micro-batches 6 --memory-per-forward 1 --memory-limit 4 {PAPERS_COSTS}");
    let found = json(&format!("search {flags} --json --csv {}", path.display()));
    let step = |report: &Value| report["step_ms"].as_f64().unwrap();
    assert!(found["bound_ms"].as_f64().unwrap() <= step(&found));
    assert!(step(&found) <= step(&json(&format!("simulate --stages 4 --micro-batches 6 {PAPERS_COSTS} --json"))));
    // The plan completes at the reported capacity.
    let capacity = found["capacity"].as_u64().unwrap();
    text(&format!("check {} --capacity {capacity}", path.display()));
    // The same flags give a plan from a file the same costs: its stages share the costs of their worker.
    let workers = fs::read_to_string(&path).unwrap().lines().count();
    assert_eq!((found["schedule"].as_str(), workers), (Some("zb-v"), 4));
    let simulated = |costs: &str| json(&format!("simulate --plan {} {costs} --json", path.display()));
    assert_eq!(step(&simulated(PAPERS_COSTS)), step(&found));
    let eighths = |cost: &str| [cost; 8].join(",");
    let [forward, input, weight] = ["9.261", "9.043", "4.6685"].map(eighths);
    let each = format!("--forward {forward} --input-grad {input} --weight-grad {weight} --transfer 0.601");
    assert_eq!(step(&simulated(&each)), step(&found));
    let report = simulated(&format!("{PAPERS_COSTS} --memory-per-forward 1"));
    assert_eq!(report["peak_bytes"], found["peak_bytes"]);
}

/// Tests plans whose workers have unequal numbers of stages. A single cost is that of a worker, and a list of P entries
/// is rejected.
#[test]
fn stages_of_a_plan_from_a_file_share_the_costs_of_their_worker() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("uneven.csv");
    fs::write(&path, "0F0,2F0,2B0,0B0\n1F0,1B0\n").unwrap();
    let simulate = format!("simulate --plan {} --json", path.display());
    let report = json(&format!("{simulate} --forward 2 --backward 4 --memory-per-forward 2"));
    assert_eq!(report["step_ms"].as_f64(), Some(2.0 * (2.0 + 4.0)));
    assert_eq!(report["peak_bytes"], serde_json::json!([2.0, 2.0]));
    assert_eq!(json(&format!("{simulate} --forward 1,2,4 --backward 0"))["step_ms"].as_f64(), Some(7.0));
    let message = error(&format!("{simulate} --forward 1,2"));
    let expected = "--forward has 2 entries; for 2 workers with 3 stages in all, give a list of 1 or 3, because a list of as \
                    many entries as workers needs equally many stages on each";
    assert!(message.contains(expected), "{message}");
}

/// Tests latencies in a plan whose workers do not have the stages in order. Each is that of a sending worker: worker 2
/// sends the activations of stage 0, worker 1 the gradients of stage 2, and worker 0 both that stage 1 sends.
#[test]
fn latencies_are_those_of_the_sending_workers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("permuted.csv");
    fs::write(&path, "1F0,1B0\n2F0,2B0\n0F0,0B0\n").unwrap();
    let flags = "--forward 3 --backward 6 --transfer 1,10,100 --json";
    let report = json(&format!("simulate --plan {} {flags}", path.display()));
    assert_eq!(report["step_ms"].as_f64(), Some(3.0 * (3.0 + 6.0) + 100.0 + 10.0 + 1.0 + 1.0));
}

/// Tests lists of bandwidths with one entry per worker, in a V of four workers. They are those of the links between
/// neighbouring workers, so each of the two passes of the slow link by each micro-batch takes 8 ms in each direction.
#[test]
fn bandwidths_are_those_of_links_between_workers() {
    let step = |flags: &str| {
        let simulate =
            "simulate --schedule zb-v --stages 4 --micro-batches 1 --forward 2 --input-grad 2 --weight-grad 0";
        json(&format!("{simulate} --json {flags}"))["step_ms"].as_f64().unwrap()
    };
    let work = 4.0 * (2.0 + 2.0);
    assert!((step("--bytes 8e6 --bandwidth 1e9,1,1e9,1e9") - (work + 4.0 * 8.0)).abs() < 1e-3);
    assert!((step("--bytes 8e6 --bandwidth 1e9,1e9,1,1e9") - (work + 4.0 * 8.0)).abs() < 1e-3);
    // The last worker has both middle stages, and no link back to the first.
    assert!((step("--bytes 8e6 --bandwidth 1e9,1e9,1e9,1") - work).abs() < 1e-3);
    // Worker 1 sends two activations and two gradients.
    assert_eq!(step("--transfer 0,3,0,0"), work + 4.0 * 3.0);
    let interleaved = "simulate --schedule interleaved --stages 4 --micro-batches 4 --forward 2 --backward 0 --json";
    let last_to_first = json(&format!("{interleaved} --bytes 8e6 --bandwidth 1e9,1e9,1e9,1"))["step_ms"].as_f64();
    // The last worker has its first forward at 3-4 and sends four activations to the first, and gets gradients back.
    assert!(last_to_first.unwrap() > 4.0 + 2.0 * 4.0 * 8.0, "{last_to_first:?}");
}

#[test]
fn a_plan_from_a_file_is_checked() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, csv: &str| {
        let path = directory.path().join(name);
        fs::write(&path, csv).unwrap();
        path.display().to_string()
    };
    let good = write("good.csv", "0F0,0F1,,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n");
    let accepted = "accepted at channel capacity 1 (the least is 1): 2 workers, 2 stages, 2 micro-batches, at most 2 live on a worker\n";
    assert_eq!(text(&format!("check {good} --capacity 1")), accepted);
    assert!(error(&format!("check {good} --capacity 1 --live 1")).contains("would hold 2 live micro-batches at 0F1"));
    assert!(error(&format!("check {good} --capacity 0")).contains("raise the channel capacity to 1"));
    let damaged = write("damaged.csv", "0F0,0B0\n1F0,1Q0\n");
    assert!(error(&format!("check {damaged}")).contains("damaged.csv: row 2, column 2: `1Q0` is not an action"));
    let missing = write("missing.csv", "0F0,0B0\n1F0\n");
    let message = error(&format!("check {missing}"));
    assert!(message.contains("1B0 is missing\n  worker 1: [1F0]"), "{message}");
    assert!(error("check no/such/file.csv").contains("cannot read no/such/file.csv"));
}

#[test]
fn a_closed_pipe_is_no_error() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stageline"));
    let arguments = ["plan", "--stages", "200", "--micro-batches", "300"];
    let mut plan = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(plan.stdout.take());
    let output = plan.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Tests a command whose standard output, or also its standard error, is a full disk.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_the_output_is_an_error() {
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let plan = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stageline"));
        command.args(["plan", "--stages", "2", "--micro-batches", "2"]).stdout(full());
        command
    };
    let output = plan().output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.starts_with("error: cannot write to the standard output: "), "{message}");
    let codes = [output.status, plan().stderr(full()).status().unwrap()].map(|status| status.code());
    assert_eq!(codes, [Some(1), Some(1)]);
}

#[test]
fn a_plan_is_read_from_the_standard_input() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stageline"));
    let mut check = command.args(["check", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    check.stdin.take().unwrap().write_all(b"0F0,0B0\n").unwrap();
    let output = check.wait_with_output().unwrap();
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .starts_with("accepted at channel capacity 1 (the least is 0): 1 workers")
    );
}

/// Tests that the simulations shown in the book (the documentation in `docs/book`) are what `stageline simulate`
/// prints.
#[test]
fn the_book_has_the_output_of_its_simulations() {
    let figure = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/src/figures/simulated.md");
    let figure = fs::read_to_string(figure).unwrap();
    let samples: Vec<_> = figure.split("```text\n$ stageline ").skip(1).map(|rest| rest.split("```").next()).collect();
    for sample in samples.iter().flatten() {
        let (arguments, printed) = sample.split_once('\n').unwrap();
        assert_eq!(text(arguments), printed, "run `python3 scripts/book.py simulated`");
    }
    assert_eq!(samples.len(), 2);
}

#[test]
fn impossible_plans_are_rejected_with_the_reason() {
    assert!(error("plan --schedule 2f2b --stages 2 --micro-batches 2").contains("there is no schedule `2f2b`"));
    assert!(
        error("plan --schedule zb-v --chunks 3 --stages 2 --micro-batches 2").contains("zb-v has 2 chunks per worker")
    );
    assert!(error("plan --schedule interleaved --stages 4 --micro-batches 6").contains("ask for 4 or 8 micro-batches"));
    assert!(error("plan --stages 0 --micro-batches 2").contains("0 stages"));
    assert!(
        error("plan --schedule interleaved --chunks 0 --stages 2 --micro-batches 2").contains("0 chunks per worker")
    );
    assert!(error("search --stages 0 --micro-batches 2").contains("0 stages"));
    assert!(error("search --stages 18446744073709551615 --micro-batches 1").contains("ask for fewer"));
    assert!(error("search --stages 2 --micro-batches 18446744073709551615").contains("ask for fewer"));
    for size in ["--stages 1000 --micro-batches 1000", "--stages 1001 --micro-batches 1"] {
        let expected = "is too long: the limits are 1000 workers and a product of 300000";
        assert!(error(&format!("search {size}")).contains(expected), "{size}");
    }
    assert!(error("plan --stages 1000 --micro-batches 200 --svg -").contains("too many for a picture"));
    assert!(error("plan --stages 99999999 --micro-batches 99999999").contains("ask for fewer"));
    assert!(error("simulate --stages 2").contains("--micro-batches"));
    assert_eq!(text("plan --schedule interleaved --chunks 3 --stages 2 --micro-batches 2 --csv").lines().count(), 2);
}
