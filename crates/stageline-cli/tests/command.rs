//! The `stageline` command, run as users run it.

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn stageline(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_stageline")).args(arguments.split_whitespace()).output().unwrap()
}

fn text(arguments: &str) -> String {
    let output = stageline(arguments);
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &str) -> Value {
    serde_json::from_str(&text(arguments)).unwrap()
}

fn error(arguments: &str) -> String {
    let output = stageline(arguments);
    assert!(!output.status.success(), "{arguments} was accepted");
    String::from_utf8(output.stderr).unwrap()
}

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
fn a_plan_is_drawn_as_svg() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("plan.svg");
    assert_eq!(text(&format!("plan --schedule zb-v --stages 4 --micro-batches 8 --svg {}", path.display())), "");
    let svg = fs::read_to_string(path).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains("<title>7W7</title>"), "{svg}");
}

/// Compares the printed bubbles with those of the Zero Bubble paper (arXiv:2401.10241) for 8 workers and 24
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
    assert!(error("simulate --stages 2 --micro-batches 2 --bytes 1 --bandwidth 0").contains("must be at least"));
    let message = error("simulate --stages 4 --micro-batches 4 --forward 1,2");
    assert!(
        message.contains("--forward has 2 entries; for 4 stages in 1 chunks each give a list of 1 or 4"),
        "{message}"
    );
    assert!(error("simulate --stages 4 --micro-batches 4 --forward=-1").contains("must be from 0 to 1e15"));
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
    // In a plan from a file, stages are those that the actions name: in a V of 8 each takes half.
    let workers = fs::read_to_string(&path).unwrap().lines().count();
    assert_eq!((found["schedule"].as_str(), workers), (Some("zb-v"), 4));
    let halves = "--forward 9.261 --input-grad 9.043 --weight-grad 4.6685 --transfer 0.601";
    assert_eq!(step(&json(&format!("simulate --plan {} {halves} --json", path.display()))), step(&found));
}

/// Tests a search with the costs of a log, whose stages take a second for a forward and two for a backward; the best
/// plan splits the backwards.
#[test]
fn the_search_takes_the_costs_of_a_log() {
    let folder = tempfile::tempdir().unwrap();
    let [log, csv] = ["run.jsonl", "plan.csv"].map(|name| folder.path().join(name));
    fs::write(&log, LOG).unwrap();
    let flags = "--forward 1000 --input-grad 1000 --weight-grad 1000";
    let by_flags = text(&format!("search --stages 2 --micro-batches 4 {flags}"));
    let by_log = text(&format!("search --stages 2 --micro-batches 4 --from {} --csv {}", log.display(), csv.display()));
    assert_eq!(by_log, by_flags);
    assert!(text(&format!("check {}", csv.display())).starts_with("accepted"));
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

#[test]
fn impossible_plans_are_rejected_with_the_reason() {
    assert!(error("plan --schedule 2f2b --stages 2 --micro-batches 2").contains("there is no schedule `2f2b`"));
    assert!(
        error("plan --schedule zb-v --chunks 3 --stages 2 --micro-batches 2").contains("zb-v has 2 chunks a worker")
    );
    assert!(error("plan --schedule interleaved --stages 4 --micro-batches 6").contains("ask for 4 or 8 micro-batches"));
    assert!(error("plan --stages 0 --micro-batches 2").contains("0 stages"));
    assert!(error("search --stages 0 --micro-batches 2").contains("0 stages"));
    assert!(error("search --stages 18446744073709551615 --micro-batches 1").contains("ask for fewer"));
    assert!(error("search --stages 2 --micro-batches 18446744073709551615").contains("ask for fewer"));
    assert!(error("plan --stages 1000 --micro-batches 200 --svg -").contains("too many for a picture"));
    assert!(error("plan --stages 99999999 --micro-batches 99999999").contains("ask for fewer"));
    assert!(error("simulate --stages 2").contains("--micro-batches"));
    assert_eq!(text("plan --schedule interleaved --chunks 3 --stages 2 --micro-batches 2 --csv").lines().count(), 2);
}

/// The log of a run of two equal stages, each of which takes a second for the forward of a micro-batch.
const LOG: &str = r#"{"stageline":"0.1.0","schedule":"1f1b","plan":"0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n","channel_capacity":2,"layers":[{"name":"front","stage":0,"weight":1,"parameters":5},{"name":"back","stage":1,"weight":1,"parameters":5}],"tokens_per_micro_batch":10,"configuration":{"seed":1}}
{"step":0,"loss":2.0,"weight":20,"tokens_per_s":2,"step_seconds":9.0,"bubble":0.3333,"bubble_ideal":0.3333,"bubble_simulated":0.3333,"learning_rate":0.1,"gradient_norm":1,"clipped":false,"loss_scale":1,"workers":[{"busy":6,"fill":1,"drain":2,"imbalance":0,"transfer":0,"flush":0,"other":0},{"busy":6,"fill":1,"drain":2,"imbalance":0,"transfer":0,"flush":0,"other":0}],"stages":[{"forward":1,"backward":2,"send_activation":0,"send_gradient":0,"flush":0},{"forward":1,"backward":2,"send_activation":0,"send_gradient":0,"flush":0}]}
{"final":true}
"#;

#[test]
fn predict_advise_and_page_read_the_log_of_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let (log, html) = (folder.path().join("run.jsonl"), folder.path().join("run.html"));
    fs::write(&log, LOG).unwrap();
    let (log, html) = (log.display(), html.display());

    // The step takes (M + P - 1) (F + B), and the bubble is (P - 1) / (M + P - 1).
    let predicted = json(&format!("predict --from {log} --micro-batches 8 --json"));
    assert_eq!((predicted["step_seconds"].as_f64(), predicted["own_step_error"].as_f64()), (Some(27.0), Some(0.0)));
    assert!((predicted["bubble"].as_f64().unwrap() - 1.0 / 9.0).abs() < 1e-12);
    assert_eq!(predicted["layers"], serde_json::json!([["front"], ["back"]]));
    assert!(text(&format!("predict --from {log}")).contains("the run itself is simulated 0.0% off"));

    let advice = text(&format!("advise --from {log} --bubble 0.2"));
    assert!(advice.starts_with("M = 4 is the smallest with a bubble of at most 20.0% under 1f1b at P = 2"), "{advice}");
    assert!(advice.contains("main cause of idle time: filling and draining the pipeline"), "{advice}");
    assert!(advice.contains("as flags of a training: --stages 2 --cut 0,1\n"), "{advice}");

    // Without noise in the log there is no table; with it, the training to the same loss takes a number of steps in
    // proportion to 1 + 40 / B. A step takes (M + 1) x 3 s, for a batch of 10 M tokens.
    assert!(advice.contains("the log has no gradient noise"), "{advice}");
    let noisy = folder.path().join("noisy.jsonl");
    let noise = r#""noise":{"scale":1,"smoothed_scale":40,"total":{"squared_norm":1,"variance":40},"stages":[]}"#;
    fs::write(&noisy, LOG.replace("\"loss_scale\":1", &format!("\"loss_scale\":1,{noise}"))).unwrap();
    let advice = text(&format!("advise --from {}", noisy.display()));
    let seconds = |m: f64| 3.0 * (m + 1.0) * (1.0 + 40.0 / (10.0 * m)) / (1.0 + 40.0 / 20.0);
    for m in [1.0_f64, 2.0, 4.0, 16.0] {
        let row = advice.lines().find(|line| line.starts_with(&format!("{m:>5} "))).unwrap();
        assert!(row.ends_with(&format!(" {:.1} s", seconds(m))), "{row}");
    }
    assert!(advice.lines().any(|line| line.starts_with("  256 ") && line.ends_with(" 4.4 min")), "{advice}");
    assert!(
        advice.contains(
            "M = 2 is the largest whose training takes at most 10% more than the shortest, which has M = 2: "
        ),
        "{advice}"
    );

    let unknown = error(&format!("advise --from {log} --bandwidth 1"));
    assert!(unknown.contains("does not say how many bytes cross between stages"), "{unknown}");
    let crossing = folder.path().join("crossing.jsonl");
    fs::write(&crossing, LOG.replace("\"send_activation\":0", "\"send_activation\":0,\"output_bytes\":2e9")).unwrap();
    let crossing = crossing.display();
    let advice = text(&format!("advise --from {crossing} --bandwidth 100 --latency 5"));
    assert!(
        advice.contains("0 to 1    100.0000    5.000 ms     2000.000       50.000 ms     3000.000 ms  33.7%, fast"),
        "{advice}"
    );
    assert!(advice.contains("%, fast enough\nno links ") && !advice.contains("too slow"), "{advice}");
    let advice = text(&format!("advise --from {crossing} --bandwidth 2"));
    assert!(advice.contains("too slow for this split") && advice.contains("over these links zb-h1 has"), "{advice}");
    // The micro-batch takes F, a second on the link, F and B, a second back, and B.
    let linked = json(&format!("predict --from {crossing} --bandwidth 2 --micro-batches 1 --json"));
    assert_eq!(linked["step_seconds"].as_f64(), Some(1.0 + 1.0 + 3.0 + 1.0 + 2.0));
    assert!(error(&format!("advise --from {crossing} --latency 5")).contains("--bandwidth"));

    text(&format!("page --from {log} --html {html}"));
    let page = fs::read_to_string(folder.path().join("run.html")).unwrap();
    assert!(page.contains("<td>front</td>") && page.contains("<td>seed</td>"));
    let refused = error(&format!("predict --from {log} --stages 3"));
    assert!(refused.contains("2 layers cannot be cut into 3 stages"), "{refused}");
}

/// Makes the log of a run of four equal stages, which take a second for a forward, with two micro-batches and the given
/// network links. The boundaries between the stages carry 4, 1 and 4 GB for each micro-batch.
fn log_of_four(links: &str) -> String {
    let plan = text("plan --stages 4 --micro-batches 2 --csv").replace('\n', "\\n");
    let each = |entry: &dyn Fn(usize) -> String| (0..4).map(entry).collect::<Vec<_>>().join(",");
    let layers = each(&|stage| format!(r#"{{"name":"block {stage}","stage":{stage},"weight":1,"parameters":5}}"#));
    let stages = each(&|stage| {
        let bytes = ["4e9", "1e9", "4e9", "null"][stage];
        format!(
            r#"{{"forward":1,"backward":2,"send_activation":0,"send_gradient":0,"flush":0,"output_bytes":{bytes}}}"#
        )
    });
    let worker = r#"{"busy":6,"fill":3,"drain":6,"imbalance":0,"transfer":0,"flush":0,"other":0}"#;
    let workers = each(&|_| worker.to_owned());
    format!(
        r#"{{"stageline":"0.1.0","schedule":"1f1b","plan":"{plan}","channel_capacity":2,"layers":[{layers}],{links}"tokens_per_micro_batch":10,"configuration":{{}}}}
{{"step":0,"loss":2.0,"weight":20,"tokens_per_s":2,"step_seconds":15.0,"bubble":0.6,"bubble_ideal":0.6,"bubble_simulated":0.6,"learning_rate":0.1,"gradient_norm":1,"clipped":false,"loss_scale":1,"workers":[{workers}],"stages":[{stages}]}}
"#
    )
}

#[test]
fn advise_judges_the_links_and_splits_hosts_for_the_shortest_step() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let log = write("run.jsonl", log_of_four(r#""links":[null,{"latency":0.25,"bandwidth":1e9},null],"#));
    // The step takes (M + P - 1) (F + B), of which M (F + B) are busy, and crosses the link once forward and once back.
    let (without, with) = (100.0 * (1.0 - 6.0 / 15.0), 100.0 * (1.0 - 6.0 / 17.5));
    let verdict = format!("{with:.1}%, too slow for this split: {:.1}% of the stage time\n", with - without);
    let row = "1 to 2      1.0000  250.000 ms     1000.000     2500.000 ms     3000.000 ms  ";
    let advice = text(&format!("advise --from {log}"));
    assert!(
        advice.contains(&format!("{row}{verdict}{:<77}{verdict}{:<77}{without:.1}%\n", "all links", "no links")),
        "{advice}"
    );
    let predicted = json(&format!("predict --from {log} --json"));
    assert_eq!(predicted["step_seconds"].as_f64(), Some(17.5));
    // A given link replaces those of the run.
    let fast = text(&format!("advise --from {log} --bandwidth 1000"));
    assert!(fast.contains("\n0 to 1 ") && fast.contains("\n2 to 3 ") && !fast.contains("too slow"), "{fast}");

    // The step takes F, 1.25 s on the link, (F + B) of both micro-batches, 1.25 s back, and B, with two layers a stage.
    let advice = text(&format!("advise --from {log} --hosts 1,1"));
    let rows: Vec<_> = advice.lines().skip_while(|line| !line.starts_with("hosts split after")).collect();
    assert_eq!(rows[1], "block 1               1000.000     6000.000 ms  20500.000 ms   41.5%", "{advice}");
    assert!(rows[2].contains(" 4000.000 ") && rows[3].contains(" 4000.000 "), "{advice}");
    assert_eq!(
        rows[4..7],
        ["the best partition over these hosts:", "stage 0: block 0, block 1", "stage 1: block 2, block 3"]
    );

    let same = write("same.jsonl", log_of_four("").replace("4e9", "1e9"));
    assert!(
        error(&format!("advise --from {same} --hosts 1,1")).contains("give the link between hosts with --bandwidth")
    );
    let advice = text(&format!("advise --from {same} --hosts 1,1 --bandwidth 1 --latency 250"));
    assert!(
        advice.contains("all of these boundaries carry the same bytes, so only the balance decides\nthe best"),
        "{advice}"
    );
    let advice = text(&format!("advise --from {same} --hosts 2,2 --bandwidth 1"));
    assert!(advice.contains("the run has no other boundary at which these hosts could split"), "{advice}");
    assert!(error(&format!("advise --from {same} --hosts 4 --bandwidth 1")).contains("hosts of [4] workers"));
    assert!(
        error(&format!("advise --from {same} --hosts 4,4 --bandwidth 1")).contains("cannot be separated at boundaries")
    );
}
