//! Tests what `stageline advise` prints about network links and hosts, for the logs of runs with four stages.

use crate::logs::{log_of_four, write};
use crate::{error, json, text};

#[test]
fn advise_judges_the_links_and_splits_hosts_for_the_shortest_step() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| write(folder.path(), name, &text);
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
        ["the best partition over these hosts:", "stage 0: block 0 to block 1", "stage 1: block 2 to block 3"]
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
