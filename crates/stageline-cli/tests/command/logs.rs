//! Makes the logs of made-up runs for tests of the command.

use std::fs;
use std::path::Path;

use crate::text;

/// The log of a made-up run of two equal stages, each of which takes a second for the forward of a micro-batch.
pub const LOG: &str = r#"{"stageline":"0.1.0","schedule":"1f1b","plan":"0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n","channel_capacity":2,"layers":[{"name":"front","stage":0,"weight":1,"parameters":5},{"name":"back","stage":1,"weight":1,"parameters":5}],"tokens_per_micro_batch":10,"configuration":{"seed":1}}
{"step":0,"loss":2.0,"weight":20,"tokens_per_s":2,"step_seconds":9.0,"bubble":0.3333,"bubble_ideal":0.3333,"bubble_simulated":0.3333,"learning_rate":0.1,"gradient_norm":1,"clipped":false,"loss_scale":1,"workers":[{"busy":6,"fill":1,"drain":2,"imbalance":0,"transfer":0,"flush":0,"other":0},{"busy":6,"fill":1,"drain":2,"imbalance":0,"transfer":0,"flush":0,"other":0}],"stages":[{"forward":1,"backward":2,"send_activation":0,"send_gradient":0,"flush":0},{"forward":1,"backward":2,"send_activation":0,"send_gradient":0,"flush":0}]}
{"final":true}
"#;

pub fn log_of_four(links: &str) -> String {
    log_of_equal(4, links)
}

/// Makes the log of a made-up run with `workers` workers of one stage each and two micro-batches. The forward of a
/// micro-batch takes a second in every stage. `links` has the network links of the workers, as JSON. Stages send 4 GB
/// and 1 GB in turn for each micro-batch.
pub fn log_of_equal(workers: usize, links: &str) -> String {
    let plan = text(&format!("plan --stages {workers} --micro-batches 2 --csv")).replace('\n', "\\n");
    let each = |entry: &dyn Fn(usize) -> String| (0..workers).map(entry).collect::<Vec<_>>().join(",");
    let layers = each(&|stage| format!(r#"{{"name":"block {stage}","stage":{stage},"weight":1,"parameters":5}}"#));
    let stages = each(&|stage| {
        let bytes = if stage + 1 == workers { "null" } else { ["4e9", "1e9"][stage % 2] };
        format!(
            r#"{{"forward":1,"backward":2,"send_activation":0,"send_gradient":0,"flush":0,"output_bytes":{bytes}}}"#
        )
    });
    let worker = r#"{"busy":6,"fill":3,"drain":6,"imbalance":0,"transfer":0,"flush":0,"other":0}"#;
    let of_workers = each(&|_| worker.to_owned());
    // The step of 1F1B takes M + P - 1 = P + 1 forwards and backwards, and its bubble is (P - 1) / (P + 1).
    let (step, bubble) = (3 * (workers + 1), (workers - 1) as f64 / (workers + 1) as f64);
    format!(
        r#"{{"stageline":"0.1.0","schedule":"1f1b","plan":"{plan}","channel_capacity":2,"layers":[{layers}],{links}"tokens_per_micro_batch":10,"configuration":{{}}}}
{{"step":0,"loss":2.0,"weight":20,"tokens_per_s":2,"step_seconds":{step},"bubble":{bubble},"bubble_ideal":{bubble},"bubble_simulated":{bubble},"learning_rate":0.1,"gradient_norm":1,"clipped":false,"loss_scale":1,"workers":[{of_workers}],"stages":[{stages}]}}
"#
    )
}

/// Makes the log of the made-up run in [`LOG`] with five steps, each of which measured a gradient noise scale of
/// `scale` tokens.
pub fn noisy(scale: u32) -> String {
    let lines: Vec<_> = LOG.lines().collect();
    let noise = format!(
        r#""noise":{{"scale":1,"smoothed_scale":1,"total":{{"squared_norm":2,"variance":{}}},"stages":[]}}"#,
        2 * scale
    );
    let steps = (0..5).map(|step| {
        let step = lines[1].replace("\"step\":0", &format!("\"step\":{step}"));
        step.replace("\"loss_scale\":1", &format!("\"loss_scale\":1,{noise}")) + "\n"
    });
    [lines[0], "\n"].into_iter().map(str::to_owned).chain(steps).collect()
}

/// Returns the log of a made-up run as if its plan had been searched or read from a file: the name of its schedule
/// becomes `plan`.
pub fn searched(log: &str) -> String {
    log.replace(r#""schedule":"1f1b""#, r#""schedule":"plan""#)
}

/// Returns the log of a made-up run as if the user had cut its model into stages by hand.
pub fn by_hand(log: &str) -> String {
    log.replace(r#""tokens_per_micro_batch""#, r#""cut_by_hand":true,"tokens_per_micro_batch""#)
}

pub fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.display().to_string()
}
